"""``ReplicaSettings``: what one replica serves, as the ``args`` of the Serve config say it.

Knows no Ray and no engine. Called wherever a config is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, get_type_hints


class SettingsError(ValueError):
    """The args cannot be used; the message names the one."""


@dataclass(frozen=True, slots=True)
class ReplicaSettings:
    """``None`` leaves the choice to the engine or to the server's own settings (``SHOAL_*``)."""

    engine: str = "real"
    """``real``, or ``fake``: tones, for trying a cluster out without a model."""
    model: str | None = None
    device: str = "auto"
    dtype: str = "auto"
    kv_dtype: str = "auto"
    """``fp8`` keeps twice as many keys and values in the same memory of a GPU."""
    slots: int | None = None
    safe_turns: int | None = None
    """Turns that this machine was measured to speak without a gap; what comes above is refused.
    ``None``: as many as there are slots."""
    torch_threads: int | None = None
    """Threads of one replica on a CPU, where several share its cores."""
    voices: str | None = None
    """Where all replicas read voices: a directory that all of them see, or an fsspec URL such as
    ``s3://bucket/voices``, of which each replica then keeps what it needs below ``voices_cache``.
    """
    voices_cache: str = "/tmp/shoal-voices"
    hot_voice_bytes: int | None = None
    """KV of voices that nobody uses now. ``None``, here and below: as ``SHOAL_HOT_VOICE_BYTES`` and
    its like say in the environment of the replica, else the engine's choice."""
    warm_voice_bytes: int | None = None
    """Codes of voices in the memory of the host."""
    cold_voice_bytes: int | None = None
    """Codes of recordings that came with a request, on the replica's disk; 0: none."""
    max_sockets: int = 1024
    drain_s: float = 300.0
    """How long a replica that leaves lets its turns speak. Serve's ``graceful_shutdown_timeout_s``
    has to be longer."""
    drain_quiet_s: float = 30.0
    """A turn that waits for the rest of its text is waited for so long."""
    leave_s: float = 10.0
    """A replica that is to leave takes turns for so long, until every HAProxy knows: the
    ``drain_s`` of ``haproxy_environment``."""
    fake_speed: float = 20.0
    """How many times faster than real time the fake speaks."""

    def __post_init__(self) -> None:
        if self.engine not in ("real", "fake"):
            raise SettingsError("engine must be real or fake")
        for name in ("slots", "safe_turns", "torch_threads", "max_sockets"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise SettingsError(f"{name} must be at least 1")
        for name in ("hot_voice_bytes", "warm_voice_bytes", "cold_voice_bytes"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise SettingsError(f"{name} must not be negative")
        for name in ("drain_s", "drain_quiet_s", "leave_s", "fake_speed"):
            if getattr(self, name) <= 0:
                raise SettingsError(f"{name} must be positive")


def replica_settings(args: Mapping[str, Any]) -> ReplicaSettings:
    """:raises SettingsError: an arg is unknown, or its value is of another type or out of range."""
    kinds = get_type_hints(ReplicaSettings)
    known = {field.name for field in fields(ReplicaSettings)}
    for name, value in args.items():
        if name not in known:
            raise SettingsError(f"there is no setting {name}")
        kind = kinds[name]
        allowed = (int, float) if kind is float else kind
        if isinstance(value, bool) or not isinstance(value, allowed):
            raise SettingsError(f"{name} has no usable value")
    return ReplicaSettings(**args)
