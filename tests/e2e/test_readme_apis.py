"""The README's examples for other vendors' SDKs, browsers and agents, run as they stand."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import soundfile
from playwright.sync_api import sync_playwright

from shoal.realtime.arguments import build_parser
from tests.browser import CHROMIUM
from tests.clients_runs import PYTHON

README = Path(__file__).parents[2] / "README.md"
ADDRESS = "127.0.0.1:8080"


def example(language: str, words: str) -> str:
    """The one code block that has these words."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```$", README.read_text("utf-8"), re.M | re.S)
    (block,) = [block for block in blocks if words in block]
    return block


def at(server: Any, text: str) -> str:
    assert ADDRESS in text
    return text.replace(ADDRESS, server.http.removeprefix("http://"))


def seconds(path: Path) -> float:
    return soundfile.info(path).duration


@pytest.mark.parametrize(
    ("words", "file"),
    [
        ("from openai import", "hello.wav"),
        ("from elevenlabs.client import", "hello.mp3"),
        ("from cartesia import", "hello.wav"),
    ],
)
def test_the_sdks_speak(shared: Any, tmp_path: Path, words: str, file: str) -> None:
    if not PYTHON.exists():
        pytest.skip("no .clients: make test installs the clients there")
    script = at(shared, example("python", words))
    done = subprocess.run([PYTHON, "-c", script], cwd=tmp_path, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    if file.endswith("wav"):  # streamed: its header says no length
        assert len((tmp_path / file).read_bytes()) > 10_000
    else:
        assert seconds(tmp_path / file) > 0.2


def test_the_frameworks_take_the_address() -> None:
    if not PYTHON.exists():
        pytest.skip("no .clients: make test installs the clients there")
    script = example("python", "import deepgram, elevenlabs")
    within = "\n".join(f"    {line}" for line in script.splitlines() if "tts" in line)
    script = f"import asyncio\n{script.splitlines()[0]}\nasync def main():\n{within}\n"
    command = [PYTHON, "-c", f"{script}asyncio.run(main())"]
    done = subprocess.run(command, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr.decode()


def test_deepgrams_command_line_speaks(shared: Any, tmp_path: Path) -> None:
    command = shlex.split(at(shared, example("", "aura-2-thalia-en").replace("\\\n", " ")))
    subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=30, check=True)
    assert seconds(tmp_path / "hello.mp3") > 0.2


@pytest.fixture
def console(shared: Any) -> Iterator[Callable[[str], list[Any]]]:
    """Run a script in a page of the server; what it logs until the turn is over."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_context(bypass_csp=True).new_page()
        page.goto(shared.http)

        def run(script: str) -> list[Any]:
            return page.evaluate(
                """script => new Promise((resolve) => {
                  const seen = [];
                  console.log = (value) => {
                    seen.push(value instanceof ArrayBuffer ? value.byteLength : value.event);
                    if (value.event === "finish") resolve(seen);
                  };
                  new Function(script)();
                })""",
                script,
            )

        yield run
        browser.close()


def test_a_page_of_ones_own_hears_it(shared: Any, console: Callable[[str], list[Any]]) -> None:
    seen = console(at(shared, example("js", "protocol=json")))
    assert seen[0] == "ready" and seen[-1] == "finish" and "aligned" in seen
    assert sum(item for item in seen if isinstance(item, int)) > 10_000


def test_the_agents_configurations_are_commands() -> None:
    config = json.loads(example("json", "mcpServers"))["mcpServers"]["shoal"]
    line = shlex.split(example("", "claude mcp add"))
    for command in ([config["command"], *config["args"]], line[line.index("--") + 1 :]):
        assert command[0] == "shoal"
        assert build_parser().parse_args(command[1:]).command == "mcp"
