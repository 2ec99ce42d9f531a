"""The prefill thread: text into columns, columns into KV, short work first.

Owns the order of what waits for it. A long prompt is computed chunk by chunk, and between two
chunks whatever became more urgent goes first: composing text, then the utterances that somebody
waits for, then voices. Utterances that wait together are computed together, as many as the runner
takes in one pass; none is waited for. A voice whose KV lies in the host's memory is copied from
there instead, and what is to be copied into it is when nothing else waits; both piece by piece, so
that nobody waits for more than a few pages. Knows nothing of streams' states.
"""

from __future__ import annotations

import logging
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from .frontend import Frontend
from .jobs import (
    Composed,
    ComposeJob,
    Prefilled,
    PrefillJob,
    Saved,
    SaveJob,
    ToDecode,
    ToPrefill,
    Utterance,
)
from .marks import SPEAKER
from .prompt import PromptBuilder
from .runner import PrefillChunk, Runner

log = logging.getLogger(__name__)

PAGES_AT_ONCE = 8
"""Pages copied before there is another look for more urgent work. Of S2 Pro's, 75 MB."""


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
        pieces = self._frontend.inputs(job.text, self._max_chars, job.normalize)
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
            span=job.span,
        )


@dataclass(slots=True, eq=False)
class _Waiting:
    """``left``: pages that are yet to be copied from the host's memory; ``loaded``: all were."""

    job: PrefillJob
    chunks: deque[PrefillChunk]
    left: int = 0
    loaded: bool = False


@dataclass(slots=True, eq=False)
class _Saving:
    """``done``: pages that were copied into the host's memory."""

    job: SaveJob
    done: int = 0


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
        self._saves: deque[_Saving] = deque()

    def run(self) -> None:
        """Until ``None`` comes."""
        while True:
            if not (self._text or self._urgent or self._rest or self._saves):
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
                line.append(_Waiting(message, deque(message.chunks), left=len(message.host_pages)))
            case SaveJob():
                self._saves.append(_Saving(message))
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
        """One piece of the most urgent work: a text, a pass of prefill, or some pages copied."""
        if self._text:
            self._report(self._composed(self._text.popleft()))
            return
        line = self._urgent or self._rest
        if not line:
            self._save()
            return
        if line[0].left:
            together, failed = [line[0]], ()
            self._load(line[0])
        else:
            # Voices take a pass each: nobody waits, and steps take longer beside a larger one.
            together = self._together(line) if self._urgent else [line[0]]
            failed = self._prefill([waiting for waiting in together if waiting.chunks])
        for waiting in together:
            if waiting in failed or not waiting.chunks:
                line.remove(waiting)
                self._report(Prefilled(waiting.job.job, waiting in failed, waiting.loaded))

    def _load(self, waiting: _Waiting) -> None:
        """Copy the next pages of a voice from the host's memory; where that cannot be done, it is
        computed."""
        job = waiting.job
        begin = len(job.host_pages) - waiting.left
        end = min(begin + PAGES_AT_ONCE, len(job.host_pages))
        try:
            self._runner.load_pages(job.host_pages[begin:end], job.chunks[-1].table[begin:end])
        except Exception:
            log.exception("copying a voice from the host's memory failed")
            waiting.left = 0
            return
        waiting.left = len(job.host_pages) - end
        if not waiting.left:
            waiting.loaded = True
            waiting.chunks.clear()

    def _save(self) -> None:
        """Copy the next pages into the host's memory."""
        if not self._saves:
            return
        saving = self._saves[0]
        job, error = saving.job, False
        end = min(saving.done + PAGES_AT_ONCE, len(job.pages))
        try:
            self._runner.save_pages(job.pages[saving.done : end], job.host_pages[saving.done : end])
        except Exception:
            log.exception("copying a voice into the host's memory failed")
            error = True
        saving.done = end
        if error or end == len(job.pages):
            self._saves.popleft()
            self._report(Saved(job.job, error))

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
