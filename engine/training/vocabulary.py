"""The built-in voice's tokens: bytes, S2's marks, and its prompt's phrases as one token each.

The same ids as in the ``tokenizer.json`` that :func:`write_tokenizer` writes, so that training
needs no tokenizer. A prompt built here is what ``engine.prompt`` builds from that file.
"""

from __future__ import annotations

import json
from pathlib import Path

SPECIAL = (
    *("<|endoftext|>", "<|pad|>", "<|im_start|>", "<|im_end|>"),
    *("<|phoneme_start|>", "<|phoneme_end|>", "<|text|>", "<|voice|>", "<|interleave|>"),
    *("<|audio_start|>", "<|audio_end|>", "<|audio_pad|>"),
    *(f"<|speaker:{i}|>" for i in range(10)),
)
PHRASES = (
    "convert the provided text to speech",
    " reference to the following:\n\nText:\n",
    "\n\nSpeech:\n",
    "assistant\n",
    "system\n",
    "user\n",
)
FIRST_ADDED = 256
SEMANTIC_BEGIN = 320
CODEBOOK_SIZE = 1024
VOCABULARY = SEMANTIC_BEGIN + CODEBOOK_SIZE
IDS = {token: FIRST_ADDED + i for i, token in enumerate((*SPECIAL, *PHRASES))}
PAD, END = IDS["<|pad|>"], IDS["<|im_end|>"]

_NEWLINE = ord("\n")
_START = IDS["<|im_start|>"]
SYSTEM = [_START, IDS["system\n"], IDS[PHRASES[0]]]
REFERENCE = IDS[PHRASES[1]]
SPEECH = IDS[PHRASES[2]]
CLOSING = [END, _NEWLINE]
USER = [_START, IDS["user\n"]]
ASSISTANT = [*CLOSING, _START, IDS["assistant\n"], IDS["<|voice|>"]]


def speaker_mark(number: int) -> int:
    return IDS[f"<|speaker:{number}|>"]


def write_tokenizer(folder: Path) -> None:
    """``tokenizer.json``: byte-level BPE without merges, and the added tokens."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    characters = {byte: chr(byte) for byte in shown}
    for number, byte in enumerate(sorted(set(range(256)) - set(shown))):
        characters[byte] = chr(256 + number)
    unused = SEMANTIC_BEGIN - FIRST_ADDED - len(IDS)
    tokens = [
        *IDS,
        *(f"<|reserved:{i}|>" for i in range(unused)),
        *(f"<|semantic:{i}|>" for i in range(CODEBOOK_SIZE)),
    ]
    added = [
        {
            "id": FIRST_ADDED + i,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": token.startswith("<|"),
        }
        for i, token in enumerate(tokens)
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    described = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {**byte_level, "use_regex": False},
        "post_processor": None,
        "decoder": {**byte_level, "add_prefix_space": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {characters[byte]: byte for byte in range(256)},
            "merges": [],
        },
    }
    (folder / "tokenizer.json").write_text(json.dumps(described, ensure_ascii=False))
