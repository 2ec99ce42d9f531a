"""One step of the codec's training: an adversarial codec whose first codebook says the phoneme.

Losses: mel distance, the distances of the books, the phoneme read from the first codebook by one
linear layer, what the listener hears, how alike a speaker encoder finds the voices, and
discriminators on short cuts. Knows no files and no clock; the command is ``codec_command``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..codec.config import CodecConfig
from .alike import Alike
from .budget import cosine, ramp
from .codec_layers import Snake, normed, snake
from .codec_model import Quantized, TrainedCodec
from .codec_plan import Plan
from .critics import Critics, Listener, MelDistance
from .cuts import HELD_OUT
from .fusing import Fused
from .speech import FRAMES_PER_CODE, Speech
from .states import Averaged, halved
from .texts import PHONEMES
from .tracing import Laps


class CodecTraining:
    """Networks, optimisers and averages; :meth:`step` is one of each."""

    def __init__(
        self,
        config: CodecConfig,
        plan: Plan,
        device: torch.device,
        alike: Alike | None = None,
    ) -> None:
        self.plan, self.device = plan, device
        self.alike = None if alike is None else alike.to(device)
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
            "codec": (adam([self.codec, self.reader], plan.lr), plan.lr, plan.warmup),
            "critics": (
                adam([self.critics], plan.critics_lr),
                plan.critics_lr,
                plan.judges_warmup,
            ),
            "listener": (
                adam([self.listener], plan.listener_lr),
                plan.listener_lr,
                plan.judges_warmup,
            ),
        }
        self.average = Averaged(self.codec, 0.999)
        self.steps = 0
        self._warm_from = 0
        self._run: Callable[..., Any] = self.codec
        self.laps = Laps(device)
        self._amp: dict[str, Any] = dict(
            device_type=device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"
        )

    def begin_from(self, weights: Mapping[str, Tensor]) -> None:
        """Generator, books and average from an exported codec; all else begins anew.

        Raises RuntimeError when the shapes are not those of this training.
        """
        self.codec.load_state_dict(normed(weights, self.codec.state_dict()))
        self.average = Averaged(self.codec, 0.999)
        self._forget_usage()

    def _forget_usage(self) -> None:
        """As if every entry had been drawn its share: only what is then not drawn is moved."""
        for book in self.codec.quantizer.books:
            book.usage.fill_(self.plan.batch * self.plan.frames / len(book.usage))

    def compile(self, audio: Tensor) -> str:
        """Compiles the codec for batches like ``audio``; returns what is compiled of it: all, only
        its activations, whose memory traffic sets its speed, or nothing. What does not work
        forwards and backwards is not used."""
        whole = Fused(self.codec, dynamic=False)
        snakes = [module for module in self.codec.modules() if isinstance(module, Snake)]
        fused = Fused(snake, dynamic=False)
        if self._works(whole, audio, whole):
            self._run = whole
            return "compiled"
        for module in snakes:
            module.fused = fused
        if self._works(self.codec, audio, fused):
            return "compiled in parts"
        for module in snakes:
            module.fused = None
        return "uncompiled"

    def _works(self, run: Callable[..., Any], audio: Tensor, fused: Fused) -> bool:
        every = torch.full((len(audio),), len(self.codec.quantizer.books) - 1, device=self.device)
        try:
            with torch.autocast(**self._amp):
                output, _, semantic, distance, _ = run(audio, every)
            (output.float().mean() + semantic.mean() + distance).backward()
            works = fused.works
        except Exception as error:
            # Whatever a compiler raises; the model's own faults come again in the first step.
            print(f"a way to compile the codec is left out: {str(error)[:300]}", flush=True)
            works = False
        self.codec.zero_grad(set_to_none=True)
        return works

    def try_alike(self, audio: Tensor) -> bool:
        """Whether voices can be compared, and learnt from, on this device; goes on without where
        they cannot."""
        if self.alike is None:
            return False
        copy = (0.9 * audio[:, 0]).requires_grad_()
        try:
            self.alike(audio[:, 0], copy).sum().backward()
        except Exception as error:
            # Whatever a library of kernels raises: a run without this loss is worth more than none.
            print(f"voices are not compared: {str(error)[:300]}", flush=True)
            self.alike = None
        return self.alike is not None

    def step(
        self, audio: Tensor, labels: Tensor, speakers: Tensor, fraction: float
    ) -> dict[str, Tensor]:
        plan = self.plan
        for optimiser, rate, warmup in self._optimisers.values():
            rate *= min(1.0, (self.steps - self._warm_from + 1) / warmup) * cosine(fraction, 0.02)
            for group in optimiser.param_groups:
                group["lr"] = rate
        books = len(self.codec.quantizer.books) - 1
        fewer = torch.rand(len(audio), device=self.device) < plan.fewer_books
        drawn = torch.randint(1, books + 1, (len(audio),), device=self.device)
        residuals = torch.where(fewer, drawn, torch.full_like(drawn, books))
        with torch.autocast(**self._amp):
            quantized = Quantized(*self._run(audio, residuals))
        self.laps("codec")
        output = quantized.audio.float()
        if self.steps % 10 == 0 and fraction < plan.restart_until:
            self.codec.restart(quantized)

        mel = self.mel(output[:, 0], audio[:, 0])
        minded = fraction >= plan.read_from
        read = self._read(quantized.semantic if minded else quantized.semantic.detach())
        phoneme = F.cross_entropy(read, labels)
        loss = plan.mel * mel + plan.phoneme * phoneme + quantized.distance
        found = {"mel": mel, "phoneme": phoneme, "books": quantized.distance}
        self.laps("mel")

        with torch.autocast(**self._amp):
            scores, features, who = self.listener(audio[:, 0])
        learnt = F.cross_entropy(scores.float(), labels)
        known = F.cross_entropy(who.float(), speakers)
        self._descend("listener", learnt + plan.who * known)
        found["listener"], found["listener_who"] = learnt, known
        self.laps("listener")
        weight = plan.heard * ramp(fraction, plan.listen_from, plan.listen_from + 0.1)
        if weight > 0:
            loss = loss + weight * self._heard(output, features, labels, speakers, found)
            self.laps("heard")
        weight = plan.alike * ramp(fraction, plan.alike_from, plan.alike_from + 0.05)
        if self.alike is not None and weight > 0 and self.steps % plan.alike_every == 0:
            cosine_of_voices = self.alike(audio[:, 0], output[:, 0]).mean()
            loss = loss + weight * plan.alike_every * (1 - cosine_of_voices)
            found["alike"] = cosine_of_voices
            self.laps("alike")
        if fraction >= plan.critics_from:
            begin = plan.critics_from + plan.critics_lead
            share = ramp(fraction, begin, begin + plan.critics_ramp)
            wanted = self._teach_critics(audio, output, found)
            if share > 0:
                loss = loss + share * self._contested(output, wanted, found)
            self.laps("critics")
        self._descend("codec", loss)
        self.laps("descent")
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

    def _teach_critics(
        self, audio: Tensor, output: Tensor, found: dict[str, Tensor]
    ) -> tuple[slice, list[list[Tensor]]]:
        """Trains the discriminators on a cut; returns which samples it was, and what they see in
        its recording."""
        plan = self.plan
        samples = min(audio.shape[-1], plan.critics_frames * self.codec.config.frame_samples)
        begin = int(torch.randint(0, audio.shape[-1] - samples + 1, ()))
        cut = slice(begin, begin + samples)
        # A batch is in no order, so its first cuts are as good as any.
        real, made = (x[: plan.critics_batch, :, cut] for x in (audio, output.detach()))
        with torch.autocast(**self._amp):
            of_real, of_made = self.critics(real), self.critics(made)
        told = sum(
            ((r.float() - 1) ** 2).mean() + (m.float() ** 2).mean()
            for (r, _), (m, _) in zip(of_real, of_made, strict=True)
        ) / len(of_real)
        wanted = [[feature.detach() for feature in features] for _, features in of_real]
        self._descend("critics", told)
        found["critics"] = told
        return cut, wanted

    def _contested(
        self,
        output: Tensor,
        seen: tuple[slice, list[list[Tensor]]],
        found: dict[str, Tensor],
    ) -> Tensor:
        """What the discriminators say of the output; they stay as they are."""
        plan, (cut, wanted) = self.plan, seen
        self.critics.requires_grad_(False)
        with torch.autocast(**self._amp):
            of_made = self.critics(output[: plan.critics_batch, :, cut])
        self.critics.requires_grad_(True)
        verdict = sum(((m.float() - 1) ** 2).mean() for m, _ in of_made) / len(of_made)
        apart = sum(
            (a.float() - b.float()).abs().mean()
            for (_, features), real_features in zip(of_made, wanted, strict=True)
            for a, b in zip(features, real_features, strict=True)
        ) / len(of_made)
        found["verdict"], found["features"] = verdict, apart
        return plan.verdict * verdict + plan.features * apart

    def _descend(self, name: str, loss: Tensor) -> None:
        """One step of one optimiser; a step whose gradient is not finite is left out."""
        optimiser, _, _ = self._optimisers[name]
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
            state["optimisers"] = {k: o.state_dict() for k, (o, _, _) in self._optimisers.items()}
        return state

    def resume(self, state: dict[str, Any]) -> float:
        """Returns the fraction of the schedule that was reached."""
        networks = state["networks"]
        for name in ("codec", "critics", "listener", "reader"):
            getattr(self, name).load_state_dict(networks[name])
        self.average.load(networks["average"])
        self._forget_usage()
        self.steps = int(state["steps"])
        if "optimisers" in state:
            for name, (optimiser, _, _) in self._optimisers.items():
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
            row = [float(self.mel(output, audio)), *(float(s) for s in shares)]
            rows.append(row if self.alike is None else [*row, float(self.alike(audio, output))])
        names = ["mel", "read from the first book", "heard in the original", "heard in the output"]
        if self.alike is not None:
            names.append("voices alike")
        return dict(zip(names, np.mean(rows, 0).tolist(), strict=True))
