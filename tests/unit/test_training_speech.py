"""Teacher speech: what is drawn, trimmed, kept, and found again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from shoal.engine.training.kokoro_sound import add_masked, norm_leaky, norm_snake
from shoal.engine.training.speech import FRAME, SpeechWriter, read_speech, speaker_pool
from shoal.engine.training.teacher import Batches, draw_speakers, each_by_each, trimmed
from tests.training import small_texts, write_small_speech


def test_the_pool_begins_with_the_voice_of_no_reference_and_never_changes() -> None:
    pool = speaker_pool(["bf_emma", "zz", "af_heart"], 5)
    assert pool.names == ("af_heart", "bf_emma", "zz")
    assert len(pool) == 8
    assert (pool.share[:3] == 1).all() and ((pool.share[3:] > 0.29) & (pool.share[3:] < 0.71)).all()
    assert (pool.first[3:] != pool.second[3:]).all()
    longer = speaker_pool(["bf_emma", "zz", "af_heart"], 9)
    assert (longer.first[:8] == pool.first).all()


def test_speakers_are_drawn_as_said() -> None:
    drawn = draw_speakers(np.random.default_rng(0), 20000, 28, 1028)
    share = np.bincount(drawn, minlength=1028) / len(drawn)
    assert share[0] == pytest.approx(0.3 * (0.4 + 0.6 / 6) + 0.3 / 28, abs=0.01)
    assert share[28:].sum() == pytest.approx(0.4, abs=0.015)
    assert set(draw_speakers(np.random.default_rng(0), 100, 3, 3)) == {0, 1, 2}


def test_batches_are_even_and_leave_no_sentence_out() -> None:
    lengths = np.random.default_rng(0).integers(5, 200, 3000)
    batches = Batches(lengths, 2000, seed=1)
    seen: set[int] = set()
    for _ in range(400):
        batch = batches()
        longest = lengths[batch].max()
        assert len(batch) * (longest + 2) <= 2000 or len(batch) == 1
        seen |= set(batch.tolist())
    assert len(seen) > 2900


def test_silence_is_cut_and_loudness_made_equal() -> None:
    tone = torch.sin(torch.arange(20 * FRAME) * 0.2)
    samples = torch.zeros(3, 40 * FRAME)
    samples[0, 10 * FRAME : 30 * FRAME] = 0.02 * tone
    samples[1, 10 * FRAME : 30 * FRAME] = 0.6 * tone
    whole, first, end, sound = trimmed(samples, torch.tensor([40, 40, 40]))
    assert (first[:2].tolist(), end[:2].tolist()) == ([7, 7], [36, 36])
    assert sound.tolist() == [True, True, False]
    level = (whole[:2, 12:28].float() / 32767).pow(2).mean((1, 2)).sqrt()
    assert level.tolist() == pytest.approx([0.07, 0.07], rel=0.02)


def test_speech_knows_what_every_frame_says(tmp_path: Path) -> None:
    texts = small_texts(tmp_path)
    write_small_speech(tmp_path / "speech", texts)
    speech = read_speech(tmp_path / "speech")
    assert speech.hours >= 0.04
    assert set(speech.speaker.tolist()) == set(range(5))
    labels = speech.labels(texts)
    crossings = 0
    for index in range(40):
        where = speech.where_of(index)
        assert len(where) % 2 == 0
        begin = int(speech.start[index])
        said = labels[begin : begin + len(where)]
        assert (said == texts.labels(int(speech.text[index]), where)).all()
        frames = speech.samples(index).reshape(-1, FRAME)
        # The tone of a frame gives its phoneme away.
        loud = np.flatnonzero(said)[5]
        crossings = int((np.diff(frames[loud] > 0)).sum())
        assert crossings == pytest.approx(2 * (100 + 10 * int(said[loud])) * 0.025, abs=2)
    assert crossings > 0


def test_what_does_not_go_together_is_refused(tmp_path: Path) -> None:
    with (
        SpeechWriter(tmp_path, ("a",)) as out,
        pytest.raises(ValueError, match="do not go with 3 frames"),
    ):
        out.add(0, 0, np.zeros(3 * FRAME, np.int16), np.zeros(3, np.uint8))
    with SpeechWriter(tmp_path, ("a",)) as out:
        out.add(0, 0, np.zeros(4 * FRAME, np.int16), np.zeros(4, np.uint8))
    (tmp_path / "audio.i16").write_bytes(bytes(2 * FRAME))
    with pytest.raises(ValueError, match="shorter than the index"):
        read_speech(tmp_path)


def test_speech_of_a_writer_that_was_stopped_is_what_it_had_kept(tmp_path: Path) -> None:
    out = SpeechWriter(tmp_path, ("a",))
    out.add(3, 0, np.full(2 * FRAME, 7, np.int16), np.ones(2, np.uint8))
    out.keep()
    out.add(5, 0, np.full(40 * FRAME, 9, np.int16), np.ones(40, np.uint8))
    assert (tmp_path / "audio.i16").stat().st_size > 2 * 2 * FRAME
    speech = read_speech(tmp_path)
    assert (speech.text.tolist(), speech.frames.tolist()) == ([3], [2])
    assert len(speech.where) == 2 and (speech.samples(0) == 7 / 32768).all()
    out.__exit__(None, None, None)
    assert read_speech(tmp_path).text.tolist() == [3, 5]


@pytest.mark.parametrize("activation", ["leaky", "snake"])
def test_padding_changes_nothing_in_a_masked_norm(activation: str) -> None:
    torch.manual_seed(0)
    x, gain, offset = torch.randn(1, 4, 30), torch.randn(1, 4, 1), torch.randn(1, 4, 1)
    padded = torch.cat([x, torch.randn(1, 4, 9)], -1)
    mask = (torch.arange(39) < 30).float()[None, None]
    count, like, alpha = torch.tensor([[[30.0]]]), torch.empty(0), torch.rand(1, 4, 1) + 0.5

    def run(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        if activation == "leaky":
            return norm_leaky(x, gain, offset, mask, count, like)
        return norm_snake(x, gain, offset, mask, count, alpha, like)

    whole = run(padded, mask)
    assert torch.allclose(whole[..., :30], run(x, torch.ones(1, 1, 30)), atol=1e-6)
    assert (whole[..., 30:] == 0).all()
    assert (add_masked(padded, padded.half(), mask, 0.5)[..., 30:] == 0).all()


def test_a_recital_is_every_sentence_by_every_speaker(tmp_path: Path) -> None:
    texts = small_texts(tmp_path)
    said = [
        (int(speaker), int(text))
        for batch, speakers in each_by_each(texts, [0, 2], 40)
        for text, speaker in zip(batch, speakers, strict=True)
    ]
    assert said == [(speaker, text) for speaker in (0, 2) for text in range(6)]
