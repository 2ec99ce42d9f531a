"""Where files lie, what they are called, and how long they may be."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SETUPTOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
LAYERS = sorted(SETUPTOOLS["package-dir"].values())
MAX_LINES = 400
# A file over the limit, with the reason. An entry that no longer needs to be here fails too.
LONGER: dict[str, str] = {}
BANNED_NAMES = frozenset(
    {"utils", "util", "helpers", "helper", "manager", "base", "common", "misc"}
)


def sources() -> Iterator[Path]:
    for layer in LAYERS:
        for path in sorted((ROOT / layer).rglob("*.py")):
            if "__pycache__" not in path.parts:
                yield path


def test_every_source_file_lies_in_a_package() -> None:
    stray = [
        str(path.relative_to(ROOT))
        for path in sources()
        if not (path.parent / "__init__.py").exists()
    ]
    assert stray == []


def test_every_layer_is_typed_and_seen_by_tools() -> None:
    for layer in LAYERS:
        assert (ROOT / layer / "py.typed").exists(), layer
        link = ROOT / ".typings" / "shoal" / layer
        assert link.is_symlink() and link.resolve() == ROOT / layer, layer


def checked_files() -> list[Path]:
    tests = [p for p in sorted((ROOT / "tests").rglob("*.py")) if "__pycache__" not in p.parts]
    return [*sources(), *tests]


def test_no_file_is_longer_than_the_limit() -> None:
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines())
        for path in checked_files()
    }
    over = {file: n for file, n in lengths.items() if n > MAX_LINES and file not in LONGER}
    assert over == {}
    stale = [file for file in LONGER if lengths.get(file, 0) <= MAX_LINES]
    assert stale == []


def test_nothing_has_a_name_that_says_nothing() -> None:
    vague = [
        str(path.relative_to(ROOT))
        for path in checked_files()
        if BANNED_NAMES & {part.removesuffix(".py") for part in path.relative_to(ROOT).parts}
    ]
    assert vague == []
