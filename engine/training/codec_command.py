"""The ``codec`` command: trains the codec on a folder of speech for so many minutes.

All data lies on the device; a step draws random cuts of 1.6 s.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import torch

from ..codec.config import CodecConfig, parse_config
from .alike import Alike
from .budget import Budget
from .codec_model import BUILTIN
from .codec_plan import PLAN, Plan, warm
from .codec_train import CodecTraining
from .course import Course, add_flags
from .cuts import Cuts
from .speech import read_speech
from .states import halved
from .texts import read_texts
from .tracing import Trace, pulse

STATE = "codec"
ALIKE = 2.0
"""Weight of the voices: at the first codec their gradient was then 25 to 60 % as long as that of
the mel distance."""
TIMED_EVERY = 400
"""Steps between two that are taken apart by what they spend their time on."""


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
    add_flags(parser, out="codec.pth and its log", seed=0)
    parser.add_argument("--batch", type=int, default=PLAN.batch)
    parser.add_argument("--frames", type=int, default=PLAN.frames)
    parser.add_argument(
        "--init", type=Path, help="an exported codec.pth to begin with, and its gentler schedule"
    )
    parser.add_argument(
        "--alike", type=Path, help="weights of the speaker encoder, as like --save-encoder leaves"
    )
    parser.add_argument("--alike-weight", type=float, default=ALIKE)
    parser.add_argument("--alike-every", type=int, default=1, help="steps, where it costs much")
    parser.add_argument("--config", type=Path, help="codec_config.json; else the built-in voice's")
    parser.add_argument(
        "--compile-only", action="store_true", help="fill the compiler's cache; reads no speech"
    )
    flags = parser.parse_args(argv)
    budget = Budget(flags.minutes)
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    device = torch.device(flags.device)
    config = BUILTIN if flags.config is None else read_shape(flags.config)
    plan = Plan(batch=flags.batch, frames=flags.frames)
    alike = None
    if flags.alike is not None:
        alike = Alike(config.sample_rate, flags.alike)
        plan = replace(plan, alike=flags.alike_weight, alike_every=flags.alike_every)
    if flags.init is not None:
        plan = warm(plan)
    training = CodecTraining(config, plan, device, alike)
    if flags.compile_only:
        audio = torch.randn(plan.batch, 1, plan.frames * config.frame_samples, device=device)
        with pulse("compiling"):
            print(f"{training.compile(0.1 * audio)} after {budget.spent_s:.0f} s", flush=True)
        return 0
    course = Course(STATE, training, flags, budget)
    if flags.init is not None and not course.resumed:
        training.begin_from(torch.load(flags.init, "cpu", weights_only=True))
        print(f"began with {flags.init}", flush=True)
    torch.manual_seed(flags.seed + training.steps)
    speech = read_speech(flags.speech)
    with pulse("reading"):
        labels = speech.labels(read_texts(flags.texts))
        cuts = Cuts(speech, labels, device, batch=plan.batch, frames=plan.frames)
    print(f"{speech.hours:.2f} h ready after {budget.spent_s:.0f} s", flush=True)
    if device.type == "cuda" and not flags.plain:
        with pulse("compiling"):
            way = training.compile(cuts()[0])
        print(f"{way} after {budget.spent_s:.0f} s", flush=True)
    if alike is not None and training.try_alike(cuts()[0]):
        print(f"voices are compared after {budget.spent_s:.0f} s", flush=True)
    flags.out.mkdir(parents=True, exist_ok=True)
    with Trace(flags.out / "codec_log.txt", budget) as trace:
        for _ in course.steps(lambda: save_codec(flags.out, training)):
            timed = training.steps % TIMED_EVERY == TIMED_EVERY // 2
            batch = cuts()
            if timed:
                training.laps.begin()
            trace.add(training.steps + 1, training.step(*batch, budget.fraction))
            if timed:
                trace.say(f"ms of step {training.steps}", training.laps.end())
        torch.backends.cudnn.benchmark = False
        trace.say(f"held out at step {training.steps}", training.held_out(speech, labels))
    return 0


def read_shape(path: Path) -> CodecConfig:
    return parse_config(json.loads(path.read_text()))
