"""``Turn``: what the gateway remembers of one turn besides its rules: its audio and its times.

Runs the turn's samples through its encoder, on the loop or on a lane, and hands the chunks on in
order. Owned by the event loop's thread; the encoder is used by the lane's thread where there is
one. Times are seconds of the connection's clock.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from shoal.engine import api
from shoal.proto.messages import TtsRequest

from . import log
from .encode import Chunk, EncodePool, TurnEncoder
from .metrics import Metrics
from .trace import MAX_PIECES, NoTraces, TurnTimes, TurnTrace

logger = logging.getLogger("shoal.turn")

LEAST_INSERTED_S: Final = 0.001


class Turn:
    """See the module. ``on_chunks`` gets what is ready and of how many samples that were given it
    came, ``on_failed`` what an encoder raised; both on the loop, neither after ``drop``.
    ``on_inserted`` learns where silence that was not given went into the audio: behind so many
    samples, and how many seconds in the whole turn."""

    def __init__(
        self,
        stream: api.StreamId,
        request: TtsRequest,
        model_rate: int,
        pool: EncodePool,
        metrics: Metrics,
        now_s: float,
        on_chunks: Callable[[list[Chunk], int], None],
        on_failed: Callable[[Exception], None],
        on_inserted: Callable[[int, float], None] = lambda at_samples, total_s: None,
        trace: TurnTrace | None = None,
    ) -> None:
        self.stream = stream
        self.started_s = now_s
        self.outcome: str | None = None
        """The reason of the finish that is on its way."""
        self.reported = False
        self.dropped = False
        """Nothing of it goes out any more. Read by the lane's thread."""
        self.text_chars = 0
        self.queued_audio_s = 0.0
        self.sent_audio_s = 0.0
        self.ttfa_s: float | None = None
        self._format = request.format
        self._listened_to = request.priority == "live"
        self._metrics = metrics
        self._encoder = TurnEncoder(request, model_rate)
        self._lane = pool.lane() if self._encoder.off_loop else None
        self._on_chunks = on_chunks
        self._on_failed = on_failed
        self._on_inserted = on_inserted
        self._given_samples = 0
        self._inserted_s = 0.0
        self._trace = trace or NoTraces()
        self._times = TurnTimes(now_s, voice=request.reference_id or "")
        self._kind: dict[str, str | int] = {
            "shoal.format": request.format,
            "shoal.rate": request.sample_rate,
            "shoal.priority": request.priority,
        }
        self._lead_from_s = 0.0
        self._lead_audio_s = 0.0

    # Audio --------------------------------------------------------------------------------------

    def encode(self, samples: bytes) -> None:
        """:raises Exception: what an encoder on the loop raised."""
        before, count = self._given_samples, len(samples) // 2
        self._given_samples += count
        self._run(lambda: self._encoder.feed(samples), before, count)

    def flush(self) -> None:
        self._run(self._encoder.flush, self._given_samples)

    def finish(self) -> None:
        self._run(self._encoder.finish, self._given_samples)

    def in_order(self, step: Callable[[], None]) -> None:
        """Now, or behind what the lane is still at."""
        if self._lane is None or not self._lane.busy:
            step()
        else:
            self._lane.submit(list, lambda _: step())

    def _run(self, encode: Callable[[], list[Chunk]], at_samples: int, samples: int = 0) -> None:
        """``at_samples`` of the model's sound were given before the ``samples`` encoded now."""
        inserted_s: list[float] = []

        def job() -> list[Chunk]:
            with self._metrics.encode_s.time():
                chunks = [] if self.dropped else encode()
            inserted_s.append(self._encoder.inserted_s)
            return chunks

        def done(result: list[Chunk] | Exception) -> None:
            if self.dropped:
                return
            if isinstance(result, Exception):
                self._on_failed(result)
                return
            self.queued_audio_s += sum(chunk.audio_s for chunk in result)
            self._on_chunks(result, samples)
            self._told(at_samples, inserted_s[0])

        if self._lane is None:
            done(job())
        else:
            self._lane.submit(job, done)

    def _told(self, at_samples: int, inserted_s: float) -> None:
        if abs(inserted_s - self._inserted_s) > LEAST_INSERTED_S:
            self._inserted_s = inserted_s
            self._on_inserted(at_samples, inserted_s)

    # Times --------------------------------------------------------------------------------------

    def got_text(self, text: str, now_s: float) -> None:
        self.text_chars += len(text)
        if len(self._times.pieces) < MAX_PIECES:
            self._times.pieces.append((now_s, len(text)))
        if self._times.text_s is None and not text.isspace():
            self._times.text_s = now_s

    def got_voice(self, event: api.Opened, now_s: float) -> None:
        self._times.voice_s, self._times.voice_cached = now_s, event.cached

    def got_audio(self, event: api.Pcm, now_s: float) -> None:
        if self._times.pcm_s is None:
            self._times.pcm_s, self._times.timing = now_s, event.timing

    def sent_audio(self, audio_s: float, now_s: float) -> None:
        """A chunk is on the wire."""
        metrics, times = self._metrics, self._times
        metrics.audio_s.labels(self._format).inc(audio_s)
        if times.sent_s is None:
            times.sent_s = self._lead_from_s = now_s
            if times.text_s is not None and times.pcm_s is not None:
                self.ttfa_s = now_s - times.text_s
                if self._listened_to:
                    metrics.first_audio(self.ttfa_s, times.timing, now_s - times.pcm_s)
        else:
            lead_s = self._lead_audio_s - (now_s - self._lead_from_s)
            if self._listened_to:
                metrics.playout_lead_s.observe(lead_s)
            if lead_s < 0:  # the client has run dry and plays on from here
                self._lead_from_s, self._lead_audio_s = now_s, 0.0
        self._lead_audio_s += audio_s
        self.sent_audio_s += audio_s

    def report(self, outcome: str, socket: int, now_s: float) -> None:
        """The turn's one line and one count; it may be dropped later without another."""
        if self.reported:
            return
        self.reported = True
        self._metrics.turns_ended.labels(outcome).inc()
        log.event(
            logger,
            "turn_ended",
            socket=socket,
            stream=self.stream,
            end=outcome,
            chars=self.text_chars,
            audio_s=self.sent_audio_s,
            ttfa_s=self.ttfa_s,
            seconds=now_s - self.started_s,
        )
        attributes: dict[str, str | int | float] = {
            **self._kind,
            "shoal.end": outcome,
            "shoal.chars": self.text_chars,
            "shoal.audio_s": self.sent_audio_s,
        }
        if self.ttfa_s is not None:
            attributes["shoal.ttfa_s"] = self.ttfa_s
        self._trace.end(self._times, now_s, attributes, outcome == "error")
