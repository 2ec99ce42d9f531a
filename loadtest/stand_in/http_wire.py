"""The stand-in behind OpenAI's speech endpoint: one POST a turn, the body streamed."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import h11

from shoal.loadtest.plan.text import speech_chars

from .lie import End
from .speaking import speak
from .truth import Ledger, now_s


class HttpWire:
    """One kept-alive connection; bodies above a few kB are not expected."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, ledger: Ledger
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._ledger = ledger
        self._http = h11.Connection(h11.SERVER)

    async def run(self) -> None:
        """Until the client leaves, or a lie ends the connection."""
        try:
            while (request := await self._request()) is not None:
                if not await self._answer(request):
                    break
                self._http.start_next_cycle()
        except (ConnectionError, h11.ProtocolError):
            pass
        except asyncio.CancelledError:
            pass  # the server ends; asyncio would log a cancelled handler as a failure
        finally:
            self._writer.close()

    async def _request(self) -> dict[str, Any] | None:
        body = bytearray()
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                self._http.receive_data(await self._reader.read(65536))
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                return json.loads(bytes(body))
            elif isinstance(event, h11.ConnectionClosed):
                return None

    async def _answer(self, request: dict[str, Any]) -> bool:
        truth = self._ledger.begin()
        truth.text_s = now_s()
        lie = truth.lie
        if lie.refuse_status:
            await self._send(h11.Response(status_code=lie.refuse_status, headers=[_EMPTY]))
            await self._send(h11.EndOfMessage())
            return True
        rate = 24000
        content_type = f"audio/pcm;rate={lie.true_rate or rate}"
        await self._send(
            h11.Response(
                status_code=200,
                headers=[("content-type", content_type), ("transfer-encoding", "chunked")],
            )
        )
        container = str(request.get("response_format", "pcm"))
        await speak(truth, speech_chars(str(request["input"])), container, rate, self._send_audio)
        truth.end_s = now_s()
        if lie.end is not End.FINISH:
            return False
        await self._send(h11.EndOfMessage())
        return True

    async def _send_audio(self, audio: bytes) -> None:
        await self._send(h11.Data(data=audio))

    async def _send(self, event: h11.Event) -> None:
        self._writer.write(self._http.send(event) or b"")
        await self._writer.drain()


_EMPTY = ("content-length", "0")
