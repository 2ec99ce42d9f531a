"""The codebooks: codes to latents, and latents to the nearest codes.

Owns one semantic codebook and the residual ones, in their two forms: the table of finished
latents that decoding sums, and the normalised entries that encoding compares with. Stateless.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Book:
    """One codebook as on disk: ``entries`` [size, code]; ``into`` ([code, latent], [code])
    projects a latent to a code vector, ``out`` ([latent, code], [latent]) back."""

    entries: Tensor
    into: tuple[Tensor, Tensor]
    out: tuple[Tensor, Tensor]


class Codebooks:
    """All codebooks in the order of a frame's codes."""

    def __init__(self, books: list[Book]) -> None:
        counts = [book.entries.shape[0] for book in books]
        sizes = torch.tensor(counts)
        device = books[0].entries.device
        # A code's latent is the same whenever it is drawn, so the projection is done here once.
        self._table = torch.cat([F.linear(book.entries, *book.out) for book in books])
        self._latents = self._table.split(counts)
        self._offset = (sizes.cumsum(0) - sizes).to(device)
        self._last = (sizes - 1).to(device)
        self._into = [book.into for book in books]
        self._directions = [F.normalize(book.entries, dim=-1) for book in books]

    @property
    def table(self) -> tuple[Tensor, Tensor, Tensor]:
        """float [all entries, latent], and int64 [NQ] where each book begins in it and its largest
        code."""
        return self._table, self._offset, self._last

    def decode(self, codes: Tensor) -> Tensor:
        """int [B, T, NQ] -> float [B, T, latent]. A code above its book's last means the last."""
        b, frames, books = codes.shape
        rows = torch.minimum(codes.to(torch.int64), self._last) + self._offset
        return F.embedding_bag(rows.view(-1, books), self._table, mode="sum").view(b, frames, -1)

    def encode(self, latent: Tensor) -> Tensor:
        """float [B, T, latent] -> int32 [B, T, NQ]: each book takes what the ones before left."""
        rest = latent
        codes: list[Tensor] = []
        for into, directions, latents in zip(
            self._into, self._directions, self._latents, strict=True
        ):
            point = F.normalize(F.linear(rest, *into), dim=-1)
            code = F.linear(point, directions).argmax(-1)
            rest = rest - F.embedding(code, latents)
            codes.append(code)
        return torch.stack(codes, -1).to(torch.int32)
