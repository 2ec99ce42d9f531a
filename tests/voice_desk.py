"""Voice preparation whose work is done when a test says so, and recordings for it."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import soundfile as sf  # pyright: ignore[reportMissingTypeStubs]

from shoal.engine.api import Reference, Voice
from shoal.engine.config import Limits
from shoal.engine.jobs import VoiceFailed, VoiceJob, VoiceReady
from shoal.engine.reference import EncodeJob, VoiceEncoder, VoicePreparer
from shoal.engine.runner import Int32Array
from shoal.engine.tiers import CodesTier, ColdTier
from shoal.engine.voices import VoiceStore
from tests.fakes import ScriptedRunner, spec
from tests.turns import BUILDER


def wav(level: float, seconds: float = 1.2) -> bytes:
    """A tone that comes and goes, as syllables do."""
    file = io.BytesIO()
    at = np.arange(int(16_000 * seconds))
    wave = level * np.sin(at / 7) * np.sin(at / 1300)
    sf.write(file, wave.astype(np.float32), 16_000, format="WAV", subtype="PCM_16")
    return file.getvalue()


LOUD, SOFT = Reference(wav(0.5), "loud"), Reference(wav(0.1), "soft")


class Desk:
    """A preparer and an encoder, whose work is done when a test says so."""

    def __init__(
        self, root: Path | None = None, codes_bytes: int = 1 << 20, limits: Limits | None = None
    ) -> None:
        self.runner = ScriptedRunner(
            replace(spec(codebooks=8), sample_rate=16_000, frame_samples=1600)
        )
        self.store = None if root is None else VoiceStore(root)
        self.known = CodesTier(codes_bytes)
        self.cold = None if root is None else ColdTier(root / ".codes", "codec", 1 << 20)
        self.reports: list[VoiceReady | VoiceFailed] = []
        self.encodes: list[EncodeJob] = []
        self.preparer = VoicePreparer(
            BUILDER,
            self.store,
            self.known,
            self.cold,
            "codec",
            0.1,
            limits or Limits(),
            SimpleQueue(),
            self.encodes.append,
            self.reports.append,
        )
        self.encoder = VoiceEncoder(
            self.runner, self.store, self.cold, "codec", SimpleQueue(), self.preparer.take
        )
        self._jobs = 0

    def ask(self, voice: Voice, live: bool = True) -> int:
        self._jobs += 1
        self.preparer.take(VoiceJob(self._jobs, voice, live))
        self.preparer.look()
        return self._jobs

    def encode(self) -> None:
        """What waits for the encoder."""
        while self.encodes:
            self.preparer.take(self.encoder.work(self.encodes.pop(0)))

    def columns(self, job: int) -> Int32Array:
        (found,) = (r for r in self.reports if r.job == job)
        assert isinstance(found, VoiceReady)
        return found.columns
