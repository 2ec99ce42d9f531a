"""A corpus as codes: what the command makes of every utterance, and what its files keep."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from shoal.engine.training.codec_model import TrainedCodec
from shoal.engine.training.codes import (
    Corpus,
    entropies,
    load_trained_codec,
    main,
    read_corpus,
    write_corpus,
)
from shoal.engine.training.speech import read_speech
from shoal.engine.training.states import halved
from tests.training import (
    CODEC,
    draw_many_entries,
    small_texts,
    write_shapes,
    write_small_speech,
)

pytestmark = pytest.mark.usefixtures("one_thread")


def test_the_command_encodes_every_utterance_as_if_it_were_alone(tmp_path: Path) -> None:
    torch.manual_seed(0)
    write_small_speech(tmp_path / "speech", small_texts(tmp_path), hours=0.02)
    speech, codec = read_speech(tmp_path / "speech"), TrainedCodec(CODEC).eval()
    draw_many_entries(codec, [speech.samples(index) for index in range(20)])
    write_shapes(tmp_path / "codec")
    torch.save(halved(codec.state_dict()), tmp_path / "codec" / "codec.pth")
    trained = load_trained_codec(tmp_path / "codec", "cpu")
    flags = ["--speech", str(tmp_path / "speech"), "--out", str(tmp_path / "codes")]
    flags += ["--codec", str(tmp_path / "codec"), "--device", "cpu", "--batch-s", "8"]
    flags += ["--part-mib", "0.01", "--carry", str(tmp_path / "carry"), "--carry-parts", "1"]
    assert main(flags) == 0
    corpus = read_corpus(tmp_path / "codes")
    assert len(list((tmp_path / "carry").iterdir())) == 1
    assert len(corpus) == len(speech)
    assert (corpus.where == np.asarray(speech.where)).all()
    assert all(len(np.unique(book)) > 10 for book in corpus.codes.T)
    for index in (*range(0, len(speech), 8), len(speech) - 1):
        sound = torch.from_numpy(speech.samples(index))[None, None]
        found = trained.encode(sound)[0].T.numpy()
        assert (found == corpus.codes_of(index)).mean() > 0.98


def test_codes_come_back_from_their_files(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    frames = draw.integers(1, 40, 50)
    starts = np.concatenate([[0], np.cumsum(frames)])
    corpus = Corpus(
        codes=draw.integers(0, 1024, (starts[-1], 7)).astype(np.uint16),
        where=draw.integers(0, 256, 2 * starts[-1]).astype(np.uint8),
        starts=starts,
        speaker=draw.integers(0, 1000, 50),
        text=draw.integers(0, 90000, 50),
        names=("a", "b"),
    )
    paths = write_corpus(corpus, tmp_path, 3000, 99)
    assert len(paths) > 2
    found = read_corpus(tmp_path)
    for name in ("codes", "where", "starts", "speaker", "text"):
        assert (getattr(found, name) == getattr(corpus, name)).all(), name
    assert found.names == corpus.names
    assert len(write_corpus(corpus, tmp_path, 3000, 2)) == 2
    part = read_corpus(tmp_path)
    assert len(part) < 50 and (part.codes == corpus.codes[: len(part.codes)]).all()
    assert entropies(np.array([[0, 1], [1, 1], [2, 1], [3, 1]], np.uint16)) == [2.0, 0.0]
    with pytest.raises(ValueError, match="holds no"):
        read_corpus(tmp_path / "nowhere")


def corpus_of(names: tuple[str, ...], utterances: int, code: int) -> Corpus:
    """Utterances of two frames, every code ``code``."""
    return Corpus(
        codes=np.full((2 * utterances, 8), code, np.uint16),
        where=np.zeros(4 * utterances, np.uint8),
        starts=np.arange(0, 2 * utterances + 1, 2),
        speaker=np.arange(utterances),
        text=np.arange(utterances),
        names=names,
    )


def test_codes_of_several_folders_are_one_corpus(tmp_path: Path) -> None:
    for folder, count, code in (("a", 3, 5), ("b", 4, 900)):
        write_corpus(corpus_of(("x", "y"), count, code), tmp_path / folder, 1 << 20, 9)
    both = read_corpus(tmp_path / "a", tmp_path / "b")
    assert both.speaker.tolist() == both.text.tolist() == [0, 1, 2, 0, 1, 2, 3]
    assert [int(both.codes_of(u)[0, 0]) for u in range(7)] == [5] * 3 + [900] * 4
    assert both.starts.tolist() == list(range(0, 15, 2)) and both.where_of(6).shape == (4,)


def test_codes_of_other_speakers_are_no_part_of_a_corpus(tmp_path: Path) -> None:
    write_corpus(corpus_of(("x", "y"), 3, 5), tmp_path / "a", 1 << 20, 9)
    write_corpus(corpus_of(("x", "z"), 3, 5), tmp_path / "b", 1 << 20, 9)
    with pytest.raises(ValueError, match="other speakers"):
        read_corpus(tmp_path / "a", tmp_path / "b")
