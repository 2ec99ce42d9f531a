"""From a voice to its prefix columns: what was prepared already at once, recordings one by one.

``VoicePreparer`` owns the cache of prepared codes and knows who waits for which recording; it never
waits for one itself, so a voice that is known is not held up by one that is new. ``VoiceEncoder``
decodes and encodes recordings on a thread of its own, each only once for all who ask meanwhile.
Neither ever holds up prefill or decode. The key is the content: audio and transcript of inline
references; id and time of storing of a stored voice.
"""

from __future__ import annotations

import hashlib
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True, eq=False)
class EncodeJob:
    """``voice_id`` and ``stamp``: the stored voice that the codes are to be kept beside."""

    key: bytes
    references: tuple[Reference, ...]
    voice_id: str | None = None
    stamp: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """The codes under ``key``, or whose fault it is that there are none."""

    key: bytes
    prepared: Prepared = ()
    fault: Fault | None = None
    message: str = ""


class VoiceEncoder:
    """``run`` is the voice-encode thread's body. ``fingerprint`` names the codes' codec."""

    def __init__(
        self,
        runner: Runner,
        store: VoiceStore | None,
        fingerprint: str,
        inbox: SimpleQueue[EncodeJob | None],
        report: Callable[[Encoded], None],
    ) -> None:
        self._runner = runner
        self._store = store
        self._fingerprint = fingerprint
        self._inbox = inbox
        self._report = report

    def run(self) -> None:
        """Until ``None`` comes."""
        while (job := self._inbox.get()) is not None:
            self._report(self.work(job))

    def work(self, job: EncodeJob) -> Encoded:
        """Encode one voice, or say what is wrong with it."""
        rate = self._runner.spec.sample_rate
        try:
            codes = tuple(
                self._runner.encode(read_audio(reference.audio, rate))
                for reference in job.references
            )
            if job.voice_id is not None and self._store is not None:
                self._store.keep_codes(job.voice_id, self._fingerprint, job.stamp, codes)
            return Encoded(job.key, joined(job.references, codes))
        except AudioFileError as error:
            return Encoded(job.key, (), Fault.CLIENT, str(error))
        except Exception:
            log.exception("a voice could not be encoded")
            return Encoded(job.key, (), Fault.ENGINE, "the voice could not be prepared")


class VoicePreparer:
    """``run`` is the voice thread's body."""

    def __init__(
        self,
        prompt: PromptBuilder,
        store: VoiceStore | None,
        fingerprint: str,
        cache_bytes: int,
        inbox: SimpleQueue[VoiceJob | Encoded | None],
        encode: Callable[[EncodeJob], None],
        report: Callable[[VoiceReady | VoiceFailed], None],
    ) -> None:
        self._prompt = prompt
        self._store = store
        self._fingerprint = fingerprint
        self._cache = VoiceCache(cache_bytes)
        self._inbox = inbox
        self._encode = encode
        self._report = report
        self._encoding: dict[bytes, list[int]] = {}

    def run(self) -> None:
        """Until ``None`` comes."""
        while (message := self._inbox.get()) is not None:
            self.work(message)

    def work(self, message: VoiceJob | Encoded) -> None:
        """Answer a job, or pass it on; or answer everybody who waited for a recording."""
        match message:
            case Encoded(key, prepared, fault, text):
                jobs = self._encoding.pop(key)
                if fault is None:
                    self._cache.keep(key, prepared)
                for job in jobs:
                    if fault is None:
                        self._ready(job, prepared)
                    else:
                        self._report(VoiceFailed(job, fault, text))
            case VoiceJob(job, voice):
                try:
                    self._prepare(job, voice)
                except UnknownVoice:
                    self._report(VoiceFailed(job, Fault.CLIENT, "Reference not found"))
                except Exception:
                    log.exception("a voice could not be prepared")
                    failure = VoiceFailed(job, Fault.ENGINE, "the voice could not be prepared")
                    self._report(failure)

    def _ready(self, job: int, prepared: Prepared) -> None:
        self._report(VoiceReady(job, self._prompt.prefix(prepared)))

    def _prepare(self, job: int, voice: Voice) -> None:
        key = self._key(voice)
        prepared = self._cache.find(key)
        if prepared is None and key not in self._encoding:
            if voice.voice_id is None:
                work = EncodeJob(key, voice.references)
            else:
                work, prepared = self._stored(key, voice.voice_id)
            if prepared is not None:
                self._cache.keep(key, prepared)
            elif len(work.references) > MAX_REFERENCES:
                text = f"more than {MAX_REFERENCES} references"
                self._report(VoiceFailed(job, Fault.CLIENT, text))
                return
            else:
                self._encoding[key] = []
                self._encode(work)
        if prepared is None:
            self._encoding[key].append(job)
        else:
            self._ready(job, prepared)

    def _key(self, voice: Voice) -> bytes:
        if voice.voice_id is None:
            return _content_key(voice.references)
        if self._store is None:
            raise UnknownVoice(voice.voice_id)
        return f"{voice.voice_id}:{self._store.stamp(voice.voice_id)}".encode()

    def _stored(self, key: bytes, voice_id: str) -> tuple[EncodeJob, Prepared | None]:
        """What there is to encode of a stored voice, and its codes where the store has them."""
        assert self._store is not None
        stored = self._store.load(voice_id)
        work = EncodeJob(key, stored.references, voice_id, stored.stamp)
        codes = self._store.codes(voice_id, self._fingerprint, stored.stamp)
        if codes is None or len(codes) != len(stored.references):
            return work, None
        return work, joined(stored.references, codes)


def joined(references: Sequence[Reference], codes: Sequence[Int32Array]) -> Prepared:
    """Transcripts beside their codes."""
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
