"""The precision gate: what a quantised model draws, held against bf16. Exit code 1 when it fails.

    python -P -m shoal.loadtest.bench_precision [--dtype fp8] [--kv-dtype fp8]
        [--model DIR] [--plant-scales]
    TRITON_INTERPRET=1 python -P -m shoal.loadtest.bench_precision --device interpreter
        --sentences 0 [--last-columns N]

Greedy decoding of fixed inputs, judged over the first five frames, every codebook. The candidate
is the engine's runner on a GPU, which the first command takes where there is one; without one it
is the plain torch reference in the same dtype. The second command has the GPU's kernels draw on a
CPU: prefill and decode step in Triton's interpreter, which rounds as a GPU does but adds products
in float64 (``engine/cuda/interpreted.py``). It judges the kernels' arithmetic and order, not the
card: half a second for a prompt's column, half a minute for a frame of six inputs. ``--sentences
0`` leaves out 2 and 3 below. The sentences lie in a checkout: an installed package is run in the
folder of one.

It asks three things.

1. *Equal where bf16 is sure.* On the inputs of tests/data/reference_inputs.json the candidate
   draws what bf16 draws, token for token, over all five frames. They were chosen by bf16 alone,
   which prefers each of their tokens by ``SURE`` logits at least. That is asked, too: for a new
   voice they are chosen again (``bench_precision_choice``). All are one frame said five times, so
   this alone would not do: misread scales of one layer alone it sees in the second slow and both
   fast ones.

Over ordinary sentences no quantised model can be equal. The voice that ships prefers its choice of
most codes by less than 1.1 logits in the median, and FP8 moves logits by 0.25: the better of two
that are closer than that is a matter of chance. (In bf16 itself, a change of 1e-5 in the products
moves them by 0.04.) Frames then differ from the first such token on, and say nothing about what
comes later. Nor can a GPU be held to an FP8 reference bit by bit: the same change moves its logits
by 0.22, as each e4m3 rounding that falls the other way moves others. So there every token is judged
by itself: the bf16 reference is fed what the candidate drew and says, for each, how far its logit
lies behind the best one.

2. *Exact where it can be.* No token lies more than ``TOLERANCE`` logits behind. Where the bf16
   model prefers one token by more than that, the candidate must have drawn it.
3. *No worse than the format.* The plain torch reference in the candidate's dtype does the same. The
   candidate agrees with bf16 as often, within four standard errors, and its tokens are not further
   behind on average than ``WORSE`` times the reference's.

Measured on the CPU, 20 sentences, 800 tokens: the FP8 reference agrees in 91 % and is 0.8 behind at
most, 0.020 on average. On the reference inputs FP8 takes 0.4 rms and 1.5 at most from the tokens'
margins, and the least of 240 is 3.5 in FP8, 3.4 with products changed by 1e-5. With every scale
read in the other order 1, 2 and 3 all fail, and none of the inputs' frames is equal.

With random weights no token is preferred, so only 3 is asked; agreement and logit error are
reported.
"""

# pyright: basic
# Torch's stubs are too loose for more.

from __future__ import annotations

import argparse
import gc
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from shoal.engine.config import BUILTIN_VOICE, EngineConfig
from shoal.engine.cuda.interpreted import NotInterpreted, check_interpreted
from shoal.engine.cuda.kv_pool import KvDtype
from shoal.engine.cuda.reference import Context, Logits
from shoal.engine.cuda.weights import CudaWeights

from .bench_precision_draws import (
    Frames,
    Model,
    Prompts,
    builder_of,
    equal_frames,
    gpu_draws,
    interpreted_draws,
    place,
    prompt_of,
    read_model,
    reference_draws,
    with_planted_scales,
)
from .bench_precision_inputs import (
    FRAMES,
    SURE,
    BadInputs,
    ReferenceInput,
    fixed_sentences,
    inputs_of,
)
from .precision_verdict import Equal, Finding, Judged, equality, summary, verdict

TOLERANCE = 3.0
INTERPRETER = "interpreter"


def logits_of(
    weights: CudaWeights,
    prompt: np.ndarray[Any, Any],
    drawn: Frames,
    kv_dtype: KvDtype = "bf16",
) -> tuple[Logits, torch.Tensor]:
    """Logits before each token of ``drawn``, and the rows [F, codebooks] that were drawn."""
    device = weights.embeddings.device
    columns = torch.from_numpy(prompt).to(device)
    taken = torch.tensor(drawn, dtype=torch.int32, device=device)
    context = Context(weights, kv_dtype)
    context.prefill(columns[:-1])
    logits = context.frames(torch.cat([columns[-1:], taken[:-1]]), taken[:, 1:-1].long())
    ended = taken[:, 0] == weights.end_token
    first = torch.where(ended, weights.codebook_size, taken[:, 1]).long()
    return logits, torch.cat([first[:, None], taken[:, 2:].long()], 1)


def judge(reference: CudaWeights, prompt: np.ndarray[Any, Any], drawn: Frames) -> Judged:
    """``drawn`` by the reference's logits."""
    logits, rows = logits_of(reference, prompt, drawn)
    behind: list[torch.Tensor] = []
    margin: list[torch.Tensor] = []
    for book in range(rows.shape[1]):
        scores = logits.slow if book == 0 else logits.fast[:, book - 1]
        best = scores.topk(2, -1).values
        behind.append(best[:, 0] - scores.gather(1, rows[:, book : book + 1])[:, 0])
        margin.append(best[:, 0] - best[:, 1])
    return Judged(torch.stack(behind, 1).tolist(), torch.stack(margin, 1).tolist())


def logit_error(
    candidate: CudaWeights,
    reference: CudaWeights,
    prompt: np.ndarray[Any, Any],
    drawn: Frames,
    kv_dtype: KvDtype = "bf16",
) -> tuple[float, float]:
    """(root mean square difference, spread) of the reference arithmetic in the two dtypes, the
    candidate's keys and values in ``kv_dtype``."""
    ours, _ = logits_of(candidate, prompt, drawn, kv_dtype)
    theirs, _ = logits_of(reference, prompt, drawn)
    error = torch.cat([(ours.slow - theirs.slow).flatten(), (ours.fast - theirs.fast).flatten()])
    spread = torch.cat([theirs.slow.std(-1), theirs.fast.std(-1).flatten()])
    return float(error.pow(2).mean().sqrt()), float(spread.mean())


def candidate_draws(
    args: argparse.Namespace,
    model: Model,
    weights: CudaWeights,
    prompts: Prompts,
    device: torch.device,
) -> tuple[str, list[Frames]]:
    """Who drew, and what."""
    if args.device == INTERPRETER:
        drawn = interpreted_draws(
            model, weights, prompts, args.frames, args.kv_dtype, args.last_columns
        )
        read = "" if args.last_columns is None else f", prompts' last {args.last_columns} columns"
        return f"the kernels in Triton's interpreter{read}", drawn
    if device.type == "cpu":
        return "plain torch (no GPU)", reference_draws(weights, prompts, args.frames, args.kv_dtype)
    config = EngineConfig(
        Path(args.model), "cuda", args.dtype, kv_dtype=args.kv_dtype, slots=1, pages=64
    )
    drawn = gpu_draws(config, model, weights, prompts, args.frames, device)
    return torch.cuda.get_device_name(device), drawn


def gate(
    args: argparse.Namespace, sentences: Sequence[str], inputs: Sequence[ReferenceInput]
) -> tuple[bool, dict[str, Any]]:
    """Run it; prints the findings. The second value is everything that was found."""
    wanted = "cuda" if args.device == "auto" and torch.cuda.is_available() else args.device
    device = torch.device("cpu" if wanted in ("auto", INTERPRETER) else wanted)
    if device.type == "cpu":
        torch.set_num_threads(1)  # products of a few rows: threads cost more than they bring
    model = read_model(args.model, device)
    texts = sentences[: args.sentences]
    prompts = [prompt_of(model, text) for text in texts]
    right = place(model, args.dtype, device)
    drawing = with_planted_scales(right) if args.plant_scales else right
    sure = [one.columns(builder_of(model)) for one in inputs]
    name, drawn = candidate_draws(args, model, drawing, [*prompts, *sure], device)
    drawn, sure_drawn = drawn[: len(prompts)], drawn[len(prompts) :]
    gc.collect()
    bf16 = place(model, "bf16", device)
    print(
        f"{args.dtype} of {args.model}, keys and values in {args.kv_dtype}, on {name}, "
        f"{len(texts)} sentences, {args.frames} frames"
    )
    sure_greedy = reference_draws(bf16, sure, args.frames)
    asked = min(args.frames, FRAMES)
    equal = [
        Equal(equal_frames(a, b), min(map(min, judge(bf16, prompt, b[:asked]).margin)))
        for prompt, a, b in zip(sure, sure_drawn, sure_greedy, strict=True)
    ]
    findings = equality(equal, asked, SURE) if equal else []
    found: dict[str, Any] = {"reference_inputs": [asdict(one) for one in equal]}
    if args.out:
        cast("Path", args.out).mkdir(parents=True, exist_ok=True)
        for dtype, frames in (("bf16", sure_greedy), (args.dtype, sure_drawn)):
            held = {"precision": dtype, "prompts": _codes("input", frames)}
            (args.out / f"sure-{dtype}.json").write_text(json.dumps(held))
    notes: list[str] = []
    if prompts:
        # Without a GPU the candidate may be the format alone, unless its weights are wrong.
        plain = args.device != INTERPRETER and device.type == "cpu" and drawing is right
        alone = drawn if plain else reference_draws(right, prompts, args.frames, args.kv_dtype)
        judged, more, notes = spoken(args, model, drawing, bf16, prompts, drawn, alone)
        found |= judged
        findings += more
    else:
        notes.append("no sentences, so only equality was asked")
    found["findings"] = [asdict(finding) for finding in findings]
    for finding in findings:
        print(f"  {'ok  ' if finding.passed else 'FAIL'} {finding.text}")
    if not equal and not model.is_random:
        notes.append("equality was not asked: name inputs chosen for this model with --inputs")
    for note in notes:
        print(f"  {note}")
    return all(finding.passed for finding in findings), found


def spoken(
    args: argparse.Namespace,
    model: Model,
    drawing: CudaWeights,
    bf16: CudaWeights,
    prompts: Prompts,
    drawn: list[Frames],
    alone: list[Frames],
) -> tuple[dict[str, Any], list[Finding], list[str]]:
    """What is found of ordinary sentences, the verdict, and lines to print. ``drawn`` is the
    candidate's, ``alone`` the plain reference's in its dtype."""
    greedy = reference_draws(bf16, prompts, args.frames)
    judged = [judge(bf16, prompt, one) for prompt, one in zip(prompts, drawn, strict=True)]
    judged_alone = [judge(bf16, prompt, one) for prompt, one in zip(prompts, alone, strict=True)]
    ours, theirs = summary(judged, args.tolerance), summary(judged_alone, args.tolerance)
    errors = [
        logit_error(drawing, bf16, prompt, one, args.kv_dtype)
        for prompt, one in zip(prompts, drawn, strict=True)
    ]
    kept: list[tuple[float, float]] = []
    if args.kv_dtype == "fp8":
        # The same weights on both sides: what is left is the keys and values.
        kept = [
            logit_error(bf16, bf16, prompt, one, "fp8")
            for prompt, one in zip(prompts, drawn, strict=True)
        ]
    exact = [equal_frames(a, b) for a, b in zip(drawn, greedy, strict=True)]
    error, spread = (float(np.mean(part)) for part in zip(*errors, strict=True))
    keys_error = float(np.mean([part for part, _ in kept])) if kept else 0.0
    notes = [f"logit error of the format {error:.3f}, spread of the logits {spread:.2f}"]
    if kept:
        notes.append(f"of that by FP8 keys and values alone, in a bf16 model {keys_error:.3f}")
    notes.append(f"frames equal to bf16's own greedy ones before the first difference: {exact}")
    if args.out:
        _write(args.out, args.dtype, greedy, drawn, judged)
    found: dict[str, Any] = {
        "candidate": asdict(ours),
        "format_alone": asdict(theirs),
        "logit_error": error,
        "logit_error_of_keys_and_values": keys_error,
        "logit_spread": spread,
        "equal_frames": exact,
    }
    return found, verdict(ours, theirs, args.tolerance, is_random=model.is_random), notes


def _write(
    out: Path, dtype: str, greedy: list[Frames], drawn: list[Frames], judged: list[Judged]
) -> None:
    """The files that ``shoal load gate-tokens`` takes."""
    reference = {"precision": "bf16", "prompts": _codes("sentence", greedy)}
    candidate = {
        "precision": dtype,
        "prompts": _codes("sentence", drawn),
        "behind": {f"sentence {number}": one.behind for number, one in enumerate(judged)},
    }
    (out / "tokens-bf16.json").write_text(json.dumps(reference))
    (out / f"tokens-{dtype}.json").write_text(json.dumps(candidate))


def _codes(kind: str, drawn: list[Frames]) -> dict[str, Frames]:
    return {f"{kind} {number}": [frame[1:] for frame in one] for number, one in enumerate(drawn)}


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="hold what a quantised model draws against bf16")
    parser.add_argument("--model", default=str(BUILTIN_VOICE), help="a folder, or random:s2-pro")
    parser.add_argument(
        "--device",
        default="auto",
        help=f"cuda, cpu (plain torch), {INTERPRETER} (the GPU's kernels on the CPU; takes "
        "TRITON_INTERPRET=1 in the environment), or auto",
    )
    parser.add_argument("--dtype", choices=("fp8", "mxfp8"), default="fp8")
    parser.add_argument(
        "--kv-dtype", choices=("bf16", "fp8"), default="bf16", help="of keys and values"
    )
    parser.add_argument("--frames", type=int, default=FRAMES)
    parser.add_argument("--sentences", type=int, default=20)
    parser.add_argument("--tolerance", type=float, default=TOLERANCE, help="logits")
    parser.add_argument(
        "--inputs", type=Path, help="of bench_precision_choice; the built-in voice has its own"
    )
    parser.add_argument(
        "--plant-scales", action="store_true", help="misread every scale: the gate must fail"
    )
    parser.add_argument(
        "--last-columns",
        type=int,
        metavar="N",
        help=f"with --device {INTERPRETER}: of each prompt the kernels read the last N columns, "
        "half a second each, and the plain reference those before; the whole when not given",
    )
    parser.add_argument("--out", type=Path, help="folder for token files and precision.json")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    parser = arguments()
    args = parser.parse_args(argv)
    if args.sentences < 0 or args.frames < 1 or (args.last_columns or 0) < 0:
        parser.error("--frames is 1 or more, --sentences and --last-columns are 0 or more")
    roots = (Path(__file__).resolve().parents[1], Path.cwd())
    try:
        sentences = fixed_sentences(roots)
        inputs = inputs_of(args.model, args.inputs, roots)
        if args.device == INTERPRETER:
            check_interpreted()
    except (FileNotFoundError, BadInputs, NotInterpreted) as missing:
        parser.error(str(missing))
    if not args.sentences and not inputs:
        parser.error("--sentences 0 leaves nothing to ask of a model without reference inputs")
    with torch.inference_mode():
        passed, found = gate(args, sentences, inputs)
    if args.out:
        (args.out / "precision.json").write_text(json.dumps(found, indent=1))
    return 0 if passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
