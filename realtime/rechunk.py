"""How a stream of samples is cut into messages. Pure; one object a turn."""

from __future__ import annotations

from shoal.proto.messages import MAX_AUDIO_BYTES, MIN_PCM_BYTES


class Rechunker:
    """Cuts a pcm or wav stream into messages of more than 1,024 bytes and at most 64 KiB.

    Clients in the field drop smaller ones of pcm; other formats may have another ``least``. The
    first message, and the first one after a flush, leaves as soon as it is large enough; from then
    on that many bytes stay in hand, so that what is left at the end is large enough too. Silence is
    appended only where nothing was in hand. All messages are whole samples when all input is.
    """

    def __init__(
        self, least: int = MIN_PCM_BYTES, sample_bytes: int = 2, silence: bytes = b"\0"
    ) -> None:
        """``silence``: the byte that a silent sample is made of."""
        self._sample_bytes = sample_bytes
        self._least = -(-least // sample_bytes) * sample_bytes
        self._silence = silence
        self._held = bytearray()
        self._kept = 0

    def push(self, data: bytes) -> list[bytes]:
        """The messages that are ready now."""
        self._held += data
        ready = len(self._held) - self._kept
        if ready < self._least:
            return []
        self._kept = self._least
        return self._messages(ready)

    def flush(self) -> list[bytes]:
        """All that is held: at the end of the stream, or where nothing may follow for a while."""
        if not self._held:
            return []
        self._held += self._silence * max(0, self._least - len(self._held))
        self._kept = 0
        return self._messages(len(self._held))

    def _messages(self, size: int) -> list[bytes]:
        """The first ``size`` bytes in hand, in messages of nearly equal size."""
        data = bytes(self._held[:size])
        del self._held[:size]
        count = -(-size // MAX_AUDIO_BYTES)
        each = -(-size // count // self._sample_bytes) * self._sample_bytes
        return [data[at : at + each] for at in range(0, size, each)]
