"""The model against the reference implementation's own numbers, in fp32."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from shoal.engine.model.compile import compile_module, packs_linear
from shoal.engine.model.config import read_config
from shoal.engine.model.dual_ar import DualAR
from shoal.engine.model.sampling import WINDOW_FRAMES, filtered_probs
from shoal.engine.model.weights import load_weights
from shoal.engine.prompt import PromptBuilder, PromptReference, batches_of
from shoal.engine.tokenizer import load_tokenizer

DATA = Path(__file__).parents[1] / "data"
S2 = load_file(DATA / "s2_tiny" / "golden.safetensors")
GOLDEN = {"s2_tiny": S2, "s1_tiny": S2 | load_file(DATA / "s1_tiny" / "golden.safetensors")}
SEMANTIC = range(275, 339)
END = 265
PAGE = 16
SLOW_TOLERANCE = 2e-5
FAST_TOLERANCE = 1e-5
PROMPTS = ("plain", "ref1", "ref2_multi_turn")
FORMS = ("plain", "packed", "compiled")


@pytest.fixture(scope="module", autouse=True)
def no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


@dataclass(frozen=True)
class Draws:
    """The reference's sampling of one run; ``seed`` ``None`` is the arg max of everything."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 1
    seed: int | None = None


def load_model(name: str, form: str = "plain") -> DualAR:
    folder = DATA / name
    config = read_config(folder)
    packed = form != "plain" and packs_linear()
    model = DualAR(config, load_weights(folder, config), SEMANTIC, END, packed=packed)
    return compile_module(model) if form == "compiled" else model  # pyright: ignore


class Context:
    """One conversation's KV, in pages that lie in no order."""

    def __init__(self, model: DualAR) -> None:
        self._model = model
        self._pools = [torch.zeros(4, 32 * PAGE, 32) for _ in range(3)]
        self._table = torch.randperm(32, generator=torch.Generator().manual_seed(1))
        self._length = 0

    def feed(self, columns: Tensor) -> tuple[Tensor, Tensor]:
        """Append columns int32 [N, 11]; hidden [1, 64] and logits [1, 65] of the last."""
        count = len(columns)
        positions = torch.arange(self._length, self._length + count)
        self._length += count
        mask = torch.zeros(count, 1, self._length)
        mask.masked_fill_(torch.arange(self._length) > positions.view(-1, 1, 1), -torch.inf)
        places = self._table[positions // PAGE] * PAGE + positions % PAGE
        residual = self._model.slow_stack(
            self._model.embed(columns),
            positions,
            self._pools,
            PAGE,
            places,
            [self._table[: -(-self._length // PAGE)]],
            [self._length],
            [count],
            mask.expand(count, 2, self._length).reshape(-1, self._length),
        )
        return self._model.slow_head(residual[-1:])


def draw(probs: Tensor) -> int:
    return int(torch.argmax(probs / -torch.log(torch.rand_like(probs))))


def whole_vocabulary(logits: Tensor) -> Tensor:
    """Candidates [65] at their place among all 344 tokens: the reference draws noise for each."""
    full = torch.full((344,), -torch.inf)
    full[SEMANTIC.start : SEMANTIC.stop] = logits[:-1]
    full[END] = logits[-1]
    return full


def generate(model: DualAR, prompt: Tensor, limit: int, draws: Draws) -> Tensor:
    """Columns [11, n] as the reference makes them: its order of random numbers, and its quirks -
    an end token drawn first is not noticed, and both draws of a slow token are always made."""

    def pick(logits: Tensor, temperature: float, top_p: float) -> int:
        if draws.seed is None:
            return int(logits.argmax())
        return draw(filtered_probs(logits, temperature, top_p, draws.top_k))

    context, columns = Context(model), prompt
    window = [0] * WINDOW_FRAMES
    made: list[list[int]] = []
    while len(made) < limit:
        hidden, logits = context.feed(columns)
        slow = whole_vocabulary(logits[0])
        token = pick(slow, draws.temperature, draws.top_p)
        again = pick(slow, 1.0, 0.9)
        if made and token in SEMANTIC and token in window:
            token = again
        column = [token, min(max(token - SEMANTIC.start, 0), len(SEMANTIC) - 1)]
        logits, caches = model.fast_first(hidden, torch.tensor(column[1:]))
        for book in range(1, 10):
            column.append(pick(logits[0], draws.temperature, draws.top_p))
            if book < 9:
                logits = model.fast_next(torch.tensor(column[-1:]), book + 1, caches)
        if made:
            window = [*window[1:], token]
            if token == END:
                made.append(column)
                break
        made.append(column)
        columns = torch.tensor([column], dtype=torch.int32)
    return torch.tensor(made).T


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", GOLDEN)
@pytest.mark.parametrize("run", [f"{p}{suffix}" for p in PROMPTS for suffix in ("", "_greedy")])
def test_teacher_forced_logits_and_hidden(name: str, form: str, run: str) -> None:
    golden, model = GOLDEN[name], load_model(name, form)
    prompt = golden[f"prompt/{run.removesuffix('_greedy')}"].T.int()
    codes = golden[f"tf/{run}/frames"].T.int()
    frames = torch.cat([codes[:, :1] + SEMANTIC.start, codes], 1)
    context = Context(model)
    assert len(frames) >= 4
    for step, column in enumerate([None, *frames]):
        hidden, logits = context.feed(prompt if column is None else column[None])
        slow = golden[f"tf/{run}/slow_logits"][step]
        expected = torch.cat([slow[SEMANTIC.start : SEMANTIC.stop], slow[END : END + 1]])
        torch.testing.assert_close(logits[0], expected, atol=SLOW_TOLERANCE, rtol=0)
        torch.testing.assert_close(
            hidden[0], golden[f"tf/{run}/hidden"][step], atol=SLOW_TOLERANCE, rtol=0
        )
        if step == len(frames):
            continue
        code = codes[step]
        logits, caches = model.fast_first(hidden, code[:1])
        fast = [logits[0]]
        for book in range(1, 9):
            fast.append(model.fast_next(code[book : book + 1], book + 1, caches)[0])
        torch.testing.assert_close(
            torch.stack(fast), golden[f"tf/{run}/fast_logits"][step], atol=FAST_TOLERANCE, rtol=0
        )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", GOLDEN)
@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_columns_are_the_references_own(name: str, form: str, prompt: str) -> None:
    golden = GOLDEN[name]
    expected = golden[f"gen/{prompt}/greedy"]
    columns = golden[f"prompt/{prompt}"].T.int()
    made = generate(load_model(name, form), columns, expected.size(1), Draws())
    assert torch.equal(made, expected)


SEEDED = {
    "seed0": Draws(0.8, 0.8, 30, 0),
    "seed1": Draws(0.8, 0.8, 30, 1),
    "hot": Draws(1.2, 0.95, 40, 7),
}


@pytest.mark.parametrize("name", GOLDEN)
@pytest.mark.parametrize(
    ("prompt", "run"), [*((p, s) for p in PROMPTS for s in ("seed0", "seed1")), ("plain", "hot")]
)
def test_seeded_columns_are_the_references_own(name: str, prompt: str, run: str) -> None:
    golden, draws = GOLDEN[name], SEEDED[run]
    expected = golden[f"gen/{prompt}/{run}"]
    assert draws.seed is not None
    torch.manual_seed(draws.seed)
    columns = golden[f"prompt/{prompt}"].T.int()
    made = generate(load_model(name), columns, expected.size(1), draws)
    assert torch.equal(made, expected)


@pytest.mark.parametrize("name", GOLDEN)
def test_a_conversation_of_several_turns_is_the_references_own(name: str) -> None:
    golden, model = GOLDEN[name], load_model(name)
    builder = PromptBuilder(load_tokenizer(DATA / "s2_tiny"), 10, SEMANTIC)
    voice = golden["prompt/ref1"]
    codes = voice[1:, voice[0] >= SEMANTIC.start].T.int().numpy()
    conversation = [builder.prefix([PromptReference("a reference text", codes)])]
    text = "<|speaker:0|>hello there<|speaker:1|>yes<|speaker:0|>bye bye"
    torch.manual_seed(3)
    for turn, batch in enumerate(batches_of(text, 24)):
        conversation.append(builder.user_turn(batch))
        prompt = torch.from_numpy(np.concatenate(conversation))
        made = generate(model, prompt, 12, Draws(0.7, 0.8, 20, 3))[1:, :-1]
        assert torch.equal(made, golden[f"long/{turn}/codes"])
        conversation += [builder.frames(made.T.int().numpy()), builder.closing()]


def test_kept_kv_is_the_same_as_reading_the_conversation_again() -> None:
    model = load_model("s2_tiny")
    prompt = S2["prompt/ref2_multi_turn"].T.int()
    whole = Context(model).feed(prompt)
    kept = Context(model)
    for begin, stop in ((0, 75), (75, 76), (76, 150), (150, len(prompt))):
        parts = kept.feed(prompt[begin:stop])
    for one, other in zip(whole, parts, strict=True):
        torch.testing.assert_close(one, other, atol=SLOW_TOLERANCE, rtol=0)


def test_codes_of_columns_that_are_text_do_not_count() -> None:
    model = load_model("s2_tiny")
    text = torch.zeros(1, 11, dtype=torch.int32)
    text[0, 0] = 70
    assert torch.equal(model.embed(text)[0], model.embeddings[70])


def test_a_projection_between_stacks_of_different_width_is_applied() -> None:
    folder = DATA / "s1_tiny"
    config, weights = read_config(folder), load_weights(folder, read_config(folder))
    plain = DualAR(config, weights, SEMANTIC, END)
    projecting = DualAR(config, weights, SEMANTIC, END)
    projecting.projects_fast_input = True
    projecting.fast_project = torch.eye(64) * 2
    projecting.fast_project_bias = torch.arange(64.0)
    residual = torch.randn(3, 64)
    hidden, logits = plain.slow_head(residual)
    projected, same = projecting.slow_head(residual)
    torch.testing.assert_close(projected, hidden * 2 + torch.arange(64.0))
    assert torch.equal(logits, same)
