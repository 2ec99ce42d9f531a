"""The voice store on disk: ids, replacement, codes, crashes, readers beside a writer."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import soundfile as sf  # pyright: ignore[reportMissingTypeStubs]

from shoal.engine.api import Reference
from shoal.engine.runner import Int32Array
from shoal.engine.voices import (
    MAX_REFERENCES,
    UnknownVoice,
    UnreadableVoice,
    VoiceError,
    VoiceStore,
)


def wav(seconds: float = 1.0, level: float = 0.3) -> bytes:
    """A tone that comes and goes, as syllables do."""
    file = io.BytesIO()
    at = np.arange(int(16_000 * seconds))
    wave = level * np.sin(at / 7) * np.sin(at / 1300)
    sf.write(file, wave.astype(np.float32), 16_000, format="WAV", subtype="PCM_16")
    return file.getvalue()


ONE = (Reference(wav(), "one"),)
TWO = (Reference(wav(2.0), "zwei"), Reference(wav(1.0), "drei \ud800"))
CODES = (np.arange(12, dtype=np.int32).reshape(4, 3), np.full((2, 3), 4095, np.int32))


@pytest.fixture
def store(tmp_path: Path) -> VoiceStore:
    return VoiceStore(tmp_path / "voices")


def test_a_voice_is_added_found_listed_and_removed(store: VoiceStore) -> None:
    assert store.list() == ()
    info = store.add("ann.b-2_x", TWO)
    assert info.voice_id == "ann.b-2_x" and info.seconds == pytest.approx(3.0, abs=0.01)
    assert store.list() == (info,)
    loaded = store.load("ann.b-2_x")
    assert loaded.references == TWO and loaded.stamp == store.stamp("ann.b-2_x")
    store.remove("ann.b-2_x")
    assert store.list() == ()
    for ask in (store.load, store.stamp, store.remove):
        with pytest.raises(UnknownVoice):
            ask("ann.b-2_x")


@pytest.mark.parametrize(
    "voice_id",
    [
        "",
        ".",
        "..",
        "../x",
        "a/b",
        "/etc",
        "a\\b",
        ".hidden",
        "-x",
        "a\n",
        "ä",
        "a b",
        "x" * 65,
        "a\0",
    ],
)
def test_an_id_that_could_be_a_path_is_no_id(store: VoiceStore, voice_id: str) -> None:
    for ask in (store.load, store.stamp, store.remove, lambda name: store.add(name, ONE)):
        with pytest.raises(UnknownVoice):
            ask(voice_id)
    with pytest.raises(UnknownVoice):
        store.codes(voice_id, "f", 0.0)


def test_a_voice_is_only_replaced_when_asked_to(store: VoiceStore) -> None:
    store.add("ann", ONE)
    with pytest.raises(VoiceError, match="exists already"):
        store.add("ann", TWO)
    assert store.load("ann").references == ONE
    first = store.stamp("ann")
    store.add("ann", TWO, replace=True)
    assert store.load("ann").references == TWO
    assert store.stamp("ann") != first


@pytest.mark.parametrize(
    "references",
    [(), (Reference(b"no audio", "x"),), ONE * (MAX_REFERENCES + 1), (*ONE, Reference(b"", ""))],
)
def test_what_cannot_be_a_voice_leaves_nothing_behind(
    store: VoiceStore, tmp_path: Path, references: Sequence[Reference]
) -> None:
    with pytest.raises(VoiceError):
        store.add("ann", references)
    assert store.list() == ()
    assert not list((tmp_path / "voices").glob("*"))


def equal(one: Sequence[Int32Array] | None, other: Sequence[Int32Array]) -> bool:
    return one is not None and all(
        np.array_equal(a, b) and a.dtype == np.int32 for a, b in zip(one, other, strict=True)
    )


def test_codes_are_kept_under_the_codec_and_the_recording_they_belong_to(store: VoiceStore) -> None:
    store.add("ann", TWO)
    stamp = store.stamp("ann")
    assert store.codes("ann", "one", stamp) is None
    store.keep_codes("ann", "one", stamp, CODES)
    assert equal(store.codes("ann", "one", stamp), CODES)
    assert store.codes("ann", "other", stamp) is None
    store.add("ann", ONE, replace=True)
    assert store.codes("ann", "one", store.stamp("ann")) is None
    # Made of the recording that was replaced meanwhile: kept, and never read for the new one.
    store.keep_codes("ann", "one", stamp, CODES)
    assert store.codes("ann", "one", store.stamp("ann")) is None


def test_codes_of_a_voice_that_is_gone_go_nowhere(store: VoiceStore) -> None:
    store.keep_codes("ann", "one", 1.0, CODES)
    assert store.list() == () and store.codes("ann", "one", 1.0) is None


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04 cut", b"nonsense" * 100])
def test_damaged_codes_are_as_good_as_none(
    store: VoiceStore, tmp_path: Path, damage: bytes
) -> None:
    store.add("ann", TWO)
    stamp = store.stamp("ann")
    store.keep_codes("ann", "one", stamp, CODES)
    (tmp_path / "voices" / "ann" / "codes-one.npz").write_bytes(damage)
    assert store.codes("ann", "one", stamp) is None


def test_a_damaged_voice_is_unknown_and_hides_no_other(store: VoiceStore, tmp_path: Path) -> None:
    store.add("ann", ONE)
    store.add("bob", ONE)
    (tmp_path / "voices" / "ann" / "voice.json").write_bytes(b"{")
    assert [info.voice_id for info in store.list()] == ["bob"]
    with pytest.raises(UnknownVoice):
        store.load("ann")


@pytest.mark.parametrize(
    "facts",
    [
        *(b"", b"{", b"{}", b"[]", b"null", b"1", b"\xff", b"[" * 100_000),
        b'{"created_at": 1.0, "seconds": 1.0}',
        b'{"created_at": 1.0, "seconds": 1.0, "texts": []}',
        b'{"created_at": 1.0, "seconds": 1.0, "texts": "eins"}',
        b'{"created_at": 1.0, "seconds": 1.0, "texts": [1]}',
        b'{"created_at": "now", "seconds": 1.0, "texts": ["eins"]}',
        b'{"created_at": true, "seconds": 1.0, "texts": ["eins"]}',
        b'{"created_at": 1.0, "seconds": NaN, "texts": ["eins"]}',
        b'{"created_at": 1e300, "seconds": 1.0, "texts": ["eins"]}',
        b'{"created_at": -1.0, "seconds": 1.0, "texts": ["eins"]}',
        b'{"created_at": 1' + b"0" * 400 + b', "seconds": 1.0, "texts": ["eins"]}',
    ],
)
def test_a_voice_that_cannot_be_read_is_left_out_and_told_once(
    store: VoiceStore, tmp_path: Path, facts: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    store.add("ann", ONE)
    store.add("bob", ONE)
    place = tmp_path / "voices" / "ann" / "voice.json"
    place.write_bytes(facts)
    for _ in range(3):
        assert [info.voice_id for info in store.list()] == ["bob"]
    for ask in (store.info, store.stamp, store.load):
        with pytest.raises(UnreadableVoice, match="'ann' cannot be read"):
            ask("ann")
    with pytest.raises(UnreadableVoice):
        store.rename("ann", "carl")
    told = [text for text in caplog.messages if "cannot be read" in text]
    assert told == ["voice 'ann' cannot be read"]
    store.add("ann", TWO, replace=True)
    assert [info.voice_id for info in store.list()] == ["ann", "bob"]
    place.write_bytes(facts)
    store.list()
    told = [text for text in caplog.messages if "cannot be read" in text]
    assert len(told) == 2, "it was whole in between"
    store.remove("ann")
    assert [info.voice_id for info in store.list()] == ["bob"]


def test_a_voice_without_its_recording_cannot_be_read(store: VoiceStore, tmp_path: Path) -> None:
    store.add("ann", ONE)
    audio = tmp_path / "voices" / "ann" / "audio-0"
    audio.unlink()
    with pytest.raises(UnknownVoice):
        store.load("ann")
    audio.mkdir()
    with pytest.raises(UnknownVoice):
        store.load("ann")


def test_ids_are_those_of_voices_whatever_is_in_them(store: VoiceStore, tmp_path: Path) -> None:
    assert store.ids() == frozenset()
    store.add("ann", ONE)
    store.add("bob", ONE)
    (tmp_path / "voices" / "bob" / "voice.json").write_bytes(b"{}")
    (tmp_path / "voices" / "empty").mkdir()
    (tmp_path / "voices" / "file").write_bytes(b"")
    assert store.ids() == {"ann", "bob"}


def test_what_a_crash_left_is_no_voice(store: VoiceStore, tmp_path: Path) -> None:
    store.add("ann", ONE)
    for name in (".new-abc", ".new-abc-ready"):
        half = tmp_path / "voices" / name
        half.mkdir()
        (half / "voice.json").write_text(json.dumps({"id": "x"}))
    assert [info.voice_id for info in store.list()] == ["ann"]
    store.add("ann", TWO, replace=True)
    assert store.load("ann").references == TWO


def test_a_reader_beside_a_writer_sees_whole_voices_only(store: VoiceStore) -> None:
    store.add("ann", ONE)
    stop = threading.Event()

    def write() -> None:
        for number in range(40):
            store.add("ann", TWO if number % 2 else ONE, replace=True)
        stop.set()

    writer = threading.Thread(target=write)
    writer.start()
    seen: set[int] = set()
    while not stop.is_set():
        try:
            references = store.load("ann").references
        except UnknownVoice:
            continue  # between the two renames
        assert references in (ONE, TWO)
        seen.add(len(references))
    writer.join()
    assert seen
    assert store.load("ann").references == TWO


def test_what_a_crash_left_is_cleared_away_by_the_next_process(tmp_path: Path) -> None:
    root = tmp_path / "voices"
    VoiceStore(root).add("ann", ONE)
    for name in (".new-abc", ".new-abd-ready"):
        (root / name).mkdir()
        (root / name / "audio-0").write_bytes(bytes(1000))
    store = VoiceStore(root)
    assert sorted(path.name for path in root.iterdir()) == [".lock", "ann"]
    assert store.load("ann").references == ONE


def test_a_replacement_that_a_crash_cut_in_two_is_finished(tmp_path: Path) -> None:
    root = tmp_path / "voices"
    store = VoiceStore(root)
    store.add("ann", TWO)
    (root / "ann").rename(tmp_path / "new")
    store.add("ann", ONE)
    half = root / ".new-abc"
    half.mkdir()
    (tmp_path / "new").rename(root / ".new-abc-ready")
    (root / "ann").rename(half / "old")
    # The process dies here: the old voice is away, the new one is not yet in its place.
    assert VoiceStore(root).load("ann").references == TWO
    assert sorted(path.name for path in root.iterdir()) == [".lock", "ann"]


def test_a_voice_is_renamed(store: VoiceStore) -> None:
    store.add("ann", TWO)
    store.add("bob", ONE)
    stamp = store.stamp("ann")
    store.keep_codes("ann", "one", stamp, CODES)
    with pytest.raises(VoiceError, match="exists already"):
        store.rename("ann", "bob")
    with pytest.raises(UnknownVoice):
        store.rename("eve", "ann2")
    with pytest.raises(UnknownVoice):
        store.rename("ann", "../ann")
    store.rename("ann", "eve")
    assert [info.voice_id for info in store.list()] == ["bob", "eve"]
    assert store.load("eve").references == TWO
    assert equal(store.codes("eve", "one", stamp), CODES)
