"""The precision gate: what passes, what fails, and that misread scales do."""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before the first kernel is imported

from shoal.loadtest.bench_precision import main
from shoal.loadtest.bench_precision_inputs import (
    INPUTS,
    fixed_sentences,
    read_inputs,
    write_inputs,
)
from shoal.loadtest.command import add_arguments, run
from shoal.loadtest.precision_verdict import (
    Equal,
    Judged,
    Summary,
    equality,
    summary,
    verdict,
)

ROOT = Path(__file__).resolve().parents[2]
CLEAN = Summary(800, 0.87, 2.0, 0.058, 200, 0)


def verdicts(candidate: Summary, *, is_random: bool = False) -> list[bool]:
    return [finding.passed for finding in verdict(candidate, CLEAN, 3.0, is_random=is_random)]


def test_a_candidate_as_good_as_its_format_passes() -> None:
    assert verdicts(CLEAN) == [True, True, True]
    assert verdicts(replace(CLEAN, agreement=0.84, mean_behind=0.07)) == [True, True, True]


def test_each_question_fails_by_itself() -> None:
    assert verdicts(replace(CLEAN, furthest_behind=3.1, sure_and_wrong=1)) == [False, True, True]
    assert verdicts(replace(CLEAN, agreement=0.81)) == [True, False, True]
    assert verdicts(replace(CLEAN, mean_behind=0.1)) == [True, True, False]


def test_random_weights_prefer_no_token() -> None:
    assert verdicts(replace(CLEAN, furthest_behind=9.0), is_random=True) == [True, True]
    assert verdicts(replace(CLEAN, agreement=0.5), is_random=True) == [False, True]


def test_one_token_that_is_not_equal_fails() -> None:
    def passed(*inputs: Equal) -> list[bool]:
        return [finding.passed for finding in equality(inputs, 5, 4.0)]

    assert passed(Equal(5, 4.6), Equal(5, 4.0)) == [True, True]
    assert passed(Equal(5, 4.6), Equal(4, 4.6)) == [False, True]
    assert passed(Equal(5, 3.9), Equal(5, 4.6)) == [True, False]
    assert "run bench_precision_choice" in equality([Equal(5, 3.9)], 5, 4.0)[1].text


def test_tokens_are_counted_by_themselves() -> None:
    judged = [
        Judged([[0.0, 0.5], [0.0, 0.0]], [[4.0, 0.5], [0.1, 5.0]]),
        Judged([[4.0, 0.0]], [[4.0, 1.0]]),
    ]
    found = summary(judged, 3.0)
    assert found == Summary(6, 4 / 6, 4.0, 0.75, 3, 1)


def test_the_sentences_are_those_of_the_first_checkout(tmp_path: Path) -> None:
    installed, checkout = tmp_path / "site" / "shoal", tmp_path / "checkout"
    (checkout / "tests" / "data").mkdir(parents=True)
    (checkout / "tests" / "data" / "sents20.txt").write_text("One.\nTwo.\n")
    assert fixed_sentences((installed, checkout)) == ["One.", "Two."]
    with pytest.raises(FileNotFoundError, match="in the folder of a checkout"):
        fixed_sentences((installed, tmp_path))


@pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU it is a command of its own")
def test_fp8_passes_and_misread_scales_fail(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, planted = (str(tmp_path / name) for name in ("good", "planted"))
    assert main(["--sentences", "2", "--out", good]) == 0
    shown = capsys.readouterr().out
    assert "FAIL" not in shown
    assert "6 of 6 reference inputs token for token equal to bf16 over 5 frames" in shown
    assert main(["--sentences", "2", "--plant-scales", "--out", planted]) == 1
    shown = capsys.readouterr().out
    assert shown.count("FAIL") == 4
    assert "FAIL 0 of 6 reference inputs" in shown
    found = json.loads((tmp_path / "good" / "precision.json").read_text())
    assert found["candidate"]["tokens"] == 2 * 5 * 8
    # The same files, judged by the command.
    for folder, code in ((good, 0), (planted, 1)):
        for kind, words in (("tokens", ["--tolerance", "3"]), ("sure", [])):
            files = (f"{folder}/{kind}-bf16.json", f"{folder}/{kind}-fp8.json")
            parser = argparse.ArgumentParser()
            add_arguments(parser)
            assert run(parser.parse_args(["gate-tokens", *files, *words])) == code


@pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU it is a command of its own")
def test_fp8_keys_and_values_pass_and_their_own_error_is_told(tmp_path: Path) -> None:
    words = ["--sentences", "1", "--frames", "2", "--kv-dtype", "fp8", "--out", str(tmp_path)]
    assert main(words) == 0
    found = json.loads((tmp_path / "precision.json").read_text())
    assert 0 < found["logit_error_of_keys_and_values"] < found["logit_error"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="interpreted where there is no GPU")
def test_the_kernels_hold_a_frame_and_with_misread_scales_do_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = tmp_path / "one.json"
    write_inputs(one, read_inputs(ROOT / INPUTS)[:1])
    # The prompt is the plain reference's, for time; test_cuda_step has the kernels read one.
    words = ["--device", "interpreter", "--sentences", "0", "--inputs", str(one)]
    words += ["--frames", "1", "--last-columns", "0"]
    assert main([*words, "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "fp8" in shown and "the kernels in Triton's interpreter" in shown
    assert "1 of 1 reference inputs token for token equal to bf16 over 1 frames" in shown
    assert "no sentences, so only equality was asked" in shown
    found = json.loads((tmp_path / "precision.json").read_text())
    assert [part["frames"] for part in found["reference_inputs"]] == [1]
    assert main([*words, "--plant-scales"]) == 1
    shown = capsys.readouterr().out
    assert "FAIL 0 of 1 reference inputs" in shown


def test_a_run_that_asks_nothing_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--model", "random:s2-pro", "--sentences", "0"])
    assert "leaves nothing to ask" in capsys.readouterr().err
