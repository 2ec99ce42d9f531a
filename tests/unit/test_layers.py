"""Who may import whom, and who may read the environment.

The tables at the top are the rules. A finding names file and line.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Rule:
    """What the files of one layer may import besides their own package.

    ``ours``: other layers, or modules of them. ``others``: packages that are not in the standard
    library. ``banned``: standard-library modules that do not belong there.
    """

    ours: frozenset[str] = frozenset()
    others: frozenset[str] = frozenset()
    banned: frozenset[str] = frozenset()


def only(*names: str) -> frozenset[str]:
    return frozenset(names)


LAYERS: dict[str, Rule] = {
    "proto": Rule(others=only("msgpack"), banned=only("asyncio", "threading", "socket")),
    "kernels": Rule(others=only("torch", "triton"), banned=only("asyncio")),
    "engine": Rule(
        ours=only("kernels"),
        others=only(
            "torch",
            "numpy",
            "safetensors",
            "tokenizers",
            "tiktoken",
            "num2words",
            "soundfile",
            "soxr",
        ),
        banned=only("asyncio"),
    ),
    "realtime": Rule(
        ours=only(
            "proto",
            "engine.api",
            "engine.checkpoint",
            "engine.config",
            "engine.fake",
            "engine.service",
            "engine.voices",
            "loadtest.command",
        ),
        others=only(
            "numpy",
            "msgpack",
            "starlette",
            "uvicorn",
            "uvloop",
            "websockets",
            "opuslib",
            "lameenc",
            "soundfile",
            "soxr",
            "prometheus_client",
            "sounddevice",
            "mcp",
            "httpx2",
            "opentelemetry",
        ),
    ),
    "loadtest": Rule(
        ours=only("proto", "deploy.autoscale"),
        others=only(
            "msgpack",
            "websockets",
            "numpy",
            "num2words",
            "faster_whisper",
            "h11",
            "hdrh",
            "soundfile",
        ),
    ),
    # Many servers behind one address; imported by nothing else, but for the arithmetic of scaling.
    "deploy": Rule(
        ours=only(
            "engine.api",
            "engine.config",
            "engine.fake",
            "engine.runner.Int32Array",
            "engine.service",
            "engine.voices",
            "realtime",
        ),
        others=only("ray", "starlette", "uvicorn", "torch", "yaml", "pydantic", "fsspec"),
    ),
}

TORCH = only("torch", "triton")
# Timings of single parts drive those parts without a server.
BENCHES = Rule(ours=only("proto", "engine", "kernels"), others=LAYERS["loadtest"].others | TORCH)
# The gateway's bench runs the real server on a device that costs nothing.
GATEWAY_BENCH = Rule(
    ours=only("proto", "engine", "realtime.server", "realtime.config"),
    others=LAYERS["loadtest"].others | only("uvloop"),
)
# Modules of the engine that may import torch, the kernels, or one another. Every other module of
# the engine is torch-free, and so may import none of these.
ENGINE_WITH_TORCH = only(
    "model",
    "codec",
    "cuda",
    "training",
    "cpu_runner",
    "cuda_runner",
    "loading",
    "random_model",
    "service",
)
# Only this one may name the module that pulls torch in, and only inside a function.
MAY_NAME_SERVICE = only("realtime/engine_flags.py")
MAY_READ_ENVIRONMENT = only("realtime/config.py", "deploy/cluster.py")

# What a process may import without torch coming along.
TORCH_FREE_ENTRIES = (
    "shoal.proto.codec",
    "shoal.engine",
    "shoal.engine.api",
    "shoal.engine.fake",
    "shoal.engine.scheduler",
    "shoal.realtime.server",
    "shoal.realtime.cli",
    "shoal.loadtest.bench_turn",
)


def sources(root: Path) -> Iterator[Path]:
    for layer in LAYERS:
        for path in sorted((root / layer).rglob("*.py")):
            if "__pycache__" not in path.parts:
                yield path


def imports(path: Path, root: Path) -> Iterator[tuple[int, str, bool]]:
    """Every imported module as (line, absolute dotted name, written as relative).

    ``from . import a`` counts as ``<package>.a``; ``from x import a`` as ``x.a`` for our own
    packages, because ``a`` may be a module.
    """
    package = ("shoal", *path.relative_to(root).with_suffix("").parts[:-1])
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Import(names=names):
                for alias in names:
                    yield node.lineno, alias.name, False
            case ast.ImportFrom(module=module, names=names, level=level):
                stem = ".".join((*package[: len(package) - level + 1], module or "")).strip(".")
                source = stem if level else module or ""
                ours = source.split(".")[0] == "shoal"
                for alias in names if ours else names[:1]:
                    full = f"{source}.{alias.name}" if ours else source
                    yield node.lineno, full, level > 0


def within(name: str, allowed: frozenset[str]) -> bool:
    return any(name == a or name.startswith(f"{a}.") for a in allowed)


def violations(root: Path) -> list[str]:
    """All breaches of the import table under ``root``, as ``file:line: what``."""
    found: list[str] = []
    for path in sources(root):
        relative = path.relative_to(root)
        layer, rule = relative.parts[0], LAYERS[relative.parts[0]]
        if layer == "loadtest" and path.name.startswith("bench_"):
            rule = GATEWAY_BENCH if path.name.startswith("bench_gateway") else BENCHES
        torch_free_engine = (
            layer == "engine" and relative.with_suffix("").parts[1] not in ENGINE_WITH_TORCH
        )
        for line, name, is_relative in imports(path, root):
            where = f"{relative}:{line}:"
            top = name.split(".")[0]
            if top == "shoal":
                target = name.removeprefix("shoal.")
                other = target.split(".")[0]
                if other != layer and not within(target, rule.ours):
                    found.append(f"{where} {layer} must not import {target}")
                elif not is_relative and is_sibling(path, root, target):
                    found.append(f"{where} import the sibling {target} relatively")
                elif torch_free_engine and (
                    other == "kernels"
                    or (other == "engine" and target.split(".")[1] in ENGINE_WITH_TORCH)
                ):
                    found.append(f"{where} {relative} is torch-free, {target} is not")
                elif (
                    layer == "realtime"
                    and within(target, only("engine.service"))
                    and (str(relative) not in MAY_NAME_SERVICE or at_top_level(path, line))
                ):
                    found.append(f"{where} engine.service is imported inside a command only")
            elif top in LAYERS:
                found.append(f"{where} bare import of {top}: write shoal.{top}")
            elif top in rule.banned:
                found.append(f"{where} {layer} must not import {top}")
            elif top not in sys.stdlib_module_names and top not in rule.others:
                found.append(f"{where} {layer} must not import {top}")
            elif top in TORCH and torch_free_engine:
                found.append(f"{where} {relative} is torch-free")
    return found


def is_sibling(path: Path, root: Path, target: str) -> bool:
    """Whether ``target`` (``layer.module.name``) lies in a module beside ``path``."""
    package = path.relative_to(root).parts[:-1]
    parts = tuple(target.split("."))
    inside = len(parts) > len(package) and parts[: len(package)] == package
    return inside and (path.parent / f"{parts[len(package)]}.py").exists()


def at_top_level(path: Path, line: int) -> bool:
    return any(node.lineno == line for node in ast.parse(path.read_text(encoding="utf-8")).body)


def environment_reads(root: Path) -> list[str]:
    found: list[str] = []
    for path in sources(root):
        relative = path.relative_to(root)
        if str(relative) in MAY_READ_ENVIRONMENT or relative.parts[:2] == ("engine", "training"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Attribute(value=ast.Name(id="os"), attr="environ" | "getenv" as attr):
                    found.append(f"{relative}:{node.lineno}: reads os.{attr}")
                case ast.ImportFrom(module="os", names=names) if any(
                    alias.name in ("environ", "getenv") for alias in names
                ):
                    found.append(f"{relative}:{node.lineno}: reads the environment")
                case _:
                    pass
    return found


def test_every_layer_imports_only_what_the_table_allows() -> None:
    assert violations(ROOT) == []


def test_only_the_server_config_reads_the_environment() -> None:
    assert environment_reads(ROOT) == []


@pytest.mark.parametrize(
    ("file", "source", "finding"),
    [
        ("proto/x.py", "import os\nimport torch\n", "proto/x.py:2: proto must not import torch"),
        ("proto/x.py", "import asyncio\n", "proto/x.py:1: proto must not import asyncio"),
        (
            "proto/x.py",
            "from shoal.engine import api\n",
            "proto/x.py:1: proto must not import engine.api",
        ),
        ("engine/x.py", "import proto\n", "engine/x.py:1: bare import of proto: write shoal.proto"),
        ("engine/slots.py", "import torch\n", "engine/slots.py:1: engine/slots.py is torch-free"),
        (
            "engine/slots.py",
            "def f():\n    from .model.dual_ar import D\n",
            "engine/slots.py:2: engine/slots.py is torch-free, engine.model.dual_ar.D is not",
        ),
        (
            "engine/slots.py",
            "from shoal.engine.api import Open\n",
            "engine/slots.py:1: import the sibling engine.api.Open relatively",
        ),
        (
            "realtime/x.py",
            "from shoal.engine.scheduler import Scheduler\n",
            "realtime/x.py:1: realtime must not import engine.scheduler.Scheduler",
        ),
        (
            "realtime/engine_flags.py",
            "from shoal.engine.service import SpeechEngine\n",
            "realtime/engine_flags.py:1: engine.service is imported inside a command only",
        ),
        (
            "realtime/cli.py",
            "def f():\n    from shoal.engine.service import SpeechEngine\n",
            "realtime/cli.py:2: engine.service is imported inside a command only",
        ),
        (
            "loadtest/x.py",
            "from shoal.realtime import app\n",
            "loadtest/x.py:1: loadtest must not import realtime.app",
        ),
        ("kernels/x.py", "import numpy\n", "kernels/x.py:1: kernels must not import numpy"),
    ],
)
def test_the_check_finds_a_planted_breach(
    tmp_path: Path, file: str, source: str, finding: str
) -> None:
    planted = tmp_path / file
    planted.parent.mkdir()
    (planted.parent / "api.py").touch()
    planted.write_text(source)
    assert violations(tmp_path) == [finding]


def test_the_check_allows_what_the_table_allows(tmp_path: Path) -> None:
    for file, source in {
        "engine/service.py": "import torch\nfrom .slots import Slot\n",
        "engine/model/dual_ar.py": "import torch\nfrom shoal.engine.api import Open\n",
        "realtime/engine_flags.py": "def f():\n    from shoal.engine.service import SpeechEngine\n",
        "realtime/session.py": "from shoal.engine.api import Open\nfrom shoal.proto import codec\n",
        "loadtest/run.py": "import asyncio\nfrom shoal.proto.messages import Text\n",
    }.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(source)
    assert violations(tmp_path) == []


def test_torch_stays_out_of_what_promises_to_live_without_it() -> None:
    code = "\n".join(
        (
            "import importlib, sys",
            f"for name in {TORCH_FREE_ENTRIES!r}:",
            "    importlib.import_module(name)",
            "    assert 'torch' not in sys.modules, name",
        )
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def packages_on_disk() -> set[str]:
    return {
        ".".join(("shoal", *path.parent.relative_to(ROOT).parts))
        for path in sources(ROOT)
        if path.name == "__init__.py"
    }


def test_every_package_is_shipped() -> None:
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert sorted(packages_on_disk()) == sorted(table["packages"])
    assert set(table["package-dir"]) == {f"shoal.{layer}" for layer in LAYERS}
