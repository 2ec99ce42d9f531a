"""A request's voices in the engine's terms, and what a model that cannot do them says."""

from __future__ import annotations

import pytest

from shoal.engine import api
from shoal.proto.errors import ProtocolError
from shoal.proto.messages import Reference, TtsRequest
from shoal.realtime.opening import requested_voice

RECORDING = Reference(b"RIFF", "words")
ENGINES = api.Reference(b"RIFF", "words")


def voice(request: TtsRequest, by_reference: bool = True, speakers: bool = True) -> api.Voice:
    def voice_of(named: str | None) -> str | None:
        return "ann" if named == "alias" else None

    return requested_voice(request, voice_of, by_reference, speakers)


def test_one_voice_is_an_id_or_its_recordings() -> None:
    assert voice(TtsRequest()) == api.Voice()
    assert voice(TtsRequest(reference_id="alias")) == api.Voice("ann")
    assert voice(TtsRequest(references=(RECORDING,))) == api.Voice(references=(ENGINES,))
    both = TtsRequest(reference_id="alias", references=(RECORDING,))
    assert voice(both, by_reference=False) == api.Voice("ann")


def test_several_voices_go_by_their_place() -> None:
    asked = TtsRequest(speakers=("alias", (RECORDING, RECORDING), "default"))
    ann, bob, usual = api.Voice("ann"), api.Voice(references=(ENGINES, ENGINES)), api.Voice()
    assert voice(asked) == api.Voice(speakers=(ann, bob, usual))


@pytest.mark.parametrize(
    ("asked", "by_reference", "speakers", "says"),
    [
        (TtsRequest(references=(RECORDING,)), False, True, "takes no references"),
        (TtsRequest(speakers=("alias", (RECORDING,))), False, True, "takes no references"),
        (TtsRequest(speakers=("alias", "default")), True, False, "one voice a turn"),
    ],
)
def test_what_the_model_cannot_do_is_said(
    asked: TtsRequest, by_reference: bool, speakers: bool, says: str
) -> None:
    with pytest.raises(ProtocolError, match=says):
        voice(asked, by_reference, speakers)
