from __future__ import annotations

import json
from pathlib import Path

import pytest

from shoal.engine.checkpoint import CheckpointError, VoiceConfig, read_voice_config

BUILTIN = Path(__file__).parents[2] / "engine" / "builtin_voice"


def test_a_folder_without_the_file_gets_what_suits_s2(tmp_path: Path) -> None:
    assert read_voice_config(tmp_path, max_seq_len=32768) == VoiceConfig(
        frontend="none",
        temperature=0.7,
        top_p=0.7,
        top_k=30,
        max_segment_chars=None,
        max_context=32768,
    )


def test_the_built_in_voice_says_how_it_speaks_best() -> None:
    assert read_voice_config(BUILTIN, max_seq_len=2048) == VoiceConfig(
        frontend="english",
        temperature=0.7,
        top_p=0.9,
        top_k=30,
        max_segment_chars=170,
        max_context=930,
    )


def test_what_is_absent_keeps_its_default(tmp_path: Path) -> None:
    (tmp_path / "voice_config.json").write_text('{"sampling": {"top_p": 0.95}}')
    config = read_voice_config(tmp_path, max_seq_len=100)
    assert (config.temperature, config.top_p, config.top_k) == (0.7, 0.95, 30)
    assert config.max_context == 100


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ({"max_contxt": 5}, "max_contxt"),
        ({"sampling": {"temp": 1}}, "temp"),
        ({"sampling": 3}, "sampling"),
        ({"sampling": {"temperature": 3}}, "temperature"),
        ({"sampling": {"temperature": "hot"}}, "temperature"),
        ({"sampling": {"top_p": 0}}, "top_p"),
        ({"sampling": {"top_k": 0}}, "top_k"),
        ({"frontend": "klingon"}, "frontend"),
        ({"frontend": 1}, "frontend"),
        ({"max_segment_chars": 0}, "max_segment_chars"),
        ({"max_context": 0}, "max_context"),
        ({"max_context": 101}, "max_context"),
        ({"max_context": 1.5}, "max_context"),
    ],
)
def test_what_is_wrong_is_named(content: object, complaint: str, tmp_path: Path) -> None:
    (tmp_path / "voice_config.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=complaint):
        read_voice_config(tmp_path, max_seq_len=100)
