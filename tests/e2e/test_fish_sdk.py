"""Fish Audio's own Python clients, unmodified, on this server's HTTP API: all they can call."""

from __future__ import annotations

import io
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fish_audio_sdk
import fishaudio
import httpx
import numpy as np
import pytest
from fishaudio.types import ReferenceAudio

from shoal.engine.api import Open
from shoal.engine.fake import FakeEngine
from shoal.engine.voices import VoiceStore
from tests.dialects import RecordingEngine

TEXT = "Hello there, this is a test. It has a second sentence."
KEY = "secret"


def recording() -> bytes:
    file = io.BytesIO()
    at = np.arange(16_000)
    samples = (8000 * np.sin(at / 7) * np.sin(at / 1300)).astype("<i2")
    with wave.open(file, "wb") as out:
        out.setparams((1, 2, 16_000, 0, "NONE", ""))
        out.writeframes(samples.tobytes())
    return file.getvalue()


@pytest.fixture
def server(serve: Any, tmp_path: Path) -> Any:
    engine = RecordingEngine(speed=50.0, store=VoiceStore(tmp_path))
    return serve(engine, voices_dir=tmp_path, api_keys=(KEY,))


@pytest.fixture
def client(server: Any) -> Iterator[fishaudio.FishAudio]:
    client = fishaudio.FishAudio(api_key=KEY, base_url=server.http)
    yield client
    client.close()


@pytest.fixture
def session(server: Any) -> Iterator[fish_audio_sdk.Session]:
    with fish_audio_sdk.Session(KEY, base_url=server.http) as session:
        yield session


@pytest.mark.parametrize("audio_format", ["mp3", "wav", "pcm", "opus"])
def test_speech_in_every_format(client: fishaudio.FishAudio, audio_format: Any) -> None:
    streamed = b"".join(client.tts.stream(text=TEXT, format=audio_format, model="s2-pro"))
    whole = client.tts.convert(text=TEXT, format=audio_format, speed=1.2)
    assert len(streamed) > 4000 and len(whole) > 4000


def test_recordings_sent_along(client: fishaudio.FishAudio) -> None:
    references = [ReferenceAudio(audio=recording(), text="what is said")]
    assert len(client.tts.convert(text=TEXT, references=references, format="wav")) > 10_000
    with pytest.raises(fishaudio.APIError, match="not audio"):
        client.tts.convert(text=TEXT, references=[ReferenceAudio(audio=b"\0" * 99, text="x")])


def test_the_life_of_a_voice(server: Any, client: fishaudio.FishAudio) -> None:
    made = client.voices.create(
        title="t", voices=[recording()], texts=["a"], tags=["x", "y"], description="d"
    )
    assert (made.title, made.tags, made.state, made.train_mode) == (
        "t",
        ["x", "y"],
        "trained",
        "fast",
    )
    assert client.voices.list(page_size=5, self_only=True, tags=["x"]).items == [made]
    assert client.voices.list(tags=["z"]).total == 0
    assert client.voices.get(made.id) == made
    client.voices.update(made.id, title="t2", visibility="public")
    assert client.voices.get(made.id).title == "t2"
    assert len(client.tts.convert(text=TEXT, reference_id=made.id, format="pcm")) > 10_000
    opened = [command.voice for command in server.engine.commands if isinstance(command, Open)]
    assert [voice.voice_id for voice in opened] == [made.id]
    client.voices.delete(made.id)
    with pytest.raises(fishaudio.NotFoundError):
        client.voices.get(made.id)
    with pytest.raises(fishaudio.APIError, match="not a wav"):
        client.voices.create(title="t", voices=[b"\0" * 100], texts=["a"])


def test_money(client: fishaudio.FishAudio) -> None:
    assert client.account.get_credits().credit > 0
    assert client.account.get_package().balance > 0


def test_a_wrong_key(server: Any) -> None:
    client = fishaudio.FishAudio(api_key="wrong", base_url=server.http)
    with pytest.raises(fishaudio.AuthenticationError):
        client.tts.convert(text=TEXT)
    client.close()


async def test_the_same_from_asyncio(server: Any) -> None:
    async with fishaudio.AsyncFishAudio(api_key=KEY, base_url=server.http) as client:
        stream = await client.tts.stream(text=TEXT, format="wav")
        assert len(b"".join([chunk async for chunk in stream])) > 10_000
        made = await client.voices.create(title="t", voices=[recording()], texts=["a"])
        assert (await client.voices.list()).total == 1
        await client.voices.update(made.id, description="new")
        assert (await client.voices.get(made.id)).description == "new"
        await client.voices.delete(made.id)
        with pytest.raises(fishaudio.NotFoundError):
            await client.voices.get(made.id)
        assert (await client.account.get_credits()).credit > 0


def test_the_older_client(session: fish_audio_sdk.Session) -> None:
    request = fish_audio_sdk.TTSRequest(text=TEXT, format="wav")
    chunks = list(session.tts(request, backend="s2-pro"))
    assert len(chunks) > 1 and len(b"".join(chunks)) > 10_000
    made = session.create_model(title="t", voices=[recording()], texts=["a"], tags=["x"])
    assert made.title == "t"
    assert [model.id for model in session.list_models(self_only=True, tag=["x"]).items] == [made.id]
    session.update_model(made.id, title="t2")
    assert session.get_model(made.id).title == "t2"
    request = fish_audio_sdk.TTSRequest(text=TEXT, format="pcm", reference_id=made.id)
    assert len(b"".join(session.tts(request))) > 10_000
    session.delete_model(made.id)
    assert session.get_api_credit().credit > 0
    assert session.get_package().balance > 0


def test_errors_are_ones_that_the_older_client_can_read(session: fish_audio_sdk.Session) -> None:
    """It splats the body into its exception: any other key would be a ``KeyError``."""
    with pytest.raises(fish_audio_sdk.HttpCodeErr) as missing:
        session.get_model("nope")
    assert missing.value.status == 404
    request = fish_audio_sdk.TTSRequest(text=TEXT, reference_id="nope")
    with pytest.raises(fish_audio_sdk.HttpCodeErr) as refused:
        list(session.tts(request))
    assert refused.value.status == 400
    with pytest.raises(fish_audio_sdk.HttpCodeErr) as asr:
        session.asr(fish_audio_sdk.ASRRequest(audio=recording()))
    assert asr.value.status == 501


def test_a_turn_that_fails_half_way_is_no_success(serve: Any) -> None:
    server = serve(FakeEngine(speed=50.0, fails_on="boom"))
    with fish_audio_sdk.Session("any", base_url=server.http) as session:
        request = fish_audio_sdk.TTSRequest(text=f"{TEXT} boom", format="pcm")
        with pytest.raises(httpx.RemoteProtocolError):
            list(session.tts(request))
