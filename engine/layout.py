"""Where an utterance's columns go in KV, and whether they fit: behind a context, or behind a voice.

Owns the arithmetic of positions: what is fed again when a context starts anew, and after how many
frames an utterance is cut off. Changes nothing: it is asked, and :class:`Batch` does. Knows no
slots and no steps. One thread: decode's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .config import Limits
from .defaults import VoiceDefaults
from .jobs import Utterance
from .memory import Memory
from .outgoing import chunked
from .prefixes import Prefix
from .runner import Int32Array, PrefillChunk, RunnerSpec
from .streams import Context, Stream


@dataclass(frozen=True, slots=True, eq=False)
class Laid:
    """``columns`` int32 [L, 1 + codebooks] from position ``at`` on: the last of them is the first
    step's. After ``frames`` frames the utterance is cut off."""

    columns: Int32Array
    at: int
    frames: int

    @property
    def end(self) -> int:
        """Positions with the columns."""
        return self.at + len(self.columns)

    @property
    def most(self) -> int:
        """Positions with all frames that there may be."""
        return self.end + self.frames


class Layout:
    """Of pages, no context may count on those of the default voice, which is never evicted, nor on
    one to copy from."""

    def __init__(
        self, spec: RunnerSpec, limits: Limits, memory: Memory, defaults: VoiceDefaults
    ) -> None:
        self._limits = limits
        self._memory = memory
        self._closing = defaults.closing
        pages = memory.pool.total - memory.pages_for(len(defaults.prefix)) - 1
        self._most_positions = min(spec.max_positions, pages * memory.page_tokens)
        self._max_context = min(defaults.max_context, self._most_positions)

    def fits(self, prefix: Prefix, utterance: Utterance) -> bool:
        """Whether a fresh context on ``prefix`` can hold the utterance and some of its frames."""
        columns = prefix.length + len(utterance.columns)
        return columns + self._limits.frames_base // 2 <= self._most_positions

    def continues(self, stream: Stream, utterance: Utterance) -> bool:
        """Whether the stream's context has room for the utterance and what it may become."""
        context = stream.context
        if context is None:
            return False
        columns = len(self._closing) + len(utterance.columns)
        return context.length + columns + self._expected(utterance) <= self._max_context

    def behind_context(self, stream: Stream, utterance: Utterance) -> Laid:
        """The utterance behind what the stream's context holds."""
        assert stream.context is not None
        turn = utterance.columns
        columns = turn if stream.closed else np.concatenate([self._closing, turn])
        return self._laid(stream, utterance, columns, stream.context.length)

    def behind_prefix(self, stream: Stream, utterance: Utterance, prefix: Prefix) -> Laid:
        """The utterance in a context that starts anew."""
        columns = np.concatenate([*self._retold(stream, utterance, prefix), utterance.columns])
        return self._laid(stream, utterance, columns, prefix.length)

    def chunks(self, laid: Laid, context: Context, held: int | None) -> tuple[PrefillChunk, ...]:
        """What is to be prefilled into ``context``: all columns but the last. ``held`` is a page to
        copy to where they begin."""
        copy = None
        if held is not None:
            copy = (held, context.pages[laid.at // self._memory.page_tokens])
        return chunked(
            laid.columns[:-1],
            laid.at,
            tuple(context.pages),
            self._memory,
            self._limits.prefill_chunk_tokens,
            copy,
        )

    def _laid(self, stream: Stream, utterance: Utterance, columns: Int32Array, at: int) -> Laid:
        # The step that draws frame n feeds position ``end + n - 2``, and one step more may run.
        room = self._most_positions - at - len(columns)
        limit = self._limits.frames_base + int(self._limits.frames_per_byte * utterance.text_bytes)
        asked = stream.opened.sampling.max_frames_per_segment or limit
        return Laid(columns, at, max(1, min(limit, asked, room)))

    def _retold(self, stream: Stream, utterance: Utterance, prefix: Prefix) -> list[Int32Array]:
        """The last utterance again, when a context starts anew and has room for it."""
        spoken = stream.spoken
        if spoken is None or not spoken.frames:
            return []
        parts = [spoken.turn, np.stack(spoken.frames), self._closing]
        length = prefix.length + sum(len(part) for part in parts) + len(utterance.columns)
        return parts if length + self._expected(utterance) <= self._max_context else []

    def _expected(self, utterance: Utterance) -> int:
        limits = self._limits
        return limits.frames_base // 2 + int(limits.expected_frames_per_byte * utterance.text_bytes)
