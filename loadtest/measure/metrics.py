"""One turn's facts -> one turn's figures, every definition in one place. Pure.

The definitions, as the report states them:

- T0 is the *scheduled* time of the turn's first speakable text: the text message, or where text
  comes token by token the token that ends the first sentence. A cold turn's T0 is before its
  connection is made. ``ttfa_sent`` counts from the time that text really left, ``ttfa_text`` from
  when the turn's first token was due. Audio that comes before T0 counts as 0.
- TTFB: first message with audio bytes. TTFA: first message that makes a sample decodable.
- Audible TTFA: the first sample above -50 dBFS leaves the loudspeaker of a player without
  prebuffer, so leading silence counts.
- Playable: the earliest start after which that player never runs dry.
- Stall: the player runs dry though the text of what is next was there. If the text was not, it is
  a pause, provided that the server speaks within the TTFA limit once it is (``resume``).
- Lead: audio in hand just before a message, on a clock that stops for such pauses only.
- Jitter: mean of |time between two messages - length of the first one's audio|.
- RTF: from first text sent to last audio, over the length of the audio.
- Early: audio came before T0, as it may where a server speaks before the sentence is whole.
- Capped: the client asked for so many frames an utterance at most and the turn is as long as that
  makes it. Then its length against the text and its abrupt end were our wish and are no faults.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

from .playout import Playout, play, with_samples
from .starving import text_due_of
from .timeline import Arrival, Ending, Kind, Turn


class Fault(Enum):
    """What is wrong with a turn that delivered audio, or did not."""

    STALL = "stall"
    NO_AUDIO = "no_audio"
    NO_END = "no_end_signal"
    SHORT_OF_DECLARED = "shorter_than_declared"
    SHORT_FOR_TEXT = "short_for_text"
    LONG_FOR_TEXT = "long_for_text"
    ABRUPT_TAIL = "abrupt_tail"
    CLIPPED = "clipped"
    LEFTOVER_BYTES = "half_a_sample_at_the_end"
    WRONG_RATE = "wrong_sample_rate"
    REPEATED_HEADER = "repeated_header"


@dataclass(frozen=True, slots=True)
class Rules:
    """What the judgement needs to know beyond the facts.

    ``resume_s`` is how soon a server must speak that had waited for text, ``text_s_per_char`` how
    long a character should take to say; the two ``length`` bounds are on audio length over that
    expectation. ``requested_rate`` is what we asked the server for. ``cap_s`` is the most audio
    for one utterance that we asked it to make, ``None`` where it may speak as long as it likes.
    """

    requested_rate: int
    prebuffers_s: tuple[float, ...] = (0.0, 0.1, 0.2)
    text_s_per_char: float = 1 / 15
    shortest_length_ratio: float = 0.4
    longest_length_ratio: float = 3.0
    tail_dbfs: float = -35.0
    resume_s: float = 0.1
    declared_slack_s: float = 0.02
    rate_slack: float = 0.02
    cap_s: float | None = None


@dataclass(frozen=True, slots=True)
class PlayoutFigures:
    """What a listener with this prebuffer had; see :mod:`.playout`."""

    prebuffer_s: float
    stalls: int
    total_stall_s: float
    worst_stall_s: float
    min_lead_s: float | None


@dataclass(frozen=True, slots=True)
class Figures:
    """One turn's figures; ``None`` where the turn gave nothing to measure."""

    ending: Ending
    kind: Kind
    send_lag_s: float | None
    ttfb_s: float | None
    ttfa_s: float | None
    ttfa_sent_s: float | None
    ttfa_text_s: float | None
    audible_s: float | None
    playable_s: float | None
    connect_s: float | None
    prepare_s: float | None
    audio_s: float
    length_ratio: float | None
    rtf: float | None
    gaps_s: tuple[float, ...]
    pauses_s: tuple[float, ...]
    resumes_s: tuple[float, ...]
    jitter_s: float | None
    playouts: tuple[PlayoutFigures, ...]
    rate_ratio: float | None
    cut_tail_s: float | None
    stale_audio_s: float
    faults: frozenset[Fault]
    early: bool = False

    @property
    def complete(self) -> bool:
        """Ended as it should: with audio and the server's end signal, or by our interruption."""
        if self.ending is Ending.FINISHED:
            return Fault.NO_AUDIO not in self.faults
        return self.ending is Ending.CUT

    def playout(self, prebuffer_s: float) -> PlayoutFigures | None:
        """The playback with this prebuffer, if there was any to simulate."""
        for figures in self.playouts:
            if abs(figures.prebuffer_s - prebuffer_s) < 1e-9:
                return figures
        return None


def measure(turn: Turn, rules: Rules) -> Figures:
    """All figures of one turn."""
    heard = _before_cut(turn)
    audio = with_samples(heard)
    audio_s = sum(a.samples for a in audio) / turn.rate
    playouts = [p for b in rules.prebuffers_s if (p := playout_of(turn, rules, b))]
    bare = playout_of(turn, rules, 0.0)
    first_pcm_s = audio[0].at_s if audio else None
    expected_s = turn.chars * rules.text_s_per_char
    length_ratio = audio_s / expected_s if expected_s and turn.ending is Ending.FINISHED else None
    rate_ratio = _rate_ratio(turn, rules, audio_s)
    stale = turn.arrivals[len(heard) :]
    return Figures(
        ending=turn.ending,
        kind=turn.kind,
        send_lag_s=_since(turn.speakable_s, turn.sent_s),
        ttfb_s=_since(turn.speakable_s, next((a.at_s for a in heard if a.size_bytes), None)),
        ttfa_s=_since(turn.speakable_s, first_pcm_s),
        ttfa_sent_s=_since(turn.sent_s, first_pcm_s),
        ttfa_text_s=_since(turn.scheduled_s, first_pcm_s),
        audible_s=_audible_s(turn, bare),
        playable_s=_playable_s(turn, bare),
        connect_s=turn.connect_s,
        prepare_s=turn.prepare_s,
        audio_s=audio_s,
        length_ratio=length_ratio,
        rtf=_rtf(turn, audio, audio_s),
        pauses_s=tuple(pause.length_s for pause in bare.pauses) if bare else (),
        resumes_s=tuple(pause.resume_s for pause in bare.pauses) if bare else (),
        gaps_s=tuple(b.at_s - a.at_s for a, b in pairwise(audio)),
        jitter_s=_jitter_s(audio, turn.rate),
        playouts=tuple(
            PlayoutFigures(
                p.prebuffer_s, len(p.stalls), p.total_stall_s, p.worst_stall_s, p.min_lead_s
            )
            for p in playouts
        ),
        rate_ratio=rate_ratio,
        cut_tail_s=_since(turn.cut_s, stale[-1].at_s) if stale else None,
        stale_audio_s=sum(a.samples for a in stale) / turn.rate,
        faults=_faults(turn, rules, audio_s, length_ratio, rate_ratio, bare),
        early=first_pcm_s is not None and first_pcm_s < turn.speakable_s,
    )


def playout_of(turn: Turn, rules: Rules, prebuffer_s: float) -> Playout | None:
    """A turn as a player with that prebuffer had it, up to a barge-in."""
    audio = with_samples(_before_cut(turn))
    s_per_char = rules.text_s_per_char
    if turn.ending is Ending.FINISHED and turn.chars:
        s_per_char = sum(arrival.samples for arrival in audio) / turn.rate / turn.chars
    text_due = text_due_of(turn.sentences, s_per_char)
    return play(audio, turn.rate, prebuffer_s, turn.ended_s, text_due, rules.resume_s)


def _before_cut(turn: Turn) -> tuple[Arrival, ...]:
    if turn.cut_s is None:
        return turn.arrivals
    cut_s = turn.cut_s
    return tuple(arrival for arrival in turn.arrivals if arrival.at_s <= cut_s)


def _since(start_s: float | None, at_s: float | None) -> float | None:
    return None if start_s is None or at_s is None else max(0.0, at_s - start_s)


def _audible_s(turn: Turn, bare: Playout | None) -> float | None:
    sample = turn.sound.first_audible_sample
    if bare is None or sample is None:
        return None
    heard_s = bare.heard_at_s(sample)
    if turn.cut_s is not None and heard_s > turn.cut_s:
        return None
    return max(0.0, heard_s - turn.speakable_s)


def _playable_s(turn: Turn, bare: Playout | None) -> float | None:
    if bare is None:
        return None
    start_s = bare.start_s + max(0.0, -(bare.min_lead_s or 0.0))
    return max(0.0, start_s - turn.speakable_s)


def _rtf(turn: Turn, audio: list[Arrival], audio_s: float) -> float | None:
    if turn.began_s is None or not audio or turn.ending is not Ending.FINISHED:
        return None
    return (audio[-1].at_s - turn.began_s) / audio_s


def _jitter_s(audio: list[Arrival], rate: int) -> float | None:
    if len(audio) < 2:
        return None
    drifts_s = [abs(b.at_s - a.at_s - a.samples / rate) for a, b in pairwise(audio)]
    return sum(drifts_s) / len(drifts_s)


def _rate_ratio(turn: Turn, rules: Rules, audio_s: float) -> float | None:
    """True rate over assumed rate, from the best witness there is.

    A header says the rate outright. For bare samples a declared length does: twice as many
    samples as that length needs means twice the rate.
    """
    if turn.header_rate is not None:
        return turn.header_rate / rules.requested_rate
    if turn.declared_audio_s and audio_s and turn.ending is Ending.FINISHED:
        return audio_s / turn.declared_audio_s
    return None


_COMMON_RATES = (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000)


def _is_another_rate(rate_ratio: float, rules: Rules) -> bool:
    """Whether the ratio points at another customary rate, not at lost or extra audio."""
    if abs(rate_ratio - 1.0) <= rules.rate_slack:
        return False
    true_rate = rate_ratio * rules.requested_rate
    return any(abs(true_rate / rate - 1.0) <= rules.rate_slack for rate in _COMMON_RATES)


def _is_capped(turn: Turn, rules: Rules, audio_s: float) -> bool:
    """Whether the cap explains the length: at least one utterance of it, no more than all have.

    Longer than that means that the server did not keep to the cap: then it is judged as ever.
    """
    if rules.cap_s is None:
        return False
    slack_s = rules.declared_slack_s
    return rules.cap_s - slack_s <= audio_s <= rules.cap_s * turn.parts + slack_s


def _faults(
    turn: Turn,
    rules: Rules,
    audio_s: float,
    length_ratio: float | None,
    rate_ratio: float | None,
    bare: Playout | None,
) -> frozenset[Fault]:
    finished = turn.ending is Ending.FINISHED
    capped = finished and _is_capped(turn, rules, audio_s)
    wrong_rate = rate_ratio is not None and _is_another_rate(rate_ratio, rules)
    declared_s = turn.declared_audio_s
    tail_dbfs = turn.sound.tail_dbfs
    found = {
        Fault.STALL: bare is not None and bool(bare.stalls),
        Fault.NO_AUDIO: finished and audio_s == 0 and turn.chars > 0,
        Fault.NO_END: turn.ending in (Ending.BROKEN, Ending.TIMEOUT),
        Fault.SHORT_OF_DECLARED: finished
        and declared_s is not None
        and not wrong_rate
        and declared_s - audio_s > rules.declared_slack_s,
        Fault.SHORT_FOR_TEXT: length_ratio is not None
        and not capped
        and length_ratio < rules.shortest_length_ratio,
        Fault.LONG_FOR_TEXT: length_ratio is not None
        and not capped
        and length_ratio > rules.longest_length_ratio,
        Fault.ABRUPT_TAIL: turn.ending is not Ending.CUT
        and not capped
        and tail_dbfs is not None
        and tail_dbfs > rules.tail_dbfs,
        Fault.CLIPPED: turn.sound.clipped_samples > 0,
        Fault.LEFTOVER_BYTES: turn.sound.leftover_bytes > 0 and turn.ending is not Ending.CUT,
        Fault.WRONG_RATE: wrong_rate,
        Fault.REPEATED_HEADER: turn.sound.repeated_headers > 0,
    }
    return frozenset(fault for fault, present in found.items() if present)
