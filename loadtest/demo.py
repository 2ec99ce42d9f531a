"""``make demo``: one sentence through the WebSocket into a file, with the figures that matter.

Uses the server that is up at ``--url``, else starts one of its own on a free port.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import wave
from contextlib import ExitStack
from pathlib import Path

from shoal.loadtest.plan.voices import Voice
from shoal.loadtest.targets.target import TurnOver

from .one_turn import Take, take_turn, target
from .own_server import NoServer, is_ready, own_server

SENTENCE = "Hello, this is shoal, an open voice server that answers while you are still typing."


async def speak(url: str, text: str, voice: str, api_key: str) -> Take:
    connection = await target(url, api_key).connect(Voice())
    try:
        return await take_turn(connection, text, voice=Voice(voice_id=voice))
    finally:
        await connection.close()


def write_wav(path: Path, take: Take) -> None:
    with wave.open(str(path), "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(take.rate)
        out.writeframes(take.pcm)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8080", help="a server that may be up")
    parser.add_argument("--text", default=SENTENCE)
    parser.add_argument("--voice", default="")
    parser.add_argument("--api-key", default="")
    parser.add_argument("-o", "--out", type=Path, default=Path("out.wav"))
    flags = parser.parse_args(argv)
    with ExitStack() as stack:
        try:
            url = flags.url.rstrip("/")
            if not is_ready(url):
                print(f"no server at {url}: starting one", file=sys.stderr)
                url = stack.enter_context(own_server())
            take = asyncio.run(speak(url, flags.text, flags.voice, flags.api_key))
        except (NoServer, TurnOver) as failure:
            print(f"demo: {failure}", file=sys.stderr)
            return 1
    if not take.pcm:
        print("demo: the server sent no audio", file=sys.stderr)
        return 1
    write_wav(flags.out, take)
    print(f"wrote            {flags.out}")
    print(f"first audio      {take.ttfa_s * 1000:.0f} ms after the text")
    print(f"audio            {take.audio_s:.2f} s")
    print(f"real-time factor {take.rtf:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
