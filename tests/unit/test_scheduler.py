"""The scheduler: voices, what is spoken, and what a context holds.

Slots, playout and ends are in test_scheduler_slots; what holds for any order is in
test_scheduler_lives.
"""

from __future__ import annotations

import pytest

from shoal.engine.api import (
    EndText,
    Failed,
    Fault,
    Flush,
    Open,
    Opened,
    Prepare,
    Sampling,
    StreamId,
    Voice,
)
from tests.fakes import spec
from tests.rig import WIDE, Rig, alone, columns_of, failure, frames_in, starts_with

LONG = "a fairly long sentence without a number"


# Voices and prefixes ------------------------------------------------------------------------------


def test_opening_prefills_the_voice_at_once_and_takes_no_slot() -> None:
    rig = Rig()
    stream = rig.open("ann")
    rig.turns(5)
    (opened,) = rig.events_of(stream)
    assert isinstance(opened, Opened) and not opened.cached
    assert rig.scheduler.stats(rig.clock(), 0.0).slots_busy == 0
    assert len(rig.runner.log.prefilled) == 2  # the default voice and this one
    assert not rig.plans


def test_eight_streams_on_one_voice_hold_one_prefix_and_share_every_step() -> None:
    rig = Rig(spec(slots=8, pages=200), prefix="x" * 8)
    voice = columns_of("v" * 20)  # two whole pages and a half
    rig = Rig(spec(slots=8, pages=200), voice=lambda _asked: voice)
    streams = [rig.open("ann") for _ in range(8)]
    rig.turns(3)
    stats = rig.scheduler.stats(rig.clock(), 0.0)
    assert stats.hot.entries == 2 and stats.pages_used == 1 + 3
    assert sum(len(chunk.columns) == 20 for chunk in rig.runner.log.prefilled) == 1
    for stream in streams:
        rig.say(stream, "say 30")
    rig.until(lambda: len(rig.runner.log.joins) == 8)
    shared = {join.table[:2] for join in rig.runner.log.joins}
    assert len(shared) == 1, "the whole pages of the prefix are the same for all"
    own = [page for join in rig.runner.log.joins for page in join.table[2:]]
    assert len(set(own)) == len(own), "no other page is in two tables"
    rig.finish()
    assert max(len(slots) for slots in rig.runner.log.steps) == 8
    steps = [slots for slots in rig.runner.log.steps if len(slots) == 8]
    assert len(steps) >= 28, "one step a frame serves all eight"


def test_a_voice_asked_for_twice_is_prepared_once() -> None:
    rig = Rig()
    rig.hold_voices = True
    streams = [rig.open("ann") for _ in range(3)]
    rig.turns(2)
    assert len(rig.voices) == 1
    rig.hold_voices = False
    rig.turns(3)
    assert all(list(rig.events_of(stream)) for stream in streams)


def test_prepare_makes_the_next_opening_a_cached_one() -> None:
    rig = Rig()
    rig.send(Prepare(Voice("ann")))
    rig.turns(3)
    assert rig.events == []
    stream = rig.open("ann")
    rig.turns(2)
    (opened,) = rig.events_of(stream)
    assert isinstance(opened, Opened) and opened.cached
    assert sum(rig.runner.log.prefilled[-1].columns[:, 0] > 0) == len("voice ann")


def test_two_voices_that_differ_in_one_late_codebook_sound_different() -> None:
    first = columns_of("same text")
    second = first.copy()
    second[4, 3] += 1
    heard = [
        alone("say 9", "x", voice=lambda _asked, columns=columns: columns).codes
        for columns in (first, second, first)
    ]
    assert heard[0] == heard[2]
    assert heard[0] != heard[1]


def test_an_unknown_voice_is_the_clients_failure_and_nothing_comes_before_it() -> None:
    rig = Rig(voice=lambda _asked: None)
    stream = rig.open("nobody")
    rig.say(stream, "hello 5")
    rig.send(Flush(stream, 1))
    rig.finish()
    assert failure(rig, stream) == Failed(stream, Fault.CLIENT, "Reference not found")
    assert rig.heard[stream].order == []


def test_a_reference_that_leaves_no_room_to_speak_is_refused() -> None:
    rig = Rig(max_context=100, voice=lambda asked: columns_of("v" * int(asked.voice_id or 0)))
    fits, exceeds = rig.speak("hi 3", "70"), rig.speak("hi 3", "71")
    rig.finish()
    assert rig.heard[fits].ends == [None]
    end = failure(rig, exceeds)
    assert end.fault is Fault.CLIENT and "71" in end.message and "70" in end.message


def test_opened_comes_first_even_when_the_text_was_there_and_over_before() -> None:
    rig = Rig()
    rig.hold_voices = True
    stream = rig.open("ann")
    rig.send(Flush(stream, 4))
    rig.send(EndText(stream))
    rig.turns(5)
    assert rig.heard[stream].order == [] and not rig.heard[stream].ends
    rig.hold_voices = False
    rig.finish()
    assert list(rig.events_of(stream)) == [Opened(stream, pytest.approx(0.06), False)]
    assert rig.heard[stream].order == ["mark 4"]


# Speaking -----------------------------------------------------------------------------------------


def test_every_frame_up_to_the_end_is_heard_and_none_after() -> None:
    for frames in (1, 2, 7, 40):
        heard = alone(f"say {frames}")
        assert len(heard.codes) == frames
        assert heard.ends == [None]


def test_a_turn_with_nothing_to_say_is_a_moment_of_silence() -> None:
    heard = alone("say 0")
    assert heard.codes == []
    assert heard.order == ["say 0", "silence None"]
    assert heard.ends == [None]


def test_segments_marks_and_silences_keep_their_order() -> None:
    rig = Rig()
    stream = rig.open()
    rig.say(stream, "First part. ", end=False)
    rig.send(Flush(stream, 1))
    rig.say(stream, "a blank one", end=False)
    rig.send(Flush(stream, 2))
    rig.send(Flush(stream, 3))
    rig.say(stream, "... ", end=False)
    rig.say(stream, "Last part")
    rig.finish()
    assert rig.heard[stream].order == [
        "First part.",
        "mark 1",
        "silence a blank one",
        "mark 2",
        "mark 3",
        "... Last part",
    ]
    assert len(rig.heard[stream].codes) == frames_in("First part.") + frames_in("... Last part")


def test_a_second_sentence_extends_the_context_and_prefills_only_itself() -> None:
    rig = Rig(spec(max_positions=512, pages=128), prefix="s" * 50)
    stream = rig.open()
    rig.say(stream, "First part. ", end=False)
    rig.send(Flush(stream))
    rig.say(stream, "Second part")
    rig.finish()
    prefix, first, second = rig.runner.log.prefilled
    assert (len(prefix.columns), prefix.position) == (50, 0)
    assert (len(first.columns), first.position) == (len("First part."), 50)
    # The closing column, the text, less the column that the first step feeds.
    spoken = 50 + len("First part.") + 1 + frames_in("First part.")
    assert (len(second.columns), second.position) == (1 + len("Second part"), spoken)
    assert second.copy_page is None
    assert second.table[: len(first.table)] == first.table


def test_a_segment_in_pieces_is_one_segment() -> None:
    rig = Rig()
    stream = rig.speak("one two|three four")
    rig.finish()
    assert rig.heard[stream].order == ["one two|three four"]
    assert len(rig.heard[stream].codes) == len("one two") + len("three four")


def test_draws_count_over_all_segments_of_a_stream() -> None:
    rig = Rig()
    stream = rig.open(seed=5)
    rig.say(stream, "say 6", end=False)
    rig.send(Flush(stream))
    rig.say(stream, "say 4")
    rig.finish()
    assert [join.draw for join in rig.runner.log.joins] == [0, 7]
    assert {join.sampling.seed for join in rig.runner.log.joins} == {5}


def test_sampling_is_the_models_where_the_client_is_silent() -> None:
    rig = Rig()
    stream = StreamId(99)
    rig.heard[stream] = rig.heard[rig.open()]
    rig.send(Open(stream, sampling=Sampling(temperature=0.4, seed=-1)))
    rig.say(stream, "say 2")
    rig.until(lambda: bool(rig.runner.log.joins))
    sampling = rig.runner.log.joins[0].sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.4, 0.9, 30)
    assert 0 <= sampling.seed < 1 << 63


def test_a_model_that_does_not_stop_is_cut_off_and_the_next_sentence_begins_afresh(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = Rig()
    stream = rig.open()
    rig.say(stream, "endless talk. ", end=False)
    rig.send(Flush(stream))
    rig.say(stream, "say 3")
    rig.finish()
    limit = WIDE.frames_base + int(WIDE.frames_per_byte * len("endless talk."))
    assert len(rig.heard[stream].codes) == limit + 3
    assert "cut off" in caplog.text and "endless" not in caplog.text
    assert rig.scheduler.stats(rig.clock(), 0.0).cut_off == 1
    assert rig.runner.log.joins[1].position == len("system") + len("say 3")


def test_the_clients_own_limit_of_frames_holds() -> None:
    rig = Rig()
    stream = rig.open(frames=5)
    rig.say(stream, "endless")
    rig.finish()
    assert len(rig.heard[stream].codes) == 5


# Context end --------------------------------------------------------------------------------------


def test_a_full_context_begins_anew_from_the_voice_with_the_last_sentence() -> None:
    rig = Rig(spec(max_positions=256, pages=128), max_context=160, prefix="s" * 20)
    stream = rig.open()
    for number in range(12):
        rig.say(stream, f"sentence {20 + number}. ", end=False)
        rig.send(Flush(stream))
    rig.send(EndText(stream))
    rig.finish()
    assert len(rig.heard[stream].codes) == sum(20 + number for number in range(12))
    again = [chunk for chunk in rig.runner.log.prefilled if chunk.position == 20]
    assert len(again) >= 4, "the context was begun anew several times"
    codes = [list(code) for code in rig.heard[stream].codes]
    for chunk in again[1:]:
        # What was said last, its frames and the closing column stand before the new text.
        told = next(n for n in range(12) if starts_with(chunk.columns, f"sentence {20 + n}."))
        begin = sum(20 + n for n in range(told))
        frames = chunk.columns[len("sentence 20.") + 1 :][: 20 + told]
        assert frames[:, 1:].tolist() == codes[begin:][: 20 + told]
        rest = chunk.columns[len("sentence 20.") + 1 + 20 + told :]
        assert starts_with(rest, f"\nsentence {21 + told}.")


def test_speech_goes_on_without_a_gap_when_the_context_begins_anew() -> None:
    rig = Rig(spec(max_positions=256, pages=128), max_context=160, prefix="s" * 20, step_s=0.02)
    stream = rig.open()
    for number in range(12):
        rig.say(stream, f"sentence {20 + number}. ", end=False)
    rig.send(EndText(stream))
    lowest = 9.0
    rig.until(lambda: len(rig.heard[stream].codes) > 12)
    while not rig.heard[stream].done:
        rig.turn()
        lowest = min(lowest, rig.heard[stream].playout.lead_s(rig.clock()))
    assert lowest > 0.15


def test_text_that_no_context_can_hold_fails_and_says_so() -> None:
    rig = Rig(spec(max_positions=64, pages=32), max_context=64)
    stream = rig.speak("x" * 80)
    rig.finish()
    assert failure(rig, stream).fault is Fault.CLIENT
