"""What a request asks of the engine, in the engine's terms. Pure; any thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from shoal.engine import api
from shoal.proto.errors import Code, ProtocolError
from shoal.proto.messages import Reference, TtsRequest

ONE_VOICE = (
    "this model speaks with one voice a turn: give one reference_id, or one voice's references"
)


def requested_voice(
    request: TtsRequest,
    voice_of: Callable[[str | None], str | None],
    by_reference: bool,
    speakers: bool,
) -> api.Voice:
    """``voice_of`` gives the voice that answers to an id; the others say what the model can do.

    :raises ProtocolError: it cannot do what is asked.
    """
    recordings = [one for one in request.speakers if not isinstance(one, str)]
    if (recordings or (request.references and not request.reference_id)) and not by_reference:
        raise ProtocolError(Code.BAD_REQUEST, "this model takes no references")
    if not request.speakers:
        references = () if request.reference_id else request.references
        return api.Voice(voice_of(request.reference_id), _recordings(references))
    if not speakers:
        raise ProtocolError(Code.BAD_REQUEST, ONE_VOICE)
    return api.Voice(
        speakers=tuple(
            api.Voice(voice_of(one))
            if isinstance(one, str)
            else api.Voice(references=_recordings(one))
            for one in request.speakers
        )
    )


def _recordings(references: Sequence[Reference]) -> tuple[api.Reference, ...]:
    return tuple(api.Reference(one.audio, one.text) for one in references)


def open_command(stream: api.StreamId, voice: api.Voice, request: TtsRequest) -> api.Open:
    """``voice`` is the one that was requested.

    A request's ``repetition_penalty`` and ``condition_on_previous_chunks`` have no counterpart in
    the engine, which has its own guard against repetition and always speaks on in context.
    """
    return api.Open(
        stream,
        voice,
        api.Sampling(
            temperature=request.temperature,
            top_p=request.top_p,
            seed=request.seed,
            max_frames_per_segment=request.max_new_tokens,
        ),
        api.Segmentation(
            api.Latency(request.latency),
            max_chars=request.chunk_length,
            min_chars=request.min_chunk_length,
            normalize=request.normalize,
        ),
        api.Priority(request.priority),
    )
