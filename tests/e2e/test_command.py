"""``shoal serve`` and ``shoal say`` as processes, with a fake engine behind them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.engine.fake_tone import tone
from shoal.loadtest.own_server import NoServer, own_server
from shoal.realtime.say import SayError, say_remote

COMMAND = (sys.executable, "-P", "-m", "shoal.realtime")
RATE = 44_100


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with own_server("--engine", "fake", "--api-key", "secret") as url:
        yield url


def shoal(*words: str | Path, text: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([*COMMAND, *map(str, words)], input=text, capture_output=True, timeout=60)


def seconds(path: Path) -> float:
    with wave.open(str(path)) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, RATE)
        return file.getnframes() / RATE


def tone_s(text: str) -> float:
    return len(tone(text, "", 0, 24_000, 1_200)) / 2 / 24_000


def test_a_text_becomes_a_file(address: str, tmp_path: Path) -> None:
    out = tmp_path / "out.wav"
    done = shoal("say", "Hello there.", "--url", address, "--api-key", "secret", "-o", out)
    assert done.returncode == 0, done.stderr
    assert b"TTFA " in done.stderr and b"real-time factor" in done.stderr
    assert done.stdout == b""
    assert seconds(out) == pytest.approx(tone_s("Hello there."), abs=0.01)


def test_a_pipe_is_spoken_to_its_end(address: str, tmp_path: Path) -> None:
    out = tmp_path / "out.wav"
    words = ("say", "-", "--url", address, "--api-key", "secret", "-o", out)
    done = shoal(*words, text="Grüße. Two.".encode())
    assert done.returncode == 0, done.stderr
    whole_s = tone_s("Grüße.") + tone_s("Two.")
    assert seconds(out) == pytest.approx(whole_s, abs=0.01)


def test_a_pipe_is_spoken_while_it_is_still_open(address: str, tmp_path: Path) -> None:
    out = tmp_path / "out.wav"
    process = subprocess.Popen(
        [*COMMAND, "say", "-", "--url", address, "--api-key", "secret", "-o", str(out)],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None
    process.stdin.write(b"The first sentence is here. And the ")
    process.stdin.flush()
    deadline_s = time.monotonic() + 20
    while not (out.exists() and out.stat().st_size > 10_000):
        assert time.monotonic() < deadline_s, "nothing was spoken before the end of the text"
        time.sleep(0.02)
    _, errors = process.communicate(b"second one.", timeout=30)
    assert process.returncode == 0, errors


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ((), b"HTTP 401: give --api-key"),
        (("--api-key", "wrong"), b"HTTP 401"),
        (("--api-key", "secret", "--voice", "nobody"), b"eference not found"),
    ],
)
def test_a_refusal_is_one_line(
    address: str, tmp_path: Path, flags: tuple[str, ...], message: bytes
) -> None:
    out = tmp_path / "out.wav"
    done = shoal("say", "Hello.", "--url", address, "-o", out, *flags)
    assert done.returncode == 1
    assert message in done.stderr
    assert done.stderr.startswith(b"shoal: ") and done.stderr.count(b"\n") == 1
    assert not out.exists()


def test_a_server_that_fails_in_the_middle_is_reported(shared: Any, tmp_path: Path) -> None:
    def sink(_rate: int) -> Any:
        raise AssertionError("nothing was to be heard")

    with pytest.raises(SayError, match="the server gave up"):
        say_remote(shared.http, ["boom."], sink)


def test_a_server_that_serves_no_such_thing_is_reported(shared: Any) -> None:
    with pytest.raises(SayError, match=r"answered with HTTP 40[34]"):
        say_remote(f"{shared.http}/elsewhere", ["Hello."], lambda _rate: None)  # type: ignore


def test_the_server_says_where_it_is_and_ends_well_on_a_signal(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*COMMAND, "serve", "--engine", "fake", "--port", "0"], stdout=out, stderr=out
        )
        deadline_s = time.monotonic() + 30
        while b"try: " not in log.read_bytes():
            assert process.poll() is None and time.monotonic() < deadline_s, log.read_text()
            time.sleep(0.02)
        process.terminate()
        assert process.wait(20) == 0, log.read_text()
    said = log.read_text()
    assert "shoal speaks at http://127.0.0.1:" in said
    assert ' say "Hello from shoal." --url http://127.0.0.1:' in said
    assert "Traceback" not in said and "leaked" not in said


def test_a_server_that_cannot_start_is_quoted() -> None:
    with pytest.raises(NoServer, match="/nowhere"), own_server("--model", "/nowhere"):
        pass


def test_it_needs_no_settings_of_the_user(tmp_path: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "voice", "list"],
        env={"PATH": os.defpath, "HOME": str(tmp_path)},
        capture_output=True,
        timeout=30,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
