"""Voices in a store that every replica reads: a shared directory, and object storage."""

from __future__ import annotations

import wave
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.deploy.settings import ReplicaSettings
from shoal.deploy.voice_source import FRESH_S, RemoteVoices, voice_store
from shoal.engine.api import Reference
from shoal.engine.voices import UnknownVoice, VoiceExists, VoiceStore

CODES = (np.arange(30, dtype=np.int32).reshape(3, 10),)


def reference(pitch: float = 0.1) -> Reference:
    at = np.arange(16_000)
    samples = (8000 * np.sin(at * pitch) * np.sin(at / 1300)).astype("<i2")
    file = BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(16_000)
        out.writeframes(samples.tobytes())
    return Reference(file.getvalue(), "a tone")


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Replicas:
    """Stores of several replicas on one bucket."""

    def __init__(self, url: str, folder: Path, **options: Any) -> None:
        self.url = url
        self.folder = folder
        self.options = options
        self.clock = Clock()

    def store(self, name: str) -> RemoteVoices:
        return RemoteVoices(self.url, self.folder / name, self.clock, **self.options)


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, Any]]:
    """A local server that speaks S3, and what a client needs to reach it."""
    pytest.importorskip("moto.server")
    s3fs = pytest.importorskip("s3fs")
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    options = {
        "key": "k",
        "secret": "s",
        "client_kwargs": {"endpoint_url": f"http://{host}:{port}", "region_name": "eu-central-1"},
    }
    s3fs.S3FileSystem(**options).mkdir("voices")
    yield options
    server.stop()


@pytest.fixture(params=["file", "s3"])
def replicas(request: pytest.FixtureRequest, tmp_path: Path) -> Replicas:
    if request.param == "file":
        return Replicas(f"file://{tmp_path}/bucket", tmp_path, auto_mkdir=True)
    options = request.getfixturevalue("s3")
    return Replicas(f"s3://voices/{tmp_path.name}", tmp_path, **options)


pytestmark = pytest.mark.filterwarnings("ignore")  # botocore's own


def test_a_voice_added_at_one_replica_speaks_at_the_others(replicas: Replicas) -> None:
    one, two = replicas.store("one"), replicas.store("two")
    with pytest.raises(UnknownVoice):
        two.load("anna")
    one.add("anna", [reference()])
    assert two.load("anna").references == (reference(),)
    assert two.stamp("anna") == one.stamp("anna")
    assert [info.voice_id for info in replicas.store("three").list()] == ["anna"]


def test_codes_are_made_once_for_all(replicas: Replicas) -> None:
    one, two = replicas.store("one"), replicas.store("two")
    one.add("anna", [reference()])
    one.keep_codes("anna", "f", one.stamp("anna"), CODES)
    found = two.codes("anna", "f", two.stamp("anna"))
    assert found is not None and np.array_equal(found[0], CODES[0])


def test_a_replaced_voice_is_the_new_one_everywhere_within_half_a_minute(
    replicas: Replicas,
) -> None:
    one, two = replicas.store("one"), replicas.store("two")
    one.add("anna", [reference()])
    assert two.load("anna").references == (reference(),)
    with pytest.raises(VoiceExists):
        two.add("anna", [reference(0.2)])
    one.add("anna", [reference(0.2)], replace=True)
    replicas.clock.now_s += FRESH_S + 1
    assert two.load("anna").references == (reference(0.2),)


def test_a_removed_or_renamed_voice_goes_everywhere(replicas: Replicas) -> None:
    one, two = replicas.store("one"), replicas.store("two")
    one.add("anna", [reference()])
    one.add("bert", [reference()])
    assert len(two.list()) == 2
    one.remove("anna")
    one.rename("bert", "carl")
    replicas.clock.now_s += FRESH_S + 1
    with pytest.raises(UnknownVoice):
        two.load("anna")
    assert [info.voice_id for info in two.list()] == ["carl"]


def test_what_is_no_voice_in_storage_hides_no_other(tmp_path: Path) -> None:
    replicas = Replicas(f"file://{tmp_path}/bucket", tmp_path, auto_mkdir=True)
    replicas.store("one").add("anna", [reference()])
    (tmp_path / "bucket" / "no voice.tar").write_bytes(b"")
    (tmp_path / "bucket" / "notes.txt").write_bytes(b"")
    assert [info.voice_id for info in replicas.store("two").list()] == ["anna"]


def test_ids_are_those_in_storage_and_nothing_is_fetched_for_them(replicas: Replicas) -> None:
    one, two = replicas.store("one"), replicas.store("two")
    one.add("anna", [reference()])
    assert two.ids() == {"anna"}
    assert not (two.root / "anna").exists()


def test_storage_that_is_away_costs_no_voice_that_was_here(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    replicas = Replicas(f"file://{bucket}", tmp_path, auto_mkdir=True)
    store = replicas.store("one")
    store.add("anna", [reference()])
    store._files = Away()  # pyright: ignore[reportPrivateUsage]
    replicas.clock.now_s += FRESH_S + 1
    assert store.load("anna").references == (reference(),)
    store.add("bert", [reference()])
    assert [info.voice_id for info in store.list()] == ["anna", "bert"]


class Away:
    """Storage that cannot be reached."""

    def invalidate_cache(self) -> None:
        raise ConnectionError

    def __getattr__(self, name: str) -> Any:
        raise ConnectionError


def test_an_archive_cannot_write_outside_its_voice(tmp_path: Path) -> None:
    import tarfile

    bucket = tmp_path / "bucket"
    bucket.mkdir()
    with tarfile.open(bucket / "evil.tar", "w") as archive:
        member = tarfile.TarInfo("../../outside")
        archive.addfile(member, BytesIO(b""))
    store = Replicas(f"file://{bucket}", tmp_path).store("one")
    with pytest.raises(UnknownVoice):
        store.load("evil")
    assert not (tmp_path / "outside").exists()


def test_settings_choose_the_store(tmp_path: Path) -> None:
    assert voice_store(ReplicaSettings()) is None
    plain = voice_store(ReplicaSettings(voices=str(tmp_path)))
    assert type(plain) is VoiceStore and plain.root == tmp_path
    far = voice_store(
        ReplicaSettings(voices=f"file://{tmp_path}/b", voices_cache=str(tmp_path / "c"))
    )
    assert isinstance(far, RemoteVoices) and far.root == tmp_path / "c"
