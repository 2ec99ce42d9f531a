"""The page at ``/`` in headless Chromium: a real click-through, with sound reaching the worklet."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from shoal.engine.api import Open
from shoal.engine.fake import FakeEngine
from shoal.engine.voices import VoiceStore
from tests.browser import KEPT, TEXT, seconds, speak, until_played
from tests.dialects import RecordingEngine

Serve = Callable[..., Any]
RECORDING = next((Path(__file__).parents[1] / "data" / "voices").glob("*.ogg"))


def test_a_click_is_heard_with_its_words(serve: Serve, visit: Callable[..., Page]) -> None:
    server = serve(FakeEngine(slots=2, speed=4.0))
    page = visit(server)
    speak(page, feed="60")
    until_played(page, 1.0)
    assert 0 < seconds(page, "#ttfa") < 10_000
    assert seconds(page, "#heard") >= seconds(page, "#ttfa")
    assert seconds(page, "#buffered") > 0
    expect(page.locator("#spoken")).to_contain_text("The first sentence is short.")
    assert page.locator("#spoken .word.past").count() > 0
    assert page.locator("#spoken .word.now").count() <= 1
    page.screenshot(path=KEPT / "page.png", full_page=True)
    interrupt = page.get_by_role("button", name="Interrupt")
    expect(interrupt).to_be_disabled()
    spoken = page.locator("#spoken .word.past").all_inner_texts()
    assert " ".join(spoken) == re.sub(r"[.,]", "", TEXT)
    for _ in range(4):  # of a shared machine's bursts some turn is spared
        if page.locator("#gaps").inner_text() == "0":
            break
        speak(page, feed="60")
        until_played(page, 1.0)
        expect(interrupt).to_be_disabled()
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


def test_marks_stay_on_their_words_behind_an_emoji(
    serve: Serve, visit: Callable[..., Page]
) -> None:
    page = visit(serve(FakeEngine(speed=50.0)))
    speak(page, "\U0001f600\U0001f600 One two.", feed="60")
    until_played(page, 0.2)
    expect(page.locator("#spoken .word")).to_have_text(["One", "two"])


def test_what_nobody_speaks_does_not_hold_up_the_text_behind_it(
    serve: Serve, visit: Callable[..., Page]
) -> None:
    """Were it counted as waiting, every piece but the first would wait for two seconds."""
    page = visit(serve(FakeEngine(speed=50.0)))
    speak(page, ("And one more.\n\n```\n" + "x = 1\n" * 240 + "```\n\n") * 8, feed="0")
    expect(page.locator("#spoken .word")).to_have_count(3 * 8, timeout=8_000)


def test_a_key_is_asked_for_and_never_leaves_as_more_than_a_token(
    serve: Serve, visit: Callable[..., Page]
) -> None:
    page = visit(serve(FakeEngine(speed=20.0), api_keys=("sesame",)))
    sockets: list[str] = []
    page.on("websocket", lambda socket: sockets.append(socket.url))
    speak(page)
    expect(page.get_by_role("alert")).to_contain_text("asks for an API key")
    for key, answer in (("wrong", "does not take"), ("sesame", "takes this key")):
        page.get_by_label("Only for a server that was started with keys").fill(key)
        page.keyboard.press("Enter")
        expect(page.locator("#keyed")).to_contain_text(answer)
    speak(page)
    until_played(page, 0.2)
    assert "token=once_" in sockets[-1]
    assert not any("sesame" in url for url in sockets)


@pytest.mark.parametrize("way", ["upload", "microphone"])
def test_a_voice_is_cloned_and_then_speaks(
    serve: Serve, visit: Callable[..., Page], tmp_path: Path, way: str
) -> None:
    engine = RecordingEngine(speed=20.0, store=VoiceStore(tmp_path))
    page = visit(serve(engine, voices_dir=tmp_path))
    page.locator("#clone summary").click()
    if way == "upload":
        page.get_by_label("Audio file").set_input_files(RECORDING)
    else:
        page.get_by_role("button", name="Record").click()
        expect(page.locator("#recorded")).to_have_text("3 s")
        page.get_by_role("button", name="Stop recording").click()
        expect(page.locator("#recorded")).to_contain_text("recorded")
    page.get_by_label("What is said in it").fill("Some words.")
    page.get_by_label("Name of the voice").fill("Ann")
    page.get_by_role("button", name="Add voice").click()
    expect(page.locator("#cloned")).to_have_text("“Ann” is ready.")
    expect(page.get_by_label("Voice", exact=True).locator("option:checked")).to_have_text("Ann")
    speak(page)
    until_played(page, 0.2)
    chosen = page.get_by_label("Voice", exact=True).input_value()
    assert [c.voice.voice_id for c in engine.commands if isinstance(c, Open)] == [chosen]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_stands_in_a_screen_readers_way(
    serve: Serve, visit: Callable[..., Page], scheme: str
) -> None:
    page = visit(serve(FakeEngine(speed=4.0)), color_scheme=scheme, bypass_csp=True)
    for details in ("#clone", "#access"):
        page.locator(f"{details} summary").click()
    speak(page)
    until_played(page, 0.3)
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    page.screenshot(path=KEPT / f"{scheme}.png", full_page=True)
