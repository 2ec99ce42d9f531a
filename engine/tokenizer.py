"""Text to token ids, with a wall between our control text and the user's text.

Owns both file formats a checkpoint may bring: ``tokenizer.json`` (byte-level BPE, S2 and the
built-in voice) and ``tokenizer.tiktoken`` + ``special_tokens.json`` (the older flat layout).
Added tokens - special ones, speaker tags, whole prompt phrases - are found by this file, and only
inside :class:`Control` text; the encoder underneath does not know them, so no text of a user can
produce one. Knows nothing of prompts. Immutable after loading; any thread; no torch.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import tiktoken
import tokenizers

from .checkpoint import CheckpointError, read_json

IM_START = "<|im_start|>"
IM_END = "<|im_end|>"
VOICE = "<|voice|>"
_SEMANTIC = re.compile(r"<\|semantic:(\d+)\|>")

# How the tiktoken files of the flat layout cut text before merging. Part of the file format, though
# no file says it. The last but one looks like a mistyped look-ahead and has to stay so.
_TIKTOKEN_CUTS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
    r"\p{P}",
    r"[^\r\n\p{L}\p{N}]?\p{L}+",
    r"\p{N}",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"\s*[\r\n]+",
    r"\s+(\?!\S)",
    r"\s+",
)


@dataclass(frozen=True, slots=True)
class Control:
    """Text of our own, in which added tokens count."""

    text: str


class Tokenizer:
    """Encodes pieces of text; see :func:`load_tokenizer`."""

    def __init__(self, plain: Callable[[str], list[int]], added: Mapping[str, int]) -> None:
        """``plain`` encodes text without any added token; ``added`` maps those to their ids.

        Raises :class:`CheckpointError` when a token every prompt needs is missing, or when the
        semantic tokens are not one run of ids.
        """
        self._plain = plain
        self._added = dict(added)
        # Longest first: where several added tokens begin at one place the longest wins.
        ordered = sorted((t for t in self._added if t), key=lambda token: (-len(token), token))
        self._pattern = re.compile("|".join(re.escape(token) for token in ordered))
        for token in (IM_START, IM_END, VOICE):
            if token not in self._added:
                raise CheckpointError(f"tokenizer: the token {token} is missing")
        self.end_token = self._added[IM_END]
        self.semantic = _semantic_ids(self._added)

    def encode(self, *parts: str | Control) -> list[int]:
        """Ids of one piece, the concatenation of ``parts``.

        Merges may cross from one part into the next, exactly as if the piece were one string;
        added tokens are recognised in :class:`Control` parts alone. Lone surrogates, which no
        encoder can represent, become U+FFFD.
        """
        ids: list[int] = []
        pending: list[str] = []

        def flush() -> None:
            text = "".join(pending)
            pending.clear()
            if text:
                ids.extend(self._plain(_without_lone_surrogates(text)))

        for part in parts:
            if isinstance(part, str):
                pending.append(part)
                continue
            begin = 0
            for match in self._pattern.finditer(part.text):
                pending.append(part.text[begin : match.start()])
                flush()
                ids.append(self._added[match.group()])
                begin = match.end()
            pending.append(part.text[begin:])
        flush()
        return ids

    def id_of(self, token: str) -> int | None:
        """The id of an added token, or ``None``."""
        return self._added.get(token)


def load_tokenizer(directory: Path) -> Tokenizer:
    """The tokenizer of a checkpoint folder. Raises :class:`CheckpointError`."""
    if (directory / "tokenizer.json").exists():
        return _load_bpe_json(directory / "tokenizer.json")
    if (directory / "tokenizer.tiktoken").exists():
        return _load_tiktoken(directory)
    raise CheckpointError(f"{directory}: neither tokenizer.json nor tokenizer.tiktoken is there")


def _load_bpe_json(path: Path) -> Tokenizer:
    raw = cast("dict[str, Any]", dict(read_json(path)))
    try:
        added = {str(entry["content"]): int(entry["id"]) for entry in raw["added_tokens"]}
        model: dict[str, Any] = dict(raw["model"])
        vocab = cast("dict[str, int]", model["vocab"])
        # A token listed in both places could be reached through merges, or looked up whole.
        model["vocab"] = {token: index for token, index in vocab.items() if token not in added}
        model["merges"] = [m for m in model["merges"] if _merged(m) not in added]
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: not a byte-level BPE tokenizer ({error!r})") from error
    plain: dict[str, Any] = {**raw, "added_tokens": [], "model": model, "post_processor": None}
    try:
        encoder = tokenizers.Tokenizer.from_str(json.dumps(plain))
    except Exception as error:  # the library raises bare Exception for everything
        raise CheckpointError(f"{path}: {error}") from error
    encode = cast("Callable[..., Any]", encoder.encode)  # pyright: ignore[reportUnknownMemberType]

    def encode_plain(text: str) -> list[int]:
        return cast("list[int]", encode(text, add_special_tokens=False).ids)

    return Tokenizer(encode_plain, added)


def _merged(merge: str | list[str]) -> str:
    return merge.replace(" ", "", 1) if isinstance(merge, str) else "".join(merge)


def _load_tiktoken(directory: Path) -> Tokenizer:
    path = directory / "tokenizer.tiktoken"
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(path.read_text(encoding="ascii").splitlines(), 1):
        if not line.strip():
            continue
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except ValueError as error:
            raise CheckpointError(f"{path}: line {number} is not 'base64 rank'") from error
    if sorted(ranks.values()) != list(range(len(ranks))):
        raise CheckpointError(f"{path}: ranks are not 0..{len(ranks) - 1}")
    missing = [byte for byte in range(256) if bytes([byte]) not in ranks]
    if missing:
        raise CheckpointError(f"{path}: the byte 0x{missing[0]:02x} has no rank")

    added = _special_tokens(directory / "special_tokens.json", first=len(ranks))
    encoding = tiktoken.Encoding(
        name=directory.name,
        pat_str="|".join(_TIKTOKEN_CUTS),
        mergeable_ranks=ranks,
        special_tokens={},
    )
    return Tokenizer(encoding.encode_ordinary, added)


def _special_tokens(path: Path, *, first: int) -> dict[str, int]:
    """Ids follow the order in the file, from ``first``; a map with other ids is refused."""
    try:
        loaded: object = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read ({error})") from error
    if not isinstance(loaded, list | dict):
        raise CheckpointError(f"{path}: must be a list of tokens")
    tokens = [str(token) for token in cast("list[object] | dict[str, object]", loaded)]
    ids = {token: first + position for position, token in enumerate(tokens)}
    if len(ids) != len(tokens):
        raise CheckpointError(f"{path}: a token is listed twice")
    if isinstance(loaded, dict):
        for token, said in cast("dict[str, object]", loaded).items():
            if said != ids[token]:
                raise CheckpointError(f"{path}: {token} says id {said}, its place {ids[token]}")
    return ids


def _semantic_ids(added: Mapping[str, int]) -> range | None:
    """Ids of ``<|semantic:0..n-1|>``, which the model needs as one ascending run."""
    ids: dict[int, int] = {}
    for token, index in added.items():
        match = _SEMANTIC.fullmatch(token)
        if match:
            ids[int(match.group(1))] = index
    if not ids:
        return None
    begin = ids.get(0)
    if begin is None or any(ids.get(code) != begin + code for code in range(len(ids))):
        raise CheckpointError("tokenizer: the semantic tokens are not one ascending run of ids")
    return range(begin, begin + len(ids))


def _without_lone_surrogates(text: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
