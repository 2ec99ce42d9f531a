"""Sound on its way out, and everything that keeps its place in it."""

from __future__ import annotations

import asyncio
import logging
import queue
from collections.abc import AsyncIterator, Callable, Sequence

import pytest
from prometheus_client.parser import text_string_to_metric_families

from shoal.engine.api import EngineStats, StreamId
from shoal.engine.fake import FakeEngine
from shoal.engine.fake_tone import tone
from shoal.proto.messages import (
    Aligned,
    Audio,
    AudioFormat,
    Cancelled,
    ClientMessage,
    Error,
    Finish,
    FinishReason,
    Flushed,
    Heard,
    Prosody,
    ServerMessage,
    TtsRequest,
)
from shoal.realtime.config import ServerConfig
from shoal.realtime.delivery import FLUSH_S, Delivery
from shoal.realtime.effects import BeginTurn, Effect
from shoal.realtime.encode import EncodePool
from shoal.realtime.hub import Hub
from shoal.realtime.link import Dialect, Frame, Payload
from shoal.realtime.metrics import Metrics
from shoal.realtime.outbox import Outgoing
from shoal.realtime.parsing import Parsing
from shoal.realtime.session import Rules, Session
from shoal.realtime.surroundings import Surroundings
from shoal.realtime.writer import Writer
from tests.fakes import ManualClock

RATE = 48_000
SECOND = tone("a" * 20, "", 0, RATE, 2400)[: 2 * RATE]
ALIGNED = Aligned(0, "a", 0.0, 1.0, (), final=True)


class Peer:
    """A link whose peer takes everything."""

    def __init__(self) -> None:
        self.got: list[Payload] = []

    async def receive(self) -> Frame:
        raise AssertionError("nobody reads")

    async def send(self, payload: Payload) -> None:
        self.got.append(payload)

    async def close(self, code: int, reason: str) -> None:
        raise AssertionError("nobody closes")

    def abort(self) -> None:
        raise AssertionError("nobody aborts")

    backlogged = False

    def unacknowledged_bytes(self) -> int:
        return 0


class Desk:
    """A delivery without a connection. A lane's results wait until ``lane_done``, what goes out
    until ``written``."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.peer = Peer()
        self.metrics = Metrics(EngineStats, 1)
        self.times_ms: list[int | None] = []
        self.effects: list[Effect] = []
        self.finished = 0
        self._lane: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.pool = EncodePool(1, self._lane.put)
        hub = Hub(FakeEngine(), asyncio.get_running_loop(), lambda error: None)
        around = Surroundings(
            ServerConfig(), hub, self.pool, self.metrics, RATE, Parsing(), self.clock
        )
        session = Session(
            Rules(hub.new_stream, lambda request: None, lambda voice: voice, RATE, 1, 5.0)
        )
        self.writer = Writer(self.peer, self._sent, lambda pause: None)
        self.delivery = Delivery(
            1, Dialect("plain", self._decode, self._encode), self.writer, around, session, self._run
        )

    def _decode(self, frame: Frame) -> ClientMessage:
        raise AssertionError("nobody reads")

    def _encode(self, message: ServerMessage, time_ms: int | None) -> Sequence[Payload]:
        self.times_ms.append(time_ms)
        return [message]

    def _sent(self, item: Outgoing) -> None:
        self.finished += self.delivery.sent(item)

    def _run(self, step: Callable[[], list[Effect]]) -> None:
        self.effects += step()

    def begin(self, format: AudioFormat = "pcm", stream: int = 1) -> None:
        request = TtsRequest(
            format=format, sample_rate=RATE, prosody=Prosody(normalize_loudness=False)
        )
        self.delivery.begin(BeginTurn(StreamId(stream), request))

    def lane_done(self) -> None:
        """Have the results of all that the lane was given."""
        over: list[bool] = []
        self.pool.lane().submit(list, lambda _: over.append(True))
        while not over:
            self._lane.get(timeout=30)()

    def ended(self) -> dict[str, float]:
        """How many turns were counted as ended, by how."""
        return {
            sample.labels["end"]: sample.value
            for family in text_string_to_metric_families(self.metrics.page().decode())
            for sample in family.samples
            if sample.name == "shoal_turns_ended_total" and sample.value
        }

    async def written(self) -> list[Payload]:
        """Everything that went out."""
        task = asyncio.create_task(self.writer.run())
        for _ in range(3):  # this peer is never behind: the writer goes to the end of its queue
            await asyncio.sleep(0)
        assert self.writer.empty
        task.cancel()
        await asyncio.wait([task])
        return self.peer.got

    async def kinds(self) -> list[type[object]]:
        """Of what went out; sound that came in several pieces counts once."""
        kinds: list[type[object]] = []
        for payload in await self.written():
            if not (isinstance(payload, Audio) and kinds[-1:] == [Audio]):
                kinds.append(type(payload))
        return kinds


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    desk = Desk()
    yield desk
    desk.delivery.stop()
    desk.pool.stop()


def sound(payloads: list[Payload]) -> bytes:
    return b"".join(payload.audio for payload in payloads if isinstance(payload, Audio))


async def test_a_turn_goes_out_in_order_and_its_finish_is_told(desk: Desk) -> None:
    desk.begin()
    desk.delivery.encode(SECOND)
    desk.delivery.send(ALIGNED)
    desk.delivery.finish()
    desk.delivery.send(Finish("stop"))
    desk.clock.tick(0.25)
    assert desk.finished == 0
    assert await desk.kinds() == [Audio, Aligned, Finish]
    assert sound(desk.peer.got) == SECOND
    assert desk.finished == 1
    turn = desk.delivery.turn
    assert turn is not None and turn.reported and turn.sent_audio_s == pytest.approx(1.0)


async def test_what_is_said_waits_until_the_sound_before_it_is_encoded(desk: Desk) -> None:
    desk.begin("opus")
    desk.delivery.encode(SECOND)
    desk.delivery.send(Error("no"))
    desk.delivery.say_flushed("here")
    assert await desk.written() == []
    desk.lane_done()
    assert await desk.kinds() == [Audio, Error, Flushed]


async def test_without_a_turn_it_is_said_at_once_and_no_time_is_told(desk: Desk) -> None:
    desk.delivery.encode(SECOND)
    desk.delivery.finish()
    desk.delivery.flush("here")
    desk.delivery.send(Error("no"))
    assert await desk.written() == [Flushed("here", 0.0), Error("no")]
    assert desk.times_ms == [None, None]


async def test_messages_carry_the_time_since_their_turn_began(desk: Desk) -> None:
    desk.begin()
    desk.clock.tick(0.25)
    desk.delivery.send(ALIGNED)
    assert desk.times_ms == [250]


async def test_a_flush_with_a_mark_is_at_once_and_tells_how_much_there_was(desk: Desk) -> None:
    desk.begin("mp3")
    desk.delivery.encode(SECOND)
    desk.delivery.flush("here")
    desk.lane_done()
    *_, last = await desk.written()
    assert isinstance(last, Flushed) and last.id == "here"
    assert last.audio_s == pytest.approx(1.0, abs=0.1)


async def test_a_flush_without_a_mark_is_soon_unless_more_sound_comes(desk: Desk) -> None:
    desk.begin("mp3")
    turn = desk.delivery.turn
    assert turn is not None
    desk.delivery.encode(SECOND)
    desk.lane_done()
    held_back_s = 1.0 - turn.queued_audio_s
    assert held_back_s > 0.01
    desk.delivery.flush(None)
    desk.delivery.encode(b"")
    await asyncio.sleep(1.5 * FLUSH_S)
    desk.lane_done()
    assert 1.0 - turn.queued_audio_s == held_back_s
    desk.delivery.flush(None)
    desk.lane_done()
    assert 1.0 - turn.queued_audio_s == held_back_s, "not at once"
    await asyncio.sleep(1.5 * FLUSH_S)
    desk.lane_done()
    assert turn.queued_audio_s >= 1.0


async def test_of_a_dropped_turn_nothing_is_said_any_more(desk: Desk) -> None:
    desk.begin("opus")
    turn = desk.delivery.turn
    assert turn is not None
    desk.delivery.encode(SECOND)
    desk.delivery.send(ALIGNED)
    desk.delivery.say_flushed("here")
    desk.delivery.send(Finish("stop"))
    desk.delivery.send(Error("no"))
    desk.delivery.drop()
    assert turn.dropped and turn.reported and desk.delivery.turn is None
    desk.lane_done()
    assert await desk.written() == [Error("no")], "a note is no part of the turn"


@pytest.mark.parametrize("reason", ["stop", "error"])
async def test_a_turn_is_counted_once_by_its_finish(desk: Desk, reason: FinishReason) -> None:
    desk.begin()
    desk.delivery.send(Finish(reason))
    assert desk.ended() == {}
    await desk.written()
    desk.delivery.drop()
    assert desk.ended() == {reason: 1.0}


async def test_a_turn_that_is_dropped_before_its_finish_was_cancelled(desk: Desk) -> None:
    desk.begin()
    desk.delivery.drop()
    desk.delivery.drop()
    assert desk.ended() == {"cancelled": 1.0}


async def test_what_waits_for_the_writer_is_dropped_too(desk: Desk) -> None:
    desk.begin()
    desk.delivery.encode(SECOND)
    desk.delivery.send(Finish("stop"))
    desk.delivery.drop()
    assert await desk.written() == [] and desk.finished == 0


async def test_a_cancel_tells_how_much_was_sent(desk: Desk) -> None:
    desk.begin()
    desk.delivery.encode(SECOND)
    await desk.written()
    desk.delivery.encode(SECOND)
    heard = Heard("Hello", 5)
    desk.delivery.say_cancelled(heard)
    assert desk.delivery.turn is None
    said = (await desk.written())[-1]
    assert isinstance(said, Cancelled) and said.heard == heard
    assert said.audio_s == pytest.approx(1.0)


async def test_a_cancel_without_a_turn_sent_nothing(desk: Desk) -> None:
    desk.delivery.say_cancelled(None)
    assert await desk.written() == [Cancelled(0.0, None)]


async def test_a_finish_of_the_turn_before_is_not_the_new_ones(desk: Desk) -> None:
    desk.begin()
    desk.delivery.send(Finish("stop"))
    desk.delivery.drop()
    desk.begin(stream=2)
    desk.delivery.encode(SECOND)
    assert sound(await desk.written()) == SECOND
    assert desk.finished == 0


async def test_an_encoder_that_fails_in_its_lane_ends_the_turn(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    desk.begin("opus")
    with caplog.at_level(logging.ERROR, "shoal.connection"):
        desk.delivery.encode(b"odd")
        desk.lane_done()
    assert [record.message for record in caplog.records] == ["encoder_failed"]
    assert "ToClient" in [type(effect).__name__ for effect in desk.effects]
