"""``python -P -m shoal.realtime``: the ``shoal`` command where no script is installed."""

from __future__ import annotations

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
