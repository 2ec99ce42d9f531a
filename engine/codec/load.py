"""Builds the codec from a checkpoint directory.

Owns the order of loading and :class:`Codec`, the frozen result that any number of decoders and
encoders share. Called once at start, from the thread that starts the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from .config import CodecConfig, CodecError, read_config
from .decoder import Decoder, read_books
from .encoder import Encoder
from .weights import Weights, checked, read_tensors


@dataclass(frozen=True, slots=True, eq=False)
class Codec:
    """The two networks and their sizes. Nothing in it changes after loading."""

    config: CodecConfig
    decoder: Decoder
    encoder: Encoder
    device: torch.device
    parameters: int

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
    config: CodecConfig, tensors: Mapping[str, torch.Tensor], device: torch.device
) -> Codec:
    """The codec of ``tensors``, named as on disk: exactly the expected ones."""
    # A GPU's codec is bound by its traffic; the CPU's is exact to 1e-5.
    compute = torch.float16 if device.type == "cuda" else torch.float32
    decoder, encoder = _build(config, Weights(tensors, device), compute)
    parameters = sum(tensor.numel() for tensor in tensors.values())
    return Codec(config, decoder, encoder, device, parameters)


@torch.inference_mode()
def _build(
    config: CodecConfig, weights: Weights, compute: torch.dtype = torch.float32
) -> tuple[Decoder, Encoder]:
    books = read_books(config, weights)
    return Decoder(config, books, weights, compute), Encoder(config, books, weights)
