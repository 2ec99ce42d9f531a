"""The line for the voice encoder: who need not wait, who goes first, and who is refused."""

from __future__ import annotations

from typing import TypeGuard

from shoal.engine.api import Fault, Reference, Voice
from shoal.engine.config import Limits
from shoal.engine.jobs import VoiceDrop, VoiceFailed, VoiceJob, VoiceReady
from shoal.engine.reference import VOICES_BUSY
from tests.voice_desk import Desk, wav


def several(count: int) -> list[Voice]:
    return [Voice(references=(Reference(wav(0.1 + n / 50), f"no {n}"),)) for n in range(count)]


def ready(report: VoiceReady | VoiceFailed) -> TypeGuard[VoiceReady]:
    return isinstance(report, VoiceReady)


def test_what_nobody_waits_for_is_not_even_decoded() -> None:
    desk = Desk()
    for voice in several(10):
        job = desk.ask(voice)
        if job not in (1, 10):
            desk.preparer.take(VoiceDrop(job))
    assert desk.preparer.waiting == 2 and desk.preparer.skipped == 8
    desk.encode()
    assert desk.encoder.encoded == 2
    answers = sorted((report.job, ready(report)) for report in desk.reports)
    assert answers == [(job, job in (1, 10)) for job in range(1, 11)], "each exactly once"


def test_jobs_that_were_dropped_before_they_were_looked_at_cost_nothing() -> None:
    desk = Desk()
    voices = several(5)
    for job, voice in enumerate(voices):
        desk.preparer.take(VoiceJob(job, voice))
    for job in range(4):
        desk.preparer.take(VoiceDrop(job))
    desk.preparer.look()
    assert [waits.references for waits in desk.encodes] == [voices[4].references]
    assert desk.known.stats().misses == 1 and desk.preparer.skipped == 4


def test_a_second_who_waits_keeps_the_voice_and_so_does_having_begun() -> None:
    desk = Desk()
    first, second, third = several(3)
    begun, shared, _, alone = (desk.ask(voice) for voice in (first, second, second, third))
    for job in (begun, shared, alone):
        desk.preparer.take(VoiceDrop(job))
    desk.preparer.take(VoiceDrop(alone))  # twice is as good as once
    assert desk.preparer.waiting == 2
    desk.encode()
    assert desk.encoder.encoded == 2
    assert [report.job for report in desk.reports if ready(report)] == [3]
    desk.ask(first)
    assert not desk.encodes and ready(desk.reports[-1]), "it was begun, and kept"
    desk.preparer.take(VoiceDrop(3))  # it crossed the answer
    assert len(desk.reports) == 5


def test_a_line_that_is_full_is_refused_and_voices_that_are_known_are_not() -> None:
    desk = Desk(limits=Limits(voices_waiting=3))
    known, *new = several(5)
    desk.ask(known)
    desk.encode()
    for voice in new[:3]:
        desk.ask(voice)
    refused, joined = desk.ask(new[3]), desk.ask(new[2])
    cached = desk.ask(known)
    assert desk.reports[1] == VoiceFailed(refused, Fault.BUSY, VOICES_BUSY)
    assert ready(desk.reports[2]) and desk.reports[2].job == cached
    assert desk.preparer.refused == 1
    desk.encode()
    assert ready(desk.reports[-1]) and desk.reports[-1].job == joined
    desk.ask(new[3])
    desk.encode()
    assert ready(desk.reports[-1]), "there is room again"


def test_recordings_in_line_have_a_limit_and_one_voice_always_gets_there() -> None:
    voices = several(3)
    size = len(voices[0].references[0].audio)
    desk = Desk(limits=Limits(voice_bytes=size + 1))
    tight = Desk(limits=Limits(voice_bytes=1))
    for here in (desk, tight):
        for voice in voices:
            here.ask(voice)
        assert here.preparer.waiting == 1 and here.preparer.refused == 2
        assert here.reports == [VoiceFailed(job, Fault.BUSY, VOICES_BUSY) for job in (2, 3)]


def test_those_who_listen_are_not_behind_those_who_do_not() -> None:
    desk = Desk(limits=Limits(voices_waiting=6))
    voices = several(6)
    for voice in voices[:4]:
        desk.ask(voice, live=False)
    assert desk.preparer.waiting == 3, "half of the places are for others"
    desk.ask(voices[4])
    joins = desk.ask(voices[2])  # in line for batch work already
    desk.encode()
    order = [report.job for report in desk.reports if ready(report)]
    assert order == [1, 3, joins, 5, 2], "who listens goes first, in the order that they came"
    for job, voice in enumerate(several(9)[6:], 100):
        desk.preparer.take(VoiceJob(job, voice, live=job == 102))
    desk.preparer.look()
    assert desk.encodes[0].references == several(9)[8].references


def test_one_voice_that_cannot_be_had_takes_the_others_of_its_turn_out_of_the_line() -> None:
    desk = Desk()
    noise = Voice(references=(Reference(b"not audio at all", "x"),))
    desk.ask(Voice(speakers=(noise, *several(3))))
    assert desk.preparer.waiting == 4
    desk.encode()
    assert desk.encoder.encoded == 0 and desk.preparer.waiting == 0 and len(desk.reports) == 1
