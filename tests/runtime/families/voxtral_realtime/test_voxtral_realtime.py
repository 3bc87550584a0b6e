"""Speech to text without an artifact: padding, the schedule of tokens, streams, and text."""

import itertools
import pickle
from typing import Any

import numpy as np
import pytest
from mistral_common.tokens.tokenizers.audio import (
    AudioConfig,
    AudioEncoder,
    AudioSpectrogramConfig,
    SpecialAudioIDs,
    TranscriptionFormat,
)

from voxport.bundle.constants.voxtral_realtime import RealtimeConstants
from voxport.bundle.errors import UsageError, VoxportError
from voxport.bundle.manifest import ExportRequest
from voxport.export.model import Model
from voxport.export.resolve import Source, resolve
from voxport.export.verify.eager import EagerEngine
from voxport.model.synthetic.checkpoint import random_checkpoint
from voxport.runtime.audio.mel import LogMel
from voxport.runtime.families.voxtral_realtime.decoder import DecodeOptions, StreamingDecoder
from voxport.runtime.families.voxtral_realtime.encoder import mel_settings
from voxport.runtime.families.voxtral_realtime.transcript import Transcript

Eager = tuple[EagerEngine, RealtimeConstants]


@pytest.fixture(scope="module")
def eager() -> Eager:
    source = Source(random_checkpoint("voxtral_realtime"))
    request = ExportRequest(options={"delay_ms": "480,80", "streaming": True})
    resolved = resolve(source, request)
    constants, model = resolved.constants, Model(resolved, "BSHD")
    assert isinstance(constants, RealtimeConstants)
    return EagerEngine(model.components, model.module, "BSHD"), constants


PUBLISHED = AudioConfig(
    sampling_rate=16000,
    frame_rate=12.5,
    encoding_config=AudioSpectrogramConfig(num_mel_bins=128, hop_length=160, window_size=400),
    transcription_format=TranscriptionFormat.STREAMING,
    transcription_delay_ms=480,
    streaming_look_ahead_ms=2.5,
    streaming_look_back_ms=52.5,
    streaming_n_left_pad_tokens=32,
)


@pytest.mark.parametrize("delay", [0, 1])
@pytest.mark.parametrize("count", [0, 1, 1279, 1280, 1281, 4001, 16000])
def test_padding_and_prompt_equal_those_of_mistral_common(eager: Eager, count: int, delay: int) -> None:
    """mistral-common pads the whole sound in one call. Each 80 ms give an embedding, and later a token."""
    engine, constants = eager
    published, milliseconds = (
        AudioEncoder(PUBLISHED, SpecialAudioIDs(24, 25, 32, None, None)),
        constants.delays_ms[delay],
    )
    padded = published.pad(noise(count), 16000, milliseconds)
    whole = LogMel(mel_settings(constants))
    expected = np.concatenate((whole.feed(padded), whole.finish()))
    values_by_name: dict[str, list[Any]] = {"mel": [], "audio_embeds": [], "logits": []}
    decoder = StreamingDecoder(
        engine.stream(),
        constants,
        DecodeOptions(delay),
        lambda name, values: values_by_name[name].append(values),
    )
    found = [*decoder.feed(noise(count)), *decoder.finish()]
    np.testing.assert_allclose(np.concatenate(values_by_name["mel"]), expected, atol=1e-6)
    prompt = [constants.bos_id, *published.encode_streaming_tokens(milliseconds)]
    assert [constants.pad_id] * (constants.prompt_length(delay) - 1) == prompt[1:]
    assert sum(map(len, values_by_name["audio_embeds"])) == len(padded) // 1280
    assert len(found) == len(padded) // 1280 - len(prompt) + 1


def decode(
    eager: Eager, samples: np.ndarray, size: int, delay: int = 0, chunk_tokens: int | None = 1
) -> list[int]:
    engine, constants = eager
    decoder = StreamingDecoder(engine.stream(), constants, DecodeOptions(delay, chunk_tokens))
    tokens = [
        token
        for start in range(0, len(samples), size)
        for token in decoder.feed(samples[start : start + size])
    ]
    return [*tokens, *decoder.finish()]


def noise(count: int, seed: int = 0) -> np.ndarray:
    return (0.1 * np.random.default_rng(seed).standard_normal(count)).astype(np.float32)


def test_tokens_do_not_depend_on_the_sizes_of_blocks_and_chunks(eager: Eager) -> None:
    samples = noise(30 * 1280 + 77)
    whole = decode(eager, samples, len(samples), chunk_tokens=None)
    assert len(set(whole)) > 5
    for size, chunk_tokens in itertools.product((1279, 1280, 4001), (1, 2, 6)):
        assert decode(eager, samples, size, chunk_tokens=chunk_tokens) == whole


def test_the_first_token_comes_as_soon_as_its_samples_arrived(eager: Eager) -> None:
    """A token needs its 80 ms, the delay, and half a window after them, in blocks of a live source."""
    engine, constants = eager
    decoder, count = StreamingDecoder(engine.stream(), constants, DecodeOptions(chunk_tokens=1)), 0
    while not list(decoder.feed(noise(320))):
        count += 320
    assert count + 320 == -(-((constants.delays[0] + 1) * 1280 + 40) // 320) * 320


@pytest.mark.slow
def test_the_memory_of_a_stream_does_not_grow(eager: Eager) -> None:
    """Over 1,000 tokens. One number per token would take 3,000 bytes. The last word may be incomplete."""
    engine, constants = eager
    decoder = StreamingDecoder(engine.stream(), constants, DecodeOptions(chunk_tokens=1))
    transcript = Transcript(constants, lambda token: b" a")

    def bytes_after(tokens: int) -> int:
        for _ in range(tokens):
            for token in decoder.feed(noise(1280)):
                transcript.add(token)
            transcript.take_words()
        not_own = {"stream", "_audio_stream", "_stream", "_observe", "_mel", "_encoder"}
        not_own |= {"_token_bytes", "_utf8"}
        parts = (decoder, decoder._encoder, decoder._encoder._mel, transcript)
        own = [{name: value for name, value in vars(part).items() if name not in not_own} for part in parts]
        return len(pickle.dumps(own))

    first = bytes_after(300)
    assert 1000 < bytes_after(1000) < first + 500


def test_the_last_position_is_an_error_that_names_the_hours(eager: Eager) -> None:
    engine, constants = eager
    stream = engine.stream()
    decoder = StreamingDecoder(stream, constants)
    decoder._encoder.position = stream.capacity("audio_encoder") - 10
    with pytest.raises(VoxportError, match="ends after 93 hours"):
        list(decoder.feed(noise(1280)))


def test_another_delay_gives_other_tokens(eager: Eager) -> None:
    samples = noise(20 * 1280)
    early, late = (decode(eager, samples, 1280, delay) for delay in (1, 0))
    assert len(early) == len(late) and early != late


def test_a_stream_continues_beyond_both_windows(eager: Eager) -> None:
    """Windows of 256 and 10 tokens, 700 tokens of audio. `test_transformers.py` compares the values."""
    engine, constants = eager
    decoder = StreamingDecoder(engine.stream(), constants, DecodeOptions(chunk_tokens=32))
    tokens = [*decoder.feed(noise(700 * 1280)), *decoder.finish()]
    assert len(tokens) == 711 and decoder.position == 749 and len(set(tokens[600:])) > 5


def test_eos_does_not_stop_a_stream(eager: Eager) -> None:
    """One of the chosen tokens becomes EOS; the tokens after it stay the same."""
    samples = noise(20 * 1280)
    engine, constants = eager
    plain = decode(eager, samples, 1280)
    ended = constants.model_copy(update={"eos_id": plain[5]})
    assert decode((engine, ended), samples, 1280) == plain


def transcript(
    constants: RealtimeConstants, pieces: dict[int, bytes], tokens: list[int]
) -> tuple[list[str], list[Any]]:
    made = Transcript(constants, pieces.__getitem__)
    texts = [made.add(token) for token in tokens]
    texts.append(made.finish())
    return texts, made.take_words()


def test_characters_that_span_tokens_are_joined(eager: Eager) -> None:
    pieces = {1000: "é".encode()[:1], 1001: "é".encode()[1:], 1002: b" ok", 1003: "🙂".encode()[:2]}
    texts, words = transcript(eager[1], pieces, [33, 1000, 1001, 32, 33, 1002, 33, 1003])
    assert texts == ["", "", "é", "", "", " ok", "", "", "�"]
    assert [word.text for word in words] == ["é", "ok", "�"]


def test_word_times_follow_from_token_positions(eager: Eager) -> None:
    _, words = transcript(
        eager[1], {1000: b" one", 1001: b" two", 1002: b"!"}, [32, 32, 33, 1000, 32, 33, 1001, 1002, 2]
    )
    assert [(word.text, round(word.start, 2), round(word.end, 2)) for word in words] == [
        ("one", 0.16, 0.32),
        ("two!", 0.4, 0.64),
    ]


def test_a_word_ends_with_pads_or_where_it_is_too_long(eager: Eager) -> None:
    made = Transcript(eager[1], {1000: b"word", 1001: "あ".encode() * 10}.__getitem__)
    seen = []
    for token in (33, 1000, 32, 32, 32, *[1001] * 9):
        made.add(token)
        seen.append([word.text for word in made.take_words()])
    assert seen[:5] == [[], [], [], [], ["word"]] and seen[5:] == [*[[]] * 7, ["あ" * 80], []]


def test_a_recording_takes_the_last_delay_and_live_sound_the_first(eager: Eager) -> None:
    _, constants = eager
    assert constants.delay_index(None, live=True) == 0 and constants.delay_index(None, live=False) == 1
    assert constants.delay_index(480, live=False) == 0
    with pytest.raises(UsageError, match="delays of 480, 80 ms") as caught:
        constants.delay_index(2400, live=False)
    assert caught.value.field == "delay_ms"


@pytest.mark.parametrize(
    ("margin", "penalised", "expected"),
    # the penalty of token 200 + n is min(7, n / 2): it exceeds a margin of 3 at n = 7, and of 6.75 at n = 14
    [(3.0, True, 207), (6.75, True, 214), (7.5, True, None), (3.0, False, None)],
)
def test_a_long_run_of_pads_is_penalised(
    eager: Eager, margin: float, penalised: bool, expected: int | None
) -> None:
    """Planted logits: [STREAMING_PAD] is always ahead of token 1000 by the same margin."""
    engine, constants = eager
    decoder = StreamingDecoder(engine.stream(), constants, DecodeOptions(blank_penalty=penalised))
    logits = np.full((1, constants.vocab_size), -20, np.float32)
    logits[0, 1000], logits[0, constants.pad_id] = 0, margin
    tokens = [decoder.choose(logits) for _ in range(450)]
    assert logits[0, constants.pad_id] == np.float32(margin)  # the observed logits stay as they are
    if expected is None:
        assert set(tokens) == {constants.pad_id}
    else:
        assert tokens.index(1000) == expected and tokens[expected + 1 : expected + 100].count(1000) == 0
