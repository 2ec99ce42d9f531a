"""The device's decoding network, in Triton's interpreter, against plain torch in float32."""

from __future__ import annotations

import os
from dataclasses import replace
from math import prod
from pathlib import Path

import pytest
import torch
from torch import Tensor

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before the first kernel is imported

import shoal.engine
from shoal.engine.codec import Codec, StreamDecoder, decode_codes, load_codec
from shoal.engine.codec.config import read_config
from shoal.engine.codec.device_streams import DeviceStreams
from shoal.engine.codec.load import codec_of, expected_shapes
from shoal.engine.codec.weights import checked, read_tensors

BUILTIN = Path(shoal.engine.__file__).parent / "builtin_voice"
TINY = Path(__file__).parents[1] / "data" / "s2_tiny"
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
FRAMES = 3


@pytest.fixture(scope="module")
def device_codec() -> Codec:
    config = read_config(TINY)
    tensors = checked(read_tensors(TINY / "codec.pth"), expected_shapes(config))
    return codec_of(config, tensors, DEVICE, kernels=True)


@pytest.fixture(scope="module")
def streams() -> Tensor:
    """Codes [3, FRAMES, 10]."""
    generator = torch.Generator().manual_seed(3)
    codes = torch.randint(0, 16, (3, FRAMES, 10), generator=generator, dtype=torch.int32)
    codes[..., 0] = torch.randint(0, 64, (3, FRAMES), generator=generator, dtype=torch.int32)
    codes[0, 0, 3] = 99  # above its book's last, which it then means
    return codes


@pytest.fixture(scope="module")
def wanted(streams: Tensor) -> list[Tensor]:
    codec = load_codec(TINY)
    return [decode_codes(codec, codes) for codes in streams]


def snr_db(wanted: Tensor, got: Tensor) -> float:
    error = (wanted - got.cpu()).double().pow(2).mean()
    return float(10 * torch.log10(wanted.double().pow(2).mean() / error))


def test_streams_at_different_places_decode_as_in_float32(
    device_codec: Codec, streams: Tensor, wanted: list[Tensor]
) -> None:
    decoder = StreamDecoder(device_codec, 4)
    first = decoder.decode((2,), streams[1:2, :1], torch.tensor([False]))
    # Slot 0 starts while slot 2 goes on; what slot 0 held before is forgotten.
    decoder.decode((0,), streams[2:, :1], torch.tensor([False]))
    codes = torch.stack((streams[0, :1], streams[1, 1:2]))
    both = decoder.decode((0, 2), codes, torch.tensor([True, False]))
    frame = device_codec.frame_samples
    assert snr_db(wanted[0][:frame], both[0]) > 50
    assert snr_db(wanted[1][: 2 * frame], torch.cat((first[0], both[1]))) > 50
    assert snr_db(wanted[1][:frame], both[1]) < 20


def test_many_rows_go_through_in_passes(
    device_codec: Codec, streams: Tensor, wanted: list[Tensor]
) -> None:
    assert device_codec.network is not None
    decoder = DeviceStreams(device_codec.network, 3, DEVICE, pass_frames=2)
    slots = torch.arange(3, device=DEVICE)
    reset = torch.zeros(3, dtype=torch.bool, device=DEVICE)
    with torch.inference_mode():
        sound = decoder.run(slots, streams[:, :1].to(DEVICE), reset)
    for row in range(3):
        assert snr_db(wanted[row][: device_codec.frame_samples], sound[row]) > 50


def test_pcm_is_the_sound_rounded(device_codec: Codec, streams: Tensor) -> None:
    codes, reset = streams[:1, :1].to(DEVICE), torch.zeros(1, dtype=torch.bool, device=DEVICE)
    slots = torch.zeros(1, dtype=torch.int64, device=DEVICE)
    frame = device_codec.frame_samples
    for codec in (device_codec, load_codec(TINY, device=DEVICE)):
        sound = StreamDecoder(codec, 1).decode_at(slots, codes, reset)
        pcm = torch.zeros(1, frame, dtype=torch.int16, device=DEVICE)
        StreamDecoder(codec, 1).pcm_at(slots, codes, reset, pcm)
        assert int(pcm.abs().max()) > 100
        assert float((pcm - sound * 32767).abs().max()) < 0.51


def test_the_built_in_voice_s_codec_has_kernels_for_its_own_channels() -> None:
    config = read_config(BUILTIN)
    tensors = checked(read_tensors(BUILTIN / "codec.pth"), expected_shapes(config))
    decoder = StreamDecoder(codec_of(config, tensors, DEVICE, kernels=True), 1)
    generator = torch.Generator().manual_seed(5)
    limits = torch.tensor(config.code_limits)
    codes = (torch.rand(2, len(limits), generator=generator) * (limits + 1)).to(torch.int32)
    keep = torch.tensor([False])
    sound = torch.cat([decoder.decode((0,), codes[None, t : t + 1], keep)[0] for t in range(2)])
    assert snr_db(decode_codes(load_codec(BUILTIN), codes), sound) > 50


def test_a_last_block_too_wide_for_one_program_decodes_as_in_float32() -> None:
    wide = replace(
        read_config(TINY),
        encoder_dim=64,
        encoder_rates=(2,),
        encoder_transformer_layers=(0,),
        decoder_dim=416,
        decoder_rates=(2,),
    )
    generator = torch.Generator().manual_seed(6)
    tensors = {
        name: torch.randn(shape, generator=generator) / max(1, prod(shape[1:])) ** 0.5
        if len(shape) > 1 and not name.endswith(("alpha", "original0"))
        else torch.rand(shape, generator=generator) * 0.4 + 0.6
        for name, shape in expected_shapes(wide).items()
    }
    codes = torch.randint(0, 16, (1, 1, 10), generator=generator, dtype=torch.int32)
    keep = torch.tensor([False])
    sounds = [
        StreamDecoder(codec_of(wide, tensors, DEVICE, kernels=kernels), 1).decode((0,), codes, keep)
        for kernels in (False, True)
    ]
    assert float(sounds[0].std()) > 0.01
    assert snr_db(sounds[0].cpu().float(), sounds[1]) > 40


def test_more_frames_than_a_pass_takes_are_cut_in_time(
    device_codec: Codec, streams: Tensor, wanted: list[Tensor]
) -> None:
    assert device_codec.network is not None
    decoder = DeviceStreams(device_codec.network, 1, DEVICE, pass_frames=2)
    slots = torch.zeros(1, dtype=torch.int64, device=DEVICE)
    reset = torch.ones(1, dtype=torch.bool, device=DEVICE)
    with torch.inference_mode():
        sound = decoder.run(slots, streams[:1, :3].to(DEVICE), reset)
    assert snr_db(wanted[0][: 3 * device_codec.frame_samples], sound[0]) > 50


def test_a_slot_keeps_half_of_what_it_keeps_in_float32(device_codec: Codec) -> None:
    kept = StreamDecoder(device_codec, 2).bytes_per_slot
    plain = StreamDecoder(load_codec(TINY), 2).bytes_per_slot
    assert abs(kept - plain / 2) < 0.01 * plain
