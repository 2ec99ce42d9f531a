"""The page at ``/`` in headless Chromium: a real click-through, with sound reaching the worklet."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

from shoal.engine.api import Open
from shoal.engine.fake import FakeEngine
from shoal.engine.voices import VoiceStore
from tests.dialects import RecordingEngine

Serve = Callable[..., Any]

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or "chromium"
KEPT = Path(__file__).parents[2] / "artifacts"
"""Screenshots of the last run; not in git."""
RECORDING = next((Path(__file__).parents[1] / "data" / "voices").glob("*.ogg"))
TEXT = "The first sentence is short. The second one goes on for a little longer, so that it lasts."


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    KEPT.mkdir(exist_ok=True)
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


@pytest.fixture
def visit(browser: Browser) -> Iterator[Callable[..., Page]]:
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


def test_sound_that_comes_far_ahead_is_not_lost(serve: Serve, visit: Callable[..., Page]) -> None:
    """Five minutes at once: the worklet's ring has room for 90 seconds."""
    page = visit(serve())
    found = page.evaluate(
        """async () => {
          const { Player, RATE } = await import("/web/player.js");
          const player = new Player(() => {});
          let told = 0, most = 0, ended = 0, last = -1, gaps = 0;
          const played = () => player.played * RATE;
          player.context = { outputLatency: 0 };
          player.node = { port: { postMessage: ({ samples, end }) => {
            if (end) ended++;
            for (const sample of samples ?? []) {
              const value = Math.round(sample * 32768) & 0x7fff;
              gaps += value !== ((last + 1) & 0x7fff);
              last = value;
              told++;
            }
            most = Math.max(most, told - played());
          } } };
          player.begin();
          for (let second = 0; second < 300; second++) {
            const pcm = Int16Array.from({ length: RATE }, (_, i) => (second * RATE + i) & 0x7fff);
            player.push(pcm.buffer);
          }
          player.end();
          const early = ended, waits = player.buffered;
          for (let second = 1; second <= 300; second++) {
            player.report({ turn: player.turn, played: second, buffered: 0 });
          }
          return { seconds: told / RATE, most: most / RATE, gaps, early, ended, waits };
        }"""
    )
    assert found["seconds"] == 300 and found["gaps"] == 0
    assert found["most"] < 90
    assert found["waits"] == 300
    assert (found["early"], found["ended"]) == (0, 1)


def test_a_text_of_100_kb_neither_freezes_the_page_nor_floods_it(
    serve: Serve, visit: Callable[..., Page]
) -> None:
    engine = RecordingEngine(speed=200.0)
    page = visit(serve(engine))
    page.evaluate(
        """() => {
          let last = performance.now();
          window.longest = 0;
          setInterval(() => {
            window.longest = Math.max(window.longest, performance.now() - last);
            last = performance.now();
          }, 10);
        }"""
    )
    speak(page, (f"{TEXT} " * 1200)[:100_000])
    until_played(page, 1.5)
    assert page.evaluate("longest") < 500
    assert seconds(page, "#buffered") > 30
    assert sum(len(text) for text in engine.said()) < 3_000
    page.keyboard.press("Escape")
    expect(page.locator("#silenced")).not_to_have_text("–")


def test_of_many_clicks_the_last_is_heard_alone(serve: Serve, visit: Callable[..., Page]) -> None:
    server = serve(FakeEngine(slots=2, speed=50.0))
    page = visit(server)
    page.get_by_label("Text arrives").select_option("0")
    page.get_by_label("Text to speak").fill("Heard once.")
    for _ in range(10):
        page.get_by_role("button", name="Speak").click(no_wait_after=True)
    page.evaluate("for (let i = 0; i < 10; i++) document.getElementById('go').click()")
    until_played(page, 0.3)
    expect(page.get_by_role("button", name="Interrupt")).to_be_disabled()
    expect(page.locator("#spoken")).to_have_text("Heard once.")
    once_s = 10 * 0.05  # letters, and the fake's time for one
    assert seconds(page, "#played") == pytest.approx(once_s, abs=0.1)
    assert server.metric("shoal_sockets") == 1
    assert page.locator("#problem").is_hidden()


def test_marks_stay_on_their_words_behind_an_emoji(
    serve: Serve, visit: Callable[..., Page]
) -> None:
    page = visit(serve(FakeEngine(speed=50.0)))
    speak(page, "\U0001f600\U0001f600 One two.", feed="60")
    until_played(page, 0.2)
    expect(page.locator("#spoken .word")).to_have_text(["One", "two"])


def test_a_server_that_dies_in_the_middle_is_said_and_what_came_is_heard(
    serve: Serve, visit: Callable[..., Page], unused_tcp_port: int
) -> None:
    first = serve(FakeEngine(speed=2.0), port=unused_tcp_port)
    page = visit(first)
    speak(page, TEXT * 3)
    until_played(page, 0.3)
    first.stop()
    expect(page.get_by_role("alert")).to_contain_text("server is shutting down")
    expect(page.get_by_role("button", name="Interrupt")).to_be_enabled()
    page.get_by_role("button", name="Interrupt").click()
    expect(page.locator("#silenced")).not_to_have_text("–")
    speak(page, "Into the void.")
    expect(page.get_by_role("alert")).to_have_text("The server cannot be reached.")
    serve(FakeEngine(speed=4.0), port=unused_tcp_port)
    expect(page.locator("#server")).to_have_text("ready", timeout=10_000)
    speak(page, "And after.")
    until_played(page, 0.2)
    assert page.get_by_role("alert").count() == 0


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


def test_a_file_that_is_no_sound_is_said(
    serve: Serve, visit: Callable[..., Page], tmp_path: Path
) -> None:
    page = visit(serve(FakeEngine(store=VoiceStore(tmp_path)), voices_dir=tmp_path))
    page.locator("#clone summary").click()
    page.get_by_label("Audio file").set_input_files(Path(__file__))
    page.get_by_label("What is said in it").fill("Some words.")
    page.get_by_label("Name of the voice").fill("Ann")
    page.get_by_role("button", name="Add voice").click()
    expect(page.locator("#cloned")).to_contain_text("not a wav, mp3, flac or ogg file")
    expect(page.get_by_role("button", name="Add voice")).to_be_enabled()


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


def test_without_https_it_speaks_and_falls_silent_too(
    serve: Serve, visit: Callable[..., Page]
) -> None:
    """A phone that opens http://192.168.1.2:8080: browsers have no worklets there."""
    page = visit(serve(FakeEngine(speed=20.0)), host="shoal.test")
    assert page.evaluate("isSecureContext") is False
    speak(page)
    until_played(page, 0.5)
    page.keyboard.press("Escape")
    expect(page.locator("#silenced")).not_to_have_text("–")
    assert seconds(page, "#silenced") < 100
    speak(page, "One two.")
    until_played(page, 0.3)
    expect(page.get_by_role("button", name="Interrupt")).to_be_disabled()
    page.locator("#clone summary").click()
    page.get_by_role("button", name="Record").click()
    expect(page.locator("#recorded")).to_contain_text("only on https or localhost")


def test_a_refusal_is_said_and_the_next_turn_speaks(
    serve: Serve, visit: Callable[..., Page]
) -> None:
    page = visit(serve(FakeEngine(speed=20.0, fails_on="boom")))
    page.wait_for_load_state("networkidle")  # the voices have come
    for voice, text, answer in (
        ("gone", TEXT, "Reference not found"),
        ("../x", TEXT, "Reference not found"),
        ("", "boom", "engine"),
    ):
        page.evaluate(
            """(voice) => {
              document.getElementById("voice").append(new Option(voice, voice));
              document.getElementById("voice").value = voice;
            }""",
            voice,
        )
        speak(page, text)
        expect(page.get_by_role("alert")).to_contain_text(answer)
        expect(page.get_by_role("button", name="Interrupt")).to_be_disabled()
    speak(page)
    until_played(page, 0.2)
    assert page.get_by_role("alert").count() == 0


def test_a_server_without_room_says_so(serve: Serve, visit: Callable[..., Page]) -> None:
    server = serve(FakeEngine(slots=1, speed=1.0, wait_s=0.1))
    speaking, waiting = visit(server), visit(server)
    speak(speaking, TEXT * 4)
    until_played(speaking, 0.2)
    speak(waiting)
    expect(waiting.get_by_role("alert")).to_contain_text("Concurrency limit exceeded")
    expect(waiting.get_by_role("button", name="Interrupt")).to_be_disabled()
    speaking.keyboard.press("Escape")
    speak(waiting)
    until_played(waiting, 0.2)
    small = serve(max_sockets=1)
    first, second = visit(small), visit(small)
    speak(first)
    until_played(first, 0.2)
    speak(second)
    expect(second.get_by_role("alert")).to_contain_text("no room")
