"""How good a voice is: one table from a voice folder, each figure beside what it should be.

Every part is measured for itself and kept in ``--out``, so that a run that was stopped goes on
from there, and a part measured of other weights is measured again. Whisper base listens (the
``asr`` extra), Resemblyzer's encoder compares speakers, the project's engine speaks, on the CPU.

The codec and the clones are judged with a recital: sentences in several voices of the teacher
(``python -m shoal.engine.training teacher --only 0 1 2 3``). Without one the clones are of the
recordings in ``--recordings``, and the codec is left out.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

from shoal.engine.config import BUILTIN_VOICE
from shoal.engine.training.likeness import NoEncoder

from .asr_wer import NoRecogniser
from .bench_turn import machine
from .bench_voice_parts import PARTS, QUICK, RECORDINGS, WHOLE, Bench, LeftOut
from .bench_voice_shape import NoTurn
from .voice_table import Row, table

MINUTES = {
    "files": 0.1,
    "speed": 0.1,
    "tts20": 0.4,
    "tts60": 1.5,
    "clones": 4.0,
    "codec": 4.0,
    "many": 3.0,
    "shape": 0.4,
}
"""Of each part on two busy cores, as measured."""


def print_of(model: Path) -> str:
    """One name for what is in a voice folder."""
    digest = hashlib.sha256()
    for path in sorted(path for path in model.iterdir() if path.is_file()):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def run_part(name: str, bench: Bench, weights: str) -> list[Row]:
    """From what an earlier run kept, if it was of the same weights and as large; else measured.

    Raises :class:`LeftOut` when the part lacks something.
    """
    path = bench.out / f"part_{name}.json"
    asked = {"weights": weights, "size": asdict(bench.size), "recital": str(bench.recital)}
    if path.is_file():
        kept = json.loads(path.read_text(encoding="utf-8"))
        if kept["asked"] == asked:
            return [Row(**row) for row in kept["rows"]]
    print(f"{name} (about {MINUTES[name]:g} min on two cores in full)", file=sys.stderr, flush=True)
    began_s = time.monotonic()
    rows = PARTS[name](bench)
    took_s = round(time.monotonic() - began_s, 1)
    kept = {"asked": asked, "seconds": took_s, "rows": [asdict(row) for row in rows]}
    path.write_text(json.dumps(kept, indent=1), encoding="utf-8")
    return rows


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -P -m shoal.loadtest.bench_voice_quality",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", type=Path, default=BUILTIN_VOICE, help="a voice folder")
    parser.add_argument("--out", type=Path, required=True, help="parts, recordings and pictures")
    parser.add_argument("--quick", action="store_true", help="a little of everything")
    parser.add_argument("--parts", nargs="*", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--recital", type=Path, help="a speech folder of several voices")
    parser.add_argument("--recital-texts", type=Path, help="the .npz it was spoken from")
    parser.add_argument("--recordings", type=Path, default=RECORDINGS)
    parser.add_argument("--seed", type=int, default=0)
    flags = parser.parse_args(argv)
    flags.out.mkdir(parents=True, exist_ok=True)
    size = QUICK if flags.quick else WHOLE
    bench = Bench(
        *(flags.model, flags.out, size, flags.recital, flags.recital_texts),
        *(flags.recordings, flags.seed),
    )
    weights = print_of(flags.model)
    rows: list[Row] = []
    try:
        for name in flags.parts:
            try:
                rows += run_part(name, bench, weights)
            except (LeftOut, NoRecogniser, NoEncoder, NoTurn) as lack:
                rows.append(Row(name, None, "", note=str(lack)))
    finally:
        bench.close()
    described = {"model": weights, "quick": flags.quick, "machine": machine()}
    described["rows"] = [{**asdict(row), "verdict": row.verdict} for row in rows]
    (flags.out / "quality.json").write_text(json.dumps(described, indent=1), encoding="utf-8")
    print(table(rows))
    return 0 if all(row.verdict in ("good", "aim", "") for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
