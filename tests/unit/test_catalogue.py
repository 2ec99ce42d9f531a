"""The catalogue: what is said of voices, beside many writers, and after a kill at any moment."""

from __future__ import annotations

import io
import random
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import soundfile as sf

from shoal.engine.api import Reference
from shoal.engine.voices import UnknownVoice, VoiceError, VoiceStore
from shoal.realtime.rest.catalogue import FILE, ORPHAN_S, Catalogue, Changes, Cover, Details


def wav(seconds: float = 1.0, level: float = 0.3) -> bytes:
    """A tone that comes and goes, as syllables do."""
    file = io.BytesIO()
    at = np.arange(int(16_000 * seconds))
    wave = level * np.sin(at / 7) * np.sin(at / 1300)
    sf.write(file, wave.astype(np.float32), 16_000, format="WAV", subtype="PCM_16")
    return file.getvalue()


ONE = (Reference(wav(), "one"),)
PNG = Cover("image/png", b"\x89PNG\r\n\x1a\n...")


class Clock:
    now_s = 1_000_000.0

    def __call__(self) -> float:
        return self.now_s


def catalogue_at(root: Path, clock: Clock | None = None) -> Catalogue:
    return Catalogue(VoiceStore(root), root, clock or time.time)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "voices"


def rows(root: Path) -> list[str]:
    with closing(sqlite3.connect(root / FILE)) as database:
        return [row[0] for row in database.execute("SELECT id FROM voices")]


def left_over(root: Path) -> list[str]:
    return [path.name for path in root.iterdir() if path.name.startswith(".new-")]


def test_a_voice_is_made_found_changed_and_deleted(root: Path) -> None:
    catalogue = catalogue_at(root)
    assert list(catalogue.list()) == []
    made = catalogue.create(ONE, Details("Ann", "speaks", "public", ("a", "b"), ("ja",), PNG))
    assert made.seconds == pytest.approx(1.0, abs=0.01)
    again = catalogue_at(root)  # another process, or after a restart
    assert again.get(made.voice_id) == made and list(again.list()) == [made]
    assert again.cover(made.voice_id) == PNG
    changed = again.update(made.voice_id, Changes(title="Anna", tags=()))
    assert (changed.title, changed.tags) == ("Anna", ())
    assert (changed.description, changed.visibility) == ("speaks", "public")
    assert changed.languages == ("ja",) and changed.created_at == made.created_at
    assert changed.updated_at >= made.updated_at
    assert again.cover(made.voice_id) == PNG
    again.delete(made.voice_id)
    assert list(catalogue.list()) == [] and rows(root) == []
    for ask in (catalogue.get, catalogue.delete, catalogue.cover):
        with pytest.raises(UnknownVoice):
            ask(made.voice_id)
    with pytest.raises(UnknownVoice):
        catalogue.update(made.voice_id, Changes())


def test_a_voice_of_the_command_goes_by_its_id_until_more_is_said(root: Path) -> None:
    store = VoiceStore(root)
    catalogue = Catalogue(store, root)
    store.add("bob", ONE)
    assert catalogue.get("bob").title == "bob" and not catalogue.get("bob").has_cover
    catalogue.update("bob", Changes(title="Bob the second", cover=PNG))
    assert [model.title for model in catalogue.list()] == ["Bob the second"]
    catalogue.rename("bob", "rob")
    assert [(m.voice_id, m.title) for m in catalogue.list()] == [("rob", "Bob the second")]
    # Another recording by the same id is another voice: what was said of the first is not of it.
    store.add("rob", (Reference(wav(1.2), "two"),), replace=True)
    assert catalogue.get("rob").title == "rob"


def test_what_cannot_be_a_voice_leaves_nothing(root: Path) -> None:
    catalogue = catalogue_at(root)
    for bad in (Reference(b"no audio", "x"), Reference(wav(0.1), "x"), Reference(wav(1, 0), "x")):
        with pytest.raises(VoiceError):
            catalogue.create([bad], Details("Ann"))
    assert list(catalogue.list()) == [] and rows(root) == [] and left_over(root) == []


def test_the_newest_comes_first(root: Path) -> None:
    catalogue = catalogue_at(root)
    made = [catalogue.create(ONE, Details(f"voice {n}")).voice_id for n in range(5)]
    assert [model.voice_id for model in catalogue.list()] == made[::-1]


def test_rows_of_no_voice_are_not_seen_and_go(root: Path) -> None:
    clock = Clock()
    catalogue = catalogue_at(root, clock)
    store = VoiceStore(root)
    gone = catalogue.create(ONE, Details("gone")).voice_id
    store.remove(gone)  # by the command, or by a process that died right after
    assert list(catalogue.list()) == [] and rows(root) == [gone]
    kept = catalogue.create(ONE, Details("kept")).voice_id
    assert set(rows(root)) == {gone, kept}  # it could be one that is just being made
    clock.now_s += ORPHAN_S + 1
    more = catalogue.create(ONE, Details("more")).voice_id
    assert set(rows(root)) == {kept, more}


def test_many_writers_at_once_lose_nothing(root: Path) -> None:
    """Threads with a connection each are what processes are to SQLite and to the file lock."""
    kept: list[str] = []
    wrong: list[Exception] = []

    def write(number: int) -> None:
        catalogue = catalogue_at(root)
        try:
            for turn in range(6):
                model = catalogue.create(ONE, Details(f"{number}.{turn}"))
                catalogue.update(model.voice_id, Changes(description="changed"))
                if turn % 2:
                    catalogue.delete(model.voice_id)
                else:
                    kept.append(model.voice_id)
                catalogue.list()
        except Exception as error:
            wrong.append(error)

    writers = [threading.Thread(target=write, args=(n,)) for n in range(6)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert wrong == []
    listed = catalogue_at(root).list()
    assert sorted(model.voice_id for model in listed) == sorted(kept) == sorted(rows(root))
    assert {model.description for model in listed} == {"changed"}
    assert left_over(root) == []


WRITER = """
import os, signal, sys, time
from pathlib import Path
from shoal.engine.api import Reference
from shoal.engine.voices import VoiceStore
from shoal.realtime.rest.catalogue import Catalogue, Changes, Details

root, audio = Path(sys.argv[1]), Path(sys.argv[2]).read_bytes()

def write():
    store = VoiceStore(root)
    catalogue = Catalogue(store, root)
    number = 0
    while True:
        number += 1
        text = str(number)
        store.add("same", [Reference(audio, text), Reference(audio, text)], replace=True)
        one = catalogue.create([Reference(audio, text)], Details("title " + text)).voice_id
        os.write(1, b"made %s\\n" % one.encode())
        catalogue.update(one, Changes(description="said"))
        os.write(1, b"said %s\\n" % one.encode())
        if number % 2:
            os.write(1, b"going %s\\n" % one.encode())
            catalogue.delete(one)
            os.write(1, b"gone %s\\n" % one.encode())

VoiceStore(root).add("same", [Reference(audio, "0")] * 2)  # all that is slow the first time
for line in sys.stdin:
    child = os.fork()
    if not child:
        write()
    time.sleep(float(line))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.write(1, b"killed -\\n")
"""


def test_a_kill_at_any_moment_leaves_whole_voices_only(root: Path, tmp_path: Path) -> None:
    """``kill -9`` in the middle of writing, twenty times: each time the next one carries on."""
    audio = tmp_path / "audio.wav"
    audio.write_bytes(wav())
    dice = random.Random(7)
    told: dict[str, set[str]] = {event: set() for event in ("made", "said", "going", "gone")}
    with subprocess.Popen(
        [sys.executable, "-P", "-c", WRITER, str(root), str(audio)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    ) as writer:
        assert writer.stdin is not None and writer.stdout is not None
        rounds = 0
        while rounds < 20 or len(told["made"]) < 8 or not told["gone"]:
            rounds += 1
            writer.stdin.write(f"{dice.uniform(0.0, 0.15)}\n")
            while (line := writer.stdout.readline()) != "killed -\n":
                event, voice_id = line.split()
                told[event].add(voice_id)
            check(root, audio.read_bytes(), told)
        writer.stdin.close()
    # What a killed one left in the table goes, too.
    later = Clock()
    later.now_s = time.time() + ORPHAN_S + 60
    last = catalogue_at(root, later)
    last.create(ONE, Details("last"))
    assert set(rows(root)) == {model.voice_id for model in last.list()} - {"same"}


def check(root: Path, audio: bytes, told: dict[str, set[str]]) -> None:
    """What the next process finds: as ``told``, and nothing half."""
    store = VoiceStore(root)
    listed = {model.voice_id: model for model in Catalogue(store, root).list()}
    assert told["made"] - told["going"] <= listed.keys()
    assert not told["gone"] & listed.keys()
    for voice_id, model in listed.items():
        references = store.load(voice_id).references
        assert all(reference.audio == audio for reference in references)
        texts = {reference.text for reference in references}
        if voice_id == "same":
            assert len(references) == 2 and len(texts) == 1
        else:
            assert model.title == f"title {texts.pop()}"
            assert voice_id not in told["said"] or model.description == "said"
    assert "same" in listed
    assert left_over(root) == []
