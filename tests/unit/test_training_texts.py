"""Texts with phonemes, and where each phoneme is spelled."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shoal.engine.training.align import align, main
from shoal.engine.training.texts import Texts, read_texts, write_texts
from tests.training import WORDS, letters_as_phonemes, small_texts, write_small_texts

# Spelling, and one phoneme a character; digraphs and silent letters make it hard.
SPOKEN = {
    "ship": "Sip",
    "shop": "Sop",
    "his": "hiz",
    "hop": "hop",
    "sip": "sip",
    "knee": "ni",
    "nib": "nib",
    "keen": "kin",
    "kin": "kin",
    "be": "bi",
    "tax": "taks",
    "tack": "tak",
}


def spoken_sentences(count: int) -> Texts:
    draw = np.random.default_rng(0)
    words = [draw.choice(list(SPOKEN), 5).tolist() for _ in range(count)]
    phonemes = [" ".join(SPOKEN[word] for word in row) for row in words]
    lengths = [len(row) for row in phonemes]
    return Texts(
        [" ".join(row).encode() for row in words],
        np.frombuffer("".join(phonemes).encode(), np.uint8),
        np.concatenate([[0], np.cumsum(lengths)]),
    )


def test_every_phoneme_is_found_in_its_word_and_mostly_at_its_letter() -> None:
    texts = spoken_sentences(300)
    places = align(texts, rounds=4)
    right = whole = 0
    letters = {"S": "sh", "i": "ie", "z": "s", "k": "kcx", "s": "sx"}
    for index, sentence in enumerate(texts.sentences):
        spelled = sentence.decode()
        own = places[texts.starts[index] : texts.starts[index + 1]].astype(int)
        assert (np.diff(own) >= 0).all()
        assert own.max() < len(spelled)
        for phoneme, place in zip(texts.phonemes_of(index), own, strict=True):
            whole += 1
            right += spelled[place] in letters.get(chr(phoneme), chr(phoneme))
        # Spaces are certain, so every phoneme lies within its own word.
        spaces = [place for place in own if spelled[place] == " "]
        assert len(spaces) == spelled.count(" ")
    assert right / whole > 0.98


def test_frames_know_their_phoneme_and_their_letter(tmp_path: Path) -> None:
    texts = small_texts(tmp_path)
    spoken = letters_as_phonemes(WORDS[4])
    where = np.array([0, 1, 2, 3, len(spoken), len(spoken) + 1, len(spoken) + 9])
    assert texts.labels(4, where).tolist() == [0, *spoken[:3], spoken[-1], 0, 0]
    # "He fed a dog.": the h is silent, so the first phoneme is at byte 1.
    assert texts.bytes_at(4, where).tolist() == [0, 1, 2, 3, 12, 12, 12]


def test_files_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    texts, places = write_small_texts(tmp_path)
    with pytest.raises(ValueError, match="run the align command"):
        read_texts(texts).bytes_at(0, np.array([1]))
    write_texts(texts, [b"Go."], [np.array([1, 2], np.uint8)])
    with pytest.raises(ValueError, match="was not made from"):
        read_texts(texts, places)
    np.savez(texts, text=np.frombuffer(b"a\nb", np.uint8), ph=np.zeros(2), plen=np.array([2]))
    with pytest.raises(ValueError, match="2 sentences, 1 phoneme strings"):
        read_texts(texts)


def test_the_command_writes_what_reading_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts, places = write_small_texts(tmp_path)
    places.unlink()
    assert main(["--texts", str(texts), "--out", str(places), "--rounds", "2"]) == 0
    assert "6 sentences" in capsys.readouterr().out
    found = read_texts(texts, places).places
    assert found is not None and len(found) == len(read_texts(texts).phonemes)
