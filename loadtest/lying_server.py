"""The stand-in as a program: ``python -P -m shoal.loadtest.lying_server --port 9000``.

Something to try the load tester on, with faults of known size. Prints its addresses and serves
until it is interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path
from typing import Any

from .stand_in.lie import End, Lie
from .stand_in.server import standing_in


def read_lies(path: Path) -> list[Lie]:
    """A JSON list of objects with the fields of :class:`Lie`; turns take them round and round."""
    lies: list[Lie] = []
    for entry in json.loads(path.read_text(encoding="utf-8")):
        fields: dict[str, Any] = dict(entry)
        if "end" in fields:
            fields["end"] = End(fields["end"])
        if "gaps_s" in fields:
            fields["gaps_s"] = {int(k): float(s) for k, s in fields["gaps_s"].items()}
        lies.append(Lie(**fields))
    return lies


async def _serve(lies: list[Lie], host: str, port: int, http_port: int, room: int) -> None:
    async with standing_in(lies, host, port, http_port, room) as server:
        print(f"{server.ws_url} (shoal, fish, elevenlabs, deepgram)", flush=True)
        print(f"{server.http_url} (openai)", flush=True)
        await asyncio.Event().wait()


def main() -> None:
    """Serve the lies of a file, or honest turns of a fixed delay."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--http-port", type=int, default=0)
    parser.add_argument("--room", type=int, default=1_000_000, help="sockets before a 429")
    parser.add_argument("--lies", type=Path, help="JSON list of turns; see loadtest/README.md")
    parser.add_argument("--delay-ms", type=float, default=50.0, help="first audio, without --lies")
    given = parser.parse_args()
    lies = read_lies(given.lies) if given.lies else [Lie(first_delay_s=given.delay_ms / 1000)]
    try:
        asyncio.run(_serve(lies, given.host, given.port, given.http_port, given.room))
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
