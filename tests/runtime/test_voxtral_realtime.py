"""Speech to text without an artifact: front end, schedule, sliding-window caches, text."""

import itertools
import json
import pickle
import shutil

import numpy as np
import pytest
import torch
from mistral_common.tokens.tokenizers.audio import (
    AudioConfig,
    AudioEncoder,
    AudioSpectrogramConfig,
    SpecialAudioIDs,
    TranscriptionFormat,
)

from bundle.errors import ConfigError, UsageError, VoxportError
from bundle.manifest import ExportRequest
from bundle.spec import MAX_ROW_POSITION
from export.model import Model
from export.resolve import Source, resolve
from export.verify.eager import EagerEngine
from model.checkpoint import expected_tensors
from model.layers.attention import KVCache, Projected, ReferenceAttention
from model.layers.rope import RotaryTable, UnboundedRotaryTable
from model.synthetic.checkpoint import embedded_default
from model.voxtral_realtime.config import Options, delay_tokens, load_config, parse_config
from model.voxtral_realtime.family import FAMILY
from model.voxtral_realtime.modules import embed_delay
from model.voxtral_realtime.synthetic import SIZES
from runtime.audio.mel import LogMel, MelSettings
from runtime.families.voxtral_realtime.constants import Constants
from runtime.families.voxtral_realtime.decoder import DecodeOptions, StreamingDecoder
from runtime.families.voxtral_realtime.transcript import Transcript

SETTINGS = MelSettings(16000, 128, 400, 160, -6.5)
FULL = parse_config(SIZES["full"].params())


def test_the_parameters_of_the_published_shapes_are_counted():
    shapes = expected_tensors(FAMILY.build_root(FULL))
    assert len(shapes) == 711 and sum(int(np.prod(shape)) for shape in shapes.values()) == 4_429_679_360


def test_the_head_shares_the_table_unless_the_recipe_separates_them():
    root = FAMILY.build_root(FULL)
    assert root.output.weight is root.audio.tok_embeddings.weight and not any(
        name.startswith("output") for name in expected_tensors(root)
    )


@pytest.mark.parametrize(
    ("delay", "tokens"), [(80, 1), (160, 2), (240, 3), (480, 6), (960, 12), (1200, 15), (2400, 30)]
)
def test_delays_are_converted_to_tokens(delay, tokens):
    assert delay_tokens(delay, FULL) == tokens


@pytest.mark.parametrize("text", ["", "0", "100", "1280", "2480", "-80", "480,", "480;960", "٤٨٠"])
def test_invalid_delays_are_refused(text):
    with pytest.raises(ValueError, match="multiple of 80"):
        Options(delay_ms=text)


def test_delays_are_kept_in_order_without_duplicates():
    assert Options(delay_ms="960, 480,960").delays_ms == (960, 480)


def test_the_delay_embedding_is_cosines_then_sines():
    found = embed_delay(6, 3072).numpy()
    np.testing.assert_allclose(found[:3], [0.9602, 0.9495, 0.9377], atol=5e-5)
    np.testing.assert_allclose(found[1536:1539], [-0.2794, -0.3137, -0.3473], atol=5e-5)
    assert found[-1] == pytest.approx(6.0e-4, rel=0.01)


def mel_of(samples: np.ndarray, cuts=()) -> np.ndarray:
    front = LogMel(SETTINGS)
    pieces = [front.feed(piece) for piece in np.split(samples, cuts)]
    return np.concatenate([*pieces, front.finish()])


def test_the_log_mel_of_silence_and_of_a_tone():
    assert (mel_of(np.zeros(1600, np.float32)) == -0.625).all()
    tone = np.sin(2 * np.pi * 1000 * np.arange(16000) / 16000).astype(np.float32)
    assert mel_of(tone)[20:80].max() == pytest.approx(1.625, abs=1e-3)  # nothing clips the top


@pytest.mark.parametrize("size", [1, 7, 159, 160, 401, 1279, 1280, 4001])
def test_frames_do_not_depend_on_the_sizes_of_blocks(size):
    samples = np.random.default_rng(0).standard_normal(5 * 1280).astype(np.float32)
    whole = mel_of(samples)
    assert whole.shape == (40, 128)
    np.testing.assert_allclose(mel_of(samples, range(size, len(samples), size)), whole, atol=1e-6)


@pytest.mark.parametrize(
    ("rows", "window", "layout"),
    [(12, 9, "BSHD"), (9, 9, "BSHD"), (12, 9, "BHSD, staged"), (9, 9, "BHSD, staged"), (30, 9, "BHSD")],
)
def test_a_sliding_window_cache_equals_attention_over_the_window(rows, window, layout):
    """The cache is overwritten three times. The reference is attention over all rows with the same mask."""
    torch.manual_seed(0)
    heads, kv_heads, width, length, step = 4, 2, 8, 60, rows - window + 1
    q, k, v = (torch.randn(1, length, count, width) for count in (heads, kv_heads, kv_heads))
    rotary = UnboundedRotaryTable(width, 1e4)
    kernel, shape = (
        ReferenceAttention(layout),
        (1, rows, kv_heads, width) if layout == "BSHD" else (1, kv_heads, rows, width),
    )
    k_cache, v_cache = torch.zeros(shape), torch.zeros(shape)
    found = []
    for start in range(0, length, step):
        part = slice(start, min(start + step, length))
        position = torch.tensor([start])
        rotation = rotary(torch.arange(part.start, part.stop)[None])
        update = kernel.cache_update(position, part.stop - part.start, k_cache, window)
        new = Projected(q[:, part], k[:, part], v[:, part], rotation)
        out, k_cache, v_cache = kernel.sliding_window(new, KVCache(k_cache, v_cache), update)
        found.append(out)
    whole = rotary(torch.arange(length)[None])
    distance = torch.arange(length)[:, None] - torch.arange(length)[None]
    keys, values = (x.repeat_interleave(heads // kv_heads, 2).transpose(1, 2) for x in (whole(k), v))
    scores = (whole(q).transpose(1, 2) @ keys.transpose(2, 3) * width**-0.5).masked_fill(
        (distance < 0) | (distance >= window), -torch.inf
    )
    torch.testing.assert_close(
        torch.cat(found, 1), (scores.softmax(-1) @ values).transpose(1, 2), atol=1e-5, rtol=0
    )


def rolled(kernel: ReferenceAttention, rows: int, window: int = 5, step: int = 4) -> torch.Tensor:
    """Attention of 40 rows, 4 per call."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 40, 1, 4, generator=generator) for _ in range(3))
    caches, outs, rotary = (
        (torch.zeros(1, rows, 1, 4), torch.zeros(1, rows, 1, 4)),
        [],
        UnboundedRotaryTable(4, 1e4),
    )
    for start in range(0, 40, step):
        part = slice(start, start + step)
        rotation = rotary(torch.arange(start, start + step)[None])
        update = kernel.cache_update(torch.tensor([start]), step, caches[0], window)
        new = Projected(q[:, part], k[:, part], v[:, part], rotation)
        out, *caches = kernel.sliding_window(new, KVCache(*caches), update)
        outs.append(out)
    return torch.cat(outs, 1)


def test_a_ring_of_window_rows_is_too_small_for_several_rows_per_call():
    """With fewer than window + chunk - 1 rows, a chunk overwrites keys that its first queries need."""
    kernel = ReferenceAttention("BSHD")
    torch.testing.assert_close(rolled(kernel, 8), rolled(kernel, 30))
    for rows in (5, 7):
        assert (rolled(kernel, rows) - rolled(kernel, 30)).abs().max() > 0.1


def test_angles_from_two_tables_equal_angles_from_one():
    near, far = RotaryTable(16, 1e6, 20000), UnboundedRotaryTable(16, 1e6)
    positions = torch.tensor([[0, 1, 4095, 4096, 4097, 12345, 19999]])
    for name in ("cos", "sin"):
        torch.testing.assert_close(
            getattr(far(positions), name), getattr(near(positions), name), atol=1e-6, rtol=0
        )
    last = far(torch.tensor([[MAX_ROW_POSITION - 1]]))
    angle = (MAX_ROW_POSITION - 1) * 1e6 ** -(torch.arange(0, 16, 2, dtype=torch.float64) / 16)
    torch.testing.assert_close(last.cos[0, 0].double(), angle.cos(), atol=1e-6, rtol=0)


@pytest.fixture(scope="module")
def eager() -> tuple[EagerEngine, Constants]:
    source = Source(embedded_default("voxtral_realtime"))
    request = ExportRequest(options={"delay_ms": "480,80", "streaming": True})
    options = resolve(source, request).options
    constants = Constants.model_validate(source.family.constants(source.config, options))
    model = Model(resolve(source, request), "BSHD")
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
def test_padding_and_prompt_equal_those_of_mistral_common(eager, count, delay):
    """mistral-common pads the whole sound in one call. Each 80 ms give an embedding, and later a token."""
    engine, constants = eager
    published, milliseconds = (
        AudioEncoder(PUBLISHED, SpecialAudioIDs(24, 25, 32, None, None)),
        constants.delays_ms[delay],
    )
    padded = published.pad(noise(count), 16000, milliseconds)
    whole = LogMel(constants.mel)
    expected = np.concatenate((whole.feed(padded), whole.finish()))
    values_by_name: dict[str, list] = {"mel": [], "audio_embeds": [], "logits": []}
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


def decode(eager, samples, size, delay=0, chunk_tokens=1) -> list[int]:
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


def test_tokens_do_not_depend_on_the_sizes_of_blocks_and_chunks(eager):
    samples = noise(30 * 1280 + 77)
    whole = decode(eager, samples, len(samples), chunk_tokens=None)
    assert len(set(whole)) > 5
    for size, chunk_tokens in itertools.product((1279, 1280, 4001), (1, 2, 6)):
        assert decode(eager, samples, size, chunk_tokens=chunk_tokens) == whole


def test_the_first_token_comes_as_soon_as_its_samples_arrived(eager):
    """A token needs its 80 ms, the delay, and half a window after them, in blocks of a live source."""
    engine, constants = eager
    decoder, count = StreamingDecoder(engine.stream(), constants, DecodeOptions(chunk_tokens=1)), 0
    while not list(decoder.feed(noise(320))):
        count += 320
    assert count + 320 == -(-((constants.delays[0] + 1) * 1280 + 40) // 320) * 320


def test_the_memory_of_a_stream_does_not_grow(eager):
    """Over 1,000 tokens. One number per token would take 3,000 bytes. The last word may be incomplete."""
    engine, constants = eager
    decoder = StreamingDecoder(engine.stream(), constants, DecodeOptions(chunk_tokens=1))
    transcript = Transcript(constants, lambda token: b" a")

    def bytes_after(tokens: int) -> int:
        for _ in range(tokens):
            for token in decoder.feed(noise(1280)):
                transcript.add(token)
            transcript.take_words()
        not_own = (
            "stream",
            "_audio_stream",
            "_stream",
            "_observe",
            "_mel",
            "_encoder",
            "_token_bytes",
            "_utf8",
        )
        parts = (decoder, decoder._encoder, decoder._encoder._mel, transcript)
        own = [{name: value for name, value in vars(part).items() if name not in not_own} for part in parts]
        return len(pickle.dumps(own))

    first = bytes_after(300)
    assert 1000 < bytes_after(1000) < first + 500


def test_the_last_position_is_an_error_that_names_the_hours(eager):
    engine, constants = eager
    stream = engine.stream()
    decoder = StreamingDecoder(stream, constants)
    decoder._encoder.position = stream.capacity("audio_encoder") - 10
    with pytest.raises(VoxportError, match="ends after 93 hours"):
        list(decoder.feed(noise(1280)))


def test_another_delay_gives_other_tokens(eager):
    samples = noise(20 * 1280)
    early, late = (decode(eager, samples, 1280, delay) for delay in (1, 0))
    assert len(early) == len(late) and early != late


def test_interleaved_streams_do_not_affect_each_other(eager):
    engine, constants = eager
    sounds = [noise(20 * 1280, seed) for seed in (1, 2)]
    alone = [decode(eager, sound, 1280) for sound in sounds]
    live = DecodeOptions(chunk_tokens=1)
    pair, found = [StreamingDecoder(engine.stream(), constants, live) for _ in sounds], [[], []]
    for start in range(0, 20 * 1280, 1280):
        for decoder, sound, tokens in zip(pair, sounds, found, strict=True):
            tokens += decoder.feed(sound[start : start + 1280])
    for decoder, tokens in zip(pair, found, strict=True):
        tokens += decoder.finish()
    assert found == alone


def test_a_stream_continues_beyond_both_windows(eager):
    """Windows of 256 and 10 tokens, 700 tokens of audio. `test_transformers.py` compares the values."""
    engine, constants = eager
    decoder = StreamingDecoder(engine.stream(), constants, DecodeOptions(chunk_tokens=32))
    tokens = [*decoder.feed(noise(700 * 1280)), *decoder.finish()]
    assert len(tokens) == 711 and decoder.position == 749 and len(set(tokens[600:])) > 5


def test_eos_does_not_stop_a_stream(eager):
    """One of the chosen tokens becomes EOS; the tokens after it stay the same."""
    samples = noise(20 * 1280)
    engine, constants = eager
    plain = decode(eager, samples, 1280)
    ended = constants.model_copy(update={"eos_id": plain[5]})
    assert decode((engine, ended), samples, 1280) == plain


def transcript(constants: Constants, pieces: dict[int, bytes], tokens: list[int]) -> tuple[list[str], list]:
    made = Transcript(constants, pieces.__getitem__)
    texts = [made.add(token) for token in tokens]
    texts.append(made.finish())
    return texts, made.take_words()


def test_characters_that_span_tokens_are_joined(eager):
    pieces = {1000: "é".encode()[:1], 1001: "é".encode()[1:], 1002: b" ok", 1003: "🙂".encode()[:2]}
    texts, words = transcript(eager[1], pieces, [33, 1000, 1001, 32, 33, 1002, 33, 1003])
    assert texts == ["", "", "é", "", "", " ok", "", "", "�"]
    assert [word.text for word in words] == ["é", "ok", "�"]


def test_word_times_follow_from_token_positions(eager):
    _, words = transcript(
        eager[1], {1000: b" one", 1001: b" two", 1002: b"!"}, [32, 32, 33, 1000, 32, 33, 1001, 1002, 2]
    )
    assert [(word.text, round(word.start, 2), round(word.end, 2)) for word in words] == [
        ("one", 0.16, 0.32),
        ("two!", 0.4, 0.64),
    ]


def test_a_word_ends_with_pads_or_where_it_is_too_long(eager):
    made = Transcript(eager[1], {1000: b"word", 1001: "あ".encode() * 10}.__getitem__)
    seen = []
    for token in (33, 1000, 32, 32, 32, *[1001] * 9):
        made.add(token)
        seen.append([word.text for word in made.take_words()])
    assert seen[:5] == [[], [], [], [], ["word"]] and seen[5:] == [*[[]] * 7, ["あ" * 80], []]


def edited_tokenizer(tmp_path, edit):
    """A checkpoint whose tekken.json was edited."""
    folder = shutil.copytree(embedded_default("voxtral_realtime"), tmp_path / "checkpoint")
    content = json.loads((folder / "tekken.json").read_text())
    edit(content)
    (folder / "tekken.json").write_text(json.dumps(content))
    return folder


def constants_of(folder) -> Constants:
    source = Source(folder)
    options = resolve(source, ExportRequest(options={"streaming": True})).options
    return Constants.model_validate(source.family.constants(source.config, options))


def test_special_tokens_and_the_silence_are_those_of_the_tokenizer(tmp_path):
    def edit(content):
        for token in content["special_tokens"]:
            if token["token_str"] in ("[STREAMING_PAD]", "[TRANSCRIBE]"):  # these two change places
                token["rank"] = 67 - token["rank"]
        content["special_tokens"].sort(key=lambda token: token["rank"])
        content["audio"]["streaming_n_left_pad_tokens"] = 16

    found = constants_of(edited_tokenizer(tmp_path, edit))
    assert (found.pad_id, found.word_id, found.bos_id, found.eos_id) == (35, 33, 1, 2)
    assert found.left_pad_tokens == 16 and found.prompt_length(0) == 1 + 16 + 6
    (tmp_path / "checkpoint" / "tekken.json").unlink()
    assert constants_of(tmp_path / "checkpoint").pad_id == 32


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lambda content: content["special_tokens"].pop(33), r"\[STREAMING_WORD\] is missing"),
        (lambda content: content["audio"].update(streaming_n_left_pad_tokens=0), "left_pad_tokens"),
        (lambda content: content["special_tokens"][32].update(rank=10**6), "has id 1000000; expected less"),
    ],
)
def test_a_tokenizer_that_does_not_fit_is_refused(tmp_path, edit, says):
    with pytest.raises(ConfigError, match=says):
        load_config(edited_tokenizer(tmp_path, edit))


def test_files_that_disagree_about_the_silence_are_refused(tmp_path):
    folder = edited_tokenizer(tmp_path, lambda content: None)
    content = json.loads((folder / "params.json").read_text())
    audio = content["multimodal"]["whisper_model_args"]["encoder_args"]["audio_encoding_args"]
    audio["streaming_n_left_pad_tokens"] = 32
    (folder / "params.json").write_text(json.dumps(content))
    assert load_config(folder).schedule.left_pad_tokens == 32
    audio["streaming_n_left_pad_tokens"] = 16
    (folder / "params.json").write_text(json.dumps(content))
    with pytest.raises(ConfigError, match="streaming_n_left_pad_tokens is 16, expected 32"):
        load_config(folder)


@pytest.mark.parametrize(
    ("options", "expected"),
    [({}, (2400,)), ({"streaming": True}, (480, 2400)), ({"streaming": True, "delay_ms": "80"}, (80,))],
)
def test_default_delays(options, expected):
    assert Options(**options).delays_ms == expected


def test_a_recording_takes_the_last_delay_and_live_sound_the_first(eager):
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
def test_a_long_run_of_pads_is_penalised(eager, margin, penalised, expected):
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
