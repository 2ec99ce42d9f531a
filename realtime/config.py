"""``ServerConfig``: how the gateway behaves. Frozen, passed in. Alone in reading the environment.

Each field may come from a flag, from ``SHOAL_<FIELD>`` in the environment, or from its default, in
this order.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from .tokens import shared_secret

DEFAULT_PORT: Final = 8080
PREFIX: Final = "SHOAL_"

PUBLIC_DEFAULT_VOICES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "default": "",
        # The id that LiveKit's plugin names unless told otherwise.
        "933563129e564b19a115bedd57b7406a": "",
    }
)
"""Ids of the hosted service that clients send unasked; "" is the default voice. An alias or a voice
of the same name wins."""


class ConfigError(ValueError):
    """A setting has no usable value; the message names the setting."""


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """``api_keys`` empty: no key is asked for. ``fallback_voice`` answers to every unknown
    ``reference_id`` ("" is the default voice); ``None``: those are an error."""

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    allow_origins: tuple[str, ...] = ()
    max_sockets: int = 1024
    voice_aliases: Mapping[str, str] = field(default_factory=dict[str, str])
    """Beside :data:`PUBLIC_DEFAULT_VOICES`, which it may override."""
    fallback_voice: str | None = None
    ping_interval_s: float = 25.0
    ping_timeout_s: float = 35.0
    grace_s: float = 5.0
    pooled_grace_s: float = 330.0
    """For clients that keep a socket for their next turn (LiveKit's plugins)."""
    drain_s: float = 20.0
    drain_quiet_s: float = 2.0
    """A turn that nobody adds to for this long, and that has nothing to say, is not waited for."""
    send_stall_s: float = 10.0
    """How long a client may take to read what precedes a close."""
    encode_threads: int = field(default_factory=lambda: _encode_threads(os.cpu_count() or 1))
    """64 Opus streams in real time keep a third of a core busy; more threads shorten the wait of a
    first chunk behind the others'."""
    voices_dir: Path | None = None
    """Where voices are kept. ``None``: none can be added over HTTP."""
    log_level: str = "info"
    log_json: bool = False
    traces: bool = False
    """Export a trace of each turn by OpenTelemetry, to where its own variables say."""
    token_secret: bytes | None = field(default=None, repr=False)
    """What signs single-use tokens; servers with the same one take each other's. ``None``: one that
    nobody else has. Of ``SHOAL_TOKEN_SECRET``, any words."""
    record_turns: Path | None = None
    """Add a line for each turn to this file: when its text came and how long it took, never what
    it said."""

    def __post_init__(self) -> None:
        for name in ("max_sockets", "encode_threads"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1")
        for name in ("ping_interval_s", "ping_timeout_s", "grace_s", "pooled_grace_s"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} must be positive")
        if not 0 <= self.port <= 65535:
            raise ConfigError("port must be in 0..65535")
        if self.log_level not in ("debug", "info", "warning", "error"):
            raise ConfigError("log_level must be debug, info, warning or error")
        if any(not key for key in self.api_keys):
            raise ConfigError("api_keys: an empty key")


def _encode_threads(cores: int) -> int:
    return min(8, max(2, cores // 4))


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _aliases(text: str) -> Mapping[str, str]:
    """``id=voice,id=voice``; an empty voice is the default one."""
    pairs: dict[str, str] = {}
    for word in _words(text):
        identity, separator, voice = word.partition("=")
        if not separator:
            raise ValueError(word)
        pairs[identity.strip()] = voice.strip()
    return MappingProxyType(pairs)


def _flag(text: str) -> bool:
    return {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}[
        text.lower()
    ]


_PARSERS: Final[Mapping[str, Callable[[str], object]]] = MappingProxyType(
    {
        "port": int,
        "api_keys": _words,
        "allow_origins": _words,
        "max_sockets": int,
        "voice_aliases": _aliases,
        "ping_interval_s": float,
        "ping_timeout_s": float,
        "grace_s": float,
        "pooled_grace_s": float,
        "drain_s": float,
        "drain_quiet_s": float,
        "send_stall_s": float,
        "encode_threads": int,
        "voices_dir": Path,
        "record_turns": Path,
        "token_secret": shared_secret,
        "log_json": _flag,
        "traces": _flag,
    }
)
_NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {"api_keys": "API_KEY", "allow_origins": "ALLOW_ORIGIN", "voices_dir": "VOICES"}
)


def byte_setting(name: str, environ: Mapping[str, str] | None = None) -> int | None:
    """``SHOAL_<NAME>`` as a number of bytes: ``512M``, ``2G`` or plain; ``None`` when unset.

    :raises ConfigError: it is none.
    """
    text = setting(name, environ)
    if text is None:
        return None
    unit = {"K": 10, "M": 20, "G": 30}.get(text[-1:].upper())
    number = text if unit is None else text[:-1]
    if not (number.isascii() and number.isdigit()):
        raise ConfigError(f"{PREFIX}{name.upper()} must be a number of bytes, such as 512M or 2G")
    return int(number) << (unit or 0)


def setting(name: str, environ: Mapping[str, str] | None = None) -> str | None:
    """``SHOAL_<NAME>``, for settings that are not the server's; ``None`` when unset or empty."""
    return (os.environ if environ is None else environ).get(PREFIX + name.upper()) or None


def server_config(environ: Mapping[str, str] | None = None, **flags: Any) -> ServerConfig:
    """Flags win over the environment; a flag that is ``None`` was not given.

    :raises ConfigError: a value cannot be used.
    """
    values = {name: value for name, value in flags.items() if value is not None}
    for known in fields(ServerConfig):
        variable = _NAMES.get(known.name, known.name.upper())
        text = setting(variable, environ)
        if known.name in values or text is None:
            continue
        try:
            values[known.name] = _PARSERS.get(known.name, str)(text)
        except (ValueError, KeyError):
            raise ConfigError(f"{PREFIX}{variable} has no usable value") from None
    values["api_keys"] = tuple(values.get("api_keys", ()))
    return ServerConfig(**values)
