"""The ``codec`` command: an adversarially trained codec whose first codebook says the phoneme.

Losses: mel distance, the distances of the books, the phoneme read from the first codebook by one
linear layer, what the listener hears, and, later in the schedule, discriminators on short cuts.
All data lies on the device; a step draws random cuts of 1.6 s.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..codec.config import CodecConfig, parse_config
from .budget import Budget, cosine, ramp
from .codec_layers import Snake, snake
from .codec_model import BUILTIN, Quantized, TrainedCodec
from .critics import Critics, Listener, MelDistance
from .cuts import HELD_OUT, Cuts
from .fusing import Fused
from .speech import FRAMES_PER_CODE, Speech, read_speech
from .states import Averaged, halved, has_state, load_state, save_state
from .texts import PHONEMES, read_texts
from .tracing import Pulse, Trace

STATE = "codec"
KEPT_S = 120.0
"""Between two saved states, so that a run that is stopped loses no more."""
CRITIC_FRAMES = 16
"""Of the cut that the discriminators judge, in code frames."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How to train: sizes, weights of the losses, and when parts begin (schedule fractions)."""

    batch: int = 48
    frames: int = 32
    lr: float = 6e-4
    warmup: int = 200
    mel: float = 15.0
    phoneme: float = 1.0
    heard: float = 1.0
    who: float = 0.2
    """Of who speaks, beside what is said, in what the listener learns and hears."""
    verdict: float = 1.0
    features: float = 2.0
    listen_from: float = 0.04
    critics_from: float = 0.3
    restart_until: float = 0.35
    fewer_books: float = 0.2
    """Share of the cuts that are decoded from fewer books."""
    critics_width: int = 24
    listener_width: int = 256


PLAN = Plan()


class CodecTraining:
    """Networks, optimisers and averages; :meth:`step` is one of each."""

    def __init__(self, config: CodecConfig, plan: Plan, device: torch.device) -> None:
        self.plan, self.device = plan, device
        self.codec = TrainedCodec(config).to(device)
        self.critics = Critics(plan.critics_width).to(device)
        self.listener = Listener(config.sample_rate, plan.listener_width).to(device)
        latent = config.quantizer.latent_dim
        self.reader = nn.Conv1d(latent, FRAMES_PER_CODE * PHONEMES, 1).to(device)
        self.mel = MelDistance(config.sample_rate).to(device)
        fused = device.type == "cuda"

        def adam(modules: list[nn.Module], rate: float) -> torch.optim.AdamW:
            parameters = [p for module in modules for p in module.parameters()]
            return torch.optim.AdamW(
                parameters, rate, betas=(0.8, 0.99), weight_decay=1e-3, fused=fused
            )

        self._optimisers = {
            "codec": (adam([self.codec, self.reader], plan.lr), 1.0),
            "critics": (adam([self.critics], plan.lr), 0.5),
            "listener": (adam([self.listener], plan.lr), 0.5),
        }
        self.average = Averaged(self.codec, 0.999)
        self.steps = 0
        self._warm_from = 0
        self._amp: dict[str, Any] = dict(
            device_type=device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"
        )

    def fuse(self, audio: Tensor) -> bool:
        """Compiles the codec's activations, whose memory traffic sets its speed (the whole of it
        would be a thousand kernels, and minutes); returns whether they work, forwards and
        backwards, and goes on without where they do not."""
        snakes = [module for module in self.codec.modules() if isinstance(module, Snake)]
        fused = Fused(snake, dynamic=False)
        every = torch.full((len(audio),), len(self.codec.quantizer.books) - 1, device=self.device)
        for module in snakes:
            module.fused = fused
        try:
            with torch.autocast(**self._amp):
                output, _, semantic, distance, _ = self.codec(audio, every)
            (output.float().mean() + semantic.mean() + distance).backward()
            works = fused.works
        except Exception as error:
            # Whatever a compiler raises; the model's own faults come again in the first step.
            print(f"the codec runs uncompiled: {str(error)[:300]}", flush=True)
            works = False
        for module in snakes:
            module.fused = fused if works else None
        self.codec.zero_grad(set_to_none=True)
        return works

    def step(
        self, audio: Tensor, labels: Tensor, speakers: Tensor, fraction: float
    ) -> dict[str, Tensor]:
        plan = self.plan
        rate = min(1.0, (self.steps - self._warm_from + 1) / plan.warmup)
        rate *= plan.lr * cosine(fraction, 0.02)
        for optimiser, share in self._optimisers.values():
            for group in optimiser.param_groups:
                group["lr"] = rate * share
        books = len(self.codec.quantizer.books) - 1
        fewer = torch.rand(len(audio), device=self.device) < plan.fewer_books
        drawn = torch.randint(1, books + 1, (len(audio),), device=self.device)
        residuals = torch.where(fewer, drawn, torch.full_like(drawn, books))
        with torch.autocast(**self._amp):
            quantized = Quantized(*self.codec(audio, residuals))
        output = quantized.audio.float()
        if self.steps % 10 == 0 and fraction < plan.restart_until:
            self.codec.restart(quantized)

        mel = self.mel(output[:, 0], audio[:, 0])
        read = self._read(quantized.semantic)
        phoneme = F.cross_entropy(read, labels)
        loss = plan.mel * mel + plan.phoneme * phoneme + quantized.distance
        found = {"mel": mel, "phoneme": phoneme, "books": quantized.distance}

        with torch.autocast(**self._amp):
            scores, features, who = self.listener(audio[:, 0])
        learnt = F.cross_entropy(scores.float(), labels)
        known = F.cross_entropy(who.float(), speakers)
        self._descend("listener", learnt + plan.who * known)
        found["listener"], found["listener_who"] = learnt, known
        weight = plan.heard * ramp(fraction, plan.listen_from, plan.listen_from + 0.1)
        if weight > 0:
            loss = loss + weight * self._heard(output, features, labels, speakers, found)
        if fraction >= plan.critics_from:
            share = ramp(fraction, plan.critics_from, plan.critics_from + 0.05)
            loss = loss + share * self._contested(audio, output, found)
        self._descend("codec", loss)
        self.steps += 1
        self.average.update(self.steps)
        return {name: value.detach() for name, value in found.items()}

    def _read(self, semantic: Tensor) -> Tensor:
        """Phoneme scores [B, PHONEMES, 2 T], linear in what the first book decodes to."""
        scores = self.reader(semantic.float()).unflatten(1, (PHONEMES, FRAMES_PER_CODE))
        return scores.transpose(2, 3).flatten(2)

    def _heard(
        self,
        output: Tensor,
        wanted: list[Tensor],
        labels: Tensor,
        speakers: Tensor,
        found: dict[str, Tensor],
    ) -> Tensor:
        """What the listener makes of the output; the listener itself stays as it is."""
        self.listener.requires_grad_(False)
        with torch.autocast(**self._amp):
            scores, features, who = self.listener(output[:, 0])
        self.listener.requires_grad_(True)
        heard = F.cross_entropy(scores.float(), labels)
        known = F.cross_entropy(who.float(), speakers)
        apart = torch.stack(
            [
                (a.float() - b.detach().float()).abs().mean() / b.detach().float().abs().mean()
                for a, b in zip(features, wanted, strict=True)
            ]
        ).mean()
        found["heard"], found["heard_who"], found["apart"] = heard, known, apart
        return heard + self.plan.who * known + apart

    def _contested(self, audio: Tensor, output: Tensor, found: dict[str, Tensor]) -> Tensor:
        """Trains the discriminators on a cut, and returns what they say of the output."""
        samples = min(audio.shape[-1], CRITIC_FRAMES * self.codec.config.frame_samples)
        begin = int(torch.randint(0, audio.shape[-1] - samples + 1, ()))
        real = audio[..., begin : begin + samples]
        made = output[..., begin : begin + samples]
        with torch.autocast(**self._amp):
            of_real, of_made = self.critics(real), self.critics(made.detach())
        count = len(of_real)
        told = sum(
            ((r.float() - 1) ** 2).mean() + (m.float() ** 2).mean()
            for (r, _), (m, _) in zip(of_real, of_made, strict=True)
        )
        wanted = [[feature.detach() for feature in features] for _, features in of_real]
        self._descend("critics", told / count)
        self.critics.requires_grad_(False)
        with torch.autocast(**self._amp):
            of_made = self.critics(made)
        self.critics.requires_grad_(True)
        verdict = sum(((m.float() - 1) ** 2).mean() for m, _ in of_made) / count
        apart = (
            sum(
                (a.float() - b.float()).abs().mean()
                for (_, features), real_features in zip(of_made, wanted, strict=True)
                for a, b in zip(features, real_features, strict=True)
            )
            / count
        )
        found["critics"], found["verdict"], found["features"] = told / count, verdict, apart
        return self.plan.verdict * verdict + self.plan.features * apart

    def _descend(self, name: str, loss: Tensor) -> None:
        """One step of one optimiser; a step whose gradient is not finite is left out."""
        optimiser, _ = self._optimisers[name]
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        parameters = [p for group in optimiser.param_groups for p in group["params"]]
        length = nn.utils.clip_grad_norm_(parameters, 5.0 if name == "codec" else 10.0)
        if self.device.type == "cuda":
            # What the fused optimiser asks a gradient scaler for; no wait for the device.
            optimiser.found_inf = (~torch.isfinite(length)).float()  # type: ignore[attr-defined]
            optimiser.grad_scale = None  # type: ignore[attr-defined]
        elif not torch.isfinite(length):
            return
        optimiser.step()

    def state(self, fraction: float, *, compact: bool) -> dict[str, Any]:
        networks = {
            "codec": self.codec.state_dict(),
            "critics": self.critics.state_dict(),
            "listener": self.listener.state_dict(),
            "reader": self.reader.state_dict(),
            "average": dict(self.average.tensors),
        }
        state: dict[str, Any] = {"steps": self.steps, "fraction": fraction}
        state["networks"] = {k: halved(v) if compact else v for k, v in networks.items()}
        if not compact:
            state["optimisers"] = {k: o.state_dict() for k, (o, _) in self._optimisers.items()}
        return state

    def resume(self, state: dict[str, Any]) -> float:
        """Returns the fraction of the schedule that was reached."""
        networks = state["networks"]
        for name in ("codec", "critics", "listener", "reader"):
            getattr(self, name).load_state_dict(networks[name])
        self.average.load(networks["average"])
        self.steps = int(state["steps"])
        if "optimisers" in state:
            for name, (optimiser, _) in self._optimisers.items():
                optimiser.load_state_dict(state["optimisers"][name])
        else:
            self._warm_from = self.steps
        return float(state["fraction"])

    @torch.no_grad()
    def held_out(self, speech: Speech, labels: np.ndarray, count: int = 32) -> dict[str, float]:
        """The average weights on whole utterances: mel distance, and the share of phonemes that
        is read from the first codebook, from the recording and from the output."""
        averaged = TrainedCodec(self.codec.config).to(self.device).eval()
        averaged.load_state_dict(self.average.tensors)
        rows: list[list[float]] = []
        for index in range(min(count, HELD_OUT, max(1, len(speech) // 10))):
            audio = torch.from_numpy(speech.samples(index)).to(self.device)[None]
            begin = int(speech.start[index])
            wanted = torch.from_numpy(labels[begin : begin + int(speech.frames[index])])
            wanted = wanted.to(self.device).long()
            codes = averaged.encode(audio[:, None])
            output = averaged.decode(codes)[:, 0, : audio.shape[1]]
            semantic = averaged.quantizer.books[0].decode(codes[:, 0])
            read = self._read(semantic)[0].argmax(0)[: len(wanted)]
            heard = [self.listener(sound)[0][0].argmax(0) for sound in (audio, output)]
            shares = [(h[: len(wanted)] == wanted).float().mean() for h in (read, *heard)]
            rows.append([float(self.mel(output, audio)), *(float(s) for s in shares)])
        names = ("mel", "read from the first book", "heard in the original", "heard in the output")
        return dict(zip(names, np.mean(rows, 0).tolist(), strict=True))


def save_codec(folder: Path, training: CodecTraining) -> None:
    """``codec.pth``: the average weights in float16."""
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / "codec.pth.new"
    torch.save(halved(training.average.tensors), temporary)
    temporary.replace(folder / "codec.pth")


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="codec", description=__doc__)
    parser.add_argument("--speech", type=Path, required=True)
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="codec.pth and its log")
    parser.add_argument("--state", type=Path, required=True, help="the whole state, to go on from")
    parser.add_argument("--carry", type=Path, help="a compact state, in pieces, as well")
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--steps", type=int, default=0, help="at least, whatever the minutes")
    parser.add_argument("--begin", type=float, default=0.0, help="schedule, when there is no state")
    parser.add_argument("--end", type=float, default=1.0)
    parser.add_argument("--batch", type=int, default=PLAN.batch)
    parser.add_argument("--frames", type=int, default=PLAN.frames)
    parser.add_argument("--config", type=Path, help="codec_config.json; else the built-in voice's")
    parser.add_argument("--plain", action="store_true", help="compile nothing")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    flags = parser.parse_args(argv)
    budget = Budget(flags.minutes)
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    device = torch.device(flags.device)
    config = BUILTIN if flags.config is None else read_shape(flags.config)
    plan = Plan(batch=flags.batch, frames=flags.frames)
    training = CodecTraining(config, plan, device)
    begin = flags.begin
    for folder in (flags.state, flags.carry):
        if folder is not None and has_state(folder, STATE):
            begin = training.resume(load_state(folder, STATE, device))
            print(f"went on from {folder} at step {training.steps}, {begin:.3f}", flush=True)
            break
    torch.manual_seed(flags.seed + training.steps)
    speech = read_speech(flags.speech)
    with Pulse("reading"):
        labels = speech.labels(read_texts(flags.texts))
        cuts = Cuts(speech, labels, device, batch=plan.batch, frames=plan.frames)
    print(f"{speech.hours:.2f} h ready after {budget.spent_s:.0f} s", flush=True)
    if device.type == "cuda" and not flags.plain:
        with Pulse("compiling"):
            way = "compiled" if training.fuse(cuts()[0]) else "uncompiled"
        print(f"{way} after {budget.spent_s:.0f} s", flush=True)
    budget.begin_schedule(begin, flags.end)
    least = training.steps + flags.steps
    kept_s = budget.spent_s

    def keep() -> None:
        save_codec(flags.out, training)
        save_state(flags.state, STATE, training.state(budget.fraction, compact=False))

    flags.out.mkdir(parents=True, exist_ok=True)
    with Trace(flags.out / "codec_log.txt", budget) as trace:
        while not budget.over or training.steps < least:
            trace.add(training.steps + 1, training.step(*cuts(), budget.fraction))
            if budget.spent_s - kept_s > KEPT_S:
                kept_s = budget.spent_s
                keep()
        keep()
        if flags.carry is not None:
            save_state(flags.carry, STATE, training.state(budget.end, compact=True))
        torch.backends.cudnn.benchmark = False
        trace.say(f"held out at step {training.steps}", training.held_out(speech, labels))
    return 0


def read_shape(path: Path) -> CodecConfig:
    return parse_config(json.loads(path.read_text()))
