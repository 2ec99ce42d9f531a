"""What a loaded model brings to every stream, and a stream's own sampling resolved against it.

Pure data; made once by the service. Any thread.
"""

from __future__ import annotations

from dataclasses import dataclass

from .api import Sampling
from .runner import Int32Array, SlotSampling

_SEED_BITS = 63


@dataclass(frozen=True, slots=True, eq=False)
class VoiceDefaults:
    """``sampling`` has every field but ``seed``. ``prefix`` and ``closing`` are columns int32
    [L, 1 + codebooks]: the default voice's, and what follows an assistant's turn."""

    sampling: Sampling
    max_segment_chars: int | None
    max_context: int
    prefix: Int32Array
    closing: Int32Array

    def resolved(self, asked: Sampling, fresh_seed: int) -> SlotSampling:
        """``asked`` with this model's values where it is silent."""
        own = self.sampling

        def chosen(value: float | None, default: float | None) -> float:
            picked = default if value is None else value
            assert picked is not None
            return picked

        seed = fresh_seed if asked.seed is None else asked.seed
        return SlotSampling(
            temperature=float(chosen(asked.temperature, own.temperature)),
            top_p=float(chosen(asked.top_p, own.top_p)),
            top_k=int(chosen(asked.top_k, own.top_k)),
            seed=seed & ((1 << _SEED_BITS) - 1),
        )
