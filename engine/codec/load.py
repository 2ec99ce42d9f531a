"""Builds the codec from a checkpoint directory.

Owns the order of loading and :class:`Codec`, the frozen result that any number of decoders and
encoders share. Called once at start, from the thread that starts the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from .config import CodecConfig, CodecError, read_config
from .decoder import Decoder, read_books
from .encoder import Encoder
from .weights import Weights, checked, read_tensors

if TYPE_CHECKING:
    from .device_network import DeviceNetwork


@dataclass(frozen=True, slots=True, eq=False)
class Codec:
    """The networks and their sizes. Nothing in it changes after loading.

    ``network``: the decoding network for the device's own kernels; ``decoder``: the same in plain
    torch. One of them is there, for :class:`.stream.StreamDecoder`.
    """

    config: CodecConfig
    decoder: Decoder | None
    encoder: Encoder
    device: torch.device
    parameters: int
    network: DeviceNetwork | None = None

    @property
    def sample_rate(self) -> int:
        return self.config.sample_rate

    @property
    def frame_samples(self) -> int:
        return self.config.frame_samples

    @property
    def codebooks(self) -> int:
        return self.config.codebooks


def expected_shapes(config: CodecConfig) -> dict[str, tuple[int, ...]]:
    """Every key that a ``codec.pth`` of this config must hold, with its shape."""
    asked = Weights(None, torch.device("meta"))
    _build(config, asked)
    return asked.shapes


def load_codec(
    directory: Path,
    *,
    device: torch.device | str = "cpu",
    progress: Callable[[str], None] = lambda _: None,
) -> Codec:
    """The codec in ``directory`` (``codec.pth`` and perhaps ``codec_config.json``), in float32.

    Raises CodecError that says which file or which keys are at fault.
    """
    device = torch.device(device)
    progress("reading the codec")
    config = read_config(directory)
    path = directory / "codec.pth"
    tensors = read_tensors(path)
    try:
        tensors = checked(tensors, expected_shapes(config))
    except CodecError as error:
        raise CodecError(f"{path}: {error}") from None
    progress("preparing the codec")
    return codec_of(config, tensors, device)


def codec_of(
    config: CodecConfig,
    tensors: Mapping[str, torch.Tensor],
    device: torch.device,
    *,
    compute: torch.dtype | None = None,
    kernels: bool | None = None,
) -> Codec:
    """The codec of ``tensors``, named as on disk: exactly the expected ones.

    ``compute``: what plain torch's convolutions multiply in; fp16 on a GPU, whose codec is bound by
    its traffic, else float32, which is exact to 1e-5. ``kernels``: prepare the decoding network for
    our own kernels instead; None: on the GPUs (Hopper) that their tiles were chosen for.
    """
    on_gpu = device.type == "cuda"
    if compute is None:
        compute = torch.float16 if on_gpu else torch.float32
    weights = Weights(tensors, device)
    parameters = sum(tensor.numel() for tensor in tensors.values())
    if kernels is None:
        kernels = on_gpu and torch.cuda.get_device_capability(device) == (9, 0)
    if not kernels:
        return Codec(config, *_build(config, weights, compute), device, parameters)
    from .device_network import DeviceNetwork  # a CPU needs no Triton

    with torch.inference_mode():
        books = read_books(config, weights)
        network = DeviceNetwork(config, books, weights)
        encoder = Encoder(config, books, weights)
    return Codec(config, None, encoder, device, parameters, network)


@torch.inference_mode()
def _build(
    config: CodecConfig, weights: Weights, compute: torch.dtype = torch.float32
) -> tuple[Decoder, Encoder]:
    books = read_books(config, weights)
    return Decoder(config, books, weights, compute), Encoder(config, books, weights)
