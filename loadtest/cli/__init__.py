"""``shoal load``: arguments in, exit code out."""
