"""``shoal batch``: every line once, whole or not at all, whatever happens in between."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import wave
from collections import Counter
from pathlib import Path

import pytest

from shoal.engine.fake import FakeEngine
from shoal.engine.fake_tone import tone
from shoal.realtime.batch import FAILED, GaveWay, Job, Write, read_jobs, run_batch
from shoal.realtime.batch_folder import MANIFEST, Folder, FolderBusy
from shoal.realtime.batch_speakers import LocalSpeaker
from shoal.realtime.say import SayError


class Parrot:
    """Says each text's own bytes; fails as often as it is told to, by id."""

    def __init__(self, fails: dict[str, list[SayError]] | None = None) -> None:
        self.said: Counter[str] = Counter()
        self.fails = fails or {}

    def speak(self, job: Job, write: Write) -> None:
        self.said[job.id] += 1
        write(job.request.text.encode())
        if waiting := self.fails.get(job.id):
            raise waiting.pop(0)
        write(b"!!")


def lines(path: Path, *entries: object) -> Path:
    path.write_text("".join(e if isinstance(e, str) else json.dumps(e) + "\n" for e in entries))
    return path


def numbered(path: Path, count: int) -> Path:
    return lines(
        path, *({"id": f"n{i}", "text": f"text {i}", "format": "mp3"} for i in range(count))
    )


def manifest(folder: Path) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    for line in (folder / MANIFEST).read_text().splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def visible(folder: Path) -> dict[str, bytes]:
    return {
        p.name: p.read_bytes()
        for p in folder.iterdir()
        if not p.name.startswith(".") and p.suffix != ".jsonl"
    }


def run(source: Path, out: Path, speaker: Parrot, workers: int = 3) -> str:
    with Folder(out) as folder:
        return str(run_batch(source, folder, speaker, workers=workers, retry_s=(0.0, 0.0)))


def test_every_line_becomes_a_file_and_a_second_run_speaks_nothing(tmp_path: Path) -> None:
    source, parrot = numbered(tmp_path / "in", 20), Parrot()
    assert run(source, tmp_path / "out", parrot).startswith("20 done (0 before), 0 failed")
    assert visible(tmp_path / "out") == {f"n{i}.mp3": f"text {i}!!".encode() for i in range(20)}
    assert not list((tmp_path / "out").glob(".*.part"))
    again = Parrot()
    assert run(source, tmp_path / "out", again).startswith("20 done (20 before)")
    assert not again.said and len(manifest(tmp_path / "out")) == 20


def test_bad_lines_are_noted_and_the_rest_goes_on(tmp_path: Path) -> None:
    source = lines(
        tmp_path / "in",
        {"id": "a", "text": "one", "format": "mp3"},
        "nonsense\n",
        "[1]\n",
        "\n",
        {"text": "no id"},
        {"id": "../up", "text": "x"},
        {"id": "a", "text": "a again"},
        {"id": "b", "text": "   "},
        {"id": "c", "text": "secret words", "format": "aiff"},
        {"id": "d", "text": "x", "format": "mp3", "sample_rate": 5},
        {"id": 7, "text": "two", "format": "mp3"},
    )
    said = run(source, tmp_path / "out", Parrot())
    assert said.startswith("2 done (0 before), 8 failed")
    assert set(visible(tmp_path / "out")) == {"a.mp3", "7.mp3"}
    failed = (tmp_path / "out" / FAILED).read_text()
    noted = [json.loads(line) for line in failed.splitlines()]
    assert sorted(entry["line"] for entry in noted) == [2, 3, 5, 6, 7, 8, 9, 10]
    assert "secret" not in failed
    lines(source, {"id": "a", "text": "one", "format": "mp3"})
    run(source, tmp_path / "out", Parrot())
    assert not (tmp_path / "out" / FAILED).exists()


def test_what_may_pass_is_tried_again_and_what_may_not_is_not(tmp_path: Path) -> None:
    source = numbered(tmp_path / "in", 4)
    busy = [SayError("busy", passing=True) for _ in range(9)]
    parrot = Parrot({"n0": busy[:2], "n1": [SayError("no such voice")], "n2": busy[2:6]})
    assert run(source, tmp_path / "out", parrot).startswith("2 done (0 before), 2 failed")
    assert parrot.said == {"n0": 3, "n1": 1, "n2": 3, "n3": 1}
    assert visible(tmp_path / "out") == {"n0.mp3": b"text 0!!", "n3.mp3": b"text 3!!"}
    assert not list((tmp_path / "out").glob(".*.part")), "no half file is left"


def test_who_gave_way_has_not_failed_however_often(tmp_path: Path) -> None:
    source = numbered(tmp_path / "in", 2)
    often: list[SayError] = [GaveWay("the worker had to give way") for _ in range(40)]
    parrot = Parrot({"n1": [*often, SayError("busy", passing=True)]})
    assert run(source, tmp_path / "out", parrot).startswith("2 done (0 before), 0 failed")
    assert parrot.said == {"n0": 1, "n1": 42}
    assert visible(tmp_path / "out") == {"n0.mp3": b"text 0!!", "n1.mp3": b"text 1!!"}


def test_a_line_that_changed_is_spoken_anew(tmp_path: Path) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    run(lines(source, {"id": "a", "text": "old", "format": "mp3"}), out, Parrot())
    run(lines(source, {"id": "a", "text": "new", "format": "mp3"}), out, Parrot())
    assert visible(out) == {"a.mp3": b"new!!"}


@pytest.mark.parametrize(
    "kept", ["nothing", "part", "noted", "noted, torn", "renamed", "torn part"]
)
def test_a_crash_at_any_moment_is_made_good(tmp_path: Path, kept: str) -> None:
    source, out = numbered(tmp_path / "in", 2), tmp_path / "out"
    run(source, out, Parrot(), workers=1)
    whole = (out / MANIFEST).read_bytes()
    first = whole.splitlines(keepends=True)[0]
    part, final = out / ".n1.mp3.part", out / "n1.mp3"
    # The state of the folder as the moment in question leaves it.
    if kept in ("part", "torn part", "noted", "noted, torn"):
        final.rename(part)
    if kept == "nothing":
        final.unlink()
    if kept == "torn part":
        part.write_bytes(b"tex")
    if kept in ("nothing", "part", "torn part"):
        (out / MANIFEST).write_bytes(first)
    if kept == "noted, torn":
        (out / MANIFEST).write_bytes(whole[:-5])
    again = Parrot()
    run(source, out, again)
    assert again.said == ({} if kept in ("noted", "renamed") else {"n1": 1})
    assert visible(out) == {"n0.mp3": b"text 0!!", "n1.mp3": b"text 1!!"}
    assert not part.exists()
    assert {entry["id"] for entry in manifest(out)} == {"n0", "n1"}
    final_run = Parrot()
    run(source, out, final_run)
    assert not final_run.said


def test_a_file_that_was_spoiled_is_made_again(tmp_path: Path) -> None:
    source, out = numbered(tmp_path / "in", 2), tmp_path / "out"
    run(source, out, Parrot())
    (out / "n0.mp3").write_bytes(b"text 0??")
    again = Parrot()
    run(source, out, again)
    assert again.said == {"n0": 1} and visible(out)["n0.mp3"] == b"text 0!!"


def test_two_runs_do_not_share_a_folder(tmp_path: Path) -> None:
    with Folder(tmp_path / "out"), pytest.raises(FolderBusy):
        Folder(tmp_path / "out")
    Folder(tmp_path / "out").__exit__()


SLOW_RUN = """
import itertools, os, random, signal, sys, threading, time
from pathlib import Path
from shoal.realtime.batch import run_batch
from shoal.realtime.batch_folder import Folder

most, taken = int(sys.argv[4]), itertools.count(1)

def die():
    time.sleep(random.random() * 0.01)
    os.kill(os.getpid(), signal.SIGKILL)

class Slow:
    def speak(self, job, write):
        with open(sys.argv[3], "a") as log:
            log.write(job.id + "\\n")
        if next(taken) == most:
            threading.Thread(target=die).start()
        for piece in (job.request.text.encode(), b"!!"):
            write(piece)
            time.sleep(0.004)

with Folder(Path(sys.argv[2])) as folder:
    run_batch(Path(sys.argv[1]), folder, Slow(), workers=3)
"""


def test_killed_again_and_again_it_gets_done_and_no_file_is_ever_half(tmp_path: Path) -> None:
    source, out, log = numbered(tmp_path / "in", 60), tmp_path / "out", tmp_path / "log"
    expected = {f"n{i}.mp3": f"text {i}!!".encode() for i in range(60)}
    kills = 0
    for most in (7, 8, 9, 10, 11, 1000):
        command = [sys.executable, "-c", SLOW_RUN, source, out, log, str(most)]
        killed = subprocess.run(command).returncode == -signal.SIGKILL
        kills += killed
        assert visible(out).items() <= expected.items()
        assert killed or visible(out) == expected
    assert kills >= 3 and visible(out) == expected
    spoken = Counter(log.read_text().split())
    # A kill costs at most what the workers were at.
    assert sum(spoken.values()) <= 60 + 3 * kills


def test_an_engine_in_this_process_speaks_wav_and_others_as_batch_priority(tmp_path: Path) -> None:
    text = "Nobody waits for this."
    source = lines(
        tmp_path / "in",
        {
            "id": "w",
            "text": text,
            "seed": 3,
            "sample_rate": 24_000,
            "prosody": {"normalize_loudness": False},
        },
        {"id": "f", "text": text, "format": "flac"},
        {"id": "v", "text": text, "voice": "nobody"},
    )
    with (
        Folder(tmp_path / "out") as folder,
        LocalSpeaker(FakeEngine(speed=200.0, slots=2)) as speaker,
    ):
        tally = run_batch(source, folder, speaker, workers=3, retry_s=())
    assert (tally.spoken, tally.failed) == (2, 1)
    with wave.open(str(tmp_path / "out" / "w.wav")) as heard:
        assert heard.getframerate() == 24_000
        assert heard.readframes(heard.getnframes()) == tone(text, "", 3, 24_000, 1_200)
    assert visible(tmp_path / "out")["f.flac"][:4] == b"fLaC"
    assert "Reference not found" in (tmp_path / "out" / FAILED).read_text()


def test_a_job_names_batch_priority_and_a_seed_that_follows_from_its_id(tmp_path: Path) -> None:
    source = lines(tmp_path / "in", {"id": "a", "text": "x"}, {"id": "b", "text": "x", "seed": 9})
    first, second = read_jobs(source)
    assert isinstance(first, Job) and isinstance(second, Job)
    assert (first.file, first.wav, first.request.format) == ("a.wav", True, "pcm")
    assert first.fields["priority"] == "batch" and first.request.priority == "batch"
    assert second.request.seed == 9
    again, _ = read_jobs(source)
    assert isinstance(again, Job) and again.request.seed == first.request.seed is not None
    assert os.fspath(first.file).endswith(".wav")
