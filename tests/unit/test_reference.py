"""Voice preparation: known voices at once, recordings once, and whose fault a failure is."""

from __future__ import annotations

from pathlib import Path
from queue import SimpleQueue

import numpy as np
import pytest

from shoal.engine.api import Fault, Reference, Voice
from shoal.engine.audio_file import read_audio
from shoal.engine.config import Limits
from shoal.engine.jobs import ToVoice, VoiceFailed, VoiceJob, VoiceReady
from shoal.engine.prompt import PromptReference
from shoal.engine.reference import Encoded, EncodeJob, VoiceEncoder, VoicePreparer
from shoal.engine.voices import MAX_REFERENCES
from tests.turns import BUILDER
from tests.voice_desk import LOUD, SOFT, Desk, wav


def test_a_recording_becomes_the_prefix_of_its_codes() -> None:
    desk = Desk()
    desk.ask(Voice(references=(LOUD, SOFT)))
    assert not desk.reports
    desk.encode()
    rate = desk.runner.spec.sample_rate
    assert rate == 16_000
    codes = [desk.runner.encode(np.full(19200, level, np.float32)) for level in (0.5, 0.1)]
    assert [len(one) for one in codes] == [12, 12]
    columns = desk.columns(1)
    lengths = BUILDER.prefix(
        [PromptReference(r.text, c) for r, c in zip((LOUD, SOFT), codes, strict=True)]
    )
    assert columns.shape == lengths.shape


def test_a_recording_that_several_wait_for_is_encoded_once() -> None:
    desk = Desk()
    for _ in range(3):
        desk.ask(Voice(references=(LOUD,)))
    assert len(desk.encodes) == 1
    desk.encode()
    assert [report.job for report in desk.reports] == [1, 2, 3]
    desk.ask(Voice(references=(LOUD,)))
    assert len(desk.reports) == 4 and not desk.encodes
    assert np.array_equal(desk.columns(1), desk.columns(4))


def test_a_known_voice_is_not_held_up_by_a_new_one() -> None:
    desk = Desk()
    desk.ask(Voice(references=(LOUD,)))
    desk.encode()
    desk.ask(Voice(references=(SOFT,)))
    desk.ask(Voice(references=(LOUD,)))
    assert [report.job for report in desk.reports] == [1, 3]


def test_audio_and_transcript_both_make_the_voice() -> None:
    desk = Desk()
    other_words = Reference(LOUD.audio, "other words")
    for reference in (LOUD, SOFT, other_words):
        desk.ask(Voice(references=(reference,)))
    # What is in which part must not matter only as a whole.
    desk.ask(Voice(references=(Reference(LOUD.audio + b"lo", "ud"),)))
    assert desk.preparer.waiting == 4
    desk.encode()
    assert not np.array_equal(desk.columns(1)[:, 0], desk.columns(3)[:, 0])


def test_a_stored_voice_is_encoded_once_for_every_process(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    assert desk.store is not None
    desk.store.add("ann", (LOUD,))
    desk.ask(Voice("ann"))
    desk.encode()
    again = Desk(tmp_path)
    again.ask(Voice("ann"))
    assert not again.encodes
    assert np.array_equal(desk.columns(1), again.columns(1))


def test_a_replaced_voice_is_the_new_one(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    assert desk.store is not None
    desk.store.add("ann", (LOUD,))
    desk.ask(Voice("ann"))
    desk.encode()
    desk.store.add("ann", (SOFT,), replace=True)
    desk.ask(Voice("ann"))
    desk.encode()
    assert not np.array_equal(desk.columns(1), desk.columns(2))
    desk.store.remove("ann")
    desk.ask(Voice("ann"))
    assert desk.reports[-1] == VoiceFailed(3, Fault.CLIENT, "Reference not found")


def test_an_id_wins_over_recordings_sent_along(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.ask(Voice("nobody", (LOUD,)))
    assert desk.reports == [VoiceFailed(1, Fault.CLIENT, "Reference not found")]


@pytest.mark.parametrize("voice_id", ["nobody", "../etc/passwd", ""])
def test_without_such_a_voice_the_client_is_told(tmp_path: Path, voice_id: str) -> None:
    for root in (None, tmp_path):
        desk = Desk(root)
        desk.ask(Voice(voice_id))
        assert desk.reports == [VoiceFailed(1, Fault.CLIENT, "Reference not found")]


def test_what_is_no_recording_is_the_clients_fault_and_tried_again_next_time() -> None:
    desk = Desk()
    for _ in range(2):
        desk.ask(Voice(references=(Reference(b"not audio at all", "x"),)))
        desk.encode()
    assert all(
        isinstance(report, VoiceFailed) and report.fault is Fault.CLIENT for report in desk.reports
    )
    assert len(desk.reports) == 2


def test_too_many_recordings_are_refused() -> None:
    desk = Desk()
    desk.ask(Voice(references=(LOUD,) * (MAX_REFERENCES + 1)))
    assert isinstance(desk.reports[0], VoiceFailed) and desk.reports[0].fault is Fault.CLIENT
    assert not desk.encodes


def test_a_failing_encoder_fails_all_who_wait_and_nobody_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    desk = Desk()
    desk.runner.fail_encode = True
    for _ in range(2):
        desk.ask(Voice(references=(LOUD,)))
    desk.encode()
    assert [(r.job, isinstance(r, VoiceFailed) and r.fault) for r in desk.reports] == [
        (1, Fault.ENGINE),
        (2, Fault.ENGINE),
    ]
    assert "scripted encoder failure" in caplog.text
    desk.runner.fail_encode = False
    desk.ask(Voice(references=(LOUD,)))
    desk.encode()
    assert isinstance(desk.reports[-1], VoiceReady)


def test_a_recording_sent_along_is_encoded_once_for_every_process(tmp_path: Path) -> None:
    voice = Voice(references=(LOUD, SOFT))
    desk = Desk(tmp_path)
    desk.ask(voice)
    desk.encode()
    again = Desk(tmp_path)
    again.ask(voice)
    assert not again.encodes and np.array_equal(desk.columns(1), again.columns(1))
    assert again.cold is not None and again.cold.stats().hits == 1
    assert (again.known.stats().promotions, again.encoder.encoded) == (1, 0)
    # The recording is what was encoded: other words, or a name for it, do not make it another.
    again.ask(Voice(references=(Reference(LOUD.audio, "other words"), SOFT)))
    assert again.store is not None
    again.store.add("ann", (SOFT,))
    again.ask(Voice("ann"))
    assert not again.encodes and len(again.reports) == 3
    # A recording that is new takes the whole voice to the encoder.
    again.ask(Voice(references=(LOUD, Reference(wav(0.3), "new"))))
    assert len(again.encodes) == 1 and again.cold.stats().misses == 1


def test_voices_move_between_the_tiers_and_each_is_counted(tmp_path: Path) -> None:
    codes_of_two = 2 * (12 * 8 * 4 + 4)
    desk = Desk(tmp_path, codes_bytes=codes_of_two)
    voices = [Voice(references=(Reference(wav(0.1 + n / 10), f"no {n}"),)) for n in range(3)]
    for voice in voices:
        desk.ask(voice)
    desk.encode()
    found = desk.known.stats()
    assert (found.entries, found.bytes, found.limit_bytes) == (2, codes_of_two, codes_of_two)
    assert (found.hits, found.misses, found.evictions, found.promotions) == (0, 3, 1, 0)
    desk.ask(voices[2])
    desk.ask(voices[0])  # it was pushed out, and comes from disk
    found = desk.known.stats()
    assert (found.hits, found.misses, found.evictions, found.promotions) == (1, 4, 2, 1)
    assert desk.cold is not None and desk.encoder.encoded == 3 and not desk.encodes
    assert (desk.cold.stats().hits, desk.cold.stats().misses) == (1, 3)
    assert np.array_equal(desk.columns(1), desk.columns(5))


def test_a_disk_that_cannot_be_written_costs_nothing_but_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    desk = Desk(tmp_path)
    (tmp_path / ".codes").write_text("a file where a folder belongs")
    desk.ask(Voice(references=(LOUD,)))
    desk.encode()
    assert isinstance(desk.reports[0], VoiceReady)
    assert "could not be kept" in caplog.text


def test_several_voices_become_one_prefix_with_their_numbers(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    assert desk.store is not None
    desk.store.add("ann", (LOUD, SOFT))
    other = Reference(wav(0.3), "third")
    desk.ask(Voice(speakers=(Voice("ann"), Voice(references=(other,)), Voice("ann"))))
    assert desk.preparer.waiting == 2, "a voice that comes twice is encoded once"
    desk.preparer.take(desk.encoder.work(desk.encodes.pop()))
    assert not desk.reports, "not before the last one is there"
    desk.encode()

    def made(reference: Reference, speaker: int) -> PromptReference:
        samples = read_audio(reference.audio, 16_000)
        return PromptReference(reference.text, desk.runner.encode(samples), speaker)

    expected = BUILDER.prefix(
        [made(LOUD, 0), made(SOFT, 0), made(other, 1), made(LOUD, 2), made(SOFT, 2)]
    )
    assert np.array_equal(desk.columns(1), expected)
    desk.ask(Voice(speakers=(Voice("ann"), Voice(references=(other,)))))
    assert not desk.encodes and not np.array_equal(desk.columns(2), expected)


def test_one_bad_voice_of_several_is_told_once(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    noise = Voice(references=(Reference(b"not audio at all", "x"),))
    desk.ask(Voice(speakers=(noise, Voice(references=(LOUD,)), Voice("nobody"))))
    assert desk.reports == [VoiceFailed(1, Fault.CLIENT, "Reference not found")]
    assert not desk.encodes, "nothing is encoded for somebody who is refused"
    desk.ask(Voice(speakers=(noise, Voice(references=(LOUD,)))))
    desk.encode()
    assert [report.job for report in desk.reports] == [1, 2]
    assert isinstance(desk.reports[1], VoiceFailed)
    many = Voice(references=(LOUD,) * 11)
    desk.ask(Voice(speakers=(many, Voice(references=(SOFT,) * 11))))
    assert isinstance(desk.reports[2], VoiceFailed) and "references" in desk.reports[2].message


@pytest.mark.parametrize(
    ("text", "doubt"),
    [("About right for it.", ""), ("word " * 40, "too long"), ("Ж", "too short"), ("…", "empty")],
)
def test_a_transcript_that_cannot_match_is_remarked_upon(
    text: str, doubt: str, caplog: pytest.LogCaptureFixture
) -> None:
    desk = Desk()
    desk.ask(Voice(references=(Reference(wav(0.5, 4.0), text),)))
    desk.encode()
    (ready,) = desk.reports
    assert isinstance(ready, VoiceReady)
    assert (doubt in ready.note) if doubt else not ready.note
    assert bool(caplog.records) == bool(doubt) and text not in caplog.text
    caplog.clear()
    desk.ask(Voice(references=(Reference(wav(0.5, 4.0), text),)))
    again = desk.reports[1]
    assert isinstance(again, VoiceReady) and again.note == ready.note
    assert not caplog.records, "once is enough for the log"


def test_the_loops_run_until_they_are_told_to_stop() -> None:
    desk = Desk()
    reports: list[Encoded] = []
    jobs: SimpleQueue[EncodeJob | None] = SimpleQueue()
    jobs.put(EncodeJob(b"k", (LOUD,)))
    jobs.put(None)
    VoiceEncoder(desk.runner, None, None, "codec", jobs, reports.append).run()
    assert [report.key for report in reports] == [b"k"] and reports[0].fault is None
    inbox: SimpleQueue[ToVoice | Encoded | None] = SimpleQueue()
    inbox.put(VoiceJob(1, Voice("x")))
    heard: list[VoiceReady | VoiceFailed] = []

    def report(answer: VoiceReady | VoiceFailed) -> None:
        heard.append(answer)
        inbox.put(None)

    VoicePreparer(
        BUILDER, None, desk.known, None, "c", 0.1, Limits(), inbox, desk.encodes.append, report
    ).run()
    assert len(heard) == 1


def test_a_short_recording_is_remarked_upon_and_two_of_them_are_not() -> None:
    desk = Desk()
    desk.ask(Voice(references=(Reference(wav(0.5, 2.0), "What is said in it."),)))
    desk.encode()
    desk.ask(Voice(references=(Reference(wav(0.4, 2.0), "What is said in it."),) * 2))
    desk.encode()
    short, enough = desk.reports
    assert isinstance(short, VoiceReady) and isinstance(enough, VoiceReady)
    assert short.note.startswith("2.0 s of reference audio are little")
    assert enough.note == ""
