"""Finds inputs on which bf16's greedy choice is no toss-up, for ``bench_precision``.

    python -P -m shoal.loadtest.bench_precision_choice [--model DIR] [--inputs 6] [--out FILE]

To be run again for new weights; seven minutes on two cores. Speech itself has no such inputs: the
codes behind the first codebook are close to noise, and bf16 prefers its choice of them by 0.3 to
1.1 logits in the median. (Of another voice of this shape: of 512 sentences that it was trained on,
the best has one of its first 40 tokens preferred by 0.19 only; of 20,833 places in them, 0.25.)

But the frame that a turn begins with is one the model is sure of, and what was said before can make
it as sure of saying that frame again. So an input is a sentence and ``BEFORE`` frames that count as
said already; they are sought so that bf16 goes on with such a first frame five times, each token
preferred by ``CHOSEN`` logits. The search descends through the bf16 reference, in the probabilities
of each code, the likeliest code standing for all (a straight-through estimate), in ever smaller
steps. What counts is what comes out: the bf16 reference's own greedy decoding of the finished
input, and its margins. No quantised model is asked, so nothing is chosen because it once passed.

Knows nothing of the gate. CPU; a process of one thread for each search.
"""

# pyright: basic
# Torch's stubs are too loose for more.

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.engine.config import BUILTIN_VOICE
from shoal.engine.cuda.product import Product
from shoal.engine.cuda.reference import product, run_stack
from shoal.engine.cuda.weights import CudaWeights, StackWeights, with_products
from shoal.kernels.embedding import embed_reference

from .bench_precision import judge
from .bench_precision_draws import (
    Model,
    builder_of,
    place,
    prompt_of,
    read_model,
    reference_draws,
)
from .bench_precision_inputs import (
    CHOSEN,
    FRAMES,
    INPUTS,
    ReferenceInput,
    fixed_sentences,
    write_inputs,
)

BEFORE = 128
ROUNDS = 700
RATE = 0.15
LAST_RATE = 0.01
WANTED = 5.5
"""Logits that the search asks for, to come out with ``CHOSEN`` at the least."""
ENOUGH = 4.5
BEGUN = 5.0
"""Log likelihood of the codes that a search begins with, over the others'."""
MIXED = 0.3
"""Share of the rounds."""
CHECKED_EVERY = 5

Kept = list[tuple[Tensor, Tensor]]


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """The best that a search came to."""

    codes: Tensor
    """int64 [BEFORE, codebooks]."""
    least: float
    """The smallest margin of the 40 tokens, when they are fed to the model."""
    rounds: int


class Search:
    """One sentence's. ``weights`` are bf16, with the products' factors already widened."""

    def __init__(self, weights: CudaWeights, prompt: Tensor, frame: Tensor, seed: int) -> None:
        """``prompt`` int32 [columns, 1 + codebooks] in front of the frames that are sought;
        ``frame`` int32 [1 + codebooks]: what shall follow them, ``FRAMES`` times."""
        self._weights = weights
        self._target = frame.repeat(FRAMES, 1)
        self._start = len(prompt)
        self._generator = torch.Generator().manual_seed(seed)
        books, codes = weights.codebooks, weights.codebook_size
        tables = weights.codebook_embeddings.float().view(books, -1, weights.embeddings.shape[1])
        tables = tables[:, :codes].clone()
        first = weights.semantic_begin
        tables[0] += weights.embeddings[first : first + codes].float()
        self._tables = tables / weights.embedding_scale
        self._kept: Kept = []
        with torch.no_grad():
            self._stack(weights.slow, self._embed(prompt)[None], 0, None, self._kept)
            self._rest = self._embed(self._target[:-1])

    def run(self, rounds: int) -> Found:
        """The best of at most ``rounds`` steps."""
        books, codes = self._weights.codebooks, self._weights.codebook_size
        drawn = torch.randint(codes, (BEFORE, books), generator=self._generator)
        likely = torch.randn(BEFORE, books, codes, generator=self._generator) * 0.5
        likely.scatter_(2, drawn[..., None], BEGUN)
        likely.requires_grad_(True)
        descent = torch.optim.Adam([likely], lr=RATE, betas=(0.9, 0.99))
        best = Found(drawn, -torch.inf, 0)
        for number in range(rounds):
            done = number / rounds
            descent.param_groups[0]["lr"] = RATE * (1 - done) + LAST_RATE * done
            share = torch.softmax(likely, -1)
            used = share
            # Early on every second round sees the mixture itself, which is where a way is found.
            if number % 2 or done > MIXED:
                hard = torch.zeros_like(share).scatter_(2, share.argmax(-1)[..., None], 1.0)
                used = hard - share.detach() + share
            missing = F.relu(WANTED - self._margins(used, smooth=True))
            descent.zero_grad()
            missing.pow(2).sum().backward()
            descent.step()
            if number % CHECKED_EVERY:
                continue
            with torch.no_grad():
                chosen = likely.argmax(-1)
                least = float(self._margins(F.one_hot(chosen, codes).float(), smooth=False).min())
            if least > best.least:
                best = Found(chosen, least, number + 1)
            if least >= ENOUGH:
                break
        return best

    def _embed(self, columns: Tensor) -> Tensor:
        w = self._weights
        semantic = (w.semantic_begin, w.semantic_begin + w.codebook_size - 1)
        tables = (w.embeddings, w.codebook_embeddings)
        return embed_reference(columns, *tables, semantic, w.embedding_scale).float()

    def _margins(self, share: Tensor, *, smooth: bool) -> Tensor:
        """[FRAMES, codebooks]: logits from each wanted token down to the best other one, or to all
        others' soft maximum."""
        w = self._weights
        said = torch.einsum("nbv,bvd->nd", share, self._tables)
        x = torch.cat([said, self._rest])[None]
        normed = self._stack(w.slow, x, self._start, self._kept, None)[0, -FRAMES:]
        slow = torch.cat([product(normed, w.slow.head), product(normed, w.end_row)], -1)
        tokens = self._target[:, 1:].long()
        fed = w.fast_embeddings[tokens[:, :-1]]
        within = self._stack(w.fast, torch.cat([normed[:, None], fed], 1), 0, None, None)
        fast = F.pad(product(within[:, 1:], w.fast.head), (0, 1), value=-1e9)
        logits = torch.cat([slow[:, None], fast], 1)
        wanted = logits.gather(2, tokens[..., None])[..., 0]
        others = logits.scatter(2, tokens[..., None], -1e9)
        return wanted - (others.logsumexp(-1) if smooth else others.amax(-1))

    def _stack(
        self, stack: StackWeights, x: Tensor, start: int, before: Kept | None, keep: Kept | None
    ) -> Tensor:
        """Normed rows [B, T, dim] of ``x``, behind the positions ``before``; ``keep`` takes the
        keys and values."""

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            if keep is not None:
                keep.append((k, v))
            if before is not None:
                k, v = (torch.cat(pair, 1) for pair in zip(before[layer], (k, v), strict=True))
            group = q.shape[2] // k.shape[2]
            q, k, v = (part.float().transpose(1, 2) for part in (q, k, v))
            seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(
                k.shape[2] - q.shape[2]
            )
            keys, values = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
            mixed = F.scaled_dot_product_attention(q, keys, values, attn_mask=seen)
            return mixed.transpose(1, 2)

        positions = torch.arange(start, start + x.shape[1])
        return run_stack(stack, x, positions, attend)[1]


def widened(weights: CudaWeights) -> CudaWeights:
    """The same values, the products' factors in float64, as the reference multiplies them."""

    def factor(weight: Product) -> Product:
        assert isinstance(weight, Tensor)
        return weight.double()

    return with_products(weights, factor)


def surest_first(model: Model, bf16: CudaWeights, sentences: Sequence[str]) -> list[int]:
    """[1 + codebooks]: of the frames that bf16 begins the sentences with, the one whose least sure
    token it prefers by most."""
    surest, frame = -1.0, [0]
    with torch.inference_mode():
        for text in sentences:
            prompt = prompt_of(model, text)
            drawn = reference_draws(bf16, [prompt], 1)[0]
            margin = min(judge(bf16, prompt, drawn).margin[0])
            if margin > surest:
                surest, frame = margin, drawn[0]
    return frame


def least_margin(model: Model, bf16: CudaWeights, one: ReferenceInput) -> float:
    """Of what bf16 draws greedily; 0 where its turn ends before ``FRAMES`` frames."""
    prompt = one.columns(builder_of(model))
    with torch.inference_mode():
        drawn = reference_draws(bf16, [prompt], FRAMES)[0]
        if len(drawn) < FRAMES:
            return 0.0
        return min(min(frame) for frame in judge(bf16, prompt, drawn).margin)


@dataclass(frozen=True, slots=True)
class Task:
    """One search, as a process of its own takes it."""

    model: str
    number: int
    text: str
    frame: list[int]
    rounds: int


def attempt(task: Task) -> tuple[ReferenceInput, float]:
    """What was found, and its least margin. Prints a line."""
    begun = time.monotonic()
    model, bf16 = _read(task.model)
    prompt = torch.from_numpy(prompt_of(model, task.text))
    frame = torch.tensor(task.frame, dtype=torch.int32)
    best = Search(widened(bf16), prompt, frame, task.number).run(task.rounds)
    one = ReferenceInput(task.text, tuple(tuple(frame) for frame in best.codes.tolist()))
    least = least_margin(model, bf16, one)
    print(
        f"sentence {task.number}: {'taken' if least >= CHOSEN else 'left'}, bf16 prefers every "
        f"token by {least:.2f} logits; round {best.rounds}, {time.monotonic() - begun:.0f} s",
        flush=True,
    )
    return one, least


def _read(source: str) -> tuple[Model, CudaWeights]:
    torch.set_num_threads(1)  # products of a few rows: threads cost more than they bring
    model = read_model(source, torch.device("cpu"))
    return model, place(model, "bf16", torch.device("cpu"))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="find inputs of which bf16 is sure")
    parser.add_argument("--model", default=str(BUILTIN_VOICE))
    parser.add_argument("--inputs", type=int, default=6, help="as many sentences are tried first")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of each search, at most")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, default=INPUTS)
    args = parser.parse_args(argv)
    try:
        sentences = fixed_sentences((Path(__file__).resolve().parents[1], Path.cwd()))
    except FileNotFoundError as missing:
        parser.error(str(missing))
    frame = surest_first(*_read(args.model), sentences)
    left = [Task(args.model, i, text, frame, args.rounds) for i, text in enumerate(sentences)]
    found: list[ReferenceInput] = []
    with ProcessPoolExecutor(args.processes, get_context("spawn")) as pool:
        while left and (wanted := args.inputs - len(found)) > 0:
            tried, left = left[:wanted], left[wanted:]
            found += [one for one, least in pool.map(attempt, tried) if least >= CHOSEN]
    if found:
        write_inputs(args.out, found)
    print(f"{len(found)} of {args.inputs} inputs in {args.out}")
    return 0 if len(found) == args.inputs else 1


if __name__ == "__main__":
    raise SystemExit(main())
