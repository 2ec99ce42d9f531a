"""The reference inputs: their file, and that a search comes closer to what it wants."""

# pyright: basic
# Torch's stubs are too loose for more.

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before the first kernel is imported

from shoal.engine.config import BUILTIN_VOICE
from shoal.loadtest.bench_precision_choice import BEFORE, Search, main, widened
from shoal.loadtest.bench_precision_draws import (
    place,
    prompt_of,
    read_model,
    reference_draws,
)
from shoal.loadtest.bench_precision_inputs import (
    CHOSEN,
    FRAMES,
    INPUTS,
    SURE,
    BadInputs,
    ReferenceInput,
    inputs_of,
    read_inputs,
    write_inputs,
)

ROOT = Path(__file__).resolve().parents[2]


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    inputs = [ReferenceInput("One.", ((1, 2), (3, 4))), ReferenceInput('"Two"', ((5, 6),))]
    write_inputs(tmp_path / "inputs.json", inputs)
    assert read_inputs(tmp_path / "inputs.json") == inputs


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"inputs": []}', '{"inputs": [{"text": "a"}]}'])
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "inputs.json").write_text(text)
    with pytest.raises(BadInputs, match=r"inputs\.json"):
        read_inputs(tmp_path / "inputs.json")


def test_the_built_in_voice_alone_has_inputs_of_its_own(tmp_path: Path) -> None:
    assert inputs_of(str(BUILTIN_VOICE), None, (tmp_path, ROOT)) == read_inputs(ROOT / INPUTS)
    assert inputs_of("random:s2-pro", None, (ROOT,)) == []
    assert inputs_of(str(tmp_path), ROOT / INPUTS, ()) == read_inputs(ROOT / INPUTS)
    with pytest.raises(BadInputs):
        inputs_of(str(BUILTIN_VOICE), None, (tmp_path,))


def test_the_inputs_are_of_different_sentences_and_whole() -> None:
    inputs = read_inputs(ROOT / INPUTS)
    assert len({one.text for one in inputs}) == len(inputs) == 6
    assert {len(one.before) for one in inputs} == {BEFORE}
    assert FRAMES == 5 and CHOSEN > SURE


def test_a_search_comes_closer_and_finds_the_same_again() -> None:
    cpu = torch.device("cpu")
    model = read_model(str(BUILTIN_VOICE), cpu)
    weights = widened(place(model, "bf16", cpu))
    prompt = prompt_of(model, "Yes.")
    frame = torch.tensor(reference_draws(weights, [prompt], 1)[0][0], dtype=torch.int32)

    def searched(rounds: int) -> tuple[float, list[list[int]]]:
        found = Search(weights, torch.from_numpy(prompt), frame, 3).run(rounds)
        return found.least, found.codes.tolist()

    begun, codes = searched(1)
    assert (len(codes), len(codes[0])) == (BEFORE, model.shape.codebooks)
    assert searched(1) == (begun, codes)
    assert searched(60)[0] > begun + 1


def test_what_was_not_found_is_an_error(tmp_path: Path) -> None:
    out = tmp_path / "inputs.json"
    assert main(["--inputs", "1", "--rounds", "0", "--processes", "1", "--out", str(out)]) == 1
    assert not out.exists()
