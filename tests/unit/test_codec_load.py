from __future__ import annotations

import itertools
import re
import shutil
from pathlib import Path

import pytest
import torch

from shoal.engine.codec import CodecConfig, CodecError, load_codec
from shoal.engine.codec.load import expected_shapes

DATA = Path(__file__).parents[1] / "data"
TINY = DATA / "s2_tiny"


def numbers(group: str) -> list[str]:
    """``0..3`` or ``0,2`` as the numbers that it stands for."""
    if ".." in group:
        first, last = group.split("..")
        return [str(n) for n in range(int(first), int(last) + 1)]
    return group.split(",")


def keys_of_the_public_file() -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for line in (DATA / "s2_codec_keys.txt").read_text().splitlines():
        pattern, shape = line.split()
        pieces = re.split(r"\{([^}]*)\}", pattern)
        choices = [numbers(p) if i % 2 else [p] for i, p in enumerate(pieces)]
        for chosen in itertools.product(*choices):
            shapes["".join(chosen)] = tuple(int(n) for n in shape.split("x"))
    return shapes


def test_s2_is_expected_exactly_as_published() -> None:
    published = keys_of_the_public_file()
    assert sum(torch.Size(shape).numel() for shape in published.values()) == 391_430_530
    assert expected_shapes(CodecConfig()) == published


def test_loading_says_what_it_does() -> None:
    said: list[str] = []
    codec = load_codec(TINY, progress=said.append)
    assert said == ["reading the codec", "preparing the codec"]
    assert (codec.sample_rate, codec.frame_samples, codec.codebooks) == (44100, 2048, 10)
    assert codec.parameters == 2_443_578


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    shutil.copy(TINY / "codec_config.json", tmp_path)
    return tmp_path


def damaged(directory: Path, change: str, key: str) -> None:
    tensors = torch.load(TINY / "codec.pth", weights_only=True)
    match change:
        case "remove":
            del tensors[key]
        case "add":
            tensors[key] = torch.ones(1)
        case _:
            tensors[key] = tensors[key][..., :-1].clone()
    torch.save(tensors, directory / "codec.pth")


@pytest.mark.parametrize(
    ("change", "key", "message"),
    [
        ("remove", "decoder.model.3.block.4.block.0.alpha", "missing: "),
        ("remove", "quantizer.post_module.norm.weight", "missing: "),
        ("add", "decoder.model.7.alpha", "not expected: "),
        ("add", "encoder.block.4.block.5.freqs", "not expected: "),
        ("cut", "quantizer.quantizer.quantizers.8.codebook.weight", "of another shape: "),
    ],
)
def test_a_misfit_is_an_error_that_names_it(
    copied: Path, change: str, key: str, message: str
) -> None:
    damaged(copied, change, key)
    with pytest.raises(CodecError, match=rf"codec\.pth: .*{message}{re.escape(key)}"):
        load_codec(copied)


def test_a_config_of_another_size_is_an_error(copied: Path) -> None:
    shutil.copy(TINY / "codec.pth", copied)
    (copied / "codec_config.json").unlink()
    with pytest.raises(CodecError, match=r"missing: .*of another shape: "):
        load_codec(copied)
