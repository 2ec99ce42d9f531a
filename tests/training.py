"""A corpus of hums and networks small enough to train on it within a test."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from shoal.engine.codec.config import CodecConfig, QuantizerShape, WindowShape
from shoal.engine.model.config import DualARConfig, StackConfig
from shoal.engine.training.budget import Budget
from shoal.engine.training.codec_model import Quantized, TrainedCodec, describe
from shoal.engine.training.export import describe_model
from shoal.engine.training.speech import SpeechWriter, speaker_pool
from shoal.engine.training.teacher import Styles, at_random, speak
from shoal.engine.training.texts import Texts, read_texts, write_texts

CODEC = CodecConfig(
    sample_rate=24000,
    encoder_dim=2,
    encoder_rates=(2, 5, 5, 6),
    encoder_transformer_layers=(0, 0, 0, 0),
    decoder_dim=32,
    decoder_rates=(6, 5, 5, 2),
    quantizer=QuantizerShape(24, 2, 1024, 1024, 8, (2, 2)),
    pre_post=WindowShape(1, 24, 3, 32, 8),
)
MODEL = DualARConfig(
    layout="s2",
    vocab_size=1344,
    codebooks=3,
    codebook_size=1024,
    max_seq_len=512,
    rope_base=10000.0,
    norm_eps=1e-6,
    slow=StackConfig(5, 32, 2, 1, 16, 48, True),
    fast=StackConfig(1, 32, 2, 1, 16, 48, True),
    tied_head=True,
    scale_embeddings=True,
    norm_fast_input=True,
    semantic_begin=320,
    end_token=259,
)
WORDS = ("Go home now.", "A bad cab.", "See me, then.", "Is it ok?", "He fed a dog.", "No!")
VOICES = ("af_heart", "am_michael", "bf_emma")


class Hum:
    """A teacher whose phonemes are tones: phoneme ``p`` of 75 ms sounds at 100 + 10 p Hz."""

    FRAMES = 3

    def __call__(
        self, phonemes: Tensor, lengths: Tensor, style: Tensor, speed: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        frames = lengths * self.FRAMES
        steps = int(frames.max())
        index = (torch.arange(steps) // self.FRAMES).expand(len(phonemes), -1)
        index = index.clamp(max=phonemes.shape[1] - 1)
        said = torch.gather(phonemes, 1, index).repeat_interleave(600, 1)
        turns = ((100.0 + 10.0 * said) / 24000).cumsum(1)
        silent = (said == 0) | (torch.arange(600 * steps) >= 600 * frames[:, None])
        return torch.sin(2 * torch.pi * turns) * 0.2 * ~silent, frames, index


def letters_as_phonemes(sentence: str) -> np.ndarray:
    """Phoneme ids as if every letter were one; a silent h."""
    return np.array([ord(c) for c in sentence.lower() if c != "h"], np.uint8)


def write_small_texts(folder: Path) -> tuple[Path, Path]:
    """The text file and its alignment."""
    texts, places = folder / "texts.npz", folder / "places.npz"
    write_texts(texts, [w.encode() for w in WORDS], [letters_as_phonemes(w) for w in WORDS])
    spelled = [[i for i, c in enumerate(word.lower()) if c != "h"] for word in WORDS]
    np.savez(places, places=np.concatenate(spelled).astype(np.uint8))
    return texts, places


def small_texts(folder: Path) -> Texts:
    return read_texts(*write_small_texts(folder))


def write_small_speech(folder: Path, texts: Texts, hours: float = 0.04) -> None:
    """Utterances of three voices and two blends."""
    table = torch.zeros(len(VOICES), 4, 256)
    styles = Styles(table, speaker_pool(list(VOICES), 2))
    with SpeechWriter(folder, styles.speakers.names) as out:
        drawn = at_random(texts, styles.speakers, 60, 3)
        speak(Hum(), styles, texts, out, Budget(1.0), drawn=drawn, max_hours=hours, seed=5)


def write_shapes(folder: Path) -> None:
    """``codec_config.json`` and ``config.json`` of the small networks."""
    folder.mkdir(exist_ok=True)
    (folder / "codec_config.json").write_text(json.dumps(describe(CODEC)))
    (folder / "config.json").write_text(json.dumps(describe_model(MODEL)))


@torch.no_grad()
def draw_many_entries(codec: TrainedCodec, recordings: Sequence[np.ndarray]) -> None:
    """Untrained, each book's points lie to one side of all entries: here they lie around 0."""
    sound = torch.from_numpy(np.concatenate(recordings))[None, None]
    sound = sound[..., : sound.shape[-1] // 1200 * 1200]
    for number, book in enumerate(codec.quantizer.books):
        found = Quantized(*codec(sound, torch.tensor([2])))
        assert book.in_proj.bias is not None
        book.in_proj.bias -= found.points[number].mean((0, 2))
