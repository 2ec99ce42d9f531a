"""What the pages say exists: targets, commands, flags, links, files, and code that compiles."""

from __future__ import annotations

import ast
import os
import re
import shlex
from pathlib import Path

import pytest

from shoal.realtime.arguments import build_parser

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "loadtest" / "README.md",
        *(ROOT / "docs").rglob("*.md"),
    ]
)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path, language: str) -> list[str]:
    return [m[2] for m in FENCE.finditer(page.read_text("utf-8")) if m[1] == language]


def targets() -> set[str]:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    return set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_make_target_that_is_named_exists(page: Path) -> None:
    text = page.read_text("utf-8")
    named = set(re.findall(r"(?:^|`)make ([a-z][a-z-]*)", text, re.MULTILINE))
    assert named <= targets()


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", page.read_text("utf-8")):
        if "://" not in link:
            assert (page.parent / link).exists(), link


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_shoal_command_line_is_understood(page: Path) -> None:
    for block in blocks(page, ""):
        for line in block.splitlines():
            command = line.split("|")[-1].strip()
            if not command.startswith("shoal ") or "..." in command:
                continue
            words = shlex.split(command, comments=True)[1:]
            if words != ["load"]:
                build_parser().parse_args(words)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_python_example_compiles(page: Path) -> None:
    for block in blocks(page, "python"):
        ast.parse(block)


def test_every_file_that_the_architecture_names_exists() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    for name in re.findall(r"`((?:engine|realtime|proto|kernels|loadtest)/[\w/]+\.py)`", text):
        assert (ROOT / name).is_file(), name
    for name in re.findall(r"[\[\"\s]([a-z_]+\.py)[\",<]", text):
        assert any((ROOT / layer / name).is_file() for layer in ("realtime", "engine")), name


def test_the_two_commands_of_the_readme_come_first() -> None:
    first = blocks(ROOT / "README.md", "")[0].splitlines()
    assert [line.split("#")[0].strip() for line in first] == ["make serve", "make test"]


def test_ci_runs_the_tests_of_the_readme() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert "make check" in script.read_text("utf-8")
    recipe = re.search(r"^check:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text("utf-8"), re.M)
    assert recipe is not None
    for step in ("ruff format --check", "ruff check", "pyright", "test_layers.py", " test"):
        assert step in recipe[1], step


def test_the_licence_is_the_whole_apache_licence() -> None:
    text = (ROOT / "LICENSE").read_text("utf-8")
    assert "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text
    assert len(text.split()) == 1581


def test_the_notice_names_what_the_voice_was_made_from() -> None:
    notice = (ROOT / "NOTICE").read_text("utf-8")
    for source in ("Kokoro-82M", "kokoro-js", "LJSpeech", "LibriTTS", "oos-eval", "WordNet"):
        assert source in notice
