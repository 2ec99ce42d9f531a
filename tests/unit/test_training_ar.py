"""The DualAR's training: what it is fed, what its losses mean, and that the engine runs it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from shoal.engine.model.config import DualARConfig, read_config
from shoal.engine.model.dual_ar import DualAR
from shoal.engine.model.weights import load_weights
from shoal.engine.prompt import PromptBuilder, PromptReference
from shoal.engine.tokenizer import load_tokenizer
from shoal.engine.training import vocabulary
from shoal.engine.training.ar_model import BUILTIN, Masked, TrainedDualAR
from shoal.engine.training.ar_train import ArTraining, Plan, agree, batches, main
from shoal.engine.training.codec_model import TrainedCodec
from shoal.engine.training.codes import Corpus, write_corpus
from shoal.engine.training.export import describe_model, write_model
from shoal.engine.training.export import main as export_main
from shoal.engine.training.rows import NOTHING, WAITING, Conversations, Mix, Rows, fitting
from shoal.engine.training.states import halved, load_state, save_state
from shoal.engine.training.texts import Texts
from tests.training import CODEC, MODEL, WORDS, small_texts, write_shapes

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")
SMALL = Plan(rows=2, length=160, fast=40, lr=5e-3, warmup=2)
VOICE = Path(__file__).parents[2] / "engine" / "builtin_voice"


@pytest.fixture
def texts(tmp_path: Path) -> Texts:
    return small_texts(tmp_path)


def corpus_of(texts: Texts, count: int = 40) -> Corpus:
    """Every utterance says each phoneme for one frame; book 0 is the phoneme, the others the
    number of the utterance and of the frame."""
    codes, where, frames = [], [], []
    for index in range(count):
        text = index % len(texts)
        length = int(texts.lengths()[text])
        own = np.arange(1, length + 1)
        code = np.stack([texts.labels(text, own), np.full(length, index), own], 1)
        codes.append(code.astype(np.uint16))
        where.append(np.repeat(own, 2).astype(np.uint8))
        frames.append(length)
    return Corpus(
        np.concatenate(codes),
        np.concatenate(where),
        np.concatenate([[0], np.cumsum(frames)]),
        np.arange(count) % 4,
        np.arange(count) % len(texts),
        ("af_heart", "b", "c", "d"),
    )


def drawn(texts: Texts, mix: Mix, seed: int = 0, plan: Plan = SMALL) -> Iterator[Rows]:
    corpus = corpus_of(texts)
    return batches(corpus, texts, np.arange(len(corpus)), mix, plan, seed, 0, False)


# What it is fed -----------------------------------------------------------------------------------


def test_a_conversation_is_what_the_engine_would_build(texts: Texts, tmp_path: Path) -> None:
    vocabulary.write_tokenizer(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.semantic == range(320, 1344) and tokenizer.end_token == vocabulary.END
    corpus = corpus_of(texts)
    builder = PromptBuilder(tokenizer, 3, range(320, 1344))
    mix = Mix(joined=0.0, second_turn=1.0, two_recordings=0.5)
    conversations = Conversations(corpus, texts, np.arange(40), mix, 512)
    random = np.random.default_rng(0)
    kinds = set()
    for _ in range(60):
        tokens, codes, targets, _ = conversations.draw(random)
        columns = np.concatenate([tokens[:, None], codes], 1)
        sound = np.flatnonzero(tokens >= 320)
        # Utterances are told apart by their codes, so no two in a row may be the same.
        utterances = [int(u) for u in codes[sound, 1][np.diff(codes[sound, 1], prepend=-1) != 0]]
        if sum(len(corpus.codes_of(u)) for u in utterances) != len(sound):
            continue
        references = [
            PromptReference(WORDS[u % len(WORDS)], corpus.codes_of(u).astype(np.int32))
            for u in utterances[:-2]
        ]
        kinds.add(len(references))
        turns = [
            np.concatenate(
                [
                    builder.user_turn(WORDS[u % len(WORDS)]),
                    builder.frames(corpus.codes_of(u).astype(np.int32)),
                    builder.closing(),
                ]
            )
            for u in utterances[-2:]
        ]
        expected = np.concatenate([builder.prefix(references), *turns])
        assert (columns == expected).all()
        speakers = {u % 4 for u in utterances}
        assert len(speakers) == 1
        assert references or speakers == {0}
        # Sound points at its letter, and the end of the speech at the end of the text.
        for place in np.flatnonzero(targets != NOTHING):
            if tokens[place] == vocabulary.END:
                assert tokens[targets[place]] == vocabulary.END
            else:
                assert chr(tokens[targets[place]]).lower() == chr(codes[place, 0])
    assert kinds == {0, 1, 2}


def test_rows_say_what_comes_next_and_stay_within_conversations(texts: Texts) -> None:
    batch = next(drawn(texts, Mix(spoilt=0.0))).to(CPU)
    assert batch.columns.shape == (2, 160, 4)
    tokens = batch.columns[..., 0]
    for row in range(2):
        known = torch.nonzero(batch.slow[row] != NOTHING).flatten()
        assert len(known) > 20
        assert (tokens[row, known + 1] == batch.slow[row, known]).all()
        assert (batch.conversation[row, known] == batch.conversation[row, known + 1]).all()
        aim = batch.target[row, known]
        assert (aim < known + 1).all()
        assert (batch.conversation[row, aim] == batch.conversation[row, known]).all()
        sound = known[batch.slow[row, known] != vocabulary.END]
        assert (batch.phonemes[row, sound, 0] == batch.columns[row, sound + 1, 1]).all()
    flat = batch.columns.flatten(0, 1)
    assert (flat[batch.fast_at + 1, 1:] == batch.fast_codes).all()
    begins = (batch.place == 0) & (batch.conversation > 0)
    assert begins.sum() > 2
    assert (tokens[begins] == vocabulary.IDS["<|im_start|>"]).all()


def test_rows_are_nearly_full_and_keep_nobody_waiting() -> None:
    random = np.random.default_rng(0)
    lengths = random.integers(90, 700, 400)
    waiting: list[tuple[np.ndarray, ...]] = []
    rows: list[list[int]] = []
    drawn = 0
    while drawn < len(lengths):
        row: list[int] = []
        while True:
            while len(waiting) < WAITING and drawn < len(lengths):
                waiting.append((np.full(lengths[drawn], drawn),))
                drawn += 1
            room = 1024 - int(sum(lengths[row]))
            chosen = fitting(waiting, room, first=not row)
            if chosen is None:
                break
            row.append(int(waiting.pop(chosen)[0][0]))
        rows.append(row)
    used = np.array([lengths[row].sum() for row in rows])
    assert used.max() <= 1024 and used.mean() > 0.94 * 1024
    for number, row in enumerate(rows):
        # Each row begins with the oldest, so one waits for fewer rows than there are before it.
        older = [i for later in rows[number + 1 :] for i in later]
        assert not older or row[0] < min(older)


def test_spoilt_frames_are_fed_and_true_ones_wanted(texts: Texts) -> None:
    mix = Mix(spoilt=0.5, spoilt_semantic=1.0)
    batch = next(drawn(texts, mix)).to(CPU)
    fed = batch.columns.flatten(0, 1)[batch.fast_at + 1]
    wrong = (fed[:, 1:] != batch.fast_codes).any(1)
    assert 0.2 < wrong.float().mean() < 0.6
    assert (fed[:, 0] == fed[:, 1] + 320).all()
    slow = batch.slow.flatten()[batch.fast_at]
    assert (slow == batch.fast_codes[:, 0] + 320).all()


# What its losses mean -----------------------------------------------------------------------------


def test_the_guided_loss_is_nothing_where_the_head_looks_at_the_letter() -> None:
    model = TrainedDualAR(MODEL)
    conversation = torch.tensor([[1, 1, 1, 1, 2, 2, 2]])
    target = torch.tensor([[-100, -100, 0, 1, -100, -100, 4]])
    scores = torch.zeros(1, 7, 7)
    evenly = float(model._guided([scores], conversation, target))
    # Of 3, 4 and 3 visible places 2, 3 and 2 are within a letter of the target.
    expected = np.mean(np.log([3 / 2, 4 / 3, 3 / 2]))
    assert evenly == pytest.approx(expected, rel=1e-5)
    for query, letter in ((2, 0), (3, 1), (6, 4)):
        scores[0, query, letter] = 30.0
    assert float(model._guided([scores], conversation, target)) == pytest.approx(0, abs=1e-6)
    scores[0, 6, 0] = 60.0  # another conversation: not seen
    assert float(model._guided([scores], conversation, target)) == pytest.approx(0, abs=1e-6)


def test_a_small_model_learns_to_follow_the_text(texts: Texts) -> None:
    torch.manual_seed(0)
    training = ArTraining(MODEL, SMALL, CPU)
    rows = drawn(texts, Mix())
    found = [training.step(next(rows).to(CPU), 0.0) for _ in range(60)]
    for name in ("slow", "fast", "guided", "phonemes"):
        early = np.mean([float(f[name]) for f in found[:5]])
        late = np.mean([float(f[name]) for f in found[-5:]])
        assert late < 0.85 * early, name
    before = {k: v.clone() for k, v in training.model.state_dict().items()}
    scored = training.held_out([next(rows).to(CPU)])
    assert set(scored) == {"slow", "fast", "guided", "phonemes", "accuracy"}
    assert training.model.training
    after = training.model.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_a_compiler_that_computes_something_else_is_not_used() -> None:
    plain = [7.2, 6.9, 4.6, 5.2, 3.0]
    assert agree([7.3, 7.0, 4.4, 5.2, 3.4], plain)
    assert not agree([7.3, 7.0, 3.9, 5.2, 3.4], plain)
    assert not agree([7.3, 7.0, 4.6, 5.2, 6.0], plain)
    assert not agree([float("nan"), 7.0, 4.6, 5.2, 3.0], plain)
    assert not agree([], plain)


def test_the_way_that_agrees_is_taken(texts: Texts, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    training = ArTraining(MODEL, replace(SMALL, dropout=0.0), CPU)
    batch = next(drawn(texts, Mix())).to(CPU)
    losses = training.model.losses

    def doubled(rows: tuple[torch.Tensor, ...], mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(2 * loss for loss in losses(*rows, Masked(mask, 2)))

    training._ways.insert(0, ("wrong", False, doubled))
    assert training.warm_up(batch) == "uncompiled"
    assert "wrong: " in capsys.readouterr().out
    assert all(p.grad is None for p in training.model.parameters())


def test_auxiliary_losses_fade_to_nothing(texts: Texts) -> None:
    gradients: list[float] = []
    batch = next(drawn(texts, Mix())).to(CPU)
    for fraction in (0.0, 0.8, 1.0):
        torch.manual_seed(0)
        training = ArTraining(MODEL, SMALL, CPU)
        training.step(batch, fraction)
        gradients.append(float(training.model.reader.weight.grad.norm()))
    # Gradients were clipped to one length, so only their order is told.
    assert gradients[0] > gradients[1] > 0
    assert gradients[2] == 0


# That it goes on, and that the engine runs it -----------------------------------------------------


def test_a_training_goes_on_where_it_stopped(texts: Texts, tmp_path: Path) -> None:
    torch.manual_seed(0)
    batch = next(drawn(texts, Mix())).to(CPU)
    one, other, third = (ArTraining(MODEL, SMALL, CPU) for _ in range(3))
    for _ in range(3):
        one.step(batch, 0.1)
    for training, compact in ((other, False), (third, True)):
        save_state(tmp_path, "ar", one.state(0.25, compact=compact))
        assert training.resume(load_state(tmp_path, "ar")) == 0.25
    results: list[float] = []
    for training in (one, other, third):
        torch.manual_seed(1)
        results += [float(training.step(batch, 0.25)["slow"]) for _ in range(2)]
    assert results[:2] == pytest.approx(results[2:4], rel=1e-5)
    assert results[4] == pytest.approx(results[0], rel=1e-2)


def test_the_engine_computes_what_was_trained(texts: Texts, tmp_path: Path) -> None:
    torch.manual_seed(0)
    trained = TrainedDualAR(MODEL).eval()
    write_model(tmp_path, MODEL, trained.exported())
    config = read_config(tmp_path)
    assert config == as_read(MODEL)
    weights = load_weights(tmp_path, config)
    trained.load_state_dict({k: w.float() for k, w in weights.items()}, strict=False)
    engine = DualAR(config, weights, range(320, 1344), vocabulary.END)
    batch = next(drawn(texts, Mix(), plan=SMALL)).to(CPU)
    count = int((batch.conversation[0] == 1).sum())
    columns = batch.columns[0, :count]
    seen = torch.ones(count, count, dtype=torch.bool).tril()
    with torch.no_grad():
        hidden, _, _ = trained.slow(columns[None], torch.arange(count)[None], Masked(seen, 2))
        residual = engine.slow_stack(
            engine.embed(columns.int()),
            torch.arange(count),
            [torch.zeros(2, 512, 16) for _ in range(5)],
            64,
            torch.arange(count),
            [torch.arange(8)],
            [count],
            [count],
            torch.full((count, count), -torch.inf).triu(1).repeat_interleave(2, 0),
        )
        own, logits = engine.slow_head(residual)
        assert torch.allclose(own, hidden[0], atol=2e-5)
        head = trained.logits(hidden[0])
        wanted = torch.cat([head[:, 320:1344], head[:, vocabulary.END, None]], 1)
        assert torch.allclose(logits, wanted, atol=2e-5)
        codes = batch.fast_codes
        fast = trained.fast(hidden[0, : len(codes)], codes)
        first, caches = engine.fast_first(own[: len(codes)].contiguous(), codes[:, 0].int())
        second = engine.fast_next(codes[:, 1].int(), 2, caches)
    assert torch.allclose(first, fast[:, 0], atol=2e-5)
    assert torch.allclose(second, fast[:, 1], atol=2e-5)


def as_read(config: DualARConfig) -> DualARConfig:
    """``config`` after a round trip: the end token is the tokenizer's to know."""
    return replace(config, end_token=None)


def test_the_builtin_shape_is_that_of_the_committed_voice() -> None:
    committed = read_config(VOICE)
    assert committed == as_read(BUILTIN)
    shapes = {k: w.shape for k, w in load_weights(VOICE, committed).items()}
    with torch.device("meta"):
        model = TrainedDualAR()
    assert {k: w.shape for k, w in model.exported().items()} == shapes
    described = describe_model(BUILTIN)
    assert described["text_config"]["intermediate_size"] == 640


def test_the_commands_train_resume_and_export_a_voice(
    texts: Texts, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_corpus(corpus_of(texts), tmp_path / "codes", 1 << 20, 9)
    write_shapes(tmp_path / "shapes")
    flags = ["--codes", str(tmp_path / "codes"), "--texts", str(tmp_path / "texts.npz")]
    flags += ["--alignment", str(tmp_path / "places.npz"), "--out", str(tmp_path / "ar")]
    flags += ["--config", str(tmp_path / "shapes"), "--rows", "1", "--length", "160"]
    flags += ["--fast", "20", "--device", "cpu", "--carry", str(tmp_path / "carry")]
    flags += ["--minutes", "0", "--steps", "3"]  # so many, whatever the machine is busy with
    for end, state in (("0.4", "one"), ("1.0", "two")):
        more = ["--state", str(tmp_path / state), "--end", end, "--snapshot-at", "0.75"]
        assert main([*flags, *more]) == 0
    said = capsys.readouterr().out
    assert "went on from" in said and "at step 3, 0.400" in said and "held out at step 6" in said
    codec = tmp_path / "codec"
    write_shapes(codec)
    torch.save(halved(TrainedCodec(CODEC).state_dict()), codec / "codec.pth")
    assert said.count("early export") == 1
    early, last = (
        load_weights(f, read_config(f)) for f in (tmp_path / "ar" / "early", tmp_path / "ar")
    )
    assert early.keys() == last.keys()
    assert not all(torch.equal(early[key], last[key]) for key in early)
    parts = ["--model", str(tmp_path / "ar"), "--codec", str(codec)]
    assert export_main([*parts, "--out", str(tmp_path / "voice")]) == 0
    names = {path.name for path in (tmp_path / "voice").iterdir()}
    assert {"codec.pth", "config.json", "tokenizer.json", "voice_config.json"} <= names
