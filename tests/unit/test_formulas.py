"""LaTeX in what the built-in voice is to say, and what only looks like it."""

from __future__ import annotations

import pytest

from shoal.engine.formulas import said
from shoal.engine.frontend import make_frontend


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        (r"So $E = mc^2$ holds.", "So E equals mc squared holds."),
        (r"Take $$\int_0^1 x^2 dx$$.", "Take the integral from zero to one of x squared dx."),
        (r"\(a+b\) and \[c\]", "A plus b and c."),
        (r"\textbf{Half} is \frac{1}{2}.", "Half is one over two."),
        (
            r"Use \sqrt{x^2 + y^2} \leq \alpha.",
            "Use square root of x squared plus y squared is at most alpha.",
        ),
        (r"So $\sum_{i=1}^{10} i$.", "So the sum from i equals one to ten of i."),
        ("It costs $5 and $6.", "It costs five dollars and six dollars."),
        (r"C:\Users\alice\notes is a path.", "C, Users alice notes is a path."),
    ],
)
def test_formulas_are_spoken_and_prices_and_paths_stay(text: str, spoken: str) -> None:
    assert make_frontend("english").spoken(text) == spoken


@pytest.mark.parametrize(
    "text",
    ["It costs $5 and $6.", "From $10 to $20_000.", "C:\\Users\\alice", "a_b and x^2", "\\n"],
)
def test_what_is_no_formula_is_left_alone(text: str) -> None:
    assert said(text) == text
