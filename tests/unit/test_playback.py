"""Sinks: files byte for byte, players through a stand-in program on PATH."""

from __future__ import annotations

import stat
import wave
from pathlib import Path

import pytest

from shoal.realtime import playback

PCM = bytes(range(256)) * 40


def stand_in(folder: Path, name: str, script: str) -> None:
    program = folder / name
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IEXEC)


@pytest.fixture
def only_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with nothing on it but what the test puts there, and no sounddevice."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(__import__("sys").modules, "sounddevice", None)
    return tmp_path


def test_a_wav_file_holds_exactly_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "out.wav"
    with playback.open_sink(path, 24_000) as sink:
        sink.write(PCM[:100])
        sink.write(PCM[100:])
    with wave.open(str(path)) as written:
        assert (written.getnchannels(), written.getsampwidth()) == (1, 2)
        assert written.getframerate() == 24_000
        assert written.readframes(written.getnframes()) == PCM


def test_a_path_that_cannot_be_written_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="nowhere"):
        playback.open_sink(tmp_path / "nowhere" / "out.wav", 24_000)


def test_a_player_gets_every_byte_and_the_rate(only_path: Path) -> None:
    stand_in(only_path, "aplay", f'echo "$@" > {only_path}/flags; /bin/cat > {only_path}/heard')
    assert playback.sound_output() == "aplay"
    with playback.open_sink(None, 22_050) as sink:
        sink.write(PCM)
        sink.write(PCM)
    assert (only_path / "heard").read_bytes() == PCM + PCM
    assert "-r 22050" in (only_path / "flags").read_text()


def test_the_first_player_that_is_there_plays(only_path: Path) -> None:
    stand_in(only_path, "ffplay", "exit 0")
    stand_in(only_path, "paplay", "exit 0")
    assert playback.sound_output() == "paplay"


def test_a_player_that_fails_is_reported_in_its_own_words(only_path: Path) -> None:
    stand_in(only_path, "aplay", "/bin/cat > /dev/null; echo 'no card' >&2; exit 1")
    with pytest.raises(playback.NoSoundOutput, match="aplay failed: no card"):
        with playback.open_sink(None, 24_000) as sink:
            sink.write(PCM)


def test_a_player_that_dies_at_once_is_reported_too(only_path: Path) -> None:
    stand_in(only_path, "aplay", "echo 'device busy' >&2; exit 1")
    with pytest.raises(playback.NoSoundOutput, match="device busy"):
        with playback.open_sink(None, 24_000) as sink:
            for _ in range(200):
                sink.write(PCM)


def test_an_interrupted_player_is_killed_and_the_interrupt_goes_on(only_path: Path) -> None:
    stand_in(only_path, "aplay", "while :; do :; done")
    with pytest.raises(KeyboardInterrupt), playback.open_sink(None, 24_000) as sink:
        sink.write(PCM)
        raise KeyboardInterrupt


def test_without_any_player_the_message_says_what_to_do(only_path: Path) -> None:
    assert playback.sound_output() is None
    with pytest.raises(playback.NoSoundOutput, match=r"-o out\.wav"):
        playback.open_sink(None, 24_000)
