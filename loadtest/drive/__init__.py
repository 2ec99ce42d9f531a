"""Virtual users, arrival processes and worker processes: everything that does I/O to a target."""
