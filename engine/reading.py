"""How a stream's text becomes its next utterance: when it is cut, what is passed by, what comes.

Owns the way from a stream's feed to its utterances and to what needs no model, which is marks and
silence. Pure: what is to be sent is appended to an ``Outgoing``. Knows no slots and no voices, and
leaves a stream's end to its caller. One thread: decode's.
"""

from __future__ import annotations

from .batch import Batch
from .config import Limits
from .jobs import CodecMark, CodecSilence, Composed, ComposeJob
from .outgoing import Outgoing
from .streams import Phase, Stream
from .text import FlushMark, Segment


class Reading:
    """See the module. ``batch`` knows how long frames are, and takes back the slots of streams
    that come to rest."""

    def __init__(self, batch: Batch, limits: Limits, out: Outgoing) -> None:
        self._batch = batch
        self._limits = limits
        self._out = out

    def read(self, stream: Stream, now: float) -> None:
        """Take what the stream's text is ready to give."""
        while self._reads(stream):
            lead = stream.lead_s(now, self._batch.frame_s)
            # Without a listener the cut is the same however fast the speech is made.
            speaking = (
                stream.backfill
                or stream.phase is not Phase.IDLE
                or (lead is not None and lead > self._limits.speaking_lead_s)
            )
            item = stream.feed.take(now, speaking)
            match item:
                case None:
                    return
                case Segment(text, speakable, speaker, span):
                    # Only a hint: what can be said is for the model's front end to tell.
                    if speakable and stream.text_s is None:
                        stream.text_s = now
                    stream.composing = True
                    normalize = stream.opened.segmentation.normalize
                    job = ComposeJob(stream.id, text, speaker, span, normalize)
                    self._out.prefill.append(job)
                case FlushMark():
                    stream.ready.append(item)

    def next_utterance(self, stream: Stream, now: float) -> bool:
        """Between utterances: find the next, or pass what needs no model, or come to rest.

        True when all was said and no more will come.
        """
        stream.held_until_s = None
        while not stream.utterances and stream.ready:
            match item := stream.ready[0]:
                case FlushMark(mark):
                    self._out.codec.append(CodecMark(stream.id, mark))
                case Composed(utterances=()):
                    if not self._silence(stream, item, now):
                        break
                case Composed():
                    stream.utterances.extend(item.utterances)
                    stream.text, stream.span = item.text, item.span
                    stream.text_s = now if stream.text_s is None else stream.text_s
            stream.ready.popleft()
            self.read(stream, now)
        if stream.utterances:
            stream.phase = Phase.WAITING
            stream.waiting_since_s = now
            return False
        if stream.composing:
            return False
        if stream.ending and stream.feed.ended and not stream.ready:
            return True
        self._batch.unseat(stream)
        return False

    def due_s(self, stream: Stream, now: float) -> float | None:
        """When there may be something to do without any further text or sound."""
        times = [stream.held_until_s]
        if self._reads(stream):
            times.append(stream.feed.deadline())
            times.append(self._near_s(stream, now))
        return min((when for when in times if when is not None), default=None)

    def _reads(self, stream: Stream) -> bool:
        return not stream.composing and len(stream.ready) < self._limits.held_results

    def _silence(self, stream: Stream, segment: Composed, now: float) -> bool:
        """Say nothing for a moment, unless the listener has enough or wants no more now."""
        stream.begin_playing_anew(now, self._batch.frame_s)
        lead = stream.lead_s(now, self._batch.frame_s) or 0.0
        if stream.paused:
            return False
        if lead > self._limits.park_lead_s and not stream.backfill:
            stream.held_until_s = now + lead - self._limits.park_lead_s
            return False
        frames = self._batch.frames_of(self._limits.silence_s)
        stream.frames += frames
        self._out.codec.append(CodecSilence(stream.id, segment.text, frames, segment.span))
        return True

    def _near_s(self, stream: Stream, now: float) -> float | None:
        """When the listener is so near that text which waits for a better cut waits no more."""
        if stream.backfill or stream.phase is not Phase.IDLE or stream.feed.empty:
            return None
        lead = stream.lead_s(now, self._batch.frame_s)
        spare = 0.0 if lead is None else lead - self._limits.speaking_lead_s
        return now + spare if spare > 0.0 else None
