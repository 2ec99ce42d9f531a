from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from shoal.engine.codec.rvq import Book, Codebooks


@pytest.fixture
def books() -> list[Book]:
    torch.manual_seed(0)
    return [
        Book(
            torch.randn(size, 4),
            (torch.randn(4, 16) / 4, torch.randn(4) / 9),
            (torch.randn(16, 4) / 2, torch.randn(16) / 9),
        )
        for size in (12, 5, 5)
    ]


def test_decode_sums_projected_entries(books: list[Book]) -> None:
    codes = torch.tensor([[[3, 4, 0], [11, 0, 2]]], dtype=torch.int32)
    wanted = torch.stack(
        [
            sum((F.linear(b.entries[c], *b.out) for b, c in zip(books, row, strict=True)), start=0)
            for row in codes[0].tolist()
        ]
    )
    torch.testing.assert_close(Codebooks(books).decode(codes)[0], wanted, rtol=0, atol=1e-6)


def test_codes_above_the_last_mean_the_last(books: list[Book]) -> None:
    both = Codebooks(books).decode(torch.tensor([[[99, 1023, 5], [11, 4, 4]]]))
    assert torch.equal(both[0, 0], both[0, 1])


def test_encode_takes_the_nearest_direction_of_what_is_left(books: list[Book]) -> None:
    latent = torch.randn(2, 7, 16)
    codes = Codebooks(books).encode(latent)
    assert codes.dtype == torch.int32
    rest = latent
    for i, book in enumerate(books):
        point = F.linear(rest, *book.into)
        similarity = F.cosine_similarity(point[..., None, :], book.entries, dim=-1)
        assert torch.equal(codes[..., i], similarity.argmax(-1).to(torch.int32))
        rest = rest - F.linear(book.entries[codes[..., i].long()], *book.out)
