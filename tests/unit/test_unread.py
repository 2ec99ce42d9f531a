from __future__ import annotations

import pytest

from shoal.engine import api
from shoal.proto.messages import Log, Text
from shoal.realtime.effects import ToClient, ToEngine
from shoal.realtime.unread import REMARK, nothing_unread, unread_by_latin
from tests.sessions import S1, START, new_session


@pytest.mark.parametrize(
    "text", ["Hi 你好", "привет", "שלום", "مرحبا", "नमस्ते", "かな", "한국어", "ไทย", "𠀀", "λόγος"]
)
def test_letters_that_are_left_out_are_remarked_upon(text: str) -> None:
    assert unread_by_latin(text) == REMARK
    assert nothing_unread(text) == ""


@pytest.mark.parametrize(
    "text",
    [
        "Plain.",
        "déjà vu, Łódź, straße, Ǻ, ﬁ",
        "2 µm, π r², λ = 3",
        "“so” — 5 € … 。！",
        "😀👍🏽",
        "Ｗｉｄｅ",
        "𝒙 + 𝐲",
        "→ ≥ ½ №5",
        "",
    ],
)
def test_what_is_spoken_is_not(text: str) -> None:
    assert unread_by_latin(text) == ""


def test_a_turn_is_told_once() -> None:
    session = new_session(unread=unread_by_latin)
    session.receive(START)
    pushed = [session.receive(Text(text)) for text in ("Hello ", "你好 ", "世界 ")]
    engine = [[ToEngine(api.PushText(S1, text))] for text in ("Hello ", "你好 ", "世界 ")]
    assert pushed == [engine[0], [*engine[1], ToClient(Log(REMARK))], engine[2]]
    assert ToClient(Log(REMARK)) not in session.receive(START)
    again = [effect for effect in session.receive(Text("мир")) if isinstance(effect, ToClient)]
    assert again == [ToClient(Log(REMARK))], "the next turn's client may be another developer"
