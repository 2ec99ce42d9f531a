"""Every kind of stack, interpreted, against the plain torch reference of its dtype.

And the reference itself: in bf16 it draws what the CPU draws, and it sees scales that are misread.
"""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before the first kernel is imported

from shoal.engine.config import BUILTIN_VOICE
from shoal.engine.cpu_runner import CpuRunner
from shoal.engine.cuda.kv_pool import KvDtype, KvPool
from shoal.engine.cuda.product import Dtype
from shoal.engine.cuda.reference import Context, product, run_stack, with_scales_misread
from shoal.engine.cuda.slot_state import SlotState
from shoal.engine.cuda.stack import MxStack, make_stack
from shoal.engine.cuda.staging import StepStaging
from shoal.engine.cuda.step import DecodeStep
from shoal.engine.cuda.weights import CudaWeights, Layer, StackWeights, device_weights
from shoal.engine.model.config import read_config
from shoal.engine.model.weights import load_weights
from shoal.engine.prompt import PromptBuilder
from shoal.engine.runner import Join, PrefillChunk, SlotSampling, StepPlan
from shoal.engine.tokenizer import load_tokenizer
from shoal.kernels.gemm import add_partials
from shoal.kernels.mxfp8 import Mx
from shoal.kernels.norm import NormedRows
from shoal.kernels.pages import Workspace
from shoal.kernels.quantise import Fp8Rows, quantise_reference

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPES: tuple[Dtype, ...] = ("bf16", "fp8", "mxfp8")
pytestmark = pytest.mark.usefixtures("compiling_ahead")


@pytest.fixture(scope="module")
def voices() -> dict[Dtype, CudaWeights]:
    config, tokenizer = read_config(BUILTIN_VOICE), load_tokenizer(BUILTIN_VOICE)
    return {
        dtype: device_weights(
            config,
            load_weights(BUILTIN_VOICE, config),
            config.semantic_ids(tokenizer.semantic),
            tokenizer.end_token,
            dtype=dtype,
            device=DEVICE,
        )
        for dtype in DTYPES
    }


def short(weights: CudaWeights) -> StackWeights:
    """The first layers of the slow stack; one in MXFP8, which takes long to interpret."""
    layers = weights.slow.layers[: 1 if isinstance(weights.slow.head, Mx) else 2]
    return replace(weights.slow, layers=layers)


def rows_of(weights: CudaWeights, count: int) -> Tensor:
    """Inputs that the model knows: embeddings of codes, as large as a frame's."""
    picked = torch.randint(0, 1024, (count,), generator=torch.Generator().manual_seed(3))
    return weights.embeddings[picked.to(DEVICE)].bfloat16() * 4


def attend_to_itself(
    _index: int, layer: Layer, qkv: Tensor, normed: NormedRows | None, out: Tensor | Fp8Rows
) -> None:
    """Attention of a context of one position: its own value."""
    total = add_partials(qkv)
    if normed is not None:
        depth = normed.rows.values.shape[1]
        total = total / torch.sqrt(normed.squares.sum(0) / depth + layer.heads.eps)[:, None]
    heads = layer.heads
    values = total.bfloat16().unflatten(-1, (-1, heads.dim))[:, -heads.keys :]
    result = values.repeat_interleave(heads.queries // heads.keys, 1).flatten(1)
    if isinstance(out, Tensor):
        out.copy_(result)
    else:
        quantised = quantise_reference(result)
        out.values.copy_(quantised.values)
        out.scales.copy_(quantised.scales)


def expected(stack: StackWeights, x: Tensor) -> Tensor:
    heads = stack.layers[0].heads
    _, normed = run_stack(
        stack,
        x[:, None],
        torch.zeros(1, dtype=torch.int64, device=DEVICE),
        lambda _, q, k, v: v.float().repeat_interleave(heads.queries // heads.keys, 2),
    )
    return normed[:, 0]


def relative(a: Tensor, b: Tensor) -> float:
    return float((a.double() - b.double()).norm() / b.double().norm())


def normed_by_fixed_sums(weights: StackWeights, x: Tensor) -> Tensor:
    stack = make_stack(weights, len(x), DEVICE, fixed=True)
    stack.residual.copy_(x)
    stack.run(attend_to_itself)
    return stack.normed


def drawn(weights: StackWeights, x: Tensor) -> tuple[Tensor, Tensor]:
    """Normed rows and logits of the stack's kernels."""
    stack = make_stack(weights, len(x), DEVICE)
    stack.residual.copy_(x)
    stack.run(attend_to_itself)
    return stack.normed, add_partials(stack.logits(stack.normed))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_stack_is_its_reference_and_a_row_has_the_same_bits_alone(
    voices: dict[Dtype, CudaWeights], dtype: Dtype
) -> None:
    weights = short(voices[dtype])
    x = rows_of(voices[dtype], 3)
    normed, logits = drawn(weights, x)
    want = expected(weights, x)
    # Where a sum ends on another side of a rounding, a value moves by a step; a quantised one by a
    # sixteenth, and what follows with it.
    assert relative(normed, want) < (3e-3 if DEVICE.type == "cpu" else 0.03)
    assert relative(logits.bfloat16(), product(normed, weights.head)) < 3e-3
    if dtype == "bf16":
        return  # no BLAS promises equal bits
    plain = voices["bf16"].slow
    plain = replace(plain, layers=plain.layers[: len(weights.layers)])
    assert relative(expected(plain, x), want) > 0.02
    alone = drawn(weights, x[1:2])
    assert torch.equal(alone[0], normed[1:2])
    assert torch.equal(alone[1], logits[1:2])


def test_a_bf16_stack_of_fixed_sums_is_its_reference_and_a_row_has_the_same_bits_alone(
    voices: dict[Dtype, CudaWeights],
) -> None:
    weights = short(voices["bf16"])
    x = rows_of(voices["bf16"], 3)
    normed = normed_by_fixed_sums(weights, x)
    assert relative(normed, expected(weights, x)) < (3e-3 if DEVICE.type == "cpu" else 0.03)
    assert torch.equal(normed_by_fixed_sums(weights, x[1:2]), normed[1:2])
    assert torch.equal(normed_by_fixed_sums(weights, x.flip(0)), normed.flip(0))


def test_mxfp8_weights_make_an_mxfp8_stack(voices: dict[Dtype, CudaWeights]) -> None:
    assert isinstance(make_stack(short(voices["mxfp8"]), 1, DEVICE), MxStack)


@pytest.mark.parametrize("dtype", ["fp8", "mxfp8"])
def test_scales_that_are_misread_show_in_the_rows(
    voices: dict[Dtype, CudaWeights], dtype: Dtype
) -> None:
    weights = short(voices[dtype])
    x = rows_of(voices[dtype], 3)
    wrong = tuple(replace(at, down=with_scales_misread(at.down)) for at in weights.layers)
    assert relative(expected(replace(weights, layers=wrong), x), expected(weights, x)) > 0.05


def test_the_reference_in_bf16_draws_what_the_cpu_draws(voices: dict[Dtype, CudaWeights]) -> None:
    config, tokenizer = read_config(BUILTIN_VOICE), load_tokenizer(BUILTIN_VOICE)
    prompt = PromptBuilder(tokenizer, config.codebooks, config.semantic_ids(tokenizer.semantic))
    columns = np.concatenate([prompt.prefix(), prompt.user_turn("Hi.")])
    runner = CpuRunner.load(BUILTIN_VOICE, slots=2, pages=8)
    try:
        runner.prefill(PrefillChunk(columns[:-1], 0, (0, 1, 2)))
        greedy = SlotSampling(temperature=0.0, top_p=1.0, top_k=1, seed=0)
        join = Join(0, 1, len(columns) - 1, 0, columns[-1], (0, 1, 2), greedy)
        runner.launch(StepPlan(0, (0,), (join,)))
        first = runner.collect(0).columns[0].tolist()
    finally:
        runner.close()
    fed = torch.from_numpy(columns.astype(np.int32)).to(DEVICE)
    context = Context(voices["bf16"])
    context.prefill(fed[:-1])
    assert context.greedy(fed[-1], 1)[0].tolist() == first


@pytest.mark.parametrize(
    ("dtype", "kv_dtype"), [*((dtype, "bf16") for dtype in DTYPES), ("fp8", "fp8")]
)
def test_logits_of_a_whole_stream_are_those_of_its_steps(
    voices: dict[Dtype, CudaWeights], dtype: Dtype, kv_dtype: KvDtype
) -> None:
    prompt = torch.zeros(6, 9, dtype=torch.int32, device=DEVICE)
    prompt[:, 0] = torch.tensor([5, 9, 40, 41, 7, 8])
    stepwise = Context(voices[dtype], kv_dtype)
    stepwise.prefill(prompt[:-1])
    codes = stepwise.greedy(prompt[-1], 3)
    whole = Context(voices[dtype], kv_dtype)
    whole.prefill(prompt[:-1])
    fed = torch.cat([prompt[-1:], codes[:-1]])
    logits = whole.frames(fed, codes[:, 1:-1].long())
    best = torch.cat([logits.slow.argmax(-1)[:, None], logits.fast.argmax(-1)], 1)
    assert best.tolist() == codes[:, 1:].tolist()


@pytest.mark.skipif(DEVICE.type == "cuda", reason="interpreted where there is no GPU")
@pytest.mark.parametrize(("dtype", "kv_dtype"), [("fp8", "fp8"), ("mxfp8", "bf16")])
def test_a_whole_step_draws_what_its_reference_draws(
    voices: dict[Dtype, CudaWeights], dtype: Dtype, kv_dtype: KvDtype
) -> None:
    """The first step of a context, through a slow stack of a few layers and the fast stack. What
    the CPU draws, a whole step draws in the other dtypes: that has a module of its own."""
    weights = replace(voices[dtype], slow=short(voices[dtype]))
    slow = weights.slow.config
    shape = (slow.kv_heads, 64, slow.head_dim)
    pool = KvPool.empty(len(weights.slow.layers), 1, *shape, DEVICE, kv_dtype)
    state = SlotState(1, weights.codebooks, 4, 1, DEVICE)
    staging = StepStaging(state, 1, DEVICE)
    work = Workspace.empty(1, weights.slow.layers[0].heads, DEVICE)
    step = DecodeStep(weights, pool, state, staging, work, 1, DEVICE)
    column = np.array([weights.semantic_begin + 77, *range(70, 70 + weights.codebooks)], np.int32)
    greedy = SlotSampling(temperature=0.0, top_p=1.0, top_k=1, seed=0)
    staged = staging.pack(StepPlan(0, (0,), (Join(0, 1, 0, 0, column, (0,), greedy),)), 1)
    staging.send(staged)
    step.run()
    staging.fetch(staged)
    frame = torch.from_numpy(staging.read(staged)[0]).long()
    logits = Context(weights, kv_dtype).frames(torch.from_numpy(column)[None], frame[:, 1:-1])
    # A token may differ where two are so close that a rounding decides.
    slow_behind = logits.slow.max() - logits.slow[0, frame[0, 1]]
    fast_behind = logits.fast.amax(-1) - logits.fast.gather(2, frame[:, 2:, None])[..., 0]
    behind = torch.cat([slow_behind[None], fast_behind[0]])
    assert frame[0, 0] == weights.semantic_begin + frame[0, 1]
    assert (behind == 0).sum() >= weights.codebooks - 2, behind
    assert behind.max() < 0.5, behind
