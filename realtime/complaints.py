"""Why a command is not done, for whoever typed it: each message is one line."""

from __future__ import annotations


class CommandError(Exception):
    """The command cannot be done."""


class UsageError(Exception):
    """What was typed makes no sense."""
