from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from shoal.engine.codec.config import CodecError
from shoal.engine.codec.weights import Weights, checked, read_tensors

NEW = "x.conv.parametrizations.weight.original0"
OLD = "x.conv.weight_g"


def saved(path: Path, content: object) -> Path:
    torch.save(content, path)
    return path


def test_stale_buffers_are_dropped_and_nothing_else(tmp_path: Path) -> None:
    path = saved(
        tmp_path / "codec.pth",
        {
            "quantizer.pre_module.freqs_cis": torch.zeros(4, 2, 2, dtype=torch.bfloat16),
            "quantizer.pre_module.causal_mask": torch.ones(4, 4, dtype=torch.bool),
            "quantizer.pre_module.norm.weight": torch.ones(4),
            "causal_masks": torch.ones(1),
        },
    )
    assert set(read_tensors(path)) == {"quantizer.pre_module.norm.weight", "causal_masks"}


@pytest.mark.parametrize(
    "content",
    [
        {"state_dict": {"a.b": torch.ones(2)}},
        {"generator.a.b": torch.ones(2), "discriminator.a.b": torch.ones(3)},
        {"state_dict": {"generator.a.b": torch.ones(2), "other": torch.ones(3)}},
    ],
)
def test_wrapped_files_are_unwrapped(tmp_path: Path, content: object) -> None:
    tensors = read_tensors(saved(tmp_path / "codec.pth", content))
    assert {name: value.tolist() for name, value in tensors.items()} == {"a.b": [1.0, 1.0]}


def test_the_legacy_file_format_is_read(tmp_path: Path) -> None:
    path = tmp_path / "codec.pth"
    torch.save({"a": torch.ones(2)}, path, _use_new_zipfile_serialization=False)
    assert read_tensors(path)["a"].tolist() == [1.0, 1.0]


def test_what_is_not_a_checkpoint_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "codec.pth"
    with pytest.raises(CodecError, match=r"codec\.pth is missing"):
        read_tensors(path)
    path.write_bytes(b"not a checkpoint at all")
    with pytest.raises(CodecError, match="cannot be read"):
        read_tensors(path)
    path.write_bytes(b"")
    with pytest.raises(CodecError, match="cannot be read"):
        read_tensors(path)
    saved(path, [1, 2])
    with pytest.raises(CodecError, match="dictionary"):
        read_tensors(path)
    saved(path, {"epoch": 3})
    with pytest.raises(CodecError, match="epoch is not a tensor"):
        read_tensors(path)


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "codec.pth", {"a": torch.ones(1000)})
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(CodecError, match="cannot be read"):
        read_tensors(path)


def test_every_misfit_is_named() -> None:
    tensors = {"a": torch.ones(2), "b": torch.ones(3), "c": torch.ones(1), "e": torch.ones(1).int()}
    with pytest.raises(CodecError) as error:
        checked(tensors, {"a": (2,), "b": (4,), "d": (1,), "e": (1,)})
    message = str(error.value)
    assert "missing: d" in message
    assert "not expected: c" in message
    assert "b is [3], expected [4]" in message
    assert "not numbers: e" in message


def test_long_lists_are_cut() -> None:
    with pytest.raises(CodecError, match="and 12 more"):
        checked({}, {f"k{i}": (1,) for i in range(20)})


@pytest.mark.parametrize(("expected", "given"), [(NEW, OLD), (OLD, NEW), (OLD, OLD)])
def test_both_spellings_of_weight_norm_are_read(expected: str, given: str) -> None:
    gain = torch.ones(2, 1, 1)
    assert checked({given: gain}, {expected: (2, 1, 1)}) == {expected: gain}


def test_one_weight_in_two_spellings_is_refused() -> None:
    with pytest.raises(CodecError, match="two spellings"):
        checked({OLD: torch.ones(1), NEW: torch.ones(1)}, {NEW: (1,)})


@pytest.mark.parametrize("old", [False, True])
def test_weight_norm_is_folded_over_all_axes_but_the_first(old: bool) -> None:
    gain, direction = torch.rand(3, 1, 1) + 0.5, torch.randn(3, 4, 5)
    names = (
        ("weight_g", "weight_v")
        if old
        else (
            "parametrizations.weight.original0",
            "parametrizations.weight.original1",
        )
    )
    tensors: dict[str, Tensor] = {
        f"x.{names[0]}": gain,
        f"x.{names[1]}": direction.half(),
        "x.bias": torch.zeros(4),
    }
    weights = Weights(tensors, torch.device("cpu"))
    folded, bias = weights.normed("x", 3, 4, 5, bias=4, old=old)
    assert folded.dtype == bias.dtype == torch.float32
    for i in range(3):
        v = direction[i].half().float()
        assert torch.allclose(folded[i], gain[i] * v / v.norm(), atol=1e-6)


def test_without_tensors_it_lists_what_was_asked_for() -> None:
    weights = Weights(None, torch.device("cpu"))
    weights.linear("l", 2, 3)
    weights.normed("c", 2, 3, 7)
    assert weights.shapes == {
        "l.weight": (2, 3),
        "l.bias": (2,),
        "c.bias": (2,),
        "c.parametrizations.weight.original0": (2, 1, 1),
        "c.parametrizations.weight.original1": (2, 3, 7),
    }
