"""Streams in slots: any cut, any neighbours, any length give the same samples at the same cost."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from shoal.engine.codec import Codec, StreamDecoder, decode_codes, encode_codes, load_codec

pytestmark = pytest.mark.usefixtures("one_thread")

TINY = Path(__file__).parents[1] / "data" / "s2_tiny"
FRAMES = 40


@pytest.fixture(scope="module")
def codec() -> Codec:
    return load_codec(TINY)


@pytest.fixture(scope="module")
def streams() -> Tensor:
    """Codes [4, FRAMES, 10]."""
    generator = torch.Generator().manual_seed(3)
    codes = torch.randint(0, 16, (4, FRAMES, 10), generator=generator, dtype=torch.int32)
    codes[..., 0] = torch.randint(0, 64, (4, FRAMES), generator=generator, dtype=torch.int32)
    return codes


@pytest.fixture(scope="module")
def whole(codec: Codec, streams: Tensor) -> list[Tensor]:
    return [decode_codes(codec, codes, chunk_frames=FRAMES) for codes in streams]


def assert_same(got: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("chunk_frames", [1, 3, 16, 17])
def test_any_cut_is_the_whole(
    codec: Codec, streams: Tensor, whole: list[Tensor], chunk_frames: int
) -> None:
    assert_same(decode_codes(codec, streams[0], chunk_frames), whole[0])


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_streams_that_come_and_go_in_any_slots(
    codec: Codec, streams: Tensor, whole: list[Tensor], data: st.DataObject
) -> None:
    """Each call runs some of the open streams for the same number of frames; each stream sits in a
    slot of its own, in which another one was before, and begins with a reset."""
    decoder = StreamDecoder(codec, 5)
    slots = data.draw(st.permutations(range(5)))
    done = [0] * 4
    for _ in range(8):
        frames = data.draw(st.integers(1, 6))
        rows = data.draw(st.lists(st.integers(0, 3), min_size=1, unique=True))
        rows = [r for r in rows if done[r] + frames <= FRAMES]
        if not rows:
            continue
        codes = torch.stack([streams[r, done[r] : done[r] + frames] for r in rows])
        reset = torch.tensor([done[r] == 0 for r in rows])
        samples = decoder.decode([slots[r] for r in rows], codes, reset)
        for r, got in zip(rows, samples, strict=True):
            start = done[r] * codec.frame_samples
            assert_same(got, whole[r][start : start + len(got)])
            done[r] += frames
        if data.draw(st.booleans()):
            done[data.draw(st.integers(0, 3))] = 0


def test_a_reset_is_a_fresh_start_to_the_bit(
    codec: Codec, streams: Tensor, whole: list[Tensor]
) -> None:
    decoder = StreamDecoder(codec, 1)
    yes, no = torch.tensor([True]), torch.tensor([False])
    first = decoder.decode((0,), streams[:1, :5], no)
    decoder.decode((0,), streams[1:2, 5:30], no)
    assert torch.equal(decoder.decode((0,), streams[:1, :5], yes), first)


@pytest.mark.parametrize("frames", [1, 2, 3, 4])
def test_a_slot_s_bits_do_not_depend_on_its_neighbours(
    codec: Codec, streams: Tensor, frames: int
) -> None:
    together, alone = StreamDecoder(codec, 4), StreamDecoder(codec, 4)
    for start in range(0, 12, frames):
        codes = streams[:, start : start + frames]
        reset = torch.full((4,), start == 0)
        samples = together.decode((3, 1, 0, 2), codes, reset)
        for row, slot in enumerate((3, 1, 0, 2)):
            single = one_row(alone, slot, codes[row : row + 1], reset[row : row + 1])
            assert torch.equal(single, samples[row])


def one_row(decoder: StreamDecoder, slot: int, codes: Tensor, reset: Tensor) -> Tensor:
    return decoder.decode((slot,), codes, reset)[0]


class Operations(TorchDispatchMode):
    """Counts operations by name and argument shapes, and the largest result."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()
        self.largest = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        shapes = [list(a.shape) if isinstance(a, Tensor) else type(a).__name__ for a in args]
        self.seen[f"{func} {shapes}"] += 1
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self.largest = max(self.largest, result.numel())
        return result


def test_frame_1000_costs_what_frame_10_costs(codec: Codec, streams: Tensor) -> None:
    decoder = StreamDecoder(codec, 2)
    keep = torch.tensor([False, False])
    counted: dict[int, Counter[str]] = {}
    at = 0
    for frames in (9, 1, *(33 for _ in range(30)), 1):
        at += frames
        codes = streams[:2, :frames]
        if at in (10, 1001):
            with Operations() as operations:
                decoder.decode((0, 1), codes, keep)
            counted[at] = operations.seen
        else:
            decoder.decode((0, 1), codes, keep)
    assert counted[10].total() > 100
    assert counted[10] == counted[1001]


def test_memory_of_encoding_does_not_grow_with_the_recording(codec: Codec) -> None:
    largest: list[int] = []
    for frames in (8, 32):
        with Operations() as operations:
            encode_codes(codec, torch.randn(frames * codec.frame_samples), chunk_frames=4)
        largest.append(operations.largest)
    # The recording itself (32 frames) is smaller than four frames of the widest activation.
    assert largest[0] == largest[1]


@pytest.mark.parametrize(
    ("slots", "shape", "reset", "message"),
    [
        ((0, 1), (1, 2, 10), [True], r"codes must be \[2, frames, 10\]"),
        ((0,), (1, 2, 9), [True], r"codes must be \[1, frames, 10\]"),
        ((0,), (2, 10), [True], "codes must be"),
        ((0,), (1, 2, 10), [True, False], r"reset must be bool \[1\]"),
        ((0,), (1, 2, 10), [1], r"reset must be bool"),
        ((0, 0), (2, 1, 10), [True, True], "slots must be different"),
        ((3,), (1, 1, 10), [True], "0 .. 2"),
        ((-1,), (1, 1, 10), [True], "0 .. 2"),
        ((), (0, 1, 10), [], "reset must be bool|nothing"),
        ((0,), (1, 0, 10), [True], "nothing"),
    ],
)
def test_arguments_that_do_not_fit(
    codec: Codec, slots: tuple[int, ...], shape: tuple[int, ...], reset: list[Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        StreamDecoder(codec, 3).decode(
            slots, torch.zeros(shape, dtype=torch.int32), torch.tensor(reset)
        )


@pytest.mark.parametrize("shape", [(0,), (2, 4000)])
def test_a_recording_is_one_axis_of_samples(codec: Codec, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="samples must be one axis"):
        encode_codes(codec, torch.zeros(shape))
