"""The ``encode`` command and its files: teacher speech as code frames.

A file ``codes_NN.npz`` of at most ``--part-mib`` holds whole utterances: ``lo`` and ``hi`` (the low
8 and the high 2 bits of each code, four codes' high bits to a byte), ``frames``, ``speaker`` and
``text`` of each utterance, and ``where``, for each half frame of 25 ms the phoneme it belongs to,
as differences. Together with the texts and their alignment this is all that the DualAR needs.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from ..codec.config import CodecConfig, parse_config
from .budget import Budget
from .codec_model import BUILTIN, TrainedCodec
from .speech import FRAME, FRAMES_PER_CODE, RATE, Speech, read_speech
from .tracing import pulse

MAX_CODE = 1023
TOLD_S = 5.0
"""Between two lines about how far it is."""
BYTES_A_FRAME = 10.9
"""On disk, about: 8 codes of 10 bits that hardly compress, and the places."""

Codes = npt.NDArray[np.uint16]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Corpus:
    """``codes`` [frames, books] of all utterances; utterance ``u`` is ``starts[u]`` to
    ``starts[u + 1]``, and ``where`` [2 frames] has two entries for each of its frames."""

    codes: Codes
    where: npt.NDArray[np.uint8]
    starts: Ints
    speaker: Ints
    text: Ints
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.speaker)

    @property
    def hours(self) -> float:
        return len(self.codes) * FRAMES_PER_CODE * FRAME / RATE / 3600

    def codes_of(self, index: int) -> Codes:
        return self.codes[self.starts[index] : self.starts[index + 1]]

    def where_of(self, index: int) -> npt.NDArray[np.uint8]:
        return self.where[2 * self.starts[index] : 2 * self.starts[index + 1]]


def write_corpus(corpus: Corpus, folder: Path, part_bytes: int, max_parts: int) -> list[Path]:
    """Writes the first parts; what does not fit into ``max_parts`` is left out."""
    if corpus.codes.max(initial=0) > MAX_CODE:
        raise ValueError(f"codes above {MAX_CODE} do not fit the format")
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("codes_*.npz"):
        old.unlink()
    paths: list[Path] = []
    first = 0
    while first < len(corpus) and len(paths) < max_parts:
        room = int(part_bytes / BYTES_A_FRAME)
        last = int(np.searchsorted(corpus.starts, corpus.starts[first] + room, "right")) - 1
        last = min(max(last, first + 1), len(corpus))
        path = folder / f"codes_{len(paths):02d}.npz"
        _write_part(corpus, first, last, path)
        paths.append(path)
        first = last
    return paths


def _write_part(corpus: Corpus, first: int, last: int, path: Path) -> None:
    begin, end = corpus.starts[first], corpus.starts[last]
    codes = corpus.codes[begin:end]
    books = codes.shape[1]
    padded = np.zeros((len(codes), -(-books // 4) * 4), np.uint8)
    padded[:, :books] = codes >> 8
    high = padded.reshape(len(codes), -1, 4)
    packed = high[..., 0] | high[..., 1] << 2 | high[..., 2] << 4 | high[..., 3] << 6
    where = corpus.where[2 * begin : 2 * end]
    np.savez_compressed(
        path,
        lo=(codes & 255).astype(np.uint8),
        hi=packed,
        where=np.diff(where, prepend=np.uint8(0)),
        frames=np.diff(corpus.starts[first : last + 1]).astype(np.uint16),
        speaker=corpus.speaker[first:last].astype(np.uint16),
        text=corpus.text[first:last].astype(np.uint32),
        names=np.array(corpus.names),
    )


def read_corpus(*folders: Path) -> Corpus:
    """All parts in all ``folders``, which hold codes of one codec and one pool of speakers.
    Raises ValueError when one holds none, or other speakers than the first."""
    paths: list[Path] = []
    for folder in folders:
        found = sorted(folder.glob("codes_*.npz"))
        if not found:
            raise ValueError(f"{folder} holds no codes_NN.npz")
        paths += found
    parts = [np.load(path) for path in paths]
    for path, part in zip(paths, parts, strict=True):
        if list(part["names"]) != list(parts[0]["names"]):
            raise ValueError(f"{path} is of other speakers than {paths[0]}")
    codes: list[Codes] = []
    for part in parts:
        low, packed = part["lo"].astype(np.uint16), part["hi"]
        high = np.stack([packed >> shift & 3 for shift in (0, 2, 4, 6)], -1)
        high = high.reshape(len(low), -1)[:, : low.shape[1]].astype(np.uint16)
        codes.append(low | high << 8)
    frames = np.concatenate([part["frames"] for part in parts]).astype(np.int64)
    return Corpus(
        codes=np.concatenate(codes),
        where=np.concatenate([np.cumsum(part["where"], dtype=np.uint8) for part in parts]),
        starts=np.concatenate([[0], np.cumsum(frames)]),
        speaker=np.concatenate([part["speaker"] for part in parts]).astype(np.int64),
        text=np.concatenate([part["text"] for part in parts]).astype(np.int64),
        names=tuple(str(name) for name in parts[0]["names"]),
    )


def load_trained_codec(folder: Path, device: torch.device | str) -> TrainedCodec:
    """``codec.pth`` of a folder, with its ``codec_config.json`` or the built-in voice's shape."""
    shape = folder / "codec_config.json"
    config: CodecConfig = parse_config(json.loads(shape.read_text())) if shape.exists() else BUILTIN
    codec = TrainedCodec(config).to(device).eval()
    stored = torch.load(folder / "codec.pth", map_location=device, weights_only=True)
    codec.load_state_dict({key: value.float() for key, value in stored.items()})
    return codec


def encode(codec: TrainedCodec, speech: Speech, batch_s: float, budget: Budget) -> Corpus:
    """Every utterance, batched by length, in float32 so that codes do not depend on the batch."""
    device = next(codec.parameters()).device
    frames = speech.frames // FRAMES_PER_CODE
    starts = np.concatenate([[0], np.cumsum(frames)]).astype(np.int64)
    codes = np.zeros((starts[-1], len(codec.quantizer.books)), np.uint16)
    where = np.zeros(2 * starts[-1], np.uint8)
    order = np.argsort(frames, kind="stable")
    samples_a_frame = FRAMES_PER_CODE * FRAME
    begin, told_s = 0, budget.spent_s
    while begin < len(order):
        end = begin + 1
        while (
            end < len(order)
            and (end - begin + 1) * frames[order[end]] * samples_a_frame <= batch_s * RATE
        ):
            end += 1
        batch = order[begin:end]
        audio = np.zeros((len(batch), int(frames[batch].max()) * samples_a_frame), np.int16)
        for row, index in enumerate(batch):
            first = int(speech.start[index]) * FRAME
            count = int(frames[index]) * samples_a_frame
            audio[row, :count] = speech.audio[first : first + count]
        sound = torch.from_numpy(audio).to(device).float() / 32768
        found = codec.encode(sound[:, None]).to(torch.int16).cpu().numpy().astype(np.uint16)
        for row, index in enumerate(batch):
            count = int(frames[index])
            codes[starts[index] : starts[index + 1]] = found[row, :, :count].T
            where[2 * starts[index] : 2 * starts[index + 1]] = speech.where_of(index)[: 2 * count]
        begin = end
        if budget.spent_s - told_s > TOLD_S:
            told_s = budget.spent_s
            print(f"{end} of {len(order)} utterances after {told_s:.0f} s", flush=True)
    corpus = Corpus(codes, where, starts, speech.speaker, speech.text, speech.names)
    print(f"encoded {corpus.hours:.2f} h after {budget.spent_s:.0f} s", flush=True)
    return corpus


def entropies(codes: Codes) -> list[float]:
    """Bits that each book carries."""
    bits: list[float] = []
    for book in codes.T:
        share = np.bincount(book, minlength=MAX_CODE + 1) / len(book)
        share = share[share > 0]
        bits.append(round(float(-(share * np.log2(share)).sum()), 2))
    return bits


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="encode", description=__doc__)
    parser.add_argument("--speech", type=Path, required=True)
    parser.add_argument("--codec", type=Path, required=True, help="the folder of codec.pth")
    parser.add_argument("--out", type=Path, required=True, help="a folder for all parts")
    parser.add_argument("--carry", type=Path, help="a folder for the first --carry-parts again")
    parser.add_argument("--carry-parts", type=int, default=3)
    parser.add_argument("--part-mib", type=float, default=14.5)
    parser.add_argument("--batch-s", type=float, default=900.0, help="seconds of sound a batch")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    flags = parser.parse_args(argv)
    budget = Budget(60.0)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    codec = load_trained_codec(flags.codec, flags.device)
    corpus = encode(codec, read_speech(flags.speech), flags.batch_s, budget)
    print("bits of each book", entropies(corpus.codes), flush=True)
    part_bytes = int(flags.part_mib * 2**20)
    with pulse("packing"):
        paths = write_corpus(corpus, flags.out, part_bytes, 99)
    if flags.carry is not None:
        flags.carry.mkdir(parents=True, exist_ok=True)
        for path in paths[: flags.carry_parts]:
            (flags.carry / path.name).write_bytes(path.read_bytes())
    for path in paths:
        print(f"{path.name} {path.stat().st_size / 2**20:.2f} MiB")
    print(f"done after {budget.spent_s:.0f} s")
    return 0
