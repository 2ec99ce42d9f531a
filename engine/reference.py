"""The voice thread: from a voice to its prefix columns.

Owns the cache of prepared codes. Recordings are decoded and encoded here, one voice at a time and
each only once, so that neither prefill nor decode ever waits for a recording. The cache's key is
the content: audio and transcript of inline references; id and time of storing of a stored voice.
"""

from __future__ import annotations

import hashlib
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from queue import SimpleQueue

from .api import Fault, Reference, Voice
from .audio_file import AudioFileError, read_audio
from .jobs import VoiceFailed, VoiceJob, VoiceReady
from .prompt import PromptBuilder, PromptReference
from .runner import Int32Array, Runner
from .voices import MAX_REFERENCES, UnknownVoice, VoiceStore

log = logging.getLogger(__name__)

Prepared = tuple[PromptReference, ...]


class VoiceCache:
    """Prepared voices, least recently used first out, bounded in bytes of codes."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._used = 0
        self._entries: OrderedDict[bytes, Prepared] = OrderedDict()

    def find(self, key: bytes) -> Prepared | None:
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
        return entry

    def keep(self, key: bytes, prepared: Prepared) -> None:
        if key in self._entries:
            return
        self._entries[key] = prepared
        self._used += _size(prepared)
        while self._used > self._limit and len(self._entries) > 1:
            _, gone = self._entries.popitem(last=False)
            self._used -= _size(gone)


def _size(prepared: Prepared) -> int:
    return sum(reference.codes.nbytes for reference in prepared)


class VoicePreparer:
    """``run`` is the thread's body. ``fingerprint`` names the codec that makes the codes."""

    def __init__(
        self,
        runner: Runner,
        prompt: PromptBuilder,
        store: VoiceStore | None,
        fingerprint: str,
        cache_bytes: int,
        inbox: SimpleQueue[VoiceJob | None],
        report: Callable[[VoiceReady | VoiceFailed], None],
    ) -> None:
        self._runner = runner
        self._prompt = prompt
        self._store = store
        self._fingerprint = fingerprint
        self._cache = VoiceCache(cache_bytes)
        self._inbox = inbox
        self._report = report

    def run(self) -> None:
        """Until ``None`` comes."""
        while (job := self._inbox.get()) is not None:
            self._report(self.work(job))

    def work(self, job: VoiceJob) -> VoiceReady | VoiceFailed:
        """Prepare one voice, or say what is wrong with it."""
        try:
            return VoiceReady(job.job, self._prompt.prefix(self.prepare(job.voice)))
        except UnknownVoice:
            return VoiceFailed(job.job, Fault.CLIENT, "Reference not found")
        except AudioFileError as error:
            return VoiceFailed(job.job, Fault.CLIENT, str(error))
        except Exception:
            log.exception("a voice could not be prepared")
            return VoiceFailed(job.job, Fault.ENGINE, "the voice could not be prepared")

    def prepare(self, voice: Voice) -> Prepared:
        """Transcripts and codes. Raises :class:`UnknownVoice` and :class:`AudioFileError`."""
        if voice.voice_id is not None:
            return self._stored(voice.voice_id)
        if len(voice.references) > MAX_REFERENCES:
            raise AudioFileError(f"more than {MAX_REFERENCES} references")
        key = _content_key(voice.references)
        prepared = self._cache.find(key)
        if prepared is None:
            prepared = _joined(voice.references, self._encode(voice.references))
            self._cache.keep(key, prepared)
        return prepared

    def _stored(self, voice_id: str) -> Prepared:
        if self._store is None:
            raise UnknownVoice(voice_id)
        key = f"{voice_id}:{self._store.stamp(voice_id)}".encode()
        prepared = self._cache.find(key)
        if prepared is None:
            references = self._store.references(voice_id)
            codes = self._store.codes(voice_id, self._fingerprint)
            if codes is None or len(codes) != len(references):
                codes = self._encode(references)
                self._store.keep_codes(voice_id, self._fingerprint, codes)
            prepared = _joined(references, codes)
            self._cache.keep(key, prepared)
        return prepared

    def _encode(self, references: Sequence[Reference]) -> tuple[Int32Array, ...]:
        rate = self._runner.spec.sample_rate
        return tuple(
            self._runner.encode(read_audio(reference.audio, rate)) for reference in references
        )


def _joined(references: Sequence[Reference], codes: Sequence[Int32Array]) -> Prepared:
    return tuple(
        PromptReference(reference.text, one)
        for reference, one in zip(references, codes, strict=True)
    )


def _content_key(references: Sequence[Reference]) -> bytes:
    digest = hashlib.sha256()
    for reference in references:
        for part in (reference.audio, reference.text.encode("utf-8", "surrogatepass")):
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
    return digest.digest()
