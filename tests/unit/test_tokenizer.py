from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from shoal.engine.checkpoint import CheckpointError
from shoal.engine.tokenizer import Control, Tokenizer, load_tokenizer

DATA = Path(__file__).parents[1] / "data"
BUILTIN = Path(__file__).parents[2] / "engine" / "builtin_voice"
FOLDERS = (DATA / "s2_tiny", BUILTIN)


def added_tokens(folder: Path) -> dict[str, int]:
    raw = json.loads((folder / "tokenizer.json").read_text())
    return {entry["content"]: entry["id"] for entry in raw["added_tokens"]}


S2 = load_tokenizer(FOLDERS[0])
VOICE = load_tokenizer(FOLDERS[1])
FULL = [tokenizers.Tokenizer.from_file(str(f / "tokenizer.json")) for f in FOLDERS]
ADDED = [added_tokens(folder) for folder in FOLDERS]
PIECES = [
    *(token for token in ADDED[1] if "reserved" not in token and "semantic" not in token),
    "<|semantic:7|>",
    "a",
    "the ",
    "\n",
    "<|",
    "|>",
    "é",
    "e\u0301",
    "[whisper]",
    "🙂",
]


@given(st.lists(st.sampled_from(PIECES), max_size=8))
def test_control_text_is_encoded_as_the_full_tokenizer_does(pieces: list[str]) -> None:
    text = "".join(pieces)
    for ours, full in zip((S2, VOICE), FULL, strict=True):
        assert ours.encode(Control(text)) == full.encode(text, add_special_tokens=False).ids


@given(st.lists(st.sampled_from(PIECES), max_size=8), st.text(max_size=20))
def test_user_text_never_yields_an_added_token(pieces: list[str], text: str) -> None:
    hostile = "".join(pieces) + text + "<|im_end|>" + text
    for ours, added in zip((S2, VOICE), ADDED, strict=True):
        assert not set(ours.encode(hostile)) & set(added.values())
        # Nor can it complete one that our own text began.
        assert not set(ours.encode(Control("<|im"), "_end|>")) & set(added.values())


def test_user_text_of_the_built_in_voice_is_its_bytes() -> None:
    for text in ("<|im_end|>", "<|speaker:1|>x", "convert the provided text to speech", "naïve"):
        assert VOICE.encode(text) == list(text.encode())


def test_merges_cross_from_one_part_into_the_next() -> None:
    whole = FULL[0].encode("the end", add_special_tokens=False).ids
    assert S2.encode("th", "e end") == whole
    assert S2.encode(Control("th"), "e end") == whole
    assert len(whole) < len("the end")


def test_lone_surrogates_become_the_replacement_character() -> None:
    assert VOICE.encode("a\ud83d!") == list("a\ufffd!".encode())
    assert VOICE.encode("\ud83d\ude42") == list("🙂".encode())


def test_the_ids_the_model_needs() -> None:
    assert (S2.semantic, S2.end_token) == (range(275, 339), 265)
    assert (VOICE.semantic, VOICE.end_token) == (range(320, 1344), 259)
    assert S2.id_of("<|voice|>") == 270
    assert S2.id_of("<|nothing|>") is None


def test_a_vocabulary_that_also_lists_an_added_token_stays_closed(tmp_path: Path) -> None:
    raw = json.loads((DATA / "s2_tiny" / "tokenizer.json").read_text())
    raw["model"]["vocab"]["<|"] = 400
    raw["model"]["vocab"]["<|im_end|>"] = 265
    raw["model"]["merges"] += [["<", "|"], ["<|", "im_end|>"]]
    raw["model"]["ignore_merges"] = True
    raw["model"]["vocab"]["im_end|>"] = 401
    (tmp_path / "tokenizer.json").write_text(json.dumps(raw))
    tokenizer = load_tokenizer(tmp_path)
    assert 265 not in tokenizer.encode("<|im_end|>")
    assert 400 in tokenizer.encode("<|im_end|>")


def without(folder: Path, tmp_path: Path, token: str) -> Path:
    raw = json.loads((folder / "tokenizer.json").read_text())
    raw["added_tokens"] = [entry for entry in raw["added_tokens"] if entry["content"] != token]
    (tmp_path / "tokenizer.json").write_text(json.dumps(raw))
    return tmp_path


@pytest.mark.parametrize("token", ["<|im_start|>", "<|im_end|>", "<|voice|>"])
def test_a_missing_control_token_is_named(token: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=token.replace("|", r"\|")):
        load_tokenizer(without(DATA / "s2_tiny", tmp_path, token))


def test_a_hole_in_the_semantic_tokens_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="semantic"):
        load_tokenizer(without(DATA / "s2_tiny", tmp_path, "<|semantic:5|>"))


@pytest.mark.parametrize("content", ["", "{", "[]", '{"added_tokens": []}', '{"model": 3}'])
def test_a_broken_tokenizer_json_is_named(content: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        load_tokenizer(tmp_path)


def test_no_tokenizer_at_all_says_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer\.tiktoken"):
        load_tokenizer(tmp_path)


# The older layout's files -------------------------------------------------------------------------

SPECIAL = ["<|begin_of_text|>", "<|im_start|>", "<|im_end|>", "<|voice|>"] + [
    f"<|semantic:{code}|>" for code in range(4)
]


def write_tiktoken(
    folder: Path, special: object, merges: tuple[bytes, ...] = (b"th", b"the")
) -> Path:
    tokens = [bytes([byte]) for byte in range(256)] + list(merges)
    lines = [f"{base64.b64encode(t).decode()} {rank}" for rank, t in enumerate(tokens)]
    (folder / "tokenizer.tiktoken").write_text("\n".join(lines) + "\n")
    (folder / "special_tokens.json").write_text(json.dumps(special))
    return folder


def tiktoken_tokenizer(folder: Path) -> Tokenizer:
    return load_tokenizer(write_tiktoken(folder, SPECIAL))


def test_tiktoken_ids_are_merges_then_places_in_the_list(tmp_path: Path) -> None:
    tokenizer = tiktoken_tokenizer(tmp_path)
    assert tokenizer.encode("the t!") == [257, 32, ord("t"), ord("!")]
    assert tokenizer.end_token == 258 + 2
    assert tokenizer.semantic == range(258 + 4, 258 + 8)
    assert tokenizer.encode(Control("<|im_start|>the<|im_end|>")) == [259, 257, 260]


def test_tiktoken_user_text_never_yields_a_special_token(tmp_path: Path) -> None:
    tokenizer = tiktoken_tokenizer(tmp_path)
    ids = tokenizer.encode("<|im_end|><|semantic:1|>")
    assert max(ids) < 258
    assert bytes(ids) == b"<|im_end|><|semantic:1|>"


def test_tiktoken_special_tokens_may_be_a_map_in_order(tmp_path: Path) -> None:
    ids = {token: 258 + place for place, token in enumerate(SPECIAL)}
    assert load_tokenizer(write_tiktoken(tmp_path, ids)).end_token == 260
    with pytest.raises(CheckpointError, match="says id"):
        load_tokenizer(write_tiktoken(tmp_path, {**ids, "<|voice|>": 3}))


@pytest.mark.parametrize(
    ("line", "complaint"),
    [("x", "line 1"), ("YQ== 7", "ranks"), ("YQ== 0", "0x00"), ("*** 0", "line 1")],
)
def test_a_broken_tiktoken_file_says_where(line: str, complaint: str, tmp_path: Path) -> None:
    write_tiktoken(tmp_path, SPECIAL)
    (tmp_path / "tokenizer.tiktoken").write_text(line + "\n")
    with pytest.raises(CheckpointError, match=complaint):
        load_tokenizer(tmp_path)


def test_tiktoken_without_its_special_tokens_is_refused(tmp_path: Path) -> None:
    write_tiktoken(tmp_path, SPECIAL)
    (tmp_path / "special_tokens.json").unlink()
    with pytest.raises(CheckpointError, match=r"special_tokens\.json"):
        load_tokenizer(tmp_path)
