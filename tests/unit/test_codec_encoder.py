"""The encoding network against the reference's codes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from shoal.engine.codec import Codec, encode_codes, load_codec

TINY = Path(__file__).parents[1] / "data" / "s2_tiny"


@pytest.fixture(scope="module")
def codec() -> Codec:
    return load_codec(TINY)


@pytest.fixture(scope="module")
def golden() -> dict[str, Tensor]:
    tensors = load_file(TINY / "golden.safetensors")
    return {name: value for name, value in tensors.items() if name.startswith("codec/")}


@pytest.mark.parametrize("chunk_frames", [1, 3, 100])
def test_codes_are_the_reference_s(
    codec: Codec, golden: dict[str, Tensor], chunk_frames: int
) -> None:
    codes = encode_codes(codec, golden["codec/enc_audio"], chunk_frames)
    assert codes.dtype == torch.int32
    assert codes.tolist() == golden["codec/enc_codes"].T.tolist()
    assert len(codes) == golden["codec/enc_lens"].item()


def test_the_last_frame_is_filled_with_silence(codec: Codec, golden: dict[str, Tensor]) -> None:
    audio = golden["codec/enc_audio"]
    frames = -(-len(audio) // codec.frame_samples)
    filled = torch.zeros(frames * codec.frame_samples)
    filled[: len(audio)] = audio
    assert torch.equal(encode_codes(codec, audio), encode_codes(codec, filled))
    assert len(encode_codes(codec, filled[: codec.frame_samples + 1])) == 2
    assert len(encode_codes(codec, filled[: codec.frame_samples])) == 1
