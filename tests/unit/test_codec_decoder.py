"""The decoding network against the reference's outputs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from shoal.engine.codec import Codec, CodecConfig, decode_codes, load_codec
from shoal.engine.codec.decoder import Decoder, read_books
from shoal.engine.codec.state import StreamState
from shoal.engine.codec.weights import Weights

TINY = Path(__file__).parents[1] / "data" / "s2_tiny"


@pytest.fixture(scope="module")
def codec() -> Codec:
    return load_codec(TINY)


@pytest.fixture(scope="module")
def golden() -> dict[str, Tensor]:
    tensors = load_file(TINY / "golden.safetensors")
    return {name: value for name, value in tensors.items() if name.startswith("codec/")}


def test_samples_are_the_reference_s(codec: Codec, golden: dict[str, Tensor]) -> None:
    codes = golden["codec/dec_codes"].T
    samples = decode_codes(codec, codes, chunk_frames=len(codes))
    assert samples.abs().max() > 0.5
    torch.testing.assert_close(samples, golden["codec/dec_wav"], rtol=0, atol=1e-5)


def test_latents_are_the_reference_s(codec: Codec, golden: dict[str, Tensor]) -> None:
    codes = golden["codec/dec_codes"].T[None]
    state = StreamState(codec.decoder.plan, 1, codec.device)
    step = state.begin(torch.tensor([0]), torch.tensor([True]))
    with torch.inference_mode():
        latent = codec.decoder.latent(codes, step)
    torch.testing.assert_close(latent[0].T, golden["codec/zq"], rtol=0, atol=1e-5)


def test_a_later_frame_changes_no_earlier_sample(codec: Codec, golden: dict[str, Tensor]) -> None:
    codes = golden["codec/dec_codes"].T[:24]
    changed = codes.clone()
    changed[20] = (changed[20] + 1) % 16
    frame = codec.frame_samples
    before, after = (decode_codes(codec, c, chunk_frames=24) for c in (codes, changed))
    assert torch.equal(before[: 20 * frame], after[: 20 * frame])
    assert not torch.equal(before[20 * frame :][:frame], after[20 * frame :][:frame])


def test_a_stream_of_s2_keeps_what_its_convolutions_reach() -> None:
    config = CodecConfig()
    shapes_only = Weights(None, torch.device("meta"))
    plan = Decoder(config, read_books(config, shapes_only), shapes_only).plan
    assert plan.floats == 134_208
    assert plan.rings == [(8, 128, 1024)]
