"""``shoal load`` for whoever builds the command line: declare the arguments, then run them."""

from __future__ import annotations

import argparse

from .cli.arguments import add_arguments

__all__ = ["add_arguments", "run"]


def run(args: argparse.Namespace) -> int:
    """Perform a parsed command line; returns the exit code. Blocks until the load test is over."""
    from .cli.actions import perform

    return perform(args)
