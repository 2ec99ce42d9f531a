"""Collects what happens during one turn and turns it into a :class:`Turn`. No I/O, no clock.

Whoever does the I/O passes the time of each event. Runs on the event loop of its process.
"""

from __future__ import annotations

import io
from collections.abc import Callable

from shoal.loadtest.measure.compressed import unpacker
from shoal.loadtest.measure.sound import SoundMeter
from shoal.loadtest.measure.timeline import Arrival, Ending, Turn
from shoal.loadtest.plan.turn_plan import TurnPlan
from shoal.loadtest.targets.target import Note

MAX_KEPT_BYTES = 32 * 2**20
"""PCM kept of one turn, for the report; the figures use all of it."""


class Recording:
    """One turn in the making. ``on_audio(at_s, seconds)`` is told of every playable arrival."""

    def __init__(
        self,
        plan: TurnPlan,
        container: str,
        requested_rate: int,
        on_audio: Callable[[float, float], None],
    ) -> None:
        self._plan = plan
        self._unpacker = unpacker(container)
        self._requested_rate = requested_rate
        self._on_audio = on_audio
        self._note = Note()
        self._stages: dict[str, float] = {}
        self._arrivals: list[Arrival] = []
        self._kept = bytearray()
        self._meter: SoundMeter | None = None
        self.connect_s: float | None = None
        self.prepare_s: float | None = None
        self.began_s: float | None = None
        self.sent_s: float | None = None
        self.text_done_s: float | None = None
        self.cut_s: float | None = None

    @property
    def rate(self) -> int:
        """The rate a careful client would play at: what is declared, else what was asked for."""
        return self._unpacker.header_rate or self._note.rate or self._requested_rate

    @property
    def compressed(self) -> bool:
        """Whether :meth:`finish` has a stream to decode first."""
        return self._unpacker.compressed

    @property
    def heard_audio(self) -> bool:
        """Whether a sample could be played yet."""
        return any(arrival.samples for arrival in self._arrivals)

    @property
    def pcm(self) -> bytes:
        """Mono int16 at :attr:`rate`, at most ``MAX_KEPT_BYTES``."""
        return bytes(self._kept)

    def note(self, note: Note) -> None:
        """Take what the server says; a later word on length or rate replaces an earlier one."""
        self._stages.update(note.stages)
        self._note = Note(
            rate=note.rate or self._note.rate,
            audio_s=self._note.audio_s if note.audio_s is None else note.audio_s,
        )

    def audio(self, at_s: float, data: bytes) -> None:
        """A message with audio bytes; raises UnreadableAudio when they are no such audio."""
        samples, pcm = self._unpacker.feed(data)
        self._arrivals.append(Arrival(at_s, len(data), samples))
        if samples:
            self._on_audio(at_s, samples / self.rate)
        if self.cut_s is not None:
            return
        kept = data if self._unpacker.compressed else pcm
        self._kept += kept[: max(0, MAX_KEPT_BYTES - len(self._kept))]
        self._hear(pcm)

    def finish(self, at_s: float, ending: Ending, detail: str = "") -> Turn:
        """The turn as it was. Decodes a compressed stream first: then call it off the loop."""
        if self._unpacker.compressed:
            pcm = _decoded(bytes(self._kept))
            self._kept = bytearray(pcm)
            self._hear(pcm)
        plan, unpacked = self._plan, self._unpacker
        declared_s = self._note.audio_s
        meter = self._meter or SoundMeter(self.rate)
        return Turn(
            index=plan.index,
            user=plan.user,
            kind=plan.kind,
            scheduled_s=plan.scheduled_s,
            speakable_s=plan.speakable_s,
            began_s=self.began_s,
            sent_s=self.sent_s,
            text_done_s=self.text_done_s,
            ended_s=at_s,
            ending=ending,
            chars=plan.chars,
            rate=self.rate,
            voice=plan.voice.label,
            detail=detail,
            connect_s=self.connect_s,
            prepare_s=self.prepare_s,
            cut_s=self.cut_s,
            header_rate=unpacked.header_rate or self._note.rate,
            declared_audio_s=unpacked.declared_s if declared_s is None else declared_s,
            arrivals=tuple(self._arrivals),
            sound=meter.result(unpacked.leftover_bytes, unpacked.repeated_headers),
            sentences=plan.sentences,
            parts=plan.parts,
            stages=self._stages,
        )

    def _hear(self, pcm: bytes) -> None:
        if pcm:
            if self._meter is None:
                self._meter = SoundMeter(self.rate)
            self._meter.feed(pcm)


def _decoded(stream: bytes) -> bytes:
    """Mono int16 of an MP3 or Ogg Opus stream; nothing where there is no decoder or it fails."""
    try:
        import soundfile  # pyright: ignore[reportMissingTypeStubs]
    except ImportError:
        return b""
    try:
        samples, _ = soundfile.read(io.BytesIO(stream), dtype="int16", always_2d=True)  # pyright: ignore[reportUnknownMemberType]
    except soundfile.LibsndfileError:
        return b""
    return bytes(samples[:, 0].astype("<i2").tobytes())
