"""The request's fields: what is taken, clamped, and refused with which words."""

from __future__ import annotations

import base64
import math

import pytest

from shoal.proto.errors import Code, ProtocolError
from shoal.proto.messages import MAX_REFERENCES, MAX_TEXT_CHARS, Prosody, Reference, TtsRequest
from shoal.proto.request import PIECE_CHARS, RATES, format_of, parse_request


def refusal(**fields: object) -> str:
    with pytest.raises(ProtocolError) as caught:
        parse_request(fields)
    assert caught.value.code is Code.BAD_REQUEST
    return caught.value.message


def test_nothing_given_is_the_hosted_default() -> None:
    assert parse_request({}) == TtsRequest(
        format="mp3", sample_rate=44_100, chunk_length=300, min_chunk_length=50, latency="normal"
    )


SDK = {
    "text": "",
    "chunk_length": 200,
    "format": "mp3",
    "sample_rate": None,
    "mp3_bitrate": 128,
    "opus_bitrate": 32,
    "references": [],
    "reference_id": None,
    "normalize": True,
    "latency": "balanced",
    "prosody": None,
    "top_p": 0.7,
    "temperature": 0.7,
    "max_new_tokens": 1024,
    "repetition_penalty": 1.2,
    "min_chunk_length": 50,
    "condition_on_previous_chunks": True,
    "early_stop_threshold": 1.0,
}


def test_what_the_python_sdk_sends() -> None:
    request = parse_request(SDK)
    assert (request.format, request.sample_rate, request.chunk_length) == ("mp3", 44_100, 200)
    assert (request.temperature, request.top_p, request.max_new_tokens) == (0.7, 0.7, 1024)
    assert parse_request({**SDK, "format": "opus"}).opus_bitrate_bps == 32_000


def test_what_livekit_sends() -> None:
    request = parse_request(
        {
            "format": "wav",
            "sample_rate": 24000,
            "chunk_length": 100,
            "opus_bitrate": 64000,
            "mp3_bitrate": 64,
            "latency": "low",
            "prosody": {"speed": 1.0},
            "features": ["quality-guard"],
            "reference_id": "933563129e564b19a115bedd57b7406a",
        }
    )
    assert (request.format, request.sample_rate, request.latency) == ("wav", 24_000, "low")
    assert request.reference_id == "933563129e564b19a115bedd57b7406a"


def test_what_pipecat_sends() -> None:
    request = parse_request(
        {
            "format": "pcm",
            "sample_rate": 8000,
            "latency": "balanced",
            "prosody": {"speed": 1.0, "volume": 0},
            "reference_id": None,
            "normalize_loudness": True,
        }
    )
    assert (request.sample_rate, request.prosody) == (8000, Prosody())


@pytest.mark.parametrize(("audio_format", "rates"), RATES.items())
def test_every_rate_of_a_format_is_taken_as_int_or_float(
    audio_format: str, rates: tuple[int, ...]
) -> None:
    for rate in rates:
        assert parse_request({"format": audio_format, "sample_rate": rate}).sample_rate == rate
        assert (
            parse_request({"format": audio_format, "sample_rate": float(rate)}).sample_rate == rate
        )
    assert "sample_rate must be one of" in refusal(format=audio_format, sample_rate=11_025)


def test_a_null_rate_is_the_format_s_own() -> None:
    assert parse_request({"format": "opus", "sample_rate": None}).sample_rate == 48_000
    assert parse_request({"format": "pcm", "sample_rate": None}).sample_rate == 44_100


@pytest.mark.parametrize(
    ("name", "audio_format", "rate"),
    [
        ("ulaw", "ulaw", 8000),
        ("mulaw", "ulaw", 8000),
        ("g711_ulaw", "ulaw", 8000),
        ("pcm_mulaw", "ulaw", 8000),
        ("alaw", "alaw", 8000),
        ("pcm_alaw", "alaw", 8000),
        ("g711_alaw", "alaw", 8000),
        ("pcm_s16le", "pcm", 44_100),
        ("linear16", "pcm", 44_100),
        ("pcm_f32le", "pcm_f32le", 44_100),
        ("flac", "flac", 44_100),
        ("mp3", "mp3", 44_100),
    ],
)
def test_a_format_goes_by_many_names_and_has_a_rate_of_its_own(
    name: str, audio_format: str, rate: int
) -> None:
    request = parse_request({"format": name})
    assert (request.format, request.sample_rate) == (audio_format, rate)
    assert format_of(name) == audio_format


def test_no_other_name_is_a_format() -> None:
    assert format_of("aac") is None and format_of("") is None
    assert "sample_rate must be one of 8000, 16000 for ulaw" in refusal(
        format="mulaw", sample_rate=24_000
    )


@pytest.mark.parametrize("kbps", [64, 128, 192, 192.0, None])
def test_mp3_bitrates(kbps: object) -> None:
    request = parse_request({"format": "mp3", "sample_rate": 32_000, "mp3_bitrate": kbps})
    assert request.mp3_bitrate_kbps == (kbps or 128)


@pytest.mark.parametrize(
    ("given", "bps"),
    [(24, 24_000), (64.0, 64_000), (48_000, 48_000), (-1000, -1000), (None, -1000)],
)
def test_opus_bitrate_comes_in_kbps_and_bps(given: object, bps: int) -> None:
    assert parse_request({"format": "opus", "opus_bitrate": given}).opus_bitrate_bps == bps


def test_a_bitrate_of_another_format_is_not_looked_at() -> None:
    assert parse_request({"format": "pcm", "opus_bitrate": 5, "mp3_bitrate": 5}).format == "pcm"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"format": "aac"}, "format: unknown variant, expected one of `wav`, `pcm`, `mp3`"),
        ({"latency": "fast"}, "latency: unknown variant, expected one of `normal`, `balanced`"),
        ({"format": 3}, "format must be a string"),
        ({"format": "mp3", "mp3_bitrate": 100}, "mp3_bitrate must be one of 64, 128, 192"),
        ({"format": "opus", "opus_bitrate": 100}, "opus_bitrate must be one of"),
        ({"format": "pcm", "sample_rate": 24000.5}, "sample_rate must be one of"),
        ({"format": "pcm", "sample_rate": math.inf}, "sample_rate must be one of"),
        ({"format": "pcm", "sample_rate": "24000"}, "sample_rate must be a number"),
        ({"format": "pcm", "sample_rate": True}, "sample_rate must be a number"),
        ({"prosody": {"speed": 2.1}}, "speed must be in"),
        ({"prosody": {"speed": -math.inf}}, "speed must be in"),
        ({"prosody": 5}, "prosody must be a map"),
        ({"temperature": "hot"}, "temperature must be a number"),
        ({"normalize": "yes"}, "normalize must be true or false"),
        ({"text": 5}, "text must be a string"),
        ({"reference_id": 5}, "reference_id must be a string"),
        ({"reference_id": ["a", 5]}, "reference_id must be a string"),
        ({"reference_id": ["a", "../b"]}, "Reference not found"),
        ({"reference_id": ["a"] * 21}, "at most 20 voices"),
        ({"reference_id": "x" * 1000}, "Reference not found"),
        ({"reference_id": ["a", "b"], "text": "<|speaker:2|>Hi."}, "<|speaker:2|> has no voice"),
        ({"references": "x"}, "references must be a list"),
        ({"references": [5]}, "references[0] must be a map"),
        ({"references": [[{}]]}, "references[0][0].audio must be the bytes"),
        ({"references": [[], [{"audio": b"x"}]]}, "one list of recordings for each speaker"),
        ({"references": [{"audio": b"x"}, []]}, "one list of recordings for each speaker"),
        ({"references": [[{"audio": b"x"}] * 11] * 2}, "at most 20 references"),
        ({"references": [[]] * 30}, "one list of recordings for each speaker"),
        ({"references": [{"text": "a"}]}, "references[0].audio must be the bytes"),
        ({"references": [{"audio": b"", "text": "a"}]}, "references[0].audio must be the bytes"),
        ({"references": [{"audio": "%%%", "text": "a"}]}, "neither bytes nor base64"),
        ({"references": [{"audio": "\u00e4", "text": "a"}]}, "neither bytes nor base64"),
        ({"references": [{"audio": b"x"}] * (MAX_REFERENCES + 1)}, "at most 20 references"),
    ],
)
def test_what_is_refused_says_why(fields: dict[str, object], words: str) -> None:
    assert words in refusal(**fields)


def test_absurd_numbers_are_clamped_and_never_refused() -> None:
    request = parse_request(
        {
            "temperature": 1e300,
            "top_p": -math.inf,
            "repetition_penalty": math.inf,
            "chunk_length": -(2**63),
            "min_chunk_length": 2**64 - 1,
            "max_new_tokens": -5,
            "seed": 2**64 - 1,
            "prosody": {"volume": 1e9},
        }
    )
    assert (request.temperature, request.top_p, request.repetition_penalty) == (1.0, 0.01, 2.0)
    assert (request.chunk_length, request.min_chunk_length) == (100, 100)
    assert request.max_new_tokens is None
    assert request.seed is not None and 0 <= request.seed < 2**63
    assert request.prosody.volume_db == 20.0
    nothing = parse_request({"temperature": math.nan, "seed": math.inf, "max_new_tokens": math.inf})
    assert (nothing.temperature, nothing.seed, nothing.max_new_tokens) == (None, None, 1 << 20)


@pytest.mark.parametrize("voice", ["../etc/passwd", "a/b", "a\\b", ".", "..", "a\0b", "x" * 257])
def test_an_id_that_could_be_a_path_is_no_voice(voice: str) -> None:
    assert refusal(reference_id=voice) == "Reference not found"


@pytest.mark.parametrize(
    "voice", ["alice", "933563129e564b19a115bedd57b7406a", "Zo\u00eb 2", "a.b"]
)
def test_an_id_is_any_plain_name(voice: str) -> None:
    assert parse_request({"reference_id": voice}).reference_id == voice


def test_several_ids_are_several_speakers() -> None:
    request = parse_request({"reference_id": ["ann", "bob"], "text": "<|speaker:1|>Hello."})
    assert request.speakers == ("ann", "bob")
    assert (request.reference_id, request.references) == (None, ())


def test_lists_of_recordings_are_several_speakers() -> None:
    first, second = {"audio": b"1", "text": "a"}, {"audio": b"2", "text": "b"}
    request = parse_request({"references": [[first, second], [second]]})
    one, two = Reference(b"1", "a"), Reference(b"2", "b")
    assert request.speakers == ((one, two), (two,))
    assert (request.reference_id, request.references) == (None, ())
    # One list is one speaker, and an id wins over recordings as it does elsewhere.
    assert parse_request({"references": [[first, second]]}).references == (one, two)
    assert parse_request({"references": [[first], [second]], "reference_id": "x"}).speakers == ()
    several = parse_request({"references": [first], "reference_id": ["x", "y"]})
    assert several.speakers == ("x", "y") and several.references == ()


def test_a_mark_without_a_voice_matters_only_where_there_are_several() -> None:
    assert parse_request({"text": "<|speaker:7|>Hello.", "reference_id": "ann"}).speakers == ()


@pytest.mark.parametrize("size", [1, 2, 3, PIECE_CHARS // 4 * 3, PIECE_CHARS // 4 * 3 + 1, 500_000])
def test_base64_of_any_length_is_what_it_was(size: int) -> None:
    audio = bytes(range(251)) * (size // 251 + 1)
    entry = {"audio": base64.b64encode(audio[:size]).decode(), "text": "x"}
    assert parse_request({"references": [entry]}).references[0].audio == audio[:size]


@pytest.mark.parametrize(
    "end", ["", "=", "==", "A", "AA=", "A" * 6, "====", "AA==AA==", "AAAA", "AAA="]
)
@pytest.mark.parametrize("before", ["AAAA", "AAA=", "AA==", "AA A"])
def test_base64_is_checked_in_pieces_as_if_it_were_one(before: str, end: str) -> None:
    text = "A" * (PIECE_CHARS - 4) + before + end
    try:
        audio = base64.b64decode(text, validate=True)
    except ValueError:
        assert "base64" in refusal(references=[{"audio": text, "text": "a"}])
    else:
        (reference,) = parse_request({"references": [{"audio": text, "text": "a"}]}).references
        assert reference.audio == audio


def test_references_come_as_bytes_and_as_base64() -> None:
    encoded = base64.b64encode(b"RIFF").decode()
    request = parse_request(
        {"references": [{"audio": b"RIFF", "text": "a"}, {"audio": encoded, "text": None}]}
    )
    assert request.references == (Reference(b"RIFF", "a"), Reference(b"RIFF", ""))


def test_a_list_of_one_voice_is_that_voice() -> None:
    assert parse_request({"reference_id": ["a"]}).reference_id == "a"
    assert parse_request({"reference_id": []}).reference_id is None
    assert parse_request({"reference_id": ""}).reference_id is None


def test_text_over_the_limit_is_too_big() -> None:
    with pytest.raises(ProtocolError) as caught:
        parse_request({"text": "x" * (MAX_TEXT_CHARS + 1)})
    assert caught.value.code is Code.TOO_BIG
