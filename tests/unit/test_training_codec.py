"""The codec's training: it learns, goes on where it stopped, and leaves what the engine loads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from shoal.engine.codec import decode_codes, encode_codes, load_codec
from shoal.engine.training.alike import Alike
from shoal.engine.training.codec_command import main
from shoal.engine.training.codec_layers import Snake, snake
from shoal.engine.training.codec_model import BUILTIN, Quantized, TrainedCodec
from shoal.engine.training.codec_plan import Plan, warm
from shoal.engine.training.codec_train import CodecTraining
from shoal.engine.training.codes import (
    load_trained_codec,
)
from shoal.engine.training.critics import Listener, MelDistance
from shoal.engine.training.cuts import Cuts
from shoal.engine.training.speech import read_speech
from shoal.engine.training.states import halved, load_state, save_state
from tests.training import CODEC, draw_many_entries, small_texts, write_shapes, write_small_speech

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = Plan(
    batch=2,
    frames=4,
    warmup=5,
    listen_from=0.0,
    critics_from=0.5,
    fewer_books=0.0,
    critics_width=4,
    listener_width=16,
)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small speech, texts and shapes."""
    folder = tmp_path_factory.mktemp("codec")
    write_small_speech(folder / "speech", small_texts(folder), hours=0.02)
    write_shapes(folder / "shapes")
    return folder


def test_the_builtin_shape_is_that_of_the_committed_voice() -> None:
    voice = Path(__file__).parents[2] / "engine" / "builtin_voice"
    assert load_codec(voice).config == BUILTIN


def test_the_engine_hears_and_says_what_was_trained(tmp_path: Path) -> None:
    torch.manual_seed(0)
    trained = TrainedCodec(CODEC).eval()
    samples = torch.randn(12 * 1200) * 0.1
    draw_many_entries(trained, [samples.numpy()])
    write_shapes(tmp_path)
    torch.save(halved(trained.state_dict()), tmp_path / "codec.pth")
    trained = load_trained_codec(tmp_path, "cpu")
    codec = load_codec(tmp_path)
    codes = trained.encode(samples[None, None])
    assert all(len(book.unique()) > 8 for book in codes[0])
    found = encode_codes(codec, samples)
    assert (found.T == codes[0]).float().mean() > 0.99
    sound = trained.decode(codes)[0, 0]
    assert torch.allclose(decode_codes(codec, codes[0].T.int()), sound, atol=1e-4)


def test_fewer_books_are_fewer_books() -> None:
    torch.manual_seed(0)
    codec = TrainedCodec(CODEC).eval()
    audio = torch.randn(2, 1, 4800) * 0.1
    found = Quantized(*codec(audio, torch.tensor([2, 0])))
    assert found.codes.shape == (2, 3, 4)
    assert torch.allclose(found.audio[0], codec.decode(found.codes)[0], atol=1e-5)
    first = codec.quantizer.books[0].decode(found.codes[:, 0])
    assert torch.allclose(found.semantic, first, atol=1e-5)
    alone = codec.decoder(codec.quantizer.upsample(codec.quantizer.post_module(first)))
    assert torch.allclose(found.audio[1], alone[1], atol=1e-5)


def test_entries_that_nobody_draws_are_moved() -> None:
    torch.manual_seed(0)
    codec = TrainedCodec(CODEC)
    found = Quantized(*codec(torch.randn(2, 1, 9600) * 0.1, torch.tensor([2, 2])))
    before = [book.codebook.weight.clone() for book in codec.quantizer.books]
    codec.restart(found)
    for number, book in enumerate(codec.quantizer.books):
        moved = (book.codebook.weight != before[number]).any(1)
        assert moved.sum() > 1000
        assert not moved[found.codes[:, number].flatten()].any()


def test_a_listener_has_one_answer_for_each_frame_of_the_teacher() -> None:
    scores, features, who = Listener(24000)(torch.randn(2, 7200))
    assert scores.shape == (2, 178, 12) and who.shape == (2, 2048)
    assert all(feature.shape[-1] == 12 for feature in features)
    distance = MelDistance(24000)
    sound = torch.randn(1, 7200)
    assert float(distance(sound, sound)) == 0.0
    assert float(distance(sound, 0.9 * sound)) < float(distance(sound, 0.5 * sound))


def test_losses_fall_and_all_networks_move(folder: Path) -> None:
    torch.manual_seed(0)
    speech = read_speech(folder / "speech")
    training = CodecTraining(CODEC, SMALL, CPU)
    cuts = Cuts(
        speech, speech.labels(small_texts(folder)), CPU, batch=SMALL.batch, frames=SMALL.frames
    )
    batch = cuts()
    assert batch[0].shape == (2, 1, 4800) and batch[1].shape == (2, 8)
    first = training.step(*batch, 0.45)
    assert "verdict" not in first and "heard" in first
    networks = (training.codec, training.listener, training.reader, training.critics)
    before = [[p.clone() for p in network.parameters()] for network in networks]
    for _ in range(12):
        last = training.step(*batch, 0.6)
    assert "verdict" in last
    assert all(
        float(last[name]) < float(first[name])
        for name in ("mel", "phoneme", "listener", "listener_who")
    )
    for network, old in zip(networks, before, strict=True):
        changed = [not torch.equal(p, q) for p, q in zip(network.parameters(), old, strict=True)]
        assert sum(changed) > 0.8 * len(changed)
    assert all(p.requires_grad for network in networks for p in network.parameters())


def test_fused_activations_are_for_training_only(folder: Path) -> None:
    torch.manual_seed(0)
    training = CodecTraining(CODEC, SMALL, CPU)
    audio = torch.randn(2, 1, 4800) * 0.1
    assert training.compile(audio) == "compiled"
    assert all(p.grad is None for p in training.codec.parameters())
    calls: list[int] = []
    for module in training.codec.modules():
        if isinstance(module, Snake):

            def counted(x: torch.Tensor, alpha: torch.Tensor) -> torch.Tensor:
                calls.append(len(x))
                return snake(x, alpha)

            module.fused = counted
    codes = training.codec.encode(audio)
    assert not calls
    again = training.codec(audio, torch.full((2,), 2))[1]
    assert len(calls) > 30 and torch.equal(again, codes)


def test_an_export_is_gone_on_from_whatever_its_weights_are_called(tmp_path: Path) -> None:
    torch.manual_seed(0)
    trained = TrainedCodec(CODEC).eval()
    now = trained.state_dict()
    length, direction = (f".parametrizations.weight.original{n}" for n in (0, 1))
    old = {
        key.replace(length, ".weight_g").replace(direction, ".weight_v"): value.half()
        for key, value in now.items()
    }
    folded: dict[str, torch.Tensor] = {}
    for key, value in now.items():
        if key.endswith(length):
            v = now[key.removesuffix(length) + direction]
            unit = v / v.flatten(1).norm(dim=1).view(value.shape)
            folded[key.removesuffix(length) + ".weight"] = unit * value
        elif not key.endswith(direction):
            folded[key] = value
    audio = torch.randn(1, 1, 4800) * 0.1
    wanted = trained.decode(trained.encode(audio))
    for weights in (now, old, folded):
        training = CodecTraining(CODEC, SMALL, CPU)
        training.begin_from(weights)
        assert torch.allclose(training.codec.decode(trained.encode(audio)), wanted, atol=2e-3)
        averaged = training.average.tensors
        own = training.codec.state_dict()
        assert all(torch.equal(averaged[key], own[key]) for key in own)


def test_the_committed_codec_sounds_in_training_as_in_the_server() -> None:
    voice = Path(__file__).parents[2] / "engine" / "builtin_voice"
    training = CodecTraining(BUILTIN, SMALL, CPU)
    training.begin_from(torch.load(voice / "codec.pth", "cpu", weights_only=True))
    torch.manual_seed(0)
    turns = (torch.rand(24_000) * 0.01).cumsum(0)
    samples = 0.3 * torch.sin(2 * torch.pi * turns) * torch.hann_window(24_000)
    codes = training.codec.eval().encode(samples[None, None])
    server = load_codec(voice)
    assert torch.equal(encode_codes(server, samples).T, codes[0].to(torch.int32))
    sound = training.codec.decode(codes)[0, 0]
    assert float(sound.detach().abs().max()) > 0.1
    assert torch.allclose(decode_codes(server, codes[0].T.int()), sound, atol=1e-4)


def test_books_that_are_gone_on_with_are_moved_only_when_usage_says_so() -> None:
    torch.manual_seed(0)
    training = CodecTraining(CODEC, SMALL, CPU)
    training.begin_from(training.codec.state_dict())
    found = Quantized(*training.codec(torch.randn(2, 1, 4800) * 0.1, torch.tensor([2, 2])))
    before = training.codec.quantizer.books[0].codebook.weight.clone()
    training.codec.restart(found)
    assert torch.equal(training.codec.quantizer.books[0].codebook.weight, before)
    for _ in range(20):
        training.codec.restart(found)
    moved = (training.codec.quantizer.books[0].codebook.weight != before).any(1)
    assert moved.sum() > 1000 and not moved[found.codes[:, 0].flatten()].any()


def test_a_codec_that_has_learnt_is_trained_gently(folder: Path) -> None:
    torch.manual_seed(0)
    plan = warm(replace(SMALL, critics_batch=1, critics_frames=2))
    assert plan.lr < SMALL.lr and plan.warmup > SMALL.warmup
    speech = read_speech(folder / "speech")
    training = CodecTraining(CODEC, plan, CPU)
    batch = Cuts(speech, speech.labels(small_texts(folder)), CPU, batch=2, frames=4)()
    semantic = training.codec.quantizer.books[0].out_proj.bias
    # So much more than all else that what it does not reach is as good as still.
    training.plan = replace(plan, phoneme=1e9)
    slopes: list[float] = []
    for fraction in (0.0, plan.read_from):
        training.step(*batch, fraction)
        assert semantic.grad is not None
        slopes.append(float(semantic.grad.norm()))
    assert slopes[0] < 1e-5 < 1e-3 < slopes[1]
    training.plan = plan
    training.laps.begin()
    first = training.step(*batch, 0.0)
    assert set(training.laps.end()) == {"codec", "mel", "listener", "descent"}
    assert {"listener", "mel"} <= set(first) and not {"heard", "critics"} & set(first)
    learning = training.step(*batch, 0.5 * (plan.critics_from + plan.critics_lead))
    assert "critics" in learning and "verdict" not in learning
    minded = training.step(*batch, 0.2)
    assert {"critics", "verdict", "heard"} <= set(minded)
    assert not training.laps.end()


def test_voices_are_made_more_alike(folder: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    layers = torch.nn.ModuleDict(
        {
            "lstm": torch.nn.LSTM(40, 256, num_layers=3, batch_first=True),
            "linear": torch.nn.Linear(256, 256),
        }
    )
    # As an encoder is that nobody taught, but one that hears more than its own bias.
    stored = {key: 4 * value for key, value in layers.state_dict().items() if "bias" not in key}
    stored |= {key: value for key, value in layers.state_dict().items() if "bias" in key}
    torch.save(stored, tmp_path / "speaker.pth")
    speech = read_speech(folder / "speech")
    batch = Cuts(speech, speech.labels(small_texts(folder)), CPU, batch=2, frames=4)()
    plan = replace(SMALL, mel=0.0, heard=0.0, alike=50.0, critics_from=1.0, lr=2e-3)
    training = CodecTraining(CODEC, plan, CPU, Alike(24_000, tmp_path / "speaker.pth"))
    assert training.try_alike(batch[0])
    first = training.step(*batch, 0.5)["alike"]
    for _ in range(25):
        last = training.step(*batch, 0.5)["alike"]
    assert float(1 - last) < 0.9 * float(1 - first)
    training.plan = replace(plan, alike_every=2)
    found = [training.step(*batch, 0.5) for _ in range(2)]
    assert sum("alike" in step for step in found) == 1
    assert "voices alike" in training.held_out(speech, speech.labels(small_texts(folder)), 1)


def test_a_training_goes_on_where_it_stopped(folder: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    speech = read_speech(folder / "speech")
    batch = Cuts(
        speech, speech.labels(small_texts(folder)), CPU, batch=SMALL.batch, frames=SMALL.frames
    )()
    one, other, third = (CodecTraining(CODEC, SMALL, CPU) for _ in range(3))
    for _ in range(2):
        one.step(*batch, 0.6)
    for training, compact in ((other, False), (third, True)):
        save_state(tmp_path, "codec", one.state(0.6, compact=compact))
        assert training.resume(load_state(tmp_path, "codec")) == 0.6
    results: list[float] = []
    for training in (one, other):
        torch.manual_seed(1)
        results.append(float(training.step(*batch, 0.6)["mel"]))
        results.append(float(training.step(*batch, 0.6)["mel"]))
    assert results[:2] == pytest.approx(results[2:], rel=1e-5)
    torch.manual_seed(1)
    assert float(third.step(*batch, 0.6)["mel"]) == pytest.approx(results[0], rel=1e-2)


def test_the_command_trains_and_resumes(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--speech", str(folder / "speech"), "--out", str(tmp_path / "codec")]
    more = ["--texts", str(folder / "texts.npz"), "--device", "cpu", "--batch", "2"]
    more += ["--config", str(folder / "shapes" / "codec_config.json"), "--frames", "4"]
    more += ["--minutes", "0", "--steps", "2"]  # so many, whatever the machine is busy with
    exports: list[dict[str, torch.Tensor]] = []
    for end, state in (("0.4", "one"), ("1.0", "two")):
        states = ["--state", str(tmp_path / state), "--carry", str(tmp_path / "carry")]
        assert main([*where, *more, *states, "--end", end]) == 0
        export = torch.load(tmp_path / "codec" / "codec.pth", weights_only=True)
        exports.append({key: value.float() for key, value in export.items()})
    said = capsys.readouterr().out
    assert "went on from" in said and "at step 2, 0.400" in said
    assert "held out at step 4" in said and "heard in the output" in said
    early, last = exports
    assert all(value.isfinite().all() for value in last.values())
    assert not all(torch.equal(early[key], last[key]) for key in early)
    write_shapes(tmp_path / "codec")
    loaded = load_trained_codec(tmp_path / "codec", "cpu").state_dict()
    assert all(torch.equal(loaded[key], last[key]) for key in last)


def test_a_command_begins_with_an_export_and_compiles_ahead(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exported = tmp_path / "codec.pth"
    torch.save(halved(TrainedCodec(CODEC).state_dict()), exported)
    flags = ["--speech", str(folder / "speech"), "--texts", str(folder / "texts.npz")]
    flags += ["--out", str(tmp_path / "out"), "--state", str(tmp_path / "state"), "--device", "cpu"]
    flags += ["--config", str(folder / "shapes" / "codec_config.json"), "--init", str(exported)]
    flags += ["--batch", "2", "--frames", "4", "--minutes", "0", "--steps", "1"]
    assert main([*flags, "--compile-only"]) == 0
    assert "compiled after" in capsys.readouterr().out and not (tmp_path / "out").exists()
    assert main(flags) == 0
    assert f"began with {exported}" in capsys.readouterr().out
    begun, left = (
        torch.load(f / "codec.pth", weights_only=True) for f in (tmp_path, tmp_path / "out")
    )
    name = "decoder.model.0.conv.bias"
    assert torch.allclose(begun[name].float(), left[name].float(), atol=2e-3)
    assert main(flags) == 0
    said = capsys.readouterr().out
    assert "went on from" in said and "began with" not in said
