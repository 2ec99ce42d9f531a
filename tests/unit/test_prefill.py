"""Composing text, and the order in which the prefill thread does what waits for it."""

from __future__ import annotations

from queue import SimpleQueue

import pytest

from shoal.engine.api import StreamId
from shoal.engine.frontend import make_frontend
from shoal.engine.jobs import Composed, ComposeJob, Prefilled, PrefillJob, ToDecode, ToPrefill
from shoal.engine.prefill import Composer, Prefiller
from shoal.engine.runner import PrefillChunk
from tests.fakes import ScriptedRunner
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

        def prefill(self, chunk: PrefillChunk) -> None:
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
