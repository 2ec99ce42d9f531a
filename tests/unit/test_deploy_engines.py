"""What the args of a Serve config make of an engine, and of a batch worker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shoal.deploy.engines import engine_config, make_engine
from shoal.deploy.settings import SettingsError, replica_settings
from shoal.engine.config import EngineConfig
from shoal.engine.voices import VoiceStore
from shoal.realtime.config import ConfigError

TIERS = ("hot_voice_bytes", "warm_voice_bytes", "cold_voice_bytes")


def tiers(**args: Any) -> tuple[int | None, int, int]:
    config = engine_config(replica_settings(args), None)
    return config.limits.prefix_bytes, config.warm_voice_bytes, config.cold_voice_bytes


def test_the_engine_chooses_when_nobody_does() -> None:
    usual = EngineConfig()
    assert tiers() == (None, usual.warm_voice_bytes, usual.cold_voice_bytes)


def test_the_args_bound_the_three_tiers_of_voices() -> None:
    assert tiers(hot_voice_bytes=3, warm_voice_bytes=2, cold_voice_bytes=0) == (3, 2, 0)


def test_the_environment_of_a_replica_does_too_and_the_args_win(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, size in zip(TIERS, ("1K", "2K", "3K"), strict=True):
        monkeypatch.setenv(f"SHOAL_{name.upper()}", size)
    assert tiers() == (1024, 2048, 3072)
    assert tiers(warm_voice_bytes=7) == (1024, 7, 3072)
    monkeypatch.setenv("SHOAL_WARM_VOICE_BYTES", "much")
    with pytest.raises(ConfigError, match="WARM"):
        tiers()


def test_the_args_say_in_what_weights_and_keys_are_kept() -> None:
    usual, chosen = (
        engine_config(replica_settings(args), None)
        for args in ({}, {"dtype": "mxfp8", "kv_dtype": "fp8"})
    )
    assert (usual.dtype, usual.kv_dtype) == (EngineConfig().dtype, EngineConfig().kv_dtype)
    assert (chosen.dtype, chosen.kv_dtype) == ("mxfp8", "fp8")


@pytest.mark.parametrize("name", TIERS)
def test_no_tier_is_negative(name: str) -> None:
    with pytest.raises(SettingsError, match=name):
        replica_settings({name: -1})


def test_a_fake_has_the_slots_and_the_voices_that_were_asked_for(tmp_path: Path) -> None:
    store = VoiceStore(tmp_path)
    engine = make_engine(replica_settings({"engine": "fake", "slots": 3}), store)
    assert engine.info.slots == 3


def test_a_worker_takes_what_a_replica_takes() -> None:
    pytest.importorskip("ray")
    from shoal.deploy.backlog import scaling_rules, shape_of

    assert shape_of({}) == {"CPU": 1.0}
    asked = {"num_cpus": 0, "num_gpus": 1, "resources": {"h200": 0.5}}
    assert shape_of(asked) == {"GPU": 1.0, "h200": 0.5}
    assert scaling_rules({"num_replicas": 3}) is None
    scaling = {
        "min_replicas": 2,
        "max_replicas": 5,
        "policy": {"policy_kwargs": {"spare": 0, "most": 9}},
    }
    rules = scaling_rules({"autoscaling_config": scaling})
    assert rules is not None and (rules.least, rules.most, rules.spare) == (2, 5, 0)
    with pytest.raises(TypeError):
        scaling_rules({"autoscaling_config": {"policy": {"policy_kwargs": {"sparse": 1}}}})
