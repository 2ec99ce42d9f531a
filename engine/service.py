"""``SpeechEngine``: the engine of the port, built from a checkpoint and run on its threads.

Owns construction, the threads and their queues, and the order of starting and stopping. The one
module that brings torch in. Threads: decode, prefill, voice, voice-encode, codec (and the
runner's own); they share nothing but frozen messages.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from queue import SimpleQueue

from .api import (
    Cancel,
    Command,
    Deliver,
    EngineInfo,
    EngineStats,
    Event,
    OnFatal,
    Progress,
    Sampling,
    TierStats,
    VoiceInfo,
)
from .checkpoint import VoiceConfig
from .config import EngineConfig
from .decode import DecodeLoop, Inbound
from .defaults import VoiceDefaults
from .frontend import make_frontend
from .jobs import CodecMessage, ToPrefill, ToVoice
from .loading import LoadedModel, load_model
from .prefill import Composer, Prefiller
from .prompt import PromptBuilder
from .reference import Encoded, EncodeJob, VoiceEncoder, VoicePreparer
from .runner import RunnerSpec
from .scheduler import Scheduler
from .tiers import CodesTier, ColdTier
from .vocode import Vocoder
from .voices import VoiceError, VoiceStore

log = logging.getLogger(__name__)

_STOP_S = 10.0
_UNBOUNDED_CHARS = 4096


class SpeechEngine:
    """See :class:`shoal.engine.api.Engine`. Built on the caller's thread, which loads the model."""

    def __init__(
        self,
        config: EngineConfig,
        progress: Progress | None = None,
        model: LoadedModel | None = None,
        store: VoiceStore | None = None,
    ) -> None:
        """Raises :class:`.checkpoint.CheckpointError`. ``model`` and ``store``: instead of those
        that ``config`` names."""
        say: Progress = progress or _silent
        loaded = model or load_model(config, say)
        voice, tokenizer = loaded.voice, loaded.tokenizer
        self._config = config
        self._say = say
        self._fingerprint = loaded.codec_fingerprint
        self._runner = loaded.runner
        spec = self._runner.spec
        self._prompt = PromptBuilder(
            tokenizer, spec.codebooks, loaded.config.semantic_ids(tokenizer.semantic)
        )
        self._voice = voice
        self._store = store
        if store is None and config.voices_dir is not None:
            self._store = VoiceStore(config.voices_dir)
        self._info = EngineInfo(
            model=loaded.name,
            sample_rate=spec.sample_rate,
            frame_samples=spec.frame_samples,
            codebooks=spec.codebooks,
            slots=spec.max_slots,
            max_positions=spec.max_positions,
            device=loaded.device,
            note=loaded.note,
            speakers=voice.frontend == "none",
            latin_only=voice.frontend == "english",
            sampling=_sampling(voice, spec.max_positions),
        )
        self._inbox: SimpleQueue[Inbound | None] = SimpleQueue()
        self._to_prefill: SimpleQueue[ToPrefill | None] = SimpleQueue()
        self._to_voice: SimpleQueue[ToVoice | Encoded | None] = SimpleQueue()
        self._to_encode: SimpleQueue[EncodeJob | None] = SimpleQueue()
        self._to_codec: SimpleQueue[CodecMessage | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._codes = CodesTier(config.codes_bytes)
        self._cold = _cold_tier(config, self._fingerprint)
        self._preparer: VoicePreparer | None = None
        self._encoder: VoiceEncoder | None = None
        self._loop: DecodeLoop | None = None
        self._stopping = False
        self._dying = threading.Lock()
        self._dead = False

    @property
    def info(self) -> EngineInfo:
        return self._info

    def start(self, deliver: Deliver, on_fatal: OnFatal) -> None:
        self._say("warming up")
        self._runner.warm_up()
        clock = time.monotonic
        scheduler = Scheduler(
            _bounded(self._runner.spec, self._config.warm_voice_bytes),
            self._config.limits,
            VoiceDefaults(
                sampling=self._info.sampling,
                max_segment_chars=self._voice.max_segment_chars,
                max_context=self._voice.max_context,
                prefix=self._prompt.prefix(),
                closing=self._prompt.closing(),
            ),
            lambda: secrets.randbits(63),
        )

        def guarded(events: Sequence[Event]) -> None:
            if not self._stopping:
                deliver(events)

        self._loop = DecodeLoop(
            self._runner,
            scheduler,
            self._inbox,
            self._to_prefill,
            self._to_voice.put,
            self._to_codec,
            guarded,
            clock,
        )
        name = self._voice.frontend
        composer = Composer(
            self._prompt,
            make_frontend(None if name == "none" else name),
            self._voice.max_segment_chars or _UNBOUNDED_CHARS,
        )
        prefiller = Prefiller(self._runner, composer, self._to_prefill, self._inbox.put)
        preparer = VoicePreparer(
            self._prompt,
            self._store,
            self._codes,
            self._cold,
            self._fingerprint,
            self._runner.spec.frame_samples / self._runner.spec.sample_rate,
            self._config.limits,
            self._to_voice,
            self._to_encode.put,
            self._inbox.put,
        )
        self._preparer = preparer
        encoder = VoiceEncoder(
            self._runner,
            self._store,
            self._cold,
            self._fingerprint,
            self._to_encode,
            self._to_voice.put,
        )
        self._encoder = encoder
        vocoder = Vocoder(
            self._runner,
            self._to_codec,
            guarded,
            self._inbox.put,
            lambda stream: self._inbox.put(Cancel(stream)),
            clock,
        )
        bodies: dict[str, Callable[[], None]] = {
            "decode": self._loop.run,
            "prefill": prefiller.run,
            "voice": preparer.run,
            "voice-encode": encoder.run,
            "codec": vocoder.run,
        }
        for name, body in bodies.items():
            thread = threading.Thread(
                target=self._guard, args=(name, body, on_fatal), name=name, daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def _guard(self, name: str, body: Callable[[], None], on_fatal: OnFatal) -> None:
        try:
            body()
        except BaseException as error:  # a thread of ours died: the process has to end
            log.exception("the %s thread died", name)
            with self._dying:
                first, self._dead = not self._dead, True
            if first:
                on_fatal(error)

    def submit(self, command: Command) -> None:
        self._inbox.put(command)

    def stats(self) -> EngineStats:
        if self._loop is None or self._preparer is None or self._encoder is None:
            return EngineStats()
        stats = self._loop.stats
        return replace(
            stats,
            codes=self._codes.stats(),
            cold=TierStats() if self._cold is None else self._cold.stats(),
            encoded=self._encoder.encoded,
            voices_waiting=self._preparer.waiting,
            voices_skipped=self._preparer.skipped,
            voices_refused=stats.voices_refused + self._preparer.refused,
        )

    def voices(self) -> Sequence[VoiceInfo]:
        return () if self._store is None else self._store.list()

    def stop(self) -> None:
        self._stopping = True
        self._inbox.put(None)
        self._to_prefill.put(None)
        self._to_voice.put(None)
        self._to_encode.put(None)
        self._to_codec.put(None)
        for thread in self._threads:
            thread.join(_STOP_S)
        self._threads.clear()
        self._runner.close()


def _bounded(spec: RunnerSpec, warm_bytes: int | None) -> RunnerSpec:
    """``spec`` with what the host's memory may hold, also where the model was loaded for more."""
    if warm_bytes is None or not spec.page_bytes:
        return spec
    return replace(spec, host_pages=min(spec.host_pages, warm_bytes // spec.page_bytes))


def _cold_tier(config: EngineConfig, fingerprint: str) -> ColdTier | None:
    if config.voices_dir is None or not config.cold_voice_bytes:
        return None
    return ColdTier(config.voices_dir / ".codes", fingerprint, config.cold_voice_bytes)


def _silent(_line: str) -> None:
    """No progress is shown."""


def prepare_voice(config: EngineConfig, voice_id: str, progress: Progress) -> None:
    """Make and keep the codes of a stored voice, so that its first turn need not.

    Raises :class:`.checkpoint.CheckpointError` and :class:`.voices.VoiceError`.
    """
    loaded = load_model(config, progress)
    progress("encoding the recording")
    assert config.voices_dir is not None
    store = VoiceStore(config.voices_dir)
    encoder = VoiceEncoder(
        loaded.runner, store, None, loaded.codec_fingerprint, SimpleQueue(), lambda _report: None
    )
    stored = store.load(voice_id)
    encoded = encoder.work(EncodeJob(b"", stored.references, voice_id, stored.stamp))
    loaded.runner.close()
    if encoded.fault is not None:
        raise VoiceError(encoded.message)


def _sampling(voice: VoiceConfig, max_positions: int) -> Sampling:
    return Sampling(
        temperature=voice.temperature,
        top_p=voice.top_p,
        top_k=voice.top_k,
        max_frames_per_segment=max_positions,
    )
