"""``/v1/tts/live/with-timestamp``: the words' times travel on the audio events. Pure; any thread.

A snapshot waits for the next audio event. The last one of a segment, which is only known when the
segment's audio is out, goes at once with empty audio.
"""

from __future__ import annotations

from typing import Final

from shoal.proto.codec import pack, server_fields
from shoal.proto.messages import Aligned, Audio, ServerMessage
from shoal.realtime.link import Payload

from .fish_wire import FishWire

NAME: Final = "fish_timestamps"


class FishTimestamps(FishWire):
    """One session's."""

    name = NAME

    def __init__(self, ready: bool = False) -> None:
        super().__init__(ready, timestamps=True)
        self._segment: Aligned | None = None
        self._news: Aligned | None = None

    def begin(self) -> None:
        self._segment = self._news = None

    def encode(self, message: ServerMessage, time_ms: int | None) -> list[Payload]:
        match message:
            case Aligned(final=final):
                self._news = self._segment = message
                return [self._audio(Audio(b""), time_ms)] if final else []
            case Audio():
                return [self._audio(message, time_ms)]
            case _:
                return super().encode(message, time_ms)

    def _audio(self, message: Audio, time_ms: int | None) -> bytes:
        fields = server_fields(message, time_ms, self.context_id)
        fields |= timestamp_fields(self._segment, self._news)
        self._news = None
        return pack(fields)


def timestamp_fields(segment: Aligned | None, news: Aligned | None) -> dict[str, object]:
    """What an audio event says of the ``segment`` that it belongs to, and of its times if there
    are ``news``. ``estimated`` is ours: inside a segment the times are reckoned, not measured."""
    alignment = None if news is None else {
        "segments": [
            {"text": word.text, "start": round(word.start_s, 4), "end": round(word.end_s, 4)}
            for word in news.words
        ],
        "audio_duration": round(news.audio_s, 4),
        "estimated": True,
    }  # fmt: skip
    return {
        "content": "" if segment is None else segment.text,
        "alignment": alignment,
        "chunk_seq": 0 if segment is None else segment.segment,
        "chunk_audio_offset_sec": 0.0 if segment is None else round(segment.offset_s, 4),
    }
