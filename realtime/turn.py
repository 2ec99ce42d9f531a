"""``Turn``: what the gateway remembers of one turn besides its rules: its audio and its times.

Runs the turn's samples through its encoder, on the loop or on a lane, and hands the chunks on in
order. Owned by the event loop's thread; the encoder is used by the lane's thread where there is
one. Times are seconds of the connection's clock.
"""

from __future__ import annotations

from collections.abc import Callable

from shoal.engine import api
from shoal.proto.messages import TtsRequest

from .encode import Chunk, EncodePool, TurnEncoder
from .metrics import Metrics


class Turn:
    """See the module. ``on_chunks`` gets what is ready, ``on_failed`` what an encoder raised;
    both on the loop, neither after ``drop``."""

    def __init__(
        self,
        stream: api.StreamId,
        request: TtsRequest,
        model_rate: int,
        pool: EncodePool,
        metrics: Metrics,
        now_s: float,
        on_chunks: Callable[[list[Chunk]], None],
        on_failed: Callable[[Exception], None],
    ) -> None:
        self.stream = stream
        self.started_s = now_s
        self.outcome: str | None = None
        """The reason of the finish that is on its way."""
        self.reported = False
        self.dropped = False
        """Nothing of it goes out any more. Read by the lane's thread."""
        self.text_chars = 0
        self.sent_audio_s = 0.0
        self.ttfa_s: float | None = None
        self._format = request.format
        self._metrics = metrics
        self._encoder = TurnEncoder(request, model_rate)
        self._lane = pool.lane() if self._encoder.off_loop else None
        self._on_chunks = on_chunks
        self._on_failed = on_failed
        self._timing: api.Timing | None = None
        self._first_text_s: float | None = None
        self._first_pcm_s: float | None = None
        self._first_sent_s: float | None = None
        self._lead_from_s = 0.0
        self._lead_audio_s = 0.0

    # Audio --------------------------------------------------------------------------------------

    def encode(self, samples: bytes) -> None:
        """:raises Exception: what an encoder on the loop raised."""
        self._run(lambda: self._encoder.feed(samples))

    def flush(self) -> None:
        self._run(self._encoder.flush)

    def finish(self) -> None:
        self._run(self._encoder.finish)

    def in_order(self, step: Callable[[], None]) -> None:
        """Now, or behind what the lane is still at."""
        if self._lane is None or not self._lane.busy:
            step()
        else:
            self._lane.submit(list, lambda _: step())

    def _run(self, encode: Callable[[], list[Chunk]]) -> None:
        def job() -> list[Chunk]:
            with self._metrics.encode_s.time():
                return [] if self.dropped else encode()

        if self._lane is None:
            self._on_chunks(job())
        else:
            self._lane.submit(job, self._encoded)

    def _encoded(self, result: list[Chunk] | Exception) -> None:
        if self.dropped:
            return
        if isinstance(result, Exception):
            self._on_failed(result)
        else:
            self._on_chunks(result)

    # Times --------------------------------------------------------------------------------------

    def got_text(self, text: str, now_s: float) -> None:
        self.text_chars += len(text)
        if self._first_text_s is None and not text.isspace():
            self._first_text_s = now_s

    def got_audio(self, event: api.Pcm, now_s: float) -> None:
        if self._first_pcm_s is None:
            self._first_pcm_s = now_s
            self._timing = event.timing

    def sent_audio(self, audio_s: float, now_s: float) -> None:
        """A chunk is on the wire."""
        metrics = self._metrics
        metrics.audio_s.labels(self._format).inc(audio_s)
        if self._first_sent_s is None:
            self._first_sent_s = self._lead_from_s = now_s
            if self._first_text_s is not None and self._first_pcm_s is not None:
                self.ttfa_s = now_s - self._first_text_s
                metrics.first_audio(self.ttfa_s, self._timing, now_s - self._first_pcm_s)
        else:
            lead_s = self._lead_audio_s - (now_s - self._lead_from_s)
            metrics.playout_lead_s.observe(lead_s)
            if lead_s < 0:  # the client has run dry and plays on from here
                self._lead_from_s, self._lead_audio_s = now_s, 0.0
        self._lead_audio_s += audio_s
        self.sent_audio_s += audio_s
