from __future__ import annotations

import pytest
import torch
from torch import Tensor

from shoal.engine.model.philox import MASK32, log_exponential, philox4x32, seed_words

# Published known answers of Philox4x32-10: counter, key, output.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (
        (MASK32, MASK32, MASK32, MASK32),
        (MASK32, MASK32),
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "output"), KNOWN)
def test_known_answers(
    counter: tuple[int, ...], key: tuple[int, ...], output: tuple[int, ...]
) -> None:
    words = philox4x32(*(torch.tensor([word]) for word in (*counter, *key)))
    assert words.tolist() == [list(output)]


def plain_philox(counter: list[int], key: list[int]) -> list[int]:
    """The same in Python integers."""
    c, k = list(counter), list(key)
    for _ in range(10):
        p0, p1 = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [(p1 >> 32) ^ c[1] ^ k[0], p1 & MASK32, (p0 >> 32) ^ c[3] ^ k[1], p0 & MASK32]
        k = [(k[0] + 0x9E3779B9) & MASK32, (k[1] + 0xBB67AE85) & MASK32]
    return c


def noise(seeds: list[int], draws: list[int], candidates: int = 10) -> Tensor:
    return log_exponential(
        torch.tensor([seed_words(seed) for seed in seeds]),
        torch.tensor(draws),
        torch.tensor([0, 0, 1, 2]),
        torch.tensor([0, 1, 0, 0]),
        candidates,
    )


def test_a_number_is_where_the_module_says_it_is() -> None:
    seed, draw = 0xFEDCBA9876543210, 5
    made = noise([1, seed], [7, draw])
    for place, (book, stream) in enumerate([(0, 0), (0, 1), (1, 0), (2, 0)]):
        for candidate in range(10):
            key = [seed & MASK32, seed >> 32]
            word = plain_philox([candidate // 4, book, draw, stream], key)[candidate % 4]
            uniform = torch.tensor((word // 512 + 0.5) / 2**23)
            assert made[1, place, candidate] == torch.log(-torch.log(uniform))


def test_numbers_do_not_depend_on_the_batch_or_the_width() -> None:
    alone = noise([3], [9])
    among = noise([5, 3, 3], [9, 9, 10], candidates=37)
    assert torch.equal(alone[0], among[1, :, :10])
    assert not torch.equal(among[1], among[2])
    assert not torch.equal(among[0], among[1])


def test_they_are_the_log_of_a_unit_exponential() -> None:
    made = noise(list(range(50)), [0] * 50, candidates=2000).exp()
    assert torch.isfinite(made).all() and (made > 0).all()
    assert made.mean() == pytest.approx(1.0, abs=0.01)
    assert made.var() == pytest.approx(1.0, abs=0.02)
    assert (made > 1).float().mean() == pytest.approx(0.3679, abs=0.003)


def test_seeds_are_taken_modulo_two_to_the_64() -> None:
    assert seed_words(-1) == (MASK32, MASK32)
    assert seed_words(2**64 + 5) == (5, 0)
    assert seed_words(2**32) == (0, 1)
