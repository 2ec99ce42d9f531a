"""``python -P -m shoal.loadtest``: the load tester without the rest of shoal."""

from __future__ import annotations

import argparse
import sys

from .command import add_arguments, run


def main() -> int:
    """Parse the command line and run it."""
    parser = argparse.ArgumentParser(prog="shoal load")
    add_arguments(parser)
    return run(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
