"""What the precision gate has a model say: fixed sentences, and inputs on which it must be exact.

Owns both files and what such an input is: a sentence, and frames of its turn that count as said
already. Knows no weights and no torch; ``bench_precision_choice`` finds the inputs.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from shoal.engine.config import BUILTIN_VOICE
from shoal.engine.prompt import Int32Array, PromptBuilder

SENTENCES = Path("tests") / "data" / "sents20.txt"
INPUTS = Path("tests") / "data" / "reference_inputs.json"
FRAMES = 5
SURE = 3.0
"""Logits by which bf16 prefers every token, or the inputs are none of these weights'."""
CHOSEN = 3.5
"""The same when they are chosen: bf16 with its sums in another order is up to 0.25 away."""


class BadInputs(Exception):
    """The file does not hold what it should; the message says why."""


@dataclass(frozen=True, slots=True)
class ReferenceInput:
    """A turn in the middle."""

    text: str
    before: tuple[tuple[int, ...], ...]
    """[frames][codebooks]: what the turn is taken to have said so far."""

    def columns(self, builder: PromptBuilder) -> Int32Array:
        """int32 [columns, 1 + codebooks]; the last column is fed to the first step.

        Raises ValueError for codes that the model has not.
        """
        before = builder.frames(np.array(self.before, np.int32))
        return np.concatenate([builder.prefix(), builder.user_turn(self.text), before])


def fixed_sentences(roots: Sequence[Path]) -> list[str]:
    """From the first of ``roots`` that is a checkout. :raises FileNotFoundError: none is."""
    for root in roots:
        if (root / SENTENCES).is_file():
            return (root / SENTENCES).read_text("utf-8").splitlines()
    raise FileNotFoundError(
        f"the sentences are in a checkout's {SENTENCES}, which an installed package has not: "
        "run this in the folder of a checkout"
    )


def inputs_of(model: str, path: Path | None, roots: Sequence[Path]) -> list[ReferenceInput]:
    """Those in ``path``, or the built-in voice's own, or none. :raises BadInputs: a bad file."""
    if path is None and Path(model) == BUILTIN_VOICE:
        path = next((root / INPUTS for root in roots if (root / INPUTS).is_file()), None)
        if path is None:
            raise BadInputs(f"no {INPUTS} here: bench_precision_choice writes it in a checkout")
    return [] if path is None else read_inputs(path)


def read_inputs(path: Path) -> list[ReferenceInput]:
    """:raises BadInputs: anything else than what :func:`write_inputs` writes, or no inputs."""
    try:
        rows = cast("list[dict[str, Any]]", json.loads(path.read_text("utf-8"))["inputs"])
        inputs = [
            ReferenceInput(str(row["text"]), tuple(tuple(map(int, f)) for f in row["before"]))
            for row in rows
        ]
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise BadInputs(f"{path}: {problem}") from problem
    if not inputs:
        raise BadInputs(f"{path} holds no inputs")
    return inputs


def write_inputs(path: Path, inputs: Sequence[ReferenceInput]) -> None:
    """One input a line."""
    rows = [
        json.dumps({"text": one.text, "before": one.before}, separators=(",", ":"))
        for one in inputs
    ]
    path.write_text('{"inputs": [\n' + ",\n".join(rows) + "\n]}\n", "utf-8")
