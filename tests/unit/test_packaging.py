"""The wheel: built, looked into, and run where nothing else is installed."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Used where it is installed, done without where it is not.
OPTIONAL = {"sounddevice"}


def run(*command: str | Path) -> str:
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, cwd=ROOT, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def layer_folders() -> list[str]:
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    return list(table["package-dir"].values())


def source_files() -> list[Path]:
    """Relative to the root; everything in the layers' folders."""
    return [
        path.relative_to(ROOT)
        for folder in layer_folders()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    ]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    # From a copy, so that building leaves nothing behind and a stale build folder cannot help.
    for name in (*source_files(), *map(Path, ("pyproject.toml", "README.md", "LICENSE", "NOTICE"))):
        (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "source" / name).write_bytes((ROOT / name).read_bytes())
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    # setuptools is at hand and needs no index: nothing is downloaded here.
    run(*pip, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder, folder / "source")
    (built,) = folder.glob("shoal-*.whl")
    return built


def test_every_source_file_is_in_the_wheel_and_nothing_else(wheel: Path) -> None:
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    # Pages about the code and records of what was measured stay with the code.
    expected = {
        f"shoal/{path}"
        for path in source_files()
        if path.suffix != ".md" and path.parts[:2] != ("loadtest", "results")
    }
    assert inside == expected


def test_the_licence_and_the_notice_travel_along(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for file in ("LICENSE", "NOTICE"):
        assert any(name.endswith(f".dist-info/licenses/{file}") for name in names), file


def test_the_command_runs_where_nothing_else_is_installed(wheel: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare")
    python = tmp_path / "bare" / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    run(*pip, "--python", python, "install", "-q", "--no-deps", "--no-index", wheel)
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert run(tmp_path / "bare" / "bin" / "shoal", "--version").strip() == f"shoal {version}"
    installed = run(python, "-P", "-c", "import shoal; print(*shoal.__path__)").strip()
    assert sorted(p.name for p in Path(installed).iterdir()) == sorted(layer_folders())


def test_every_package_that_is_imported_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    declared = [*project["dependencies"], *(one for extra in extras for one in extra)]
    known = {name(requirement) for requirement in declared} | {"shoal", "pip", "setuptools"}
    ours = set(layer_folders()) | {"tests"}
    distributions = metadata.packages_distributions()
    missing: set[str] = set()
    for path in (*source_files(), *(p.relative_to(ROOT) for p in (ROOT / "tests").rglob("*.py"))):
        if path.suffix != ".py" or path.parts[:2] == ("tests", "clients"):
            continue  # those have an environment and a list of requirements of their own
        for module in imported(ROOT / path) - sys.stdlib_module_names - ours - OPTIONAL:
            if not known & {name(d) for d in distributions.get(module, ())}:
                missing.add(f"{path}: {module}")
    assert missing == set()


def name(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0].lower().replace("_", "-")


def imported(path: Path) -> set[str]:
    """Top-level names of what a file imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Import(names=names):
                found |= {alias.name.split(".")[0] for alias in names}
            case ast.ImportFrom(module=str(module), level=0):
                found.add(module.split(".")[0])
            case _:
                pass
    return found
