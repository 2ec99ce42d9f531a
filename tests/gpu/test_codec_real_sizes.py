"""S2's codec on a GPU at its own size: as right as plain torch in fp16, and the same bits whatever
runs beside a row, however its frames are cut, and with or without overlapping launches."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

import shoal.engine
from shoal.engine.codec import Codec, CodecConfig, StreamDecoder, decode_codes, load_codec
from shoal.engine.codec.load import codec_of, expected_shapes

if not (torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)):
    pytest.skip("takes a Hopper GPU", allow_module_level=True)

from shoal.engine.codec.device_streams import DeviceStreams

BUILTIN = Path(shoal.engine.__file__).parent / "builtin_voice"
GPU = torch.device("cuda")


@pytest.fixture(scope="module")
def tensors() -> dict[str, Tensor]:
    """Weights that keep activations near 1."""
    generator = torch.Generator(GPU).manual_seed(0)
    drawn: dict[str, Tensor] = {}
    for name, shape in expected_shapes(CodecConfig()).items():
        values = torch.empty(shape, device=GPU).normal_(generator=generator)
        gain = name.endswith(("original0", "weight_g", "alpha")) or len(shape) == 1
        if gain and not name.endswith("bias"):
            drawn[name] = values.abs() * 0.3 + 0.5
        elif name.endswith("bias"):
            drawn[name] = values * 0.1
        else:
            drawn[name] = values / math.sqrt(math.prod(shape[1:]))
    return drawn


@pytest.fixture(scope="module")
def codec(tensors: dict[str, Tensor]) -> Codec:
    return codec_of(CodecConfig(), tensors, GPU)


def codes(rows: int, frames: int, seed: int, config: CodecConfig | None = None) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    limits = torch.tensor((config or CodecConfig()).code_limits)
    drawn = torch.rand(rows, frames, len(limits), generator=generator)
    return (drawn * (limits + 1)).to(torch.int32)


def keep(rows: int) -> Tensor:
    return torch.zeros(rows, dtype=torch.bool)


def test_it_is_within_45_db_of_float32(codec: Codec, tensors: dict[str, Tensor]) -> None:
    exact = codec_of(CodecConfig(), tensors, GPU, compute=torch.float32, kernels=False)
    decoders = [StreamDecoder(c, 2) for c in (exact, codec)]
    parts: list[list[Tensor]] = [[], []]
    for i, frames in enumerate((1, 2, 4, 1, 8)):
        given = codes(2, frames, i)
        for decoder, sound in zip(decoders, parts, strict=True):
            sound.append(decoder.decode((0, 1), given, keep(2)))
    wanted, got = (torch.cat(sound, 1).double() for sound in parts)
    snr = 10 * torch.log10(wanted.pow(2).mean() / (wanted - got).pow(2).mean())
    assert float(wanted.std()) > 0.05
    assert float(snr) > 45


def differing(codec: Codec, rows: int, frames: int, calls: int) -> list[tuple[int, int]]:
    """(call, row) of those whose samples are other bits alone than among ``rows`` rows."""
    together, alone = StreamDecoder(codec, rows), StreamDecoder(codec, rows)
    found: list[tuple[int, int]] = []
    for call in range(calls):
        given = codes(rows, frames, 20 + call, codec.config)
        sound = together.decode(range(rows), given, keep(rows))
        for row in {0, rows // 3, rows // 2, rows - 1}:
            single = alone.decode((row,), given[row : row + 1], keep(1))
            if not torch.equal(sound[row], single[0]):
                found.append((call, row))
    return found


SIZES = [(2, 1), (8, 1), (16, 2), (64, 1), (64, 4), (32, 8), (128, 2), (256, 1), (256, 2)]


@pytest.mark.parametrize(("rows", "frames"), SIZES)
def test_a_row_alone_has_the_bits_it_has_among_neighbours(
    codec: Codec, rows: int, frames: int
) -> None:
    # Rounding of a sum shows in an fp16 value of thousands only: a few calls may miss it.
    assert differing(codec, rows, frames, 8) == []


def test_the_built_in_voice_has_kernels_and_bits_of_its_own_too() -> None:
    plain, ours = load_codec(BUILTIN), load_codec(BUILTIN, device=GPU)
    assert ours.network is not None
    given = codes(1, 12, 50, ours.config)
    wanted = decode_codes(plain, given[0])
    got = decode_codes(ours, given[0].to(GPU)).cpu()
    error = (wanted - got).double().pow(2).mean()
    assert float(10 * torch.log10(wanted.double().pow(2).mean() / error)) > 45
    for rows, frames in ((2, 1), (16, 4), (64, 4), (256, 1)):
        assert differing(ours, rows, frames, 4) == []


def test_frames_one_by_one_have_the_bits_of_all_at_once(codec: Codec) -> None:
    given = codes(1, 8, 30)
    split, joint = StreamDecoder(codec, 1), StreamDecoder(codec, 1)
    parts = [split.decode((0,), given[:, t : t + 1], keep(1)) for t in range(8)]
    assert torch.equal(torch.cat(parts, 1), joint.decode((0,), given, keep(1)))


def test_overlapping_launches_change_no_bit(codec: Codec) -> None:
    assert codec.network is not None
    slots, given = torch.arange(16, device=GPU), codes(16, 1, 40).to(GPU)
    streams = [DeviceStreams(codec.network, 16, GPU, pdl=pdl) for pdl in (False, True)]
    with torch.inference_mode():
        for _ in range(20):
            sounds = [s.run(slots, given, keep(16).to(GPU)) for s in streams]
            assert torch.equal(*sounds)


def test_plain_torch_is_not_kept_beside_our_kernels(codec: Codec) -> None:
    assert codec.decoder is None
    assert codec.network is not None
