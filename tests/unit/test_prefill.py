"""Composing text, and the order in which the prefill thread does what waits for it."""

from __future__ import annotations

from dataclasses import replace
from queue import SimpleQueue

import pytest

from shoal.engine.api import StreamId
from shoal.engine.frontend import make_frontend
from shoal.engine.jobs import Composed, ComposeJob, Prefilled, PrefillJob, ToDecode, ToPrefill
from shoal.engine.prefill import Composer, Prefiller
from shoal.engine.runner import PrefillChunk
from tests.fakes import ScriptedRunner, spec
from tests.rig import columns_of
from tests.turns import BUILDER

ME = StreamId(1)


def composer(frontend: str | None = None, max_chars: int = 200) -> Composer:
    return Composer(BUILDER, make_frontend(frontend), max_chars)


def said(composed: Composed) -> list[list[list[int]]]:
    return [utterance.columns.tolist() for utterance in composed.utterances]


def turns(*texts: str) -> list[list[list[int]]]:
    return [BUILDER.user_turn(text).tolist() for text in texts]


def test_a_segment_is_one_turn_and_knows_its_bytes() -> None:
    composed = composer().compose(ComposeJob(ME, "Héllo there."))
    assert said(composed) == turns("Héllo there.")
    assert [utterance.text_bytes for utterance in composed.utterances] == [13]
    assert (composed.stream, composed.text, composed.error) == (ME, "Héllo there.", False)


def test_a_segment_is_composed_as_written_where_the_client_wants_it() -> None:
    job = ComposeJob(ME, "Call 42.", normalize=False)
    assert said(composer("english").compose(job)) == turns("Call four two.")
    assert said(composer("english").compose(ComposeJob(ME, "Call 42."))) == turns("Call forty-two.")


@pytest.mark.parametrize("text", ["...", "🙂", "<|speaker:3|>", "\ud800", ""])
@pytest.mark.parametrize("frontend", [None, "english"])
def test_text_without_anything_to_say_has_no_utterance(frontend: str | None, text: str) -> None:
    assert composer(frontend).compose(ComposeJob(ME, text, 3)).utterances == ()


def test_the_speaker_goes_on_until_the_text_names_another() -> None:
    assert said(composer().compose(ComposeJob(ME, "Still me.", 4))) == turns(
        "<|speaker:4|>Still me."
    )
    named = "<|speaker:5|>Now me."
    assert said(composer().compose(ComposeJob(ME, named, 5))) == turns(named)
    assert said(composer().compose(ComposeJob(ME, "Nobody yet."))) == turns("Nobody yet.")


def test_every_piece_of_a_long_segment_names_its_speaker() -> None:
    text = "One two three four. Five six seven eight."
    pieces = make_frontend(None).inputs(text, 24)
    assert len(pieces) > 1
    composed = composer(max_chars=24).compose(ComposeJob(ME, text, 2))
    assert said(composed) == turns(*(f"<|speaker:2|>{piece}" for piece in pieces))


def test_a_model_that_knows_no_speakers_is_told_none() -> None:
    assert said(composer("english").compose(ComposeJob(ME, "Still me.", 4))) == said(
        composer("english").compose(ComposeJob(ME, "Still me."))
    )


class Desk:
    """A prefill thread without the thread."""

    def __init__(self) -> None:
        self.runner = ScriptedRunner()
        self.inbox: SimpleQueue[ToPrefill | None] = SimpleQueue()
        self.reports: list[ToDecode] = []
        self.prefiller = Prefiller(self.runner, composer(), self.inbox, self.reports.append)

    def run(self, *messages: ToPrefill) -> None:
        """Everything that ``messages`` ask for, then the end."""
        for message in messages:
            self.inbox.put(message)
        self.inbox.put(None)
        self.prefiller.run()

    @property
    def positions(self) -> list[int]:
        return [chunk.position for chunk in self.runner.log.prefilled]


def chunk(at: int, page: int) -> PrefillChunk:
    """The 8 positions at ``at``, a page each; pages follow one another from ``page``."""
    return PrefillChunk(columns_of("x" * 8), at, tuple(range(page, page + at // 8 + 1)))


def test_the_end_is_heeded_before_work_that_still_waits() -> None:
    desk = Desk()
    desk.run(ComposeJob(ME, "Hello."))
    assert desk.reports == []


def test_text_goes_before_utterances_and_utterances_before_voices_between_chunks() -> None:
    runner, order = ScriptedRunner(), list[str]()
    inbox: SimpleQueue[ToPrefill | None] = SimpleQueue()
    late: list[ToPrefill | None] = [
        PrefillJob(2, (chunk(0, 20), chunk(8, 20)), urgent=True),
        ComposeJob(ME, "Hello."),
    ]

    def report(message: ToDecode) -> None:
        match message:
            case Composed():
                order.append("text")
            case Prefilled(job):
                order.append(f"job {job}")
                if job == 1:
                    inbox.put(None)
            case _:
                raise AssertionError(message)

    class Arriving(ScriptedRunner):
        """While the first chunk of the voice is computed, more urgent work comes."""

        def prefill(self, *chunks: PrefillChunk) -> None:
            (chunk,) = chunks
            runner.prefill(chunk)
            order.append(f"chunk {chunk.position} of page {chunk.table[0]}")
            while late:
                inbox.put(late.pop(0))

    inbox.put(PrefillJob(1, (chunk(0, 0), chunk(8, 0)), urgent=False))
    Prefiller(Arriving(), composer(), inbox, report).run()
    assert order == [
        "chunk 0 of page 0",
        "text",
        "chunk 0 of page 20",
        "chunk 8 of page 20",
        "job 2",
        "chunk 8 of page 0",
        "job 1",
    ]


def test_a_prefill_that_fails_is_reported_and_the_next_is_done(
    caplog: pytest.LogCaptureFixture,
) -> None:
    desk = Desk()
    desk.inbox.put(PrefillJob(1, (chunk(0, 0), chunk(8, 0)), urgent=True))
    desk.inbox.put(PrefillJob(2, (chunk(0, 4),), urgent=True))
    desk.runner.fail_prefill = True

    def report(message: ToDecode) -> None:
        desk.reports.append(message)
        desk.runner.fail_prefill = False
        if len(desk.reports) == 2:
            desk.inbox.put(None)

    Prefiller(desk.runner, composer(), desk.inbox, report).run()
    assert desk.reports == [Prefilled(1, error=True), Prefilled(2)]
    assert "prefill failed" in caplog.text
    assert desk.positions == [0]
    assert desk.runner.log.prefilled[0].table == (4,)


def test_a_job_without_chunks_is_done_at_once() -> None:
    reports: list[ToDecode] = []
    inbox: SimpleQueue[ToPrefill | None] = SimpleQueue()
    inbox.put(PrefillJob(9, (), urgent=True))

    def report(message: ToDecode) -> None:
        reports.append(message)
        inbox.put(None)

    Prefiller(ScriptedRunner(), composer(), inbox, report).run()
    assert reports == [Prefilled(9)]


class Wide(ScriptedRunner):
    """Takes four tiles of 8 columns in a pass, and notes who was in each. While the passes go on,
    what is ``late`` comes, an entry after each. ``bad`` pages cannot be written."""

    def __init__(self, inbox: SimpleQueue[ToPrefill | None]) -> None:
        super().__init__(replace(spec(), prefill_tiles=4, prefill_tile_columns=8))
        self.inbox = inbox
        self.passes: list[list[tuple[int, int]]] = []
        self.late: list[list[ToPrefill]] = []
        self.bad: set[int] = set()

    def prefill(self, *chunks: PrefillChunk) -> None:
        self.passes.append([(chunk.table[0], chunk.position) for chunk in chunks])
        for message in self.late.pop(0) if self.late else ():
            self.inbox.put(message)
        if any(chunk.table[-1] in self.bad for chunk in chunks):
            raise RuntimeError("scripted")
        super().prefill(*chunks)


def passes_of(
    *messages: ToPrefill, late: list[list[ToPrefill]] | None = None, bad: set[int] | None = None
) -> tuple[Wide, list[ToDecode]]:
    """What becomes of ``messages`` that wait together."""
    inbox: SimpleQueue[ToPrefill | None] = SimpleQueue()
    runner, reports = Wide(inbox), list[ToDecode]()
    runner.late, runner.bad = late or [], bad or set()
    coming = [*messages, *(message for batch in runner.late for message in batch)]
    jobs = [message for message in coming if isinstance(message, PrefillJob)]
    for message in messages:
        inbox.put(message)

    def report(message: ToDecode) -> None:
        reports.append(message)
        if sum(isinstance(m, Prefilled) for m in reports) == len(jobs):
            inbox.put(None)

    Prefiller(runner, composer(), inbox, report).run()
    return runner, reports


def sentence(job: int, count: int = 8, *, urgent: bool = True) -> PrefillJob:
    """``count`` columns in pages from 4 ``job`` on."""
    pages = tuple(range(4 * job, 4 * job + -(-count // 8)))
    return PrefillJob(job, (PrefillChunk(columns_of("x" * count), 0, pages),), urgent=urgent)


def test_utterances_that_wait_share_a_pass_as_far_as_there_is_room() -> None:
    runner, reports = passes_of(*(sentence(job) for job in range(1, 7)))
    assert runner.passes == [[(4, 0), (8, 0), (12, 0), (16, 0)], [(20, 0), (24, 0)]]
    assert reports == [Prefilled(job) for job in range(1, 7)]


def test_whole_tiles_are_counted_and_who_does_not_fit_is_passed_over_once() -> None:
    """9 columns are two tiles; a job of four has the next pass to itself, being the first."""
    runner, _ = passes_of(sentence(1, 9), sentence(2, 25), sentence(3, 9), sentence(4, 1))
    assert runner.passes == [[(4, 0), (12, 0)], [(8, 0)], [(16, 0)]]


def test_nobody_is_waited_for_and_a_voice_never_rides_with_those_that_are_waited_for() -> None:
    late: list[list[ToPrefill]] = [[sentence(2)], [sentence(3), ComposeJob(ME, "Hello.")]]
    voice = PrefillJob(7, (chunk(0, 20), chunk(8, 20), chunk(16, 20)), urgent=False)
    runner, reports = passes_of(voice, sentence(1), late=late)
    assert runner.passes == [[(4, 0)], [(8, 0)], [(12, 0)], [(20, 0)], [(20, 8)], [(20, 16)]]
    kinds = [type(message) for message in reports]
    assert kinds == [Prefilled, Prefilled, Composed, Prefilled, Prefilled]


def test_voices_take_a_pass_each() -> None:
    runner, reports = passes_of(sentence(1, urgent=False), sentence(2, urgent=False))
    assert runner.passes == [[(4, 0)], [(8, 0)]]
    assert reports == [Prefilled(1), Prefilled(2)]


def test_a_prompt_s_chunks_are_computed_one_after_the_other_beside_others() -> None:
    long = PrefillJob(5, (chunk(0, 20), chunk(8, 20)), urgent=True)
    runner, reports = passes_of(long, sentence(1), sentence(2))
    assert runner.passes == [[(20, 0), (4, 0), (8, 0)], [(20, 8)]]
    assert reports == [Prefilled(1), Prefilled(2), Prefilled(5)]


def test_of_a_pass_that_fails_only_those_fail_who_cannot_be_computed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    runner, reports = passes_of(sentence(1), sentence(2), sentence(3), bad={8})
    assert runner.passes == [[(4, 0), (8, 0), (12, 0)], [(4, 0)], [(8, 0)], [(12, 0)]]
    assert reports == [Prefilled(1), Prefilled(2, error=True), Prefilled(3)]
    assert [chunk.table for chunk in runner.log.prefilled] == [(4,), (12,)]
    assert "prefill of 3 together failed" in caplog.text


class Unsayable(Composer):
    """Fails on every text, and quotes it."""

    def compose(self, job: ComposeJob) -> Composed:
        raise ValueError(job.text)


def test_text_that_cannot_be_composed_is_reported_and_never_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    reports: list[ToDecode] = []
    inbox: SimpleQueue[ToPrefill | None] = SimpleQueue()
    inbox.put(ComposeJob(ME, "a secret"))

    def report(message: ToDecode) -> None:
        reports.append(message)
        inbox.put(None)

    broken = Unsayable(BUILDER, make_frontend(None), 200)
    Prefiller(ScriptedRunner(), broken, inbox, report).run()
    (composed,) = reports
    assert isinstance(composed, Composed)
    assert (composed.stream, composed.utterances, composed.error) == (ME, (), True)
    assert "ValueError" in caplog.text
    assert "secret" not in caplog.text


class Fails(Composer):
    """Fails with the text in its mouth."""

    def compose(self, job: ComposeJob) -> Composed:
        raise KeyError(job.text)


def test_text_that_cannot_be_composed_fails_alone_and_is_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    runner, reports = ScriptedRunner(), list[ToDecode]()
    broken = Fails(BUILDER, make_frontend(None), 200)
    prefiller = Prefiller(runner, broken, SimpleQueue(), reports.append)
    prefiller._note(ComposeJob(ME, "secret words"))  # pyright: ignore[reportPrivateUsage]
    prefiller._note(PrefillJob(1, (), urgent=True))  # pyright: ignore[reportPrivateUsage]
    prefiller.work()
    prefiller.work()
    composed, prefilled = reports
    assert isinstance(composed, Composed) and composed.error and prefilled == Prefilled(1)
    assert "KeyError" in caplog.text and "secret" not in caplog.text
