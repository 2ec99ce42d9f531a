"""Which engine a command's flags and the environment ask for."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import pytest

from shoal.engine.checkpoint import CheckpointError
from shoal.engine.config import BUILTIN_VOICE, EngineConfig, Limits
from shoal.realtime.arguments import build_parser
from shoal.realtime.complaints import CommandError, UsageError
from shoal.realtime.engine_flags import (
    engine_config,
    load_engine,
    prepare_voice,
    refuse_engine_flags,
    voices_dir,
)


@pytest.fixture(autouse=True)
def _apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting of the user's, and a home of our own."""
    for name in [name for name in os.environ if name.startswith("SHOAL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))


def typed(*words: str) -> argparse.Namespace:
    return build_parser().parse_args(words)


def test_without_any_the_engine_is_the_usual_one(tmp_path: Path) -> None:
    assert engine_config(typed("serve")) == EngineConfig(
        model=BUILTIN_VOICE, voices_dir=tmp_path / ".local" / "share" / "shoal" / "voices"
    )


def test_the_environment_is_heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "MODEL": "/models/s2",
        "DEVICE": "cuda",
        "DTYPE": "bf16",
        "KV_DTYPE": "fp8",
        "SLOTS": "12",
        "VOICES": str(tmp_path / "kept"),
        "HOT_VOICE_BYTES": "2G",
        "WARM_VOICE_BYTES": "0",
        "COLD_VOICE_BYTES": "512M",
        "BATCH_STREAMS": "0",
    }.items():
        monkeypatch.setenv(f"SHOAL_{name}", value)
    assert engine_config(typed("serve")) == EngineConfig(
        model=Path("/models/s2"),
        device="cuda",
        dtype="bf16",
        kv_dtype="fp8",
        slots=12,
        voices_dir=tmp_path / "kept",
        warm_voice_bytes=0,
        cold_voice_bytes=512 << 20,
        limits=Limits(prefix_bytes=2 << 30, batch_streams=0),
    )
    assert voices_dir() == tmp_path / "kept"


def test_a_flag_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"MODEL": "/m", "DEVICE": "cuda", "DTYPE": "fp8", "SLOTS": "no"}.items():
        monkeypatch.setenv(f"SHOAL_{name}", value)
    words = ("--model", "/mine", "--device", "cpu", "--dtype", "fp32", "--slots", "3")
    config = engine_config(typed("serve", *words))
    assert (config.model, config.device, config.dtype) == (Path("/mine"), "cpu", "fp32")
    assert config.slots == 3


def test_a_command_without_a_flag_for_slots_takes_the_environments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SHOAL_SLOTS", "2")
    assert engine_config(typed("say", "Hi.", "--local")).slots == 2


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SLOTS", "0"),
        ("SLOTS", "many"),
        ("SLOTS", "-1"),
        ("BATCH_STREAMS", "some"),
        ("BATCH_STREAMS", "-1"),
        ("HOT_VOICE_BYTES", "lots"),
        ("WARM_VOICE_BYTES", "-1"),
        ("COLD_VOICE_BYTES", "1T"),
    ],
)
def test_a_setting_without_a_usable_value_is_named(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"SHOAL_{name}", value)
    with pytest.raises(CommandError, match=f"SHOAL_{name}"):
        engine_config(typed("serve"))


@pytest.mark.parametrize(
    "words", [("--model", "/m"), ("--device", "cpu"), ("--dtype", "fp32"), ("--kv-dtype", "fp8")]
)
def test_a_servers_own_flags_need_local(words: tuple[str, str]) -> None:
    with pytest.raises(UsageError, match="need --local"):
        refuse_engine_flags(typed("say", "Hi.", *words))
    refuse_engine_flags(typed("say", "Hi.", "--local", *words))
    refuse_engine_flags(typed("say", "Hi."))


def quiet(what: str) -> None:
    """A listener to progress that says nothing."""


def test_a_model_that_is_not_there_is_one_line_before_anything_is_loaded() -> None:
    with pytest.raises(CommandError, match="/nowhere") as refused:
        load_engine(typed("serve", "--model", "/nowhere"), quiet)
    assert "\n" not in str(refused.value)
    with pytest.raises(CheckpointError, match="/nowhere"):
        prepare_voice(
            typed("voice", "add", "ann", "x", "--text", "x", "--model", "/nowhere"), "ann", quiet
        )
