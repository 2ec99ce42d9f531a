"""From a voice to its prefix columns: what was prepared already at once, recordings one by one.

``VoicePreparer`` looks in the tiers of prepared codes and owns the line of recordings that are not
there, and who waits for which; it never waits for one itself, so a voice that is known is not held
up by one that is new. ``VoiceEncoder`` decodes and encodes recordings on a thread of its own, each
only once for all who ask meanwhile, and has one voice at a time: what nobody waits for any more
leaves the line. Neither ever holds up prefill or decode. The key is the content: audio and
transcript of inline references; id and time of storing of a stored voice.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from queue import Empty, SimpleQueue

from .api import Fault, Reference, Voice
from .audio_file import AudioFileError, read_audio
from .config import Limits
from .jobs import ToVoice, VoiceDrop, VoiceFailed, VoiceJob, VoiceReady
from .prompt import PromptBuilder, PromptReference
from .runner import Int32Array, Runner
from .soundcheck import reference_doubt
from .tiers import CodesTier, ColdTier, Prepared
from .voices import MAX_REFERENCES, UnknownVoice, VoiceStore

log = logging.getLogger(__name__)

VOICES_BUSY = "too many voices are being prepared, try again later"


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
        cold: ColdTier | None,
        fingerprint: str,
        inbox: SimpleQueue[EncodeJob | None],
        report: Callable[[Encoded], None],
    ) -> None:
        self._runner = runner
        self._store = store
        self._cold = cold
        self._fingerprint = fingerprint
        self._inbox = inbox
        self._report = report
        self.encoded = 0
        """Voices that went through the codec."""

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
            self.encoded += 1
            self._keep(job, codes)
            return Encoded(job.key, joined(job.references, codes))
        except AudioFileError as error:
            return Encoded(job.key, (), Fault.CLIENT, str(error))
        except Exception:
            log.exception("a voice could not be encoded")
            return Encoded(job.key, (), Fault.ENGINE, "the voice could not be prepared")

    def _keep(self, job: EncodeJob, codes: Sequence[Int32Array]) -> None:
        """Codes outlive the process: beside a stored recording, or by the content of another."""
        try:
            if job.voice_id is not None:
                assert self._store is not None
                self._store.keep_codes(job.voice_id, self._fingerprint, job.stamp, codes)
            elif self._cold is not None:
                for reference, one in zip(job.references, codes, strict=True):
                    self._cold.keep(reference.audio, one)
        except OSError as error:  # a full or read-only disk costs time at the next start, no more
            log.warning("codes of a voice could not be kept: %s", error.strerror)


@dataclass(slots=True, eq=False)
class _Ask:
    """A job, the keys of the voices that it wants by number of speaker, and those found so far."""

    job: int
    live: bool
    keys: tuple[bytes, ...] = ()
    found: dict[bytes, Prepared] = field(default_factory=dict[bytes, Prepared])
    new: bool = False
    """It waits, or waited, for a recording to be encoded."""
    over: bool = False
    """It was answered."""


@dataclass(slots=True, eq=False)
class _Waiting:
    """A voice in line for the encoder, or being encoded, and who waits for it."""

    job: EncodeJob
    asks: list[_Ask] = field(default_factory=list[_Ask])

    @property
    def live(self) -> bool:
        return any(ask.live for ask in self.asks)


class VoicePreparer:
    """``run`` is the voice thread's body. ``known`` and the figures may be read by any thread."""

    def __init__(
        self,
        prompt: PromptBuilder,
        store: VoiceStore | None,
        known: CodesTier,
        cold: ColdTier | None,
        fingerprint: str,
        frame_s: float,
        limits: Limits,
        inbox: SimpleQueue[ToVoice | Encoded | None],
        encode: Callable[[EncodeJob], None],
        report: Callable[[VoiceReady | VoiceFailed], None],
    ) -> None:
        self._prompt = prompt
        self._store = store
        self._fingerprint = fingerprint
        self._known = known
        self._cold = cold
        self._frame_s = frame_s
        self._limits = limits
        self._inbox = inbox
        self._encode = encode
        self._report = report
        self._jobs: dict[int, VoiceJob] = {}
        """Not looked at yet, the first that came first."""
        self._asks: dict[int, _Ask] = {}
        """Those that wait for recordings, by job."""
        self._line: dict[bytes, _Waiting] = {}
        self._encoding: bytes | None = None
        self.skipped = 0
        """Jobs dropped before they were looked at, and recordings that left the line."""
        self.refused = 0
        """Jobs for which the line was too long."""

    @property
    def waiting(self) -> int:
        """Voices in line for the encoder, the one that it works on included."""
        return len(self._line)

    def run(self) -> None:
        """Until ``None`` comes."""
        while self._receive():
            self.look()

    def _receive(self) -> bool:
        """Take in everything that waits; sleep for it when there is nothing to look at."""
        try:
            message = self._inbox.get(block=not self._jobs)
            while message is not None:
                self.take(message)
                message = self._inbox.get_nowait()
            return False
        except Empty:
            return True

    def take(self, message: ToVoice | Encoded) -> None:
        """Note a job or that it is void; or answer everybody who waited for a recording."""
        match message:
            case VoiceJob(job):
                self._jobs[job] = message
            case VoiceDrop(job):
                self._drop(job)
            case Encoded(key, prepared, fault, text):
                self._encoding = None
                if fault is None:
                    self._known.keep(key, prepared)
                for ask in self._line.pop(key).asks:
                    if fault is None:
                        self._give(ask, key, prepared)
                    else:
                        self._refuse(ask, fault, text)
                self._encode_next()

    def look(self) -> None:
        """Answer the job that is next, or put its recordings in line."""
        if not self._jobs:
            return
        first = next((job for job in self._jobs.values() if job.live), None)
        job = self._jobs.pop(first.job if first is not None else next(iter(self._jobs)))
        ask = _Ask(job.job, job.live)
        try:
            self._prepare(ask, job.voice)
        except UnknownVoice:
            self._refuse(ask, Fault.CLIENT, "Reference not found")
        except Exception:
            log.exception("a voice could not be prepared")
            self._refuse(ask, Fault.ENGINE, "the voice could not be prepared")
        self._encode_next()

    def _drop(self, job: int) -> None:
        """Do no more for ``job``, unless it was answered while the message was on its way."""
        ask = self._asks.get(job)
        if self._jobs.pop(job, None) is not None:
            self.skipped += 1
            ask = _Ask(job, live=False)
        if ask is not None:
            self._refuse(ask, Fault.CLIENT, "nobody waits for this voice")

    def _leave(self, ask: _Ask) -> None:
        """Recordings that only ``ask`` waited for leave the line, unless one was begun."""
        for key in set(ask.keys) & self._line.keys():
            waiting = self._line[key]
            waiting.asks = [one for one in waiting.asks if one is not ask]
            if not waiting.asks and key != self._encoding:
                del self._line[key]
                self.skipped += 1

    def _encode_next(self) -> None:
        """Give the encoder the next voice: one at a time, those that somebody listens for first."""
        if self._encoding is not None or not self._line:
            return
        waits = self._line.items()
        self._encoding = next((key for key, one in waits if one.live), next(iter(self._line)))
        self._encode(self._line[self._encoding].job)

    def _has_room(self, ask: _Ask, missing: Sequence[EncodeJob]) -> bool:
        share = 1 if ask.live else 2
        jobs = [waiting.job for waiting in self._line.values()]
        if not jobs or not missing:
            return True
        held = sum(len(one.audio) for job in (*jobs, *missing) for one in job.references)
        few = len(jobs) + len(missing) <= self._limits.voices_waiting // share
        return few and held <= self._limits.voice_bytes // share

    def _give(self, ask: _Ask, key: bytes, prepared: Prepared) -> None:
        """One of the voices that ``ask`` wants; the last one makes it ready."""
        ask.found[key] = prepared
        if ask.over or len(ask.found) < len(set(ask.keys)):
            return
        ask.over = True
        self._asks.pop(ask.job, None)
        references = ask.found[ask.keys[0]]
        if len(ask.keys) > 1:
            references = tuple(
                replace(reference, speaker=speaker)
                for speaker, one in enumerate(ask.keys)
                for reference in ask.found[one]
            )
        doubt = reference_doubt(
            [reference.text for reference in references],
            [len(reference.codes) * self._frame_s for reference in references],
        )
        if doubt and ask.new:
            log.warning("%s", doubt)
        self._report(VoiceReady(ask.job, self._prompt.prefix(references), doubt))

    def _refuse(self, ask: _Ask, fault: Fault, text: str) -> None:
        if not ask.over:
            ask.over = True
            if self._asks.pop(ask.job, None) is not None:
                self._leave(ask)
            self._report(VoiceFailed(ask.job, fault, text))

    def _prepare(self, ask: _Ask, voice: Voice) -> None:
        voices = voice.speakers or (voice,)
        ask.keys = tuple(self._key(one) for one in voices)
        # Nothing is encoded for somebody who will be refused.
        missing: dict[bytes, EncodeJob] = {}
        for key, one in zip(ask.keys, voices, strict=True):
            if key in ask.found or key in missing or key in self._line:
                continue
            prepared = self._known.find(key)
            if prepared is None:
                work = self._work(key, one)
                prepared = self._kept(work)
                if prepared is None:
                    missing[key] = work
                    continue
                self._known.keep(key, prepared, promoted=True)
            ask.found[key] = prepared
        counts = [len(work.references) for work in missing.values()]
        if sum(counts) + sum(len(one) for one in ask.found.values()) > MAX_REFERENCES:
            self._refuse(ask, Fault.CLIENT, f"more than {MAX_REFERENCES} references")
            return
        if not self._has_room(ask, list(missing.values())):
            self.refused += 1
            self._refuse(ask, Fault.BUSY, VOICES_BUSY)
            return
        for key, work in missing.items():
            self._line[key] = _Waiting(work)
        waits = set(ask.keys) & self._line.keys()
        if not waits:
            self._give(ask, ask.keys[0], ask.found[ask.keys[0]])
            return
        ask.new = True
        self._asks[ask.job] = ask
        for key in waits:
            self._line[key].asks.append(ask)

    def _key(self, voice: Voice) -> bytes:
        if voice.voice_id is None:
            return _content_key(voice.references)
        if self._store is None:
            raise UnknownVoice(voice.voice_id)
        return f"{voice.voice_id}:{self._store.stamp(voice.voice_id)}".encode()

    def _work(self, key: bytes, voice: Voice) -> EncodeJob:
        """What there is to encode of a voice, should its codes not be kept."""
        if voice.voice_id is None:
            return EncodeJob(key, voice.references)
        assert self._store is not None
        stored = self._store.load(voice.voice_id)
        return EncodeJob(key, stored.references, voice.voice_id, stored.stamp)

    def _kept(self, work: EncodeJob) -> Prepared | None:
        """The voice as the disk has it: beside the stored recording, or by its content."""
        codes: Sequence[Int32Array | None] | None = None
        if work.voice_id is not None and self._store is not None:
            codes = self._store.codes(work.voice_id, self._fingerprint, work.stamp)
        if self._cold is not None:
            if codes is None:
                codes = [self._cold.find(reference.audio) for reference in work.references]
            self._cold.note(found=all(one is not None for one in codes))
        found = [one for one in codes or () if one is not None]
        return joined(work.references, found) if len(found) == len(work.references) else None


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
