"""The page when much comes, or something is wrong: long texts, many clicks, a server that dies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from shoal.engine.fake import FakeEngine
from shoal.engine.voices import VoiceStore
from tests.browser import TEXT, seconds, speak, until_played
from tests.dialects import RecordingEngine

Serve = Callable[..., Any]


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


def test_a_restart_is_survived(
    serve: Serve, visit: Callable[..., Page], unused_tcp_port: int
) -> None:
    first = serve(FakeEngine(speed=4.0), port=unused_tcp_port)
    page = visit(first)
    speak(page, "Before.")
    until_played(page, 0.2)
    first.stop()
    expect(page.locator("#server")).to_have_attribute("data-state", "away")
    serve(FakeEngine(speed=4.0), port=unused_tcp_port)
    expect(page.locator("#server")).to_have_attribute("data-state", "ok")
    speak(page, "And after.")
    expect(page.locator("#spoken")).to_contain_text("And after.")
    until_played(page, 0.2)


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


def test_a_server_that_dies_in_the_middle_is_said_and_what_came_is_heard(
    serve: Serve, visit: Callable[..., Page], unused_tcp_port: int
) -> None:
    first = serve(FakeEngine(speed=6.0), port=unused_tcp_port)
    page = visit(first)
    speak(page, TEXT * 8)  # most of it is yet to come, and some seconds of what came to be heard
    until_played(page, 0.3)
    first.stop()
    expect(page.get_by_role("alert")).to_contain_text("server is shutting down")
    expect(page.get_by_role("button", name="Interrupt")).to_be_enabled()
    page.get_by_role("button", name="Interrupt").click()
    expect(page.locator("#silenced")).not_to_have_text("–")
    speak(page, "Into the void.")
    expect(page.get_by_role("alert")).to_have_text("The server cannot be reached.")
    serve(FakeEngine(speed=4.0), port=unused_tcp_port)
    expect(page.locator("#server")).to_have_text("ready")
    speak(page, "And after.")
    until_played(page, 0.2)
    assert page.get_by_role("alert").count() == 0


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
