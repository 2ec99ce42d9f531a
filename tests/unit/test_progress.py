"""Progress on a terminal and in a file."""

from __future__ import annotations

import io

from shoal.realtime.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_file_gets_plain_lines_and_no_repeats() -> None:
    out = io.StringIO()
    progress = Progress(out)
    for doing in ("loading weights", "loading weights", "warming up"):
        progress(doing)
    progress.done()
    assert out.getvalue() == "loading weights\nwarming up\n"


def test_a_terminal_gets_one_line_that_is_gone_at_the_end() -> None:
    out = Terminal()
    progress = Progress(out)
    progress("loading weights")
    progress("warming up")
    progress.done()
    progress.done()
    clear = "\r\x1b[K"
    assert out.getvalue() == f"{clear}loading weights{clear}warming up{clear}"
    assert "\n" not in out.getvalue()
