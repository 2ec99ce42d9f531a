"""What the doctor finds, on folders made for it."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path

import pytest

from shoal.realtime import doctor


def checkpoint(folder: Path, *, without: str = "") -> Path:
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    files = {
        "config.json": "{}",
        "codec.pth": "x",
        "tokenizer.json": "{}",
        "model.safetensors.index.json": json.dumps(index),
        "model-1.safetensors": "x",
        "model-2.safetensors": "x",
    }
    for name, content in files.items():
        if name != without:
            (folder / name).write_text(content)
    return folder


def test_a_whole_checkpoint_is_fine(tmp_path: Path) -> None:
    finding = doctor.model_files(checkpoint(tmp_path), tmp_path)
    assert finding.ok
    assert finding.line().startswith("ok ")


@pytest.mark.parametrize("absent", ["config.json", "codec.pth", "model-2.safetensors"])
def test_an_absent_file_is_named_with_a_fix(tmp_path: Path, absent: str) -> None:
    finding = doctor.model_files(checkpoint(tmp_path, without=absent), tmp_path)
    assert not finding.ok
    assert finding.required
    assert f"lacks {absent}" in finding.line()
    assert "-> " in finding.line()


def test_without_an_index_one_file_of_weights_is_expected(tmp_path: Path) -> None:
    checkpoint(tmp_path, without="model.safetensors.index.json")
    assert doctor.expected_files(tmp_path)[-1] == "model.safetensors"


def test_a_broken_index_is_named(tmp_path: Path) -> None:
    checkpoint(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text("[]")
    assert "readable model.safetensors.index.json" in doctor.model_files(tmp_path, tmp_path).line()


def test_the_flat_layout_needs_no_index(tmp_path: Path) -> None:
    for name in ("config.json", "codec.pth", "model.pth"):
        (tmp_path / name).touch()
    assert doctor.model_files(tmp_path, tmp_path).ok


def test_a_folder_that_is_not_there_is_said_to_be_missing(tmp_path: Path) -> None:
    finding = doctor.model_files(tmp_path / "gone", tmp_path)
    assert finding.line().startswith("MISSING model")


def test_every_package_that_is_needed_is_listed_here() -> None:
    findings = list(doctor.packages(metadata.requires("shoal") or ()))
    assert [f.line() for f in findings if not f.ok] == []
    assert "msgpack " in findings[-1].detail
    assert "pytest" not in findings[-1].detail


def test_what_is_not_required_is_a_note() -> None:
    finding = doctor.Finding("libopus", "not found", "install it", required=False)
    assert finding.line() == "note    libopus: not found -> install it"
