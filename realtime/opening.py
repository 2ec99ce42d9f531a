"""What a request asks of the engine, in the engine's terms. Pure; any thread."""

from __future__ import annotations

from shoal.engine import api
from shoal.proto.messages import TtsRequest


def open_command(stream: api.StreamId, voice_id: str | None, request: TtsRequest) -> api.Open:
    """``voice_id`` is the voice that answers to the request's ``reference_id``.

    A request's ``repetition_penalty`` and ``condition_on_previous_chunks`` have no counterpart in
    the engine, which has its own guard against repetition and always speaks on in context.
    """
    references = () if request.reference_id else request.references
    return api.Open(
        stream,
        api.Voice(voice_id, tuple(api.Reference(r.audio, r.text) for r in references)),
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
