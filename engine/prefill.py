"""The prefill thread: text into columns, columns into KV, short work first.

Owns the order of what waits for it. A long prompt is computed chunk by chunk, and between two
chunks whatever became more urgent goes first: composing text, then the utterances that somebody
waits for, then voices. Utterances that wait together are computed together, as many as the runner
takes in one pass; none is waited for. Knows nothing of streams' states.
"""

from __future__ import annotations

import logging
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from .frontend import Frontend
from .jobs import Composed, ComposeJob, Prefilled, PrefillJob, ToDecode, ToPrefill, Utterance
from .marks import SPEAKER
from .prompt import PromptBuilder
from .runner import PrefillChunk, Runner

log = logging.getLogger(__name__)


class Composer:
    """Segments to utterances, for one model."""

    def __init__(self, prompt: PromptBuilder, frontend: Frontend, max_chars: int) -> None:
        """``max_chars``: the longest text the model says well in one go."""
        self._prompt = prompt
        self._frontend = frontend
        self._max_chars = max_chars

    def compose(self, job: ComposeJob) -> Composed:
        """One utterance a piece that the model can say in one go; none when there is nothing to
        say. A model that knows speakers is told who goes on speaking."""
        pieces = self._frontend.inputs(job.text, self._max_chars)
        # An utterance may begin a context: what was said before it need not be there any more.
        known = self._frontend.name is None and job.speaker is not None
        mark = f"<|speaker:{job.speaker}|>" if known and not SPEAKER.search(job.text) else ""
        return Composed(
            job.stream,
            job.text,
            tuple(
                Utterance(
                    self._prompt.user_turn(mark + piece), len(piece.encode("utf-8", "replace"))
                )
                for piece in pieces
            ),
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    job: PrefillJob
    chunks: deque[PrefillChunk]


class Prefiller:
    """``run`` is the thread's body."""

    def __init__(
        self,
        runner: Runner,
        composer: Composer,
        inbox: SimpleQueue[ToPrefill | None],
        report: Callable[[ToDecode], None],
    ) -> None:
        self._runner = runner
        self._composer = composer
        self._inbox = inbox
        self._report = report
        self._text: deque[ComposeJob] = deque()
        self._urgent: deque[_Waiting] = deque()
        self._rest: deque[_Waiting] = deque()

    def run(self) -> None:
        """Until ``None`` comes."""
        while True:
            if not (self._text or self._urgent or self._rest):
                if not self._note(self._inbox.get()):
                    return
            try:
                while True:
                    if not self._note(self._inbox.get_nowait()):
                        return
            except Empty:
                pass
            self.work()

    def _note(self, message: ToPrefill | None) -> bool:
        match message:
            case None:
                return False
            case ComposeJob():
                self._text.append(message)
            case PrefillJob():
                line = self._urgent if message.urgent else self._rest
                line.append(_Waiting(message, deque(message.chunks)))
        return True

    def _composed(self, job: ComposeJob) -> Composed:
        try:
            return self._composer.compose(job)
        except Exception as error:
            # Without the error's own words: they may quote the text.
            trace = "".join(traceback.format_tb(error.__traceback__))
            log.error("composing text failed: %s\n%s", type(error).__name__, trace)
            return Composed(job.stream, job.text, (), error=True)

    def work(self) -> None:
        """One piece of the most urgent work: a text, or a pass of prefill."""
        if self._text:
            self._report(self._composed(self._text.popleft()))
            return
        line = self._urgent or self._rest
        if not line:
            return
        # Voices take a pass each: nobody waits, and steps take longer beside a larger one.
        together = self._together(line) if self._urgent else [line[0]]
        failed = self._prefill([waiting for waiting in together if waiting.chunks])
        for waiting in together:
            if waiting in failed or not waiting.chunks:
                line.remove(waiting)
                self._report(Prefilled(waiting.job.job, waiting in failed))

    def _together(self, line: deque[_Waiting]) -> list[_Waiting]:
        """The first of ``line``, and whose next chunk has room beside its own."""
        spec = self._runner.spec
        room, together = spec.prefill_tiles, list[_Waiting]()
        for waiting in line:
            columns = len(waiting.chunks[0].columns) if waiting.chunks else 0
            tiles = -(-columns // spec.prefill_tile_columns)
            # Whoever is passed over is the first some passes later.
            if not together or tiles <= room:
                together.append(waiting)
                room -= tiles
            if room <= 0:
                break
        return together

    def _prefill(self, together: Sequence[_Waiting]) -> Sequence[_Waiting]:
        """Compute the next chunk of each; returns those that failed."""
        if not together:
            return ()
        chunks = [waiting.chunks.popleft() for waiting in together]
        try:
            self._runner.prefill(*chunks)
            return ()
        except Exception:
            if len(together) == 1:
                log.exception("prefill failed")
                return together
            log.warning("prefill of %d together failed", len(together), exc_info=True)
        # Whose fault it was is not known. What was written is written again, and the same.
        failed: list[_Waiting] = []
        for waiting, chunk in zip(together, chunks, strict=True):
            waiting.chunks.appendleft(chunk)
            failed.extend(self._prefill([waiting]))
        return failed
