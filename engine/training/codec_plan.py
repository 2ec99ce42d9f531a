"""How the codec is trained: sizes, rates, weights of the losses, and when each of them begins."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Plan:
    """How to train: sizes, weights of the losses, and when parts begin (schedule fractions)."""

    batch: int = 48
    frames: int = 32
    lr: float = 6e-4
    warmup: int = 200
    listener_lr: float = 5e-4
    critics_lr: float = 3e-4
    judges_warmup: int = 100
    mel: float = 15.0
    phoneme: float = 1.0
    heard: float = 1.0
    who: float = 0.2
    """Of who speaks, beside what is said, in what the listener learns and hears."""
    verdict: float = 1.0
    features: float = 2.0
    alike: float = 0.0
    """Of the distance of the voices, 1 - cosine; needs a speaker encoder."""
    alike_from: float = 0.0
    alike_every: int = 1
    """Steps; in between the voices are not compared, and weigh as much more when they are."""
    read_from: float = 0.0
    """Before this the reader of the first book learns, and the codec does not mind it."""
    listen_from: float = 0.04
    critics_from: float = 0.3
    critics_lead: float = 0.0
    """How long the discriminators learn before the codec minds them."""
    critics_ramp: float = 0.05
    critics_batch: int = 24
    critics_frames: int = 12
    """What the discriminators judge in a step: so many cuts of so many code frames."""
    restart_until: float = 0.35
    fewer_books: float = 0.2
    """Share of the cuts that are decoded from fewer books."""
    critics_width: int = 24
    listener_width: int = 256


PLAN = Plan()


def warm(plan: Plan) -> Plan:
    """``plan`` for a codec that has learnt already: a lower rate that is reached slowly, and judges
    that learn from the first steps and are minded once they know something."""
    return replace(
        plan,
        lr=0.5 * plan.lr,
        warmup=2 * plan.warmup,
        read_from=0.03,
        listen_from=0.05,
        critics_from=0.03,
        critics_lead=0.06,
        critics_ramp=0.08,
        restart_until=0.25,
    )
