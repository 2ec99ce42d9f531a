"""A server that lies on purpose, to see whether the load tester notices. Speaks every dialect."""
