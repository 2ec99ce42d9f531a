"""Voices that the server keeps under a name that other vendors or clients have for theirs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shoal.engine import api
from shoal.engine.api import Reference
from shoal.engine.voices import VoiceStore
from tests.dialects import SOUND, RecordingEngine, post

Serve = Callable[..., Any]
SOUNDING = (Path(__file__).parents[1] / "data" / "builtin.ogg").read_bytes()


@pytest.mark.parametrize(
    ("path", "name", "body"),
    [
        ("/v1/audio/speech", "alloy", {"input": "Hi.", "voice": "alloy"}),
        ("/v1/text-to-speech/21m00Tcm4TlvDq8ikWAM", "21m00Tcm4TlvDq8ikWAM", {"text": "Hi."}),
        ("/v1/speak?model=aura-2-thalia-en", "aura-2-thalia-en", {"text": "Hi."}),
        (
            "/tts/bytes",
            "71a7ad14-091c-4e8e-a314-022ece01c121",
            {
                **SOUND,
                "transcript": "Hi.",
                "voice": {"id": "71a7ad14-091c-4e8e-a314-022ece01c121"},
            },
        ),
        ("/v1/tts", "default", {"text": "Hi.", "reference_id": "default"}),
        ("/v1/audio/speech", "default", {"input": "Hi.", "voice": "default"}),
    ],
)
async def test_a_voice_of_the_servers_own_wins_over_a_preset_of_its_name(
    serve: Serve, tmp_path: Path, path: str, name: str, body: dict[str, Any]
) -> None:
    kind = {"content-type": "application/json"}

    async def spoke(root: Path, **config: Any) -> str | None:
        engine = RecordingEngine(speed=500.0, store=VoiceStore(root))
        server = serve(engine, voices_dir=root, **config)
        assert (await asyncio.to_thread(post, server, path, body, **kind))[0] == 200
        (opened,) = (one for one in engine.commands if isinstance(one, api.Open))
        return opened.voice.voice_id

    VoiceStore(tmp_path).add(name, [Reference(SOUNDING, "What is said in it.")])
    VoiceStore(tmp_path).add("bob", [Reference(SOUNDING, "What is said in it.")])
    assert await spoke(tmp_path / "none") is None
    assert await spoke(tmp_path) == name
    assert await spoke(tmp_path, fallback_voice="bob") == name
    assert await spoke(tmp_path, voice_aliases={name: "bob"}) == "bob"
