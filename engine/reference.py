"""From a voice to its prefix columns: what was prepared already at once, recordings one by one.

``VoicePreparer`` looks in the tiers of prepared codes and knows who waits for which recording; it
never waits for one itself, so a voice that is known is not held up by one that is new.
``VoiceEncoder`` decodes and encodes recordings on a thread of its own, each only once for all who
ask meanwhile. Neither ever holds up prefill or decode. The key is the content: audio and transcript
of inline references; id and time of storing of a stored voice.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from queue import SimpleQueue

from .api import Fault, Reference, Voice
from .audio_file import AudioFileError, read_audio
from .jobs import VoiceFailed, VoiceJob, VoiceReady
from .prompt import PromptBuilder, PromptReference
from .runner import Int32Array, Runner
from .soundcheck import reference_doubt
from .tiers import CodesTier, ColdTier, Prepared
from .voices import MAX_REFERENCES, UnknownVoice, VoiceStore

log = logging.getLogger(__name__)


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
    keys: tuple[bytes, ...] = ()
    found: dict[bytes, Prepared] = field(default_factory=dict[bytes, Prepared])
    new: bool = False
    """It waits, or waited, for a recording to be encoded."""
    over: bool = False
    """It was answered."""


class VoicePreparer:
    """``run`` is the voice thread's body. ``known`` may be read for its figures by any thread."""

    def __init__(
        self,
        prompt: PromptBuilder,
        store: VoiceStore | None,
        known: CodesTier,
        cold: ColdTier | None,
        fingerprint: str,
        frame_s: float,
        inbox: SimpleQueue[VoiceJob | Encoded | None],
        encode: Callable[[EncodeJob], None],
        report: Callable[[VoiceReady | VoiceFailed], None],
    ) -> None:
        self._prompt = prompt
        self._store = store
        self._fingerprint = fingerprint
        self._known = known
        self._cold = cold
        self._frame_s = frame_s
        self._inbox = inbox
        self._encode = encode
        self._report = report
        self._encoding: dict[bytes, list[_Ask]] = {}

    def run(self) -> None:
        """Until ``None`` comes."""
        while (message := self._inbox.get()) is not None:
            self.work(message)

    def work(self, message: VoiceJob | Encoded) -> None:
        """Answer a job, or pass it on; or answer everybody who waited for a recording."""
        match message:
            case Encoded(key, prepared, fault, text):
                asks = self._encoding.pop(key)
                if fault is None:
                    self._known.keep(key, prepared)
                for ask in asks:
                    if fault is None:
                        self._give(ask, key, prepared)
                    else:
                        self._refuse(ask, fault, text)
            case VoiceJob(job, voice):
                ask = _Ask(job)
                try:
                    self._prepare(ask, voice)
                except UnknownVoice:
                    self._refuse(ask, Fault.CLIENT, "Reference not found")
                except Exception:
                    log.exception("a voice could not be prepared")
                    self._refuse(ask, Fault.ENGINE, "the voice could not be prepared")

    def _give(self, ask: _Ask, key: bytes, prepared: Prepared) -> None:
        """One of the voices that ``ask`` wants; the last one makes it ready."""
        ask.found[key] = prepared
        if ask.over or len(ask.found) < len(set(ask.keys)):
            return
        ask.over = True
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
            self._report(VoiceFailed(ask.job, fault, text))

    def _prepare(self, ask: _Ask, voice: Voice) -> None:
        voices = voice.speakers or (voice,)
        ask.keys = tuple(self._key(one) for one in voices)
        # Nothing is encoded for somebody who will be refused.
        missing: dict[bytes, EncodeJob] = {}
        for key, one in zip(ask.keys, voices, strict=True):
            if key in ask.found or key in missing or key in self._encoding:
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
        for key, work in missing.items():
            self._encoding[key] = []
            self._encode(work)
        waits = [key for key in ask.keys if key in self._encoding]
        ask.new = bool(waits)
        for key in set(waits):
            self._encoding[key].append(ask)
        if not waits:
            self._give(ask, ask.keys[0], ask.found[ask.keys[0]])

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
