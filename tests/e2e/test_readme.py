"""The README's plain example, run as it stands (the port apart) against a server."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from shoal.engine.fake_tone import tone

README = Path(__file__).parents[2] / "README.md"


def test_the_dozen_lines_work(shared: Any, tmp_path: Path) -> None:
    text = README.read_text("utf-8")
    (example,) = re.findall(r"^```python\n(import msgpack\n.*?)^```$", text, re.M | re.S)
    assert "ws://127.0.0.1:8080/v1/tts/live" in example
    script = example.replace("ws://127.0.0.1:8080/v1/tts/live", shared.live)
    done = subprocess.run(
        [sys.executable, "-P", "-c", script], cwd=tmp_path, capture_output=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    expected = tone("Hello from a dozen lines.", "", 0, 24_000, 1_200)
    heard = np.frombuffer((tmp_path / "hello.pcm").read_bytes(), "<i2").astype(float)
    # As it was said, at another loudness.
    assert np.corrcoef(heard, np.frombuffer(expected, "<i2").astype(float))[0, 1] > 0.98
