"""Flags over environment over defaults, and values that cannot be used."""

from __future__ import annotations

import pytest

from shoal.realtime.config import (
    PUBLIC_DEFAULT_VOICES,
    ConfigError,
    ServerConfig,
    byte_setting,
    server_config,
    setting,
)


def test_nothing_given_is_the_defaults() -> None:
    assert server_config({}) == ServerConfig()
    assert server_config({"HOME": "/x", "SHOAL_PORT": ""}, host=None) == ServerConfig()


def test_the_environment_is_read_and_flags_win() -> None:
    environ = {
        "SHOAL_API_KEY": "one, two",
        "SHOAL_PORT": "9000",
        "SHOAL_MAX_SOCKETS": "7",
        "SHOAL_DRAIN_S": "2.5",
        "SHOAL_LOG_JSON": "yes",
        "SHOAL_ALLOW_ORIGIN": "https://a,https://b",
        "SHOAL_FALLBACK_VOICE": "alice",
    }
    config = server_config(environ)
    assert config.api_keys == ("one", "two")
    assert (config.port, config.max_sockets, config.drain_s) == (9000, 7, 2.5)
    assert config.log_json and config.fallback_voice == "alice"
    assert config.allow_origins == ("https://a", "https://b")
    config = server_config(environ, port=9001, api_keys=["three"])
    assert (config.port, config.api_keys) == (9001, ("three",))


def test_aliases_are_named_in_pairs() -> None:
    config = server_config({"SHOAL_VOICE_ALIASES": "abc=alice, def="})
    assert config.voice_aliases == {"abc": "alice", "def": ""}
    assert not set(ServerConfig().voice_aliases) & set(PUBLIC_DEFAULT_VOICES)


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"SHOAL_PORT": "http"}, "SHOAL_PORT"),
        ({"SHOAL_PORT": "70000"}, "port"),
        ({"SHOAL_MAX_SOCKETS": "0"}, "max_sockets"),
        ({"SHOAL_LOG_JSON": "maybe"}, "SHOAL_LOG_JSON"),
        ({"SHOAL_LOG_LEVEL": "loud"}, "log_level"),
        ({"SHOAL_VOICE_ALIASES": "abc"}, "SHOAL_VOICE_ALIASES"),
        ({"SHOAL_GRACE_S": "-1"}, "grace_s"),
    ],
)
def test_a_value_that_cannot_be_used_is_named(environ: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        server_config(environ)


def test_an_empty_key_would_let_everybody_in() -> None:
    with pytest.raises(ConfigError):
        ServerConfig(api_keys=("",))


def test_keys_are_not_printed() -> None:
    assert "secret" not in repr(ServerConfig(api_keys=("secret",)))


def test_other_settings_have_the_same_prefix() -> None:
    assert setting("home", {"SHOAL_HOME": "/x"}) == "/x"
    assert setting("home", {"SHOAL_HOME": ""}) is None


def test_bytes_have_units() -> None:
    sizes = {"17": 17, "3k": 3 << 10, "512M": 512 << 20, "2G": 2 << 30, "0": 0}
    for text, size in sizes.items():
        assert byte_setting("warm_voice_bytes", {"SHOAL_WARM_VOICE_BYTES": text}) == size
    assert byte_setting("warm_voice_bytes", {}) is None
    for text in ("much", "M", "-1", "1.5G", "\u0663", "1T"):
        with pytest.raises(ConfigError, match="SHOAL_WARM_VOICE_BYTES must be a number of bytes"):
            byte_setting("warm_voice_bytes", {"SHOAL_WARM_VOICE_BYTES": text})
