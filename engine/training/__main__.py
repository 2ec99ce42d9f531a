"""``python -m shoal.engine.training COMMAND``: see the README beside this file."""

from __future__ import annotations

import importlib
import sys

COMMANDS = {
    "align": "align",
    "teacher": "teacher",
    "codec": "codec_command",
    "encode": "codes",
    "ar": "ar_train",
    "export": "export",
    "eval": "evaluate",
    "like": "likeness",
}


def main(argv: list[str]) -> int:
    if not argv or argv[0] not in COMMANDS:
        print(f"usage: python -m shoal.engine.training <{'|'.join(COMMANDS)}> ...")
        return 2
    module = importlib.import_module(f"{__package__}.{COMMANDS[argv[0]]}")
    return int(module.main(argv[1:]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
