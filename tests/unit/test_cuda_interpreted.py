"""The interpreted runner: who writes which keys and values, and that Triton must interpret.

What its steps draw is in ``test_cuda_step`` and ``test_bench_precision``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before the first kernel is imported

from shoal.engine.config import BUILTIN_VOICE
from shoal.engine.cuda.interpreted import InterpretedRunner, write_rows
from shoal.engine.cuda.reference import Context
from shoal.engine.cuda.weights import CudaWeights, device_weights
from shoal.engine.model.config import DualARConfig, read_config
from shoal.engine.model.weights import load_weights
from shoal.engine.runner import PrefillChunk
from shoal.engine.tokenizer import load_tokenizer
from shoal.kernels.kv import Fp8Pages, dequantise_heads

ROOT = Path(__file__).resolve().parents[2]
CPU = torch.device("cpu")
PAGE = 32
TABLE = (2, 0)

if torch.cuda.is_available():
    pytest.skip("interpreted where there is no GPU", allow_module_level=True)


@pytest.fixture(scope="module")
def voice() -> tuple[DualARConfig, CudaWeights]:
    config, tokenizer = read_config(BUILTIN_VOICE), load_tokenizer(BUILTIN_VOICE)
    weights = device_weights(
        config,
        load_weights(BUILTIN_VOICE, config),
        config.semantic_ids(tokenizer.semantic),
        tokenizer.end_token,
        dtype="fp8",
        device=CPU,
    )
    return config, weights


def test_rows_are_written_page_by_page() -> None:
    rows = torch.randn(PAGE + 3, 2, 128, generator=torch.Generator().manual_seed(0))
    wide = torch.full((3, 2, PAGE, 128), float("nan"), dtype=torch.bfloat16)
    narrow = Fp8Pages(torch.zeros(3, 2, PAGE, 128).to(torch.float8_e4m3fn), torch.zeros(3, 2, PAGE))
    write_rows(wide, TABLE, rows)
    write_rows(narrow, TABLE, rows)
    assert torch.equal(wide[2].transpose(0, 1), rows[:PAGE].bfloat16())
    assert torch.equal(wide[0, :, :3].transpose(0, 1), rows[PAGE:].bfloat16())
    assert wide[1].isnan().all() and wide[0, :, 3:].isnan().all()
    got = dequantise_heads(narrow)
    assert (got[0, :, :3].transpose(0, 1) - rows[PAGE:]).abs().max() < 0.15
    assert not narrow.scales[1].any() and not narrow.scales[0, :, 3:].any()


def test_the_kernels_read_the_last_columns_behind_the_reference_s(
    voice: tuple[DualARConfig, CudaWeights],
) -> None:
    config, weights = voice
    draw = np.random.default_rng(0)
    columns = draw.integers(0, 300, (PAGE + 2, 1 + config.codebooks), dtype=np.int32)
    runner = InterpretedRunner(config, weights, slots=1, pages=3, page_tokens=PAGE, last_columns=1)
    runner.prefill(PrefillChunk(columns, 0, TABLE))
    context = Context(weights)
    context.prefill(torch.from_numpy(columns))
    before = len(columns) - 1
    for index, kept in enumerate(context.kept):
        for pages, theirs in zip(runner.pool.layer(index), kept, strict=True):
            assert isinstance(pages, torch.Tensor)
            ours = pages[list(TABLE)].transpose(1, 2).flatten(0, 1)
            assert torch.equal(ours[:before], theirs[:before])
            assert not ours[before + 1 :].any()
            error = (ours[before].float() - theirs[before].float()).norm()
            assert error < 0.1 * theirs[before].float().norm()


def test_triton_that_compiles_is_refused() -> None:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    run = subprocess.run(
        [sys.executable, "-P", "-m", "shoal.loadtest.bench_precision", "--device", "interpreter"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 2
    assert "with TRITON_INTERPRET=1 in the environment" in run.stderr
