"""The prompt as columns: what the model is fed before and between what it generates.

Owns the layout of a conversation and the splitting of tagged text into speaker turns. A column is
one position: the slow token, then one code per codebook (zeros where the position is text), so a
prompt is int32 [L, 1 + codebooks]. Every quoted piece below is tokenised by itself; merges never
cross pieces. The parts concatenate: ``prefix + user_turn``, frames the model generated,
``closing + user_turn``, frames ... is the conversation the reference builds, so a prefilled
context is only ever extended. Knows nothing of the device; any thread; no torch.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from .tokenizer import Control, Tokenizer

Int32Array = npt.NDArray[np.int32]

SYSTEM = "convert the provided text to speech"
SYSTEM_WITH_REFERENCE = f"{SYSTEM} reference to the following:\n\nText:\n"
SPEECH = "\n\nSpeech:\n"
TURNS_PER_BATCH = 5

_SPEAKER = re.compile(r"<\|speaker:\d+\|>")


@dataclass(frozen=True, slots=True, eq=False)
class PromptReference:
    """A reference in the prompt: its transcript and ``codes`` int32 [frames, codebooks]."""

    text: str
    codes: Int32Array
    speaker: int | None = None
    """Which ``<|speaker:i|>`` it is. None: its number among the references."""


class PromptBuilder:
    """Builds columns for one model. Immutable."""

    def __init__(self, tokenizer: Tokenizer, codebooks: int, semantic: range) -> None:
        """``semantic``: the ids of the semantic tokens, one per code."""
        self._tokenizer = tokenizer
        self._codebooks = codebooks
        self._semantic = semantic

    def prefix(self, references: Sequence[PromptReference] = ()) -> Int32Array:
        """The system message: what does not depend on the text to speak."""
        opener = Control("<|im_start|>system\n")
        closer = Control("<|im_end|>\n")
        if not references:
            return self._columns([opener], [Control(SYSTEM)], [closer])
        return np.concatenate(
            [
                self._columns(
                    [opener],
                    [Control(SYSTEM_WITH_REFERENCE)],
                    _reference_text(references),
                    [Control(SPEECH)],
                ),
                *(self.frames(reference.codes) for reference in references),
                self._columns([closer]),
            ]
        )

    def user_turn(self, text: str) -> Int32Array:
        """The text to speak and the opener of the assistant's turn; its last column is what the
        first decode step of the segment feeds."""
        return self._columns(
            [Control("<|im_start|>user\n")],
            [text],
            [Control("<|im_end|>\n")],
            [Control("<|im_start|>assistant\n<|voice|>")],
        )

    def closing(self) -> Int32Array:
        """What follows the frames of a generated segment (the end column was never fed)."""
        return self._columns([Control("<|im_end|>\n")])

    def frames(self, codes: Int32Array) -> Int32Array:
        """Columns of code frames int32 [frames, codebooks], each code below the codebook size.

        Raises ``ValueError`` for anything else.
        """
        if codes.ndim != 2 or codes.shape[1] != self._codebooks:
            raise ValueError(f"codes must be [frames, {self._codebooks}], are {codes.shape}")
        if codes.size and not 0 <= codes.min() <= codes.max() < len(self._semantic):
            raise ValueError(f"codes must be in 0..{len(self._semantic) - 1}")
        columns = np.empty((len(codes), 1 + self._codebooks), np.int32)
        columns[:, 0] = codes[:, 0] + self._semantic.start
        columns[:, 1:] = codes
        return columns

    def _columns(self, *pieces: Sequence[str | Control]) -> Int32Array:
        ids = [index for piece in pieces for index in self._tokenizer.encode(*piece)]
        columns = np.zeros((len(ids), 1 + self._codebooks), np.int32)
        columns[:, 0] = ids
        return columns


def _reference_text(references: Sequence[PromptReference]) -> list[str | Control]:
    """One piece; a transcript that names a speaker itself keeps its own tags, as plain text."""
    parts: list[str | Control] = []
    for index, reference in enumerate(references):
        if index:
            parts.append(Control("\n"))
        if not _SPEAKER.search(reference.text):
            speaker = index if reference.speaker is None else reference.speaker
            parts.append(Control(f"<|speaker:{speaker}|>"))
        parts.append(reference.text)
    return parts


def split_speakers(text: str) -> list[str]:
    """Turns of tagged text, each a tag and what follows it, stripped.

    Text before the first tag belongs to nobody and is dropped; no tag at all gives no turn.
    """
    cuts = [*(match.start() for match in _SPEAKER.finditer(text)), len(text)]
    return [text[start:end].strip() for start, end in pairwise(cuts)]


def group_turns(turns: Sequence[str], max_bytes: int) -> list[str]:
    """Join turns by newlines into batches of at most 5 turns and ``max_bytes`` UTF-8 bytes.

    Greedy; separators are not counted, and a turn longer than the limit is a batch of its own.
    """
    batches: list[list[str]] = []
    used = 0
    for turn in turns:
        size = len(turn.encode("utf-8", "surrogatepass"))
        if not batches or len(batches[-1]) >= TURNS_PER_BATCH or used + size > max_bytes:
            batches.append([])
            used = 0
        batches[-1].append(turn)
        used += size
    return ["\n".join(batch) for batch in batches]


def batches_of(text: str, max_bytes: int) -> list[str]:
    """Batches that the model speaks one after another; untagged text is one, whatever its size."""
    return group_turns(split_speakers(text), max_bytes) or [text]
