"""The command line: what arguments become, what is refused, and what importing it costs."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.loadtest.cli.settings import BadArguments, Job, job_of
from shoal.loadtest.command import add_arguments, run
from shoal.loadtest.drive.load import Mode
from shoal.loadtest.plan.voices import Voice
from shoal.loadtest.targets import TARGETS, UnknownTarget, find_target


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(words)


def job(*words: str) -> Job:
    return job_of(parsed("run", "ws://h:1", *words))


def test_closed_loop_defaults() -> None:
    found = job("--closed", "1,4,16")
    plan = found.plan
    assert found.levels == (1.0, 4.0, 16.0)
    assert (plan.load.mode, plan.load.think_s, plan.load.crowd_every_s) == (Mode.CLOSED, 0.0, 0.0)
    assert plan.speech.tokens_per_s is None and plan.speech.barge_in_share == 0.0
    assert plan.rules.prebuffers_s == (0.0, 0.1, 0.2)
    assert (plan.options.container, plan.options.rate) == ("pcm", 24000)
    assert found.metrics_url == "http://h:1/metrics"
    assert plan.frame_s == pytest.approx(0.04644, abs=1e-5)


def test_conversations_talk_as_people_and_language_models_do() -> None:
    plan = job("--conversations", "64").plan
    assert (plan.load.mode, plan.load.level) == (Mode.CONVERSATION, 64.0)
    assert (plan.load.think_s, plan.load.crowd_every_s) == (4.0, 20.0)
    assert plan.speech.tokens_per_s == (20.0, 80.0)
    assert plan.speech.barge_in_share == 0.15


def test_the_promises_prebuffer_is_always_simulated() -> None:
    plan = job("--open", "2.5", "--slo-prebuffer-ms", "50", "--prebuffers-ms", "0").plan
    assert plan.load.level == 2.5
    assert plan.rules.prebuffers_s == (0.0, 0.05)
    assert plan.slo.prebuffer_s == 0.05


@pytest.mark.parametrize(("format", "rate"), [("pcm", 24000), ("mp3", 44100), ("opus", 48000)])
def test_each_format_has_its_rate(format: str, rate: int) -> None:
    assert job("--closed", "1", "--format", format).plan.options.rate == rate


def test_a_cap_reaches_the_request_and_the_judgement() -> None:
    plan = job("--closed", "1", "--max-frames", "86", "--frame-ms", "50").plan
    assert plan.options.extra["max_new_tokens"] == "86"
    assert plan.rules.cap_s == pytest.approx(4.3)
    assert plan.speech.sentences == (1, 1) and not plan.speech.openings
    free = job("--closed", "1").plan
    assert free.rules.cap_s is None and free.speech.sentences == (1, 3) and free.speech.openings
    longer = job("--closed", "1", "--max-frames", "86", "--sentences", "2-3").plan
    assert longer.speech.sentences == (2, 3)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--target", "openai", "--max-frames", "86"), "openai has no such limit"),
        (("--max-frames", "0"), "whole number of frames"),
        (("--set", "max_new_tokens=many"), "whole number of frames"),
    ],
)
def test_a_cap_that_cannot_be_kept_is_refused(words: tuple[str, ...], reason: str) -> None:
    with pytest.raises(BadArguments, match=reason):
        job("--closed", "1", *words)


def test_files_are_read(tmp_path: Path) -> None:
    for name, content in (
        ("t", "One.\n\n  Two. \n"),
        ("v", "alice\nbob carol\n"),
        ("k", " key \n"),
    ):
        (tmp_path / name).write_text(content)
    plan = job(
        "--closed", "1", "--texts", f"{tmp_path}/t", "--voices", f"@{tmp_path}/v",
        "--api-key-file", f"{tmp_path}/k",
    ).plan  # fmt: skip
    assert plan.speech.corpus == ("One.", "Two.")
    assert plan.speech.voices.voices == (Voice("alice"), Voice("bob"), Voice("carol"))
    assert plan.options.api_key == "key"


def test_a_reference_is_a_voice_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "r.wav").write_bytes(b"audio")
    words = ("--closed", "1", "--reference", f"{tmp_path}/r.wav", "--reference-text", "hi")
    assert job(*words).plan.speech.voices.voices == (Voice("", b"audio", "hi"),)
    mix = job(*words, "--voices", "a", "--fresh-share", "0.1").plan.speech.voices
    assert mix.voices == (Voice("a"),) and mix.fresh_share == 0.1


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--closed", "x"), "numbers with commas"),
        (("--closed", "0"), "above 0"),
        (("--closed", "1.5"), "whole numbers"),
        (("--closed", ","), "no numbers"),
        (("--closed", "1", "--target", "nope"), "no target 'nope'"),
        (("--closed", "1", "--set", "nope=1"), "no setting 'nope'"),
        (("--closed", "1", "--set", "nope"), "NAME=VALUE"),
        (("--closed", "1", "--sentences", "3-1"), "A <= B"),
        (("--closed", "1", "--tokens-per-s", "fast"), "write A-B"),
        (("--closed", "1", "--texts", "/nowhere"), "nowhere"),
        (("--closed", "1", "--fresh-share", "0.5"), "needs --reference"),
        (("--closed", "1", "--target", "deepgram", "--format", "mp3"), "raw audio only"),
    ],
)
def test_what_makes_no_sense_is_refused_in_the_users_terms(
    words: tuple[str, ...], reason: str
) -> None:
    with pytest.raises(BadArguments, match=reason):
        job(*words)


def test_an_address_without_a_scheme_is_refused() -> None:
    with pytest.raises(BadArguments, match="write ws://"):
        job_of(parsed("run", "host:8000", "--closed", "1"))


def test_a_problem_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(parsed("run", "ws://h", "--closed", "0")) == 2
    assert capsys.readouterr().err == "shoal load: a level must be above 0\n"
    assert run(parsed("compare", "/no/a", "/no/b")) == 2
    assert run(parsed("gate", "/no/a", "--baseline", "/no/b")) == 2


def test_the_token_gate_is_a_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, code in (("a", 1), ("b", 1), ("c", 2)):
        frames = [[code, 5]] * 5
        (tmp_path / name).write_text(json.dumps({"prompts": {"p": frames}}))
    a, b, c = (str(tmp_path / name) for name in "abc")
    assert run(parsed("gate-tokens", a, b)) == 0
    assert run(parsed("gate-tokens", a, c)) == 1
    assert "frame 0 differs first in codebook 0" in capsys.readouterr().out


def test_every_target_has_its_name_and_explains_its_settings() -> None:
    assert set(TARGETS) == {"shoal", "fish", "openai", "elevenlabs", "deepgram"}
    for target in TARGETS.values():
        assert all(target.settings.values())


def test_a_target_may_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("from shoal.loadtest.targets.fish import Fish\nclass Mine(Fish): ...\n")
    assert find_target(f"{path}:Mine").__name__ == "Mine"
    assert find_target("shoal.loadtest.targets.fish:Fish") is TARGETS["fish"]
    for missing in (f"{path}:Other", f"{tmp_path}/none.py:X", "no.such.module:X"):
        with pytest.raises(UnknownTarget):
            find_target(missing)


def test_a_target_s_file_may_hold_dataclasses_whatever_it_is_called(tmp_path: Path) -> None:
    path = tmp_path / "json.py"
    path.write_text(
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        "from shoal.loadtest.targets.fish import Fish\n"
        "@dataclass(slots=True)\n"
        "class Line:\n    words: int = 1\n"
        "class Mine(Fish):\n    line = Line(2)\n"
    )
    assert find_target(f"{path}:Mine").__name__ == "Mine"
    assert sys.modules["json"] is json


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import sys\nsys.exit(3)\n", "SystemExit: 3"),
        ("raise ImportError\n", "ImportError"),
        ("x\0 = 1\n", "source code string cannot contain null bytes"),
        ("class Mine:\n    def connect(self\n", "line 2: "),
        ("1 / 0\n", "ZeroDivisionError: division by zero"),
        ("raise ValueError('no key')\n", "ValueError: no key"),
        ("import no_such_module\n", "No module named 'no_such_module'"),
        ("Mine = 5\n", "Mine is no target class; it needs voice_at_connect, settings and connect"),
        ("class Mine: ...\n", "Mine is no target class"),
        ("raise RuntimeError('two\\nlines')\n", "RuntimeError: two lines"),
        ("class Mine:\n    settings, connect = {}, None\n", "Mine is no target class"),
        (
            "class Mine:\n    voice_at_connect, settings, connect = False, None, None\n",
            "Mine is no target class",
        ),
    ],
)
def test_a_broken_target_is_one_line_and_exit_code_2(
    source: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(source)
    words = ("run", "ws://h:1", "--closed", "1", "--target", f"{path}:Mine")
    assert run(parsed(*words)) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"shoal load: cannot load target '{path}:Mine': ")
    assert reason in told and told.count("\n") == 1


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("raise ValueError('needs a key')", "ValueError: needs a key"),
        ("raise RuntimeError('no\\ndisk')", "RuntimeError: no disk"),
        ("import no_such_module", "No module named 'no_such_module'"),
        ("open('/no/such/file')", "[Errno 2] No such file or directory: '/no/such/file'"),
        ("options.nothing", "'TargetOptions' object has no attribute 'nothing'"),
        ("{}['key']", "KeyError: 'key'"),
        ("assert False", "AssertionError"),
    ],
)
@pytest.mark.parametrize("action", ["run", "knee"])
def test_a_target_that_cannot_be_made_is_one_line_and_exit_code_2(
    body: str, reason: str, action: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "from shoal.loadtest.targets.fish import Fish\n"
        f"class Mine(Fish):\n    def __init__(self, options):\n        {body}\n"
    )
    words = ("ws://h:1", "--closed", "1", "--target", f"{path}:Mine")
    assert run(parsed(action, *words)) == 2
    told = capsys.readouterr().err
    assert told == f"shoal load: cannot make target '{path}:Mine': {reason}\n"


def test_the_tool_runs_without_torch_and_without_the_server() -> None:
    code = (
        "import sys\n"
        "import shoal.loadtest.cli.actions, shoal.loadtest.drive.worker\n"
        "banned = {'torch', 'shoal.engine', 'shoal.realtime', 'starlette', 'uvicorn'}\n"
        "assert not banned & set(sys.modules), banned & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
