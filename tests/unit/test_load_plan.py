"""What is said, by whom and when: seeded, so every value can be checked."""

from __future__ import annotations

import random
from collections import Counter
from itertools import islice, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.loadtest.measure.timeline import Kind, SentenceEnd
from shoal.loadtest.plan.arrivals import burst_times, next_start_s, poisson, think_s
from shoal.loadtest.plan.text import (
    Prompts,
    count_sentences,
    first_speakable,
    paced,
    speech_chars,
    whole,
    write_prompt,
)
from shoal.loadtest.plan.turn_plan import Script, Speech, TurnPlan
from shoal.loadtest.plan.voices import Voice, VoiceMix, freshen


def rng() -> random.Random:
    return random.Random(7)


def test_prompts_do_not_repeat() -> None:
    prompts = Prompts(rng(), (1, 3))
    texts = [prompts.next() for _ in range(2000)]
    assert len(set(texts)) == len(texts)
    assert all(text[0].isupper() and text[-1] in ".?" for text in texts)


def test_without_openings_there_are_as_many_sentences_as_were_asked_for() -> None:
    for asked in (1, 2):
        texts = [write_prompt(random.Random(n), asked, openings=False) for n in range(200)]
        assert {count_sentences(text) for text in texts} == {asked}
    led_in = [count_sentences(write_prompt(random.Random(n), 1)) for n in range(200)]
    assert set(led_in) == {1, 2}


@pytest.mark.parametrize(
    ("text", "count"),
    [("", 1), ("Well", 1), ("What?!", 1), ("One. Two... Three", 2), ("好。好", 1)],
)
def test_sentences_are_counted_by_their_ends(text: str, count: int) -> None:
    assert count_sentences(text) == count


def test_text_that_comes_slowly_may_be_spoken_by_the_clause() -> None:
    text = "Before sunrise, a tall stranger came: he sang. He left."
    slowly = TurnPlan(0, 0, Kind.WARM, 10.0, paced(text, 20), Voice())
    at_once = TurnPlan(0, 0, Kind.WARM, 10.0, whole(text), Voice())
    assert (slowly.parts, at_once.parts) == (4, 2)


def test_a_corpus_is_used_up_before_it_repeats() -> None:
    corpus = [f"line {n}" for n in range(50)]
    prompts = Prompts(rng(), corpus=corpus)
    assert sorted(prompts.next() for _ in range(50)) == sorted(corpus)
    assert prompts.next() in corpus


@given(st.text(max_size=80), st.booleans())
def test_pieces_joined_are_the_text(text: str, by_sentence: bool) -> None:
    assert "".join(piece.text for piece in paced(text, 50, by_sentence)) == text


def test_tokens_leave_at_their_pace() -> None:
    pieces = paced("Hello there, my friend. Yes.", 20)
    texts = [piece.text for piece in pieces]
    assert texts == ["Hello", " there", ",", " my", " friend", ".", " Yes", "."]
    assert [piece.offset_s for piece in pieces] == pytest.approx([k / 20 for k in range(8)])
    assert first_speakable(pieces) == 5


def test_a_sentence_leaves_when_its_last_token_came() -> None:
    first, second = paced("Hello there, my friend. Yes.", 20, by_sentence=True)
    assert (first.text, first.offset_s) == ("Hello there, my friend.", pytest.approx(0.25))
    assert (second.text, second.offset_s) == (" Yes.", pytest.approx(0.35))


def test_chinese_goes_character_by_character() -> None:
    assert [piece.text for piece in paced("你好。", 10)] == ["你", "好", "。"]
    assert first_speakable(paced("你好。再见", 10)) == 2


def test_text_without_an_end_is_speakable_when_it_is_all_there() -> None:
    assert first_speakable(paced("no end here", 10)) == 2
    assert first_speakable(whole("One. Two.")) == 0


def test_what_there_is_to_say_is_counted_in_letters() -> None:
    assert speech_chars("Hi, you!") == 6
    assert speech_chars("你好。") == 7
    assert speech_chars("... !") == 1


def test_poisson_arrivals_have_the_rate_and_its_scatter() -> None:
    times = list(islice(poisson(rng(), 10.0, 5.0), 20000))
    assert times[0] > 5.0 and times == sorted(times)
    gaps = [b - a for a, b in pairwise(times)]
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(0.1, rel=0.03)
    deviation = (sum((g - mean) ** 2 for g in gaps) / len(gaps)) ** 0.5
    assert deviation == pytest.approx(0.1, rel=0.05)


def test_bursts_keep_the_rate_but_come_together() -> None:
    times = list(islice(poisson(rng(), 10.0, 0.0, burst=4.0), 20000))
    assert times[-1] / len(times) == pytest.approx(0.1, rel=0.1)
    groups = Counter(times)
    assert sum(groups.values()) / len(groups) == pytest.approx(4.0, rel=0.1)


def test_pauses_have_their_mean_and_some_are_long() -> None:
    source = rng()
    pauses = [think_s(source, 4.0) for _ in range(20000)]
    assert sum(pauses) / len(pauses) == pytest.approx(4.0, rel=0.03)
    assert max(pauses) > 12.0 and min(pauses) > 0.0
    assert think_s(source, 0.0) == 0.0


def test_crowds_are_the_same_for_all_who_share_the_seed() -> None:
    times = burst_times(random.Random("s/crowds"), 10.0, 100.0, 200.0)
    assert times == burst_times(random.Random("s/crowds"), 10.0, 100.0, 200.0)
    assert 6 <= len(times) <= 14
    assert all(100.0 < t < 200.0 for t in times)
    assert burst_times(rng(), 0.0, 0.0, 100.0) == []


def test_a_crowd_in_the_pause_brings_the_turn_forward_for_its_share() -> None:
    assert next_start_s(rng(), 10.0, 5.0, [], 1.0) == 15.0
    assert next_start_s(rng(), 10.0, 5.0, [9.0, 12.0], 1.0) == 12.0
    assert next_start_s(rng(), 10.0, 5.0, [12.0], 0.0) == 15.0
    assert next_start_s(rng(), 10.0, 5.0, [15.0], 1.0) == 15.0


def test_voices_follow_zipf() -> None:
    mix = VoiceMix(tuple(Voice(name) for name in "abcd"), exponent=1.0)
    source = rng()
    counts = Counter(mix.pick(source).voice_id for _ in range(20000))
    total = 1 + 1 / 2 + 1 / 3 + 1 / 4
    for k, name in enumerate("abcd", start=1):
        assert counts[name] / 20000 == pytest.approx(1 / k / total, abs=0.015)


def test_a_fresh_reference_is_other_bytes_of_the_same_length() -> None:
    reference = Voice("", bytes(2000), "words")
    mix = VoiceMix((Voice("a"),), reference=reference, fresh_share=0.5)
    source = rng()
    picked = [mix.pick(source) for _ in range(400)]
    fresh = [voice for voice in picked if voice.reference_audio]
    assert len(fresh) / 400 == pytest.approx(0.5, abs=0.08)
    assert len({voice.reference_audio for voice in fresh}) == len(fresh)
    one = freshen(reference, source)
    assert len(one.reference_audio) == 2000
    assert max(one.reference_audio) <= 1, "only lowest bits change"
    assert one.reference_audio[:1000] == bytes(1000)


def test_equal_seeds_give_equal_scripts_and_other_users_other_ones() -> None:
    speech = Speech(tokens_per_s=(20, 80), barge_in_share=0.5)

    def said(user: int) -> list[object]:
        script = Script(speech, "seed", user)
        return [script.next(float(n)) for n in range(20)]

    assert said(1) == said(1)
    assert said(1) != said(2)


def test_paces_and_barge_ins_lie_in_their_ranges() -> None:
    speech = Speech(tokens_per_s=(20, 80), barge_in_share=0.25, barge_in_s=(0.5, 2.0))
    script = Script(speech, "seed", 0)
    plans = [script.next(0.0) for _ in range(2000)]
    paces = [1 / plan.pieces[1].offset_s for plan in plans]
    assert min(paces) >= 20 and max(paces) <= 80
    cuts = [plan.cut_after_s for plan in plans if plan.cut_after_s is not None]
    assert len(cuts) / 2000 == pytest.approx(0.25, abs=0.03)
    assert min(cuts) >= 0.5 and max(cuts) <= 2.0


def test_t0_of_a_paced_turn_is_its_first_sentence() -> None:
    script = Script(Speech(tokens_per_s=(50, 50)), "seed", 0)
    plan = script.next(10.0)
    assert plan.pieces[plan.speakable_piece].text.endswith((".", "?"))
    assert plan.speakable_s == pytest.approx(10.0 + plan.speakable_piece / 50)
    assert plan.chars == speech_chars("".join(piece.text for piece in plan.pieces))


def test_a_paced_turn_knows_when_each_sentence_is_there() -> None:
    plan = TurnPlan(0, 0, Kind.WARM, 10.0, paced("Sure. It was fine", 10), Voice())
    assert plan.sentences == (SentenceEnd(10.1, 4), SentenceEnd(10.4, 16))
    assert TurnPlan(0, 0, Kind.WARM, 10.0, whole("A. B."), Voice()).sentences == ()


def test_a_cold_turn_is_whole_and_never_cut() -> None:
    script = Script(Speech(tokens_per_s=(20, 20), barge_in_share=1.0), "seed", 0)
    plan = script.next(3.0, Kind.COLD)
    assert len(plan.pieces) == 1
    assert plan.cut_after_s is None
    assert plan.speakable_s == plan.scheduled_s == 3.0


def test_a_prompt_has_at_least_a_sentence() -> None:
    assert write_prompt(rng(), 0).count(".") + write_prompt(rng(), 0).count("?") >= 1
