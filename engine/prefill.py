"""The prefill thread: text into columns, columns into KV, short work first.

Owns the order of what waits for it. A long prompt is computed chunk by chunk, and between two
chunks whatever became more urgent goes first: composing text, then the utterances that somebody
waits for, then voices. Knows nothing of streams' states.
"""

from __future__ import annotations

import logging
import traceback
from collections import deque
from collections.abc import Callable
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
        self._urgent: deque[tuple[PrefillJob, deque[PrefillChunk]]] = deque()
        self._rest: deque[tuple[PrefillJob, deque[PrefillChunk]]] = deque()

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
                line.append((message, deque(message.chunks)))
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
        """One piece of the most urgent work."""
        if self._text:
            self._report(self._composed(self._text.popleft()))
            return
        line = self._urgent or self._rest
        if not line:
            return
        job, chunks = line[0]
        error = False
        try:
            if chunks:
                self._runner.prefill(chunks.popleft())
        except Exception:
            log.exception("prefill failed")
            error = True
        if error or not chunks:
            line.popleft()
            self._report(Prefilled(job.job, error))
