"""FP8 formats: the rounding of both devices, prepared weights, and layouts that are refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before the first kernel is imported

from shoal.kernels.quantise import (
    Fp8Rows,
    Fp8Weight,
    dequantise_rows,
    dequantise_weight,
    prepare,
    quantise,
    quantise_reference,
    quantise_weight,
    worst_block_error,
)
from shoal.kernels.rounding import FP8

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def varied(rows: int, columns: int, block: int, seed: int) -> torch.Tensor:
    """bf16 values whose blocks differ by up to 64 times."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, columns, generator=g)
    lift = torch.randint(-3, 4, (rows // block, columns // 128), generator=g).float()
    spread = torch.exp2(lift).repeat_interleave(block, 0).repeat_interleave(128, 1)
    return (x * spread).bfloat16().to(DEVICE)


def error(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a.double() - b.double()).norm() / b.double().norm())


def test_rows_are_quantised_by_the_reference_s_rule_to_the_last_bit() -> None:
    x = varied(7, 640, 1, 1)
    x[3] = 0
    x[4, :128] = torch.linspace(-448, 448, 128).bfloat16()  # ties and subnormals among them
    out = Fp8Rows.empty(7, 640, DEVICE)
    out.values.view(torch.uint8).fill_(0x7F)
    quantise(x, out)
    expected = quantise_reference(x)
    assert torch.equal(out.values.float(), expected.values.float())
    assert torch.equal(out.scales, expected.scales)
    assert error(dequantise_rows(out), x) < 0.03
    assert not out.values[3].float().any()


def test_a_part_of_a_buffer_is_the_same_memory() -> None:
    x = varied(6, 256, 1, 2)
    buffer = Fp8Rows.empty(10, 256, DEVICE)
    quantise(x, buffer.narrow(2, 6))
    expected = quantise_reference(x)
    assert torch.equal(buffer.values[2:8].float(), expected.values.float())
    assert torch.equal(buffer.scales[:, 2:8], expected.scales)
    assert not buffer.scales[:, :2].any() and not buffer.scales[:, 8:].any()


def test_a_weight_survives_a_file_and_both_orders_of_its_scales(tmp_path: Path) -> None:
    source = varied(256, 640, 128, 3)
    weight = quantise_weight(source)
    assert error(dequantise_weight(weight), source) < 0.03
    turned = weight.scales.t().contiguous().t()
    assert turned.stride() == (1, 2)
    taken = prepare(weight.values, turned)
    assert taken.scales.is_contiguous() and torch.equal(taken.scales, weight.scales)
    path = tmp_path / "weight.safetensors"
    save_file({"values": taken.values, "scales": taken.scales}, path)
    loaded = load_file(path, device=DEVICE)
    again = prepare(loaded["values"], loaded["scales"])
    assert torch.equal(again.values.float(), weight.values.float())
    assert torch.equal(again.scales, weight.scales)


def test_a_check_at_load_sees_scales_of_other_blocks() -> None:
    source = varied(384, 640, 128, 4)
    weight = quantise_weight(source)
    blocks = [(row, column) for row in range(3) for column in range(5)]
    assert worst_block_error(weight, source, blocks) < 0.035
    planted = Fp8Weight(weight.values, weight.scales.t().contiguous().view(3, 5))
    assert worst_block_error(planted, source, blocks) > 0.3


def test_prepare_refuses_what_it_does_not_know() -> None:
    weight = quantise_weight(varied(256, 640, 128, 5))
    values, scales = weight.values, weight.scales
    with pytest.raises(TypeError, match=r"values are torch\.bfloat16"):
        prepare(values.bfloat16(), scales)
    with pytest.raises(TypeError, match=r"scales are torch\.bfloat16"):
        prepare(values, scales.bfloat16())
    with pytest.raises(ValueError, match=r"scales are \(5, 2\), expected \(2, 5\)"):
        prepare(values, scales.t())
    with pytest.raises(ValueError, match="neither row- nor column-major"):
        prepare(values, torch.zeros(2, 10, device=DEVICE)[:, ::2])
    with pytest.raises(ValueError, match="leave gaps"):
        prepare(values[:128], torch.zeros(1, 10, device=DEVICE)[:, ::2])
    with pytest.raises(ValueError, match="multiples of 128"):
        prepare(values[:100], scales)
    strided = torch.zeros(256, 1280, dtype=torch.uint8, device=DEVICE).view(FP8)[:, :640]
    with pytest.raises(ValueError, match="expected row-major"):
        prepare(strided, scales)
    with pytest.raises(ValueError, match="multiples of 128"):
        quantise_weight(torch.zeros(100, 128))
