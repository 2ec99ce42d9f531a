"""The timing of voices by tier: it times what it says, or says that it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.engine.config import EngineConfig
from shoal.engine.service import SpeechEngine
from shoal.loadtest import bench_voices
from shoal.loadtest.bench_voices import KINDS, Desk, WrongTier, measure

TINY = Path(__file__).parents[1] / "data" / "s2_tiny"


def test_every_kind_of_voice_is_timed(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--model", str(TINY), "--device", "cpu", "--rounds", "2", "--seconds", "1.5"]
    assert bench_voices.main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = {line.split()[0]: line.split()[1:] for line in lines if line.startswith("  ")}
    assert tuple(rows)[1:] == KINDS
    assert all(float(figure) > 0 for kind in KINDS for figure in rows[kind])


def test_a_voice_from_another_tier_than_meant_ends_the_run(tmp_path: Path) -> None:
    # With room for all of them on the device, nothing is ever merely warm.
    engine = SpeechEngine(EngineConfig(model=TINY, device="cpu", slots=2, voices_dir=tmp_path))
    try:
        with pytest.raises(WrongTier, match="should be warm counted as"):
            measure(Desk(engine), 1, 1.5)
    finally:
        engine.stop()
