"""The page at ``/`` in headless Chromium: a real click-through, with sound reaching the worklet."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

from shoal.engine.fake import FakeEngine

Serve = Callable[..., Any]

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or "chromium"
KEPT = Path(__file__).parents[2] / "artifacts"
"""Screenshots of the last run; not in git."""
TEXT = "The first sentence is short. The second one goes on for a little longer, so that it lasts."


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    KEPT.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox", "--use-fake-device-for-media-stream", "--mute-audio"],
        )
        yield browser
        browser.close()


@pytest.fixture
def visit(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Open a server's page; what the console complains about fails the test."""
    complaints: list[str] = []

    def note(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            complaints.append(message.text)

    contexts = []

    def visit(server: Any, **options: Any) -> Page:
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", note)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(server.http + "/")
        expect(page.locator("#server")).to_have_text("ready")
        return page

    yield visit
    for context in contexts:
        context.close()
    # The browser reports by itself a fetch that found no server, or one that was going away.
    away = ("ERR_CONNECTION_REFUSED", "503 (Service Unavailable)")
    assert [line for line in complaints if not any(cause in line for cause in away)] == []


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


def test_a_click_is_heard_with_its_words(serve: Serve, visit: Callable[..., Page]) -> None:
    server = serve(FakeEngine(slots=2, speed=4.0))
    page = visit(server)
    speak(page, feed="60")
    until_played(page, 1.0)
    assert 0 < seconds(page, "#ttfa") < 2000
    assert seconds(page, "#heard") >= seconds(page, "#ttfa")
    assert seconds(page, "#buffered") > 0
    expect(page.locator("#spoken")).to_contain_text("The first sentence is short.")
    assert page.locator("#spoken .word.past").count() > 0
    assert page.locator("#spoken .word.now").count() <= 1
    page.screenshot(path=KEPT / "page.png", full_page=True)
    expect(page.get_by_role("button", name="Interrupt")).to_be_disabled(timeout=20_000)
    spoken = page.locator("#spoken .word.past").all_inner_texts()
    assert " ".join(spoken) == re.sub(r"[.,]", "", TEXT)
    assert page.locator("#gaps").inner_text() == "0"


@pytest.mark.field_row(40)
def test_the_player_keeps_pitch_and_leaves_no_seam(
    serve: Serve, visit: Callable[..., Page]
) -> None:
    """A tone in small chunks, at a card of another rate, is the same tone without a click."""
    page = visit(serve())
    found = page.evaluate(
        """async () => {
          const rate = 24000, tone = 440, context = new OfflineAudioContext(1, 44100, 44100);
          await context.audioWorklet.addModule("web/worklet.js");
          const node = new AudioWorkletNode(context, "player", {
            numberOfInputs: 0, outputChannelCount: [1], processorOptions: { rate } });
          node.connect(context.destination);
          node.port.postMessage({ begin: 1 });
          for (let at = 0; at < rate; at += 480) {
            const samples = Float32Array.from({ length: 480 },
              (_, i) => Math.sin(2 * Math.PI * tone * (at + i) / rate));
            node.port.postMessage({ samples });
          }
          node.port.postMessage({ end: true });
          await new Promise((resolve) => setTimeout(resolve, 50));
          const heard = (await context.startRendering()).getChannelData(0);
          const first = heard.findIndex((sample) => Math.abs(sample) > 0.01);
          const part = heard.slice(first + 100, first + 100 + 22050);
          let crossings = 0, jump = 0;
          for (let i = 1; i < part.length; i++) {
            if (part[i - 1] < 0 && part[i] >= 0) crossings++;
            jump = Math.max(jump, Math.abs(part[i] - part[i - 1]));
          }
          return { hertz: crossings / 0.5, jump };
        }"""
    )
    assert found["hertz"] == pytest.approx(440, abs=4)
    # The steepest step of a whole sine of 440 Hz at 44.1 kHz is 0.063.
    assert found["jump"] < 0.07


def test_an_interruption_is_silence_at_once(serve: Serve, visit: Callable[..., Page]) -> None:
    server = serve(FakeEngine(slots=1, speed=4.0))
    page = visit(server)
    speak(page, TEXT * 4)
    until_played(page, 0.5)
    page.get_by_role("button", name="Interrupt").click()
    expect(page.locator("#silenced")).not_to_have_text("–")
    assert seconds(page, "#silenced") < 100
    played = page.locator("#played").inner_text()
    page.wait_for_timeout(200)
    assert page.locator("#played").inner_text() == played
    server_idle = server.engine.stats
    assert server_idle().slots_busy == 0
    speak(page, "Another turn.")
    expect(page.locator("#spoken")).to_contain_text("Another turn.")
    until_played(page, 0.3)
    assert "first sentence" not in page.locator("#spoken").inner_text()


def test_the_keyboard_is_enough(serve: Serve, visit: Callable[..., Page]) -> None:
    page = visit(serve(FakeEngine(speed=4.0)))
    page.get_by_label("Text arrives").select_option("0")
    page.get_by_label("Text to speak").fill(TEXT)
    page.keyboard.press("Control+Enter")
    until_played(page, 0.3)
    page.keyboard.press("Escape")
    expect(page.locator("#silenced")).not_to_have_text("–")
    names = page.evaluate(
        """() => [...document.querySelectorAll("button, select, textarea, input")]
          .map((e) => e.labels?.[0]?.textContent.trim() || e.textContent.trim())"""
    )
    assert all(names), names


def test_a_restart_is_survived(
    serve: Serve, visit: Callable[..., Page], unused_tcp_port: int
) -> None:
    first = serve(FakeEngine(speed=4.0), port=unused_tcp_port)
    page = visit(first)
    speak(page, "Before.")
    until_played(page, 0.2)
    first.stop()
    expect(page.locator("#server")).to_have_attribute("data-state", "away", timeout=10_000)
    serve(FakeEngine(speed=4.0), port=unused_tcp_port)
    expect(page.locator("#server")).to_have_attribute("data-state", "ok", timeout=10_000)
    speak(page, "And after.")
    expect(page.locator("#spoken")).to_contain_text("And after.")
    until_played(page, 0.2)


def test_a_phone_has_room_for_it(serve: Serve, visit: Callable[..., Page]) -> None:
    page = visit(serve(), viewport={"width": 360, "height": 740}, device_scale_factor=2)
    page.locator("#clone summary").click()
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    page.screenshot(path=KEPT / "phone.png", full_page=True)


def test_nothing_of_the_page_comes_from_elsewhere(serve: Serve, visit: Callable[..., Page]) -> None:
    server = serve()
    page = visit(server)
    loaded = page.evaluate("performance.getEntriesByType('resource').map((e) => e.name)")
    assert loaded and all(name.startswith(server.http + "/") for name in loaded)
