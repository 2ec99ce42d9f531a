"""The page at ``/`` in headless Chromium: what the tests that click through it share."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or "chromium"
KEPT = Path(__file__).parents[1] / "artifacts"
"""Screenshots of the last run; not in git."""
TEXT = "The first sentence is short. The second one goes on for a little longer, so that it lasts."


@contextmanager
def chromium() -> Iterator[Browser]:
    KEPT.mkdir(exist_ok=True)
    expect.set_options(timeout=30_000)  # of what comes in a moment on a machine that has one
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=[
                "--no-sandbox",
                "--use-fake-device-for-media-stream",
                "--use-fake-ui-for-media-stream",  # says yes to the microphone
                "--mute-audio",
                "--host-resolver-rules=MAP shoal.test 127.0.0.1",
            ],
        )
        yield browser
        browser.close()


@contextmanager
def visiting(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Open a server's page; what the console complains about fails the test."""
    complaints: list[str] = []

    def note(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            complaints.append(message.text)

    contexts = []

    def visit(server: Any, host: str = "127.0.0.1", **options: Any) -> Page:
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", note)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(server.http.replace("127.0.0.1", host) + "/")
        expect(page.locator("#server")).to_have_text("ready")
        return page

    yield visit
    for context in contexts:
        context.close()
    # The browser reports by itself a fetch that found no server, or one that was going away, and
    # every refusal.
    known = (
        "ScriptProcessorNode is deprecated",
        "ERR_CONNECTION_REFUSED",
        "503 (Service Unavailable)",
        "401 (Unauthorized)",
        "HTTP Authentication failed",
        "400 (Bad Request)",
        "Unexpected response code: 429",
    )
    assert [line for line in complaints if not any(cause in line for cause in known)] == []


def seconds(page: Page, selector: str) -> float:
    return float(re.sub(r"[^\d.]", "", page.locator(selector).inner_text()) or "nan")


def until_played(page: Page, least_s: float) -> None:
    page.wait_for_function(
        "least => parseFloat(document.querySelector('#played').textContent) >= least", arg=least_s
    )


def speak(page: Page, text: str = TEXT, feed: str = "0") -> None:
    page.get_by_label("Text to speak").fill(text)
    page.get_by_label("Text arrives").select_option(feed)
    page.get_by_role("button", name="Speak").click()
