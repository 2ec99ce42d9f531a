"""From what was seen on the wire to figures: pure, no clock, no sockets, no asyncio."""
