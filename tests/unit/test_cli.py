"""The command line by itself: what it costs to start, what it refuses, and in which words."""

from __future__ import annotations

import resource
import socket
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from shoal.realtime import cli


@pytest.fixture(autouse=True)
def _apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting of the user's, and no voice of theirs either."""
    for name in ("MODEL", "DEVICE", "DTYPE", "SLOTS", "API_KEY"):
        monkeypatch.delenv(f"SHOAL_{name}", raising=False)
    monkeypatch.setenv("SHOAL_VOICES", str(tmp_path / "voices"))


def test_the_version_needs_no_torch_and_half_a_second() -> None:
    code = (
        "import sys\n"
        "from shoal.realtime.cli import main\n"
        "try:\n"
        "    main(['--version'])\n"
        "except SystemExit as end:\n"
        "    heavy = {'torch', 'numpy', 'websockets', 'starlette', 'asyncio'} & set(sys.modules)\n"
        "    sys.exit(f'imported {heavy}' if heavy else end.code)\n"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=60
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"shoal {metadata.version('shoal')}"
    # The processor's time: the machine may be busy with something else.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.5


def test_it_runs_as_a_module_too() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "shoal.realtime", "--version"],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.stdout.startswith("shoal ")


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["sing"],
        ["serve", "--port", "66000"],
        ["serve", "--port", "-1"],
        ["serve", "--slots", "0"],
        ["serve", "--device", "toaster"],
        ["serve", "--engine", "steam"],
        ["serve", "--kv-dtype", "fp4"],
        ["say"],
        ["say", "Hello.", "--local", "--url", "ws://x"],
        ["voice"],
        ["voice", "add", "ann", "ann.wav"],
        ["load"],
    ],
)
def test_a_wrong_command_line_is_two(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(words)
    assert end.value.code == 2
    assert "error: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["say", "  ", "-o", "x.wav"], 2, "nothing to say"),
        (["say", "Hi.", "--device", "cpu"], 2, "need --local"),
        (["say", "Hi.", "--kv-dtype", "fp8"], 2, "need --local"),
        (
            ["say", "Hi.", "--local", "--device", "cpu", "--kv-dtype", "fp8", "-o", "x.wav"],
            1,
            "kv-dtype fp8 takes a GPU",
        ),
        (["say", "Hi.", "--local", "-o", "/nowhere/x.wav"], 1, "/nowhere: no such folder"),
        (["say", "Hi.", "--local", "-o", "/"], 1, "/: is a folder"),
        (["say", "Hi.", "--url", "127.0.0.1:9", "-o", "x.wav"], 1, "start one with 'shoal serve'"),
        (["say", "Hi.", "--local", "--model", "/nowhere", "-o", "x.wav"], 1, "/nowhere"),
        (["serve", "--port", "0", "--model", "/nowhere"], 1, "/nowhere"),
        (["serve", "--port", "0", "--host", "no.such.host.invalid"], 1, "cannot listen"),
        (["voice", "add", "ann", "/nowhere.wav", "--text", "x"], 1, "/nowhere.wav: No such file"),
        (["voice", "add", "../ann", __file__, "--text", "x"], 1, "letters, digits"),
        (["voice", "add", "ann", __file__, "--text", "x"], 1, "audio"),
        (["voice", "remove", "ann"], 1, "no voice is called 'ann'"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    words: list[str],
    code: int,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(words) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("shoal: ") and err.count("\n") == 1
    assert message in err


def test_a_taken_port_is_found_before_the_model_is_loaded(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        assert cli.main(["serve", "--port", str(port), "--model", "/nowhere"]) == 1
    assert "another one with --port" in capsys.readouterr().err


def test_a_bad_setting_in_the_environment_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SHOAL_SLOTS", "many")
    assert cli.main(["serve", "--port", "0"]) == 1
    assert "SHOAL_SLOTS" in capsys.readouterr().err


def test_no_voices_are_an_empty_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["voice", "list"]) == 0
    assert capsys.readouterr().out == ""


def test_the_doctor_ends_with_one_when_something_needed_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["doctor", "--model", str(tmp_path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("MISSING")] == [
        line for line in lines if "config.json" in line
    ]


def test_the_doctor_is_content_with_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor"]) == 0
    found = capsys.readouterr().out
    for what in ("python:", "packages:", "gpu:", "libopus:", "built-in voice:", "sound:"):
        assert what in found
