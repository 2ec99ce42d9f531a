"""The ``ar`` command: trains the DualAR on code files and exports it as it goes.

Stops after its minutes with a state to go on from, and leaves an export of the averaged weights.
Which export is the voice is decided by what a recogniser hears (``eval``), not by the loss, which
does not tell: this only says how the losses stand on held-out utterances.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from ..model.config import DualARConfig, read_config
from ..model.weights import load_weights
from .ar_model import BUILTIN, Masked, TrainedDualAR
from .budget import Budget, cosine, ramp
from .codes import Corpus, read_corpus
from .course import Course, add_flags
from .export import write_model
from .rows import Conversations, Mix, PackedRows, Rows
from .states import Averaged, halved
from .texts import Texts, read_texts
from .tracing import Trace, pulse

STATE = "ar"
HELD_OUT = 400


@dataclass(frozen=True, slots=True)
class Plan:
    rows: int = 48
    length: int = 1024
    fast: int = 16384
    """Frames of a step whose residual codes are learnt, of about 25,000."""
    lr: float = 2e-3
    warmup: int = 300
    weight_decay: float = 0.05
    dropout: float = 0.2
    guided: float = 0.4
    phonemes: float = 0.3
    settle_from: float = 0.6
    """From here on the auxiliary losses fade to a quarter, and to nothing at the end."""
    average: float = 0.9985


PLAN = Plan()


class Flexible:
    """Attention within conversations that passes over what is masked, compiled for a GPU."""

    def __init__(self, conversation: Tensor) -> None:
        from torch.nn.attention.flex_attention import create_block_mask

        def same(b: Tensor, _h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return (conversation[b, q] == conversation[b, k]) & (q >= k)

        rows, length = conversation.shape
        self.mask = create_block_mask(same, rows, None, length, length, str(conversation.device))


def _flex(mask: Any) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    from torch.nn.attention.flex_attention import flex_attention

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return flex_attention(query, key, value, block_mask=mask, enable_gqa=True)

    return attend


def agree(found: list[float], plain: list[float]) -> bool:
    """Whether two ways compute the same: each loss within a tenth, as dropout differs, and the
    gradient, which scatters more, within a half."""
    if len(found) != len(plain):
        return False
    near = [abs(f - p) <= 0.1 * abs(p) + 0.05 for f, p in zip(found[:-1], plain[:-1], strict=True)]
    return all(near) and plain[-1] / 1.5 <= found[-1] <= 1.5 * plain[-1]


class ArTraining:
    """The model, its optimiser and its average; :meth:`step` is one of each."""

    def __init__(
        self, config: DualARConfig, plan: Plan, device: torch.device, compiled: bool = False
    ) -> None:
        self.plan, self.device = plan, device
        self.model = TrainedDualAR(config, plan.dropout).to(device).train()
        named = list(self.model.named_parameters())
        decayed = [p for n, p in named if p.ndim == 2 and "embeddings" not in n]
        others = [p for n, p in named if p.ndim != 2 or "embeddings" in n]
        self.optimiser = torch.optim.AdamW(
            [
                {"params": decayed, "weight_decay": plan.weight_decay},
                {"params": others, "weight_decay": 0.0},
            ],
            plan.lr,
            betas=(0.9, 0.98),
            fused=device.type == "cuda",
        )
        self.average = Averaged(self.model, plan.average)
        self.steps = 0
        self._warm_from = 0
        self._group = config.slow.heads // config.slow.kv_heads
        self._amp: dict[str, Any] = dict(
            device_type=device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"
        )
        self._flexible = False
        self._run: Callable[..., Any] = self._with_mask
        self._ways = [("uncompiled", False, self._with_mask)]
        if compiled:
            self._ways.insert(0, ("compiled", False, torch.compile(self._with_mask)))
            self._ways.insert(0, ("flexible", True, torch.compile(self._with_blocks)))

    def _with_mask(self, rows: tuple[Tensor, ...], mask: Tensor) -> Any:
        return self.model.losses(*rows, Masked(mask, self._group))

    def _with_blocks(self, rows: tuple[Tensor, ...], mask: Any) -> Any:
        return self.model.losses(*rows, _flex(mask))

    def losses(self, batch: Rows, *, plain: bool = False) -> tuple[Tensor, ...]:
        """Slow, fast, guided, phoneme loss and accuracy. ``plain``: uncompiled."""
        rows = (
            *(batch.columns, batch.slow, batch.place, batch.conversation),
            *(batch.target, batch.phonemes, batch.fast_at, batch.fast_codes),
        )
        with torch.autocast(**self._amp):
            if self._flexible and not plain:
                return self._run(rows, Flexible(batch.conversation).mask)
            step = torch.arange(batch.place.shape[1], device=self.device)
            talk = batch.conversation
            mask = (talk[:, :, None] == talk[:, None]) & (step[:, None] >= step)
            run = self._with_mask if plain else self._run
            return run(rows, mask[:, None])

    def warm_up(self, batch: Rows) -> str:
        """Takes the fastest way of computing that works here, and that computes what plain torch
        computes; returns its name."""
        plain = self._losses_and_slope(batch, plain=True)
        for name, flexible, run in self._ways:
            self._flexible, self._run = flexible, run
            try:
                # Twice: the second time there are gradients to add to.
                self._losses_and_slope(batch, plain=False)
                found = self._losses_and_slope(batch, plain=False)
            except Exception as error:
                # Whatever a compiler raises; the last way is plain torch and raises in the first
                # step if the fault is ours.
                print(f"{name}: {str(error)[:300]}", flush=True)
                found = []
            self.model.zero_grad(set_to_none=True)
            if agree(found, plain):
                return name
            print(f"{name}: {found} instead of {plain}", flush=True)
        return "uncompiled"

    def _losses_and_slope(self, batch: Rows, *, plain: bool) -> list[float]:
        """The four losses, and how long their gradient is."""
        self.model.zero_grad(set_to_none=False)
        found = self.losses(batch, plain=plain)[:4]
        sum(found, torch.zeros((), device=self.device)).backward()
        slopes = [p.grad for p in self.model.parameters() if p.grad is not None]
        slope = torch.stack([grad.norm() for grad in slopes]).norm()
        return [round(float(value), 3) for value in (*(f.detach() for f in found), slope)]

    def step(self, batch: Rows, fraction: float) -> dict[str, Tensor]:
        plan = self.plan
        rate = plan.lr * min(1.0, (self.steps - self._warm_from + 1) / plan.warmup)
        for group in self.optimiser.param_groups:
            group["lr"] = rate * cosine(fraction)
        slow, fast, guided, phonemes, accuracy = self.losses(batch)
        fading = 1.0 - 0.75 * ramp(fraction, plan.settle_from, plan.settle_from + 0.1)
        fading *= 1.0 - ramp(fraction, 0.9, 1.0)
        loss = slow + fast + fading * (plan.guided * guided + plan.phonemes * phonemes)
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        length = nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        if self.device.type == "cuda":
            # What the fused optimiser asks a gradient scaler for: a bad step is left out.
            self.optimiser.found_inf = (~torch.isfinite(length)).float()  # type: ignore[attr-defined]
            self.optimiser.grad_scale = None  # type: ignore[attr-defined]
        self.optimiser.step()
        self.steps += 1
        self.average.update(self.steps)
        return {
            "slow": slow.detach(),
            "fast": fast.detach(),
            "guided": guided.detach(),
            "phonemes": phonemes.detach(),
            "accuracy": accuracy.detach(),
            "gradient": length.detach(),
        }

    @torch.no_grad()
    def held_out(self, batches: list[Rows]) -> dict[str, float]:
        """The averaged weights on ``batches``."""
        kept = {key: value.clone() for key, value in self.model.state_dict().items()}
        self.model.load_state_dict(self.average.tensors)
        self.model.eval()
        found = [
            torch.stack([value.float() for value in self.losses(batch, plain=True)])
            for batch in batches
        ]
        self.model.train()
        self.model.load_state_dict(kept)
        names = ("slow", "fast", "guided", "phonemes", "accuracy")
        return dict(zip(names, torch.stack(found).mean(0).tolist(), strict=True))

    def averaged(self) -> dict[str, Tensor]:
        """The averaged weights by the engine's names, on the CPU."""
        return {
            key: value.float().cpu()
            for key, value in self.average.tensors.items()
            if not key.startswith("reader.")
        }

    def state(self, fraction: float, *, compact: bool) -> dict[str, Any]:
        model, average = dict(self.model.state_dict()), dict(self.average.tensors)
        state: dict[str, Any] = {"steps": self.steps, "fraction": fraction}
        state["model"] = halved(model) if compact else model
        state["average"] = halved(average) if compact else average
        if not compact:
            state["optimiser"] = self.optimiser.state_dict()
        return state

    def resume(self, state: dict[str, Any]) -> float:
        """Returns the fraction of the schedule that was reached."""
        self.model.load_state_dict(state["model"])
        self.average.load(state["average"])
        self.steps = int(state["steps"])
        if "optimiser" in state:
            self.optimiser.load_state_dict(state["optimiser"])
        else:
            self._warm_from = self.steps
        return float(state["fraction"])

    def begin_from(self, folder: Path) -> None:
        """Weights of an export; the schedule and the optimiser begin anew."""
        weights = load_weights(folder, self.model.config)
        self.model.load_state_dict({k: w.float() for k, w in weights.items()}, strict=False)
        self.average = Averaged(self.model, self.plan.average)


def batches(
    corpus: Corpus,
    texts: Texts,
    chosen: np.ndarray,
    mix: Mix,
    plan: Plan,
    seed: int,
    workers: int,
    pinned: bool,
) -> Iterator[Rows]:
    conversations = Conversations(corpus, texts, chosen, mix, plan.length)
    rows = PackedRows(
        conversations,
        corpus,
        mix,
        rows=plan.rows,
        length=plan.length,
        fast=plan.fast,
        seed=seed,
    )
    # What waits lies in shared memory, 1.8 MB a step, of which some containers have 64 MiB.
    ahead = 3 if workers else None
    return iter(
        DataLoader(
            rows, batch_size=None, num_workers=workers, prefetch_factor=ahead, pin_memory=pinned
        )
    )


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="ar", description=__doc__)
    parser.add_argument(
        "--codes", type=Path, required=True, nargs="+", help="folders of codes_NN.npz"
    )
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--alignment", type=Path, required=True, help="what align wrote")
    add_flags(parser, out="the export and its log", seed=1)
    parser.add_argument("--init", type=Path, help="an export to begin with, without any state")
    parser.add_argument("--rows", type=int, default=PLAN.rows)
    parser.add_argument("--length", type=int, default=PLAN.length)
    parser.add_argument("--fast", type=int, default=PLAN.fast)
    parser.add_argument("--lr", type=float, default=PLAN.lr)
    parser.add_argument("--dropout", type=float, default=PLAN.dropout)
    parser.add_argument("--guided", type=float, default=PLAN.guided)
    parser.add_argument("--phonemes", type=float, default=PLAN.phonemes)
    parser.add_argument("--warmup", type=int, default=PLAN.warmup)
    parser.add_argument("--config", type=Path, help="a folder with config.json of another shape")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--snapshot-minutes", type=float, default=0.0, help="exports in between")
    parser.add_argument("--snapshot-at", type=float, help="and one at this point of the schedule")
    flags = parser.parse_args(argv)
    budget = Budget(flags.minutes)
    torch.backends.cuda.matmul.allow_tf32 = True
    device = torch.device(flags.device)
    cuda = device.type == "cuda"
    plan = Plan(
        rows=flags.rows,
        length=flags.length,
        fast=flags.fast,
        lr=flags.lr,
        warmup=flags.warmup,
        dropout=flags.dropout,
        guided=flags.guided,
        phonemes=flags.phonemes,
    )
    config = BUILTIN if flags.config is None else read_config(flags.config)
    training = ArTraining(config, plan, device, cuda and not flags.plain)
    course = Course(STATE, training, flags, budget)
    if flags.init is not None and not course.resumed:
        training.begin_from(flags.init)
    seed = flags.seed + training.steps
    torch.manual_seed(seed)
    corpus, texts = read_corpus(*flags.codes), read_texts(flags.texts, flags.alignment)
    held = min(HELD_OUT, len(corpus) // 10)
    every, mix = np.arange(len(corpus)), Mix()
    # A sentence that is held out is not learnt from another speaker either.
    learnt = every[held:][~np.isin(corpus.text[held:], corpus.text[:held])]
    drawn = batches(corpus, texts, learnt, mix, plan, seed, flags.workers, cuda)
    unspoilt = Mix(spoilt=0.0)
    tested = batches(corpus, texts, every[:held], unspoilt, plan, 5, 0, False)
    test = [next(tested).to(device) for _ in range(2)]
    print(f"{corpus.hours:.2f} h ready after {budget.spent_s:.0f} s", flush=True)
    if cuda:
        with pulse("compiling"):
            way = training.warm_up(next(drawn).to(device))
        print(f"{way} after {budget.spent_s:.0f} s", flush=True)
    flags.out.mkdir(parents=True, exist_ok=True)
    saved_s, number = budget.spent_s, 0
    early = flags.snapshot_at if flags.snapshot_at and course.begin < flags.snapshot_at else None

    def export(folder: Path) -> None:
        write_model(folder, config, training.averaged())

    with Trace(flags.out / "ar_log.txt", budget) as trace:
        for _ in course.steps(lambda: export(flags.out)):
            found = training.step(next(drawn).to(device), budget.fraction)
            trace.add(training.steps, found)
            if training.steps % 1000 == 0:
                trace.say(f"held out at step {training.steps}", training.held_out(test))
            if flags.snapshot_minutes and budget.spent_s - saved_s > 60 * flags.snapshot_minutes:
                saved_s, number = budget.spent_s, number + 1
                export(flags.out / f"snapshot_{number}")
            if early is not None and budget.fraction >= early:
                export(flags.out / "early")
                trace.say(f"early export at step {training.steps}", {"at": budget.fraction})
                early = None
        trace.say(f"held out at step {training.steps}", training.held_out(test))
    return 0
