"""``make_engine``: the engine that a replica or a batch worker runs, as its settings say.

Brings torch in only for a real one. Whatever thread; the engine starts none before it is started.
"""

from __future__ import annotations

from pathlib import Path

from shoal.engine.api import Engine
from shoal.engine.config import BUILTIN_VOICE, EngineConfig, Limits
from shoal.engine.fake import FakeEngine
from shoal.engine.voices import VoiceStore
from shoal.realtime.config import byte_setting

from .settings import ReplicaSettings


def make_engine(settings: ReplicaSettings, store: VoiceStore | None) -> Engine:
    """:raises ConfigError: a ``SHOAL_*`` size of the environment is none."""
    if settings.engine == "fake":
        return FakeEngine(slots=settings.slots or 4, speed=settings.fake_speed, store=store)
    import torch

    from shoal.engine.service import SpeechEngine

    if settings.torch_threads is not None:
        torch.set_num_threads(settings.torch_threads)
    return SpeechEngine(engine_config(settings, store), store=store)


def engine_config(settings: ReplicaSettings, store: VoiceStore | None) -> EngineConfig:
    """:raises ConfigError: a ``SHOAL_*`` size of the environment is none."""
    usual = EngineConfig()

    def chosen(own: int | None, name: str, default: int) -> int:
        size = byte_setting(name) if own is None else own
        return default if size is None else size

    hot, warm = settings.hot_voice_bytes, settings.warm_voice_bytes
    return EngineConfig(
        model=BUILTIN_VOICE if settings.model is None else Path(settings.model),
        device=settings.device,
        dtype=settings.dtype,
        kv_dtype=settings.kv_dtype,
        slots=settings.slots,
        voices_dir=None if store is None else store.root,
        warm_voice_bytes=byte_setting("warm_voice_bytes") if warm is None else warm,
        cold_voice_bytes=chosen(
            settings.cold_voice_bytes, "cold_voice_bytes", usual.cold_voice_bytes
        ),
        limits=Limits(prefix_bytes=byte_setting("hot_voice_bytes") if hot is None else hot),
    )
