"""What will be said, by whom and when: seeded and pure, no clock, no sockets."""
