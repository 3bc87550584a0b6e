"""Eager Qwen3-TTS equals the official package, on small random checkpoints in the published format.

Two orders of summation of the reference itself lie up to 6e-6 apart; the bars are 1e-4 and equal codes.
"""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.runtime.prefix_caches import private_prefix_cache

from voxport.bundle.errors import UsageError
from voxport.bundle.qwen_tokenizer import QwenTokenizer
from voxport.export.verify.eager import EagerEngine
from voxport.model.checkpoint import Checkpoint, expected_tensors, materialize
from voxport.model.graph import ModelSpec
from voxport.model.layers.qwen_block import QwenStack
from voxport.model.qwen3_tts.codec.decoder import CodecDecoder
from voxport.model.qwen3_tts.codec.encoder import CodecEncoder
from voxport.model.qwen3_tts.codec.weights import codec_contexts
from voxport.model.qwen3_tts.config import Options
from voxport.model.qwen3_tts.family import FAMILY
from voxport.model.qwen3_tts.layouts import OFFICIAL
from voxport.model.qwen3_tts.modules import (
    UNUSED,
    CodeEmbedding,
    CodePredictor,
    Qwen3TTSWeights,
    TextEmbedding,
)
from voxport.model.qwen3_tts.speaker import SpeakerEncoder
from voxport.runtime.batching import BatchedDecoder
from voxport.runtime.families.qwen3_tts.cloning import speaker_mel
from voxport.runtime.families.qwen3_tts.decoder import FrameNoise, QwenDecoder, ReferenceStates, Sampling
from voxport.runtime.families.qwen3_tts.prompt import PromptBuilder, PromptEmbedder, QwenPrompt, Reference
from voxport.runtime.families.qwen3_tts.task import QwenSlots
from voxport.runtime.sampler import GREEDY, SamplerSettings
from voxport.runtime.speech_request import SpeechRequest

GOLDEN = Path(__file__).parent / "golden" / "qwen3_tts"
BAR = 1e-4
CACHE = 128


class GoldenModel:
    """A golden checkpoint with its reference, and every module built from its weights."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.config = OFFICIAL.load_config(GOLDEN / name)
        self.reference = np.load(GOLDEN / f"{name}.npz")
        checkpoint = Checkpoint(OFFICIAL.weight_files(GOLDEN / name))
        with torch.device("meta"):
            self.root = Qwen3TTSWeights(self.config).requires_grad_(False)
        checkpoint.check(expected_tensors(self.root), tuple(UNUSED))
        materialize(self.root, checkpoint, ("talker", "speech_tokenizer", "speaker_encoder"))
        talker = self.config.talker_config
        self.codec = CodecDecoder(self.root.speech_tokenizer.decoder, self.config.codec.decoder_config)
        self.modules = {
            "embed_text": TextEmbedding(self.root.talker),
            "embed_codes": CodeEmbedding(self.root.talker),
            "talker": QwenStack(self.root.talker.model, self.root.talker.codec_head, talker, CACHE),
            "code_predictor": CodePredictor(self.root.talker, talker.code_predictor_config),
            "codec": self.codec,
        }
        model = ModelSpec(self.config, Options(split="standard"), CACHE)
        parts = FAMILY.components(model)
        graphs = {component.name: component.graph for component in parts}
        self.engine = EagerEngine(parts, lambda component: self.modules[graphs[component]], "BSHD")
        self.constants = FAMILY.constants(self.config, model.options)
        self.tokenizer = QwenTokenizer(
            [GOLDEN / name / file for file in OFFICIAL.tokenizer_files(GOLDEN / name)]
        )

    def codec_states(self, frames: int) -> list[torch.Tensor]:
        """For calls of up to `frames` frames. Their values have no effect at position 0."""
        config = self.config.codec.decoder_config
        rows = config.sliding_window + frames - 1
        shape = (1, rows, config.num_key_value_heads, config.head_dim)
        states = [torch.ones(shape) for _ in range(2 * config.num_hidden_layers)]
        return states + [torch.ones(1, *size) for _, *size in codec_contexts(config)]


@cache
def open_golden(name: str) -> GoldenModel:
    with torch.no_grad():
        return GoldenModel(name)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> GoldenModel:
    return open_golden(request.param)


@pytest.fixture
def base() -> GoldenModel:
    return open_golden("base")


def near(found: torch.Tensor | np.ndarray, expected: np.ndarray, bar: float = BAR) -> None:
    assert found.shape == expected.shape
    assert np.abs(np.asarray(found) - expected).max() < bar


TEXT = "Hello there, the captain said it's a quiet morning."
WEATHER = "今天天气很好。"
DESIGN = "A calm old man with a low voice."
RUNS: dict[str, dict[str, tuple[str, dict[str, Any]]]] = {  # text, then fields of the prompt
    "base": {
        "xvector": (TEXT, {}),
        "xvector_nonstreaming": (TEXT, {"streaming": False}),
        "xvector_auto": (TEXT, {"language": "Auto"}),
        "xvector_german": ("Guten Morgen! Wie geht es dir heute?", {"language": "German"}),
        "icl": (TEXT, {"reference": "How are you today?"}),
        "icl_short": ("Hi.", {"reference": "How are you today?"}),
        "icl_long_text": (" ".join([TEXT] * 3), {"reference": "How are you today?"}),
        "icl_nonstreaming": (TEXT, {"reference": "How are you today?", "streaming": False}),
        "sampled": (TEXT, {"streaming": False}),
        "sampled_own": (TEXT, {}),
    },
    "custom_voice": {
        "speaker": (TEXT, {"speaker": "ryan", "streaming": False}),
        "speaker_streaming": (TEXT, {"speaker": "Ryan"}),
        "speaker_auto": (TEXT, {"speaker": "ryan", "streaming": False, "language": "auto"}),
        "dialect_auto": (WEATHER, {"speaker": "eric", "streaming": False, "language": "auto"}),
        "dialect_chinese": (WEATHER, {"speaker": "dylan", "streaming": False, "language": "chinese"}),
        "dialect_english": (TEXT, {"speaker": "eric", "streaming": False}),
        "speaker_instruct": (TEXT, {"speaker": "ryan", "streaming": False, "instruct": "Very happy."}),
        "speaker_instruct_streaming": (TEXT, {"speaker": "ryan", "instruct": "Very happy."}),
    },
    "voice_design": {
        "design": (TEXT, {"instruct": DESIGN, "streaming": False}),
        "design_auto": (TEXT, {"instruct": DESIGN, "streaming": False, "language": "auto"}),
        "design_streaming": (TEXT, {"instruct": DESIGN}),
        "design_no_instruct": (TEXT, {"streaming": False}),
    },
}
GREEDY_RUN = Sampling(SamplerSettings(repetition_penalty=1.05), GREEDY)
SAMPLED = {
    "sampled": Sampling(SamplerSettings(0.9, 50, 1.0, 1.05), SamplerSettings(0.9, 50, 1.0)),
    "sampled_own": Sampling(SamplerSettings(0.7, 20, 0.8, 1.3), SamplerSettings(1.2, 10, 0.9)),
}


def prompt_of(golden: GoldenModel, name: str, run: str) -> QwenPrompt:
    text, fields = RUNS[name][run]
    tokenizer, config = golden.tokenizer, golden.config
    fields = {"language": "english"} | fields
    if name == "base":
        fields["speaker"] = golden.reference["speaker_embedding"]
    if "reference" in fields:
        ids = np.array(tokenizer.encode(fields["reference"]))
        fields["reference"] = Reference(ids, golden.reference["ref_codes"].astype(np.int64))
    if "instruct" in fields:
        typed = tokenizer.encode("user\n") + tokenizer.encode(fields["instruct"])
        ends = config.im_start_token_id, config.im_end_token_id
        fields["instruct"] = np.array([ends[0], *typed, ends[1], tokenizer.newline])
    return QwenPrompt(np.array(tokenizer.encode(text)), tokenizer.newline, **fields)


CASES = [(name, run) for name, runs in RUNS.items() for run in runs]


@pytest.mark.parametrize(("golden", "run"), CASES, indirect=["golden"])
def test_a_run_of_the_official_package(golden: GoldenModel, run: str) -> None:
    reference, name = golden.reference, golden.name
    rows = PromptEmbedder(golden.engine.stream(), golden.constants).rows(prompt_of(golden, name, run))
    near(rows.prefill, reference[f"{run}_prefill"], 1e-5)
    trailing = reference[f"{run}_trailing"]
    expected = [*rows.trailing, *[rows.padding] * (len(trailing) - len(rows.trailing))]
    near(np.stack(expected), trailing, 1e-5)
    decoder = QwenDecoder(golden.engine.stream(), golden.constants, SAMPLED.get(run, GREEDY_RUN))
    decoder.start(rows)
    codes, noise = reference[f"{run}_codes"], None
    for frame, chosen in enumerate(codes):
        near(decoder.hidden, reference[f"{run}_hidden"][frame])
        if f"{run}_logits" in reference:
            near(decoder.logits, reference[f"{run}_logits"][frame])
        if run in SAMPLED:
            arrays = (reference[f"{run}_noise_{name}"][frame] for name in ("c0", "cp"))
            noise = FrameNoise(*(array.astype(np.float32) for array in arrays))
        found = decoder.frame(noise)
        assert found is not None and found.tolist() == chosen.tolist()
        if f"{run}_cp_logits" in reference:
            near(decoder.predict(chosen[0], others=chosen[1:])[1], reference[f"{run}_cp_logits"][frame])
        fed = decoder.step(found)
        if f"{run}_inputs" in reference:
            near(fed, reference[f"{run}_inputs"][frame], 1e-5)
    if len(codes) < 12 and run not in SAMPLED:  # shorter than the limit
        assert decoder.frame(noise) is None
    if f"{run}_audio" in reference:
        if "icl" in run:  # its codes are decoded in front, and the samples are left out
            decoder.decode(reference["ref_codes"].astype(np.int64))
        near(decoder.decode(codes.astype(np.int64)), reference[f"{run}_audio"])


@pytest.mark.parametrize("run", ["icl", "icl_long_text"])  # that have samples
def test_speech_continues_the_sound_of_a_recording(base: GoldenModel, run: str) -> None:
    """As in the official package, which decodes the codes of the recording in front. The second time, the
    states of the codec are those of the first time.
    """
    slots = QwenSlots(
        base.engine.stream(),
        base.constants,
        lambda request: prompt_of(base, "base", run),
        private_prefix_cache(),
        ReferenceStates(),
    )
    codes, settings = base.reference[f"{run}_codes"], {"temperature": 0.0, "sub_temperature": 0.0}
    for chunk in (1, 5):
        request = SpeechRequest(
            "Any text.",
            max_frames=len(codes),
            chunk_frames=chunk,
            sampling=settings | {"repetition_penalty": 1.05},
        )
        decoder = BatchedDecoder(slots)
        decoder.submit(request)
        samples = np.concatenate([samples for _, samples in decoder.run()])
        near(samples, base.reference[f"{run}_audio"][: len(samples)])
        assert len(samples) == len(codes) * base.constants.samples_per_frame


def hard_texts() -> list[dict[str, Any]]:
    """Texts with their ids. Here the spelling of a special token is text, so one case is left out."""
    cases: list[dict[str, Any]] = json.loads((GOLDEN / "text.json").read_text())
    assert len(cases) == 27
    return [case for case in cases if "<|im_end|>" not in case["text"]]


def test_ids_of_hard_texts(base: GoldenModel) -> None:
    for case in hard_texts():
        assert base.tokenizer.encode(case["text"]) == case["ids"]


def test_hard_texts_in_the_templates_of_a_text_and_of_an_instruction(base: GoldenModel) -> None:
    """A line break at the beginning of a text becomes a part of the template: such texts are refused."""
    constants = open_golden("voice_design").constants
    builder = PromptBuilder(base.tokenizer, constants)
    ends = [constants.im_end_id, base.tokenizer.newline]
    role = [constants.im_start_id, constants.assistant_id, base.tokenizer.newline]
    refused = []
    for case in hard_texts():
        try:
            text, instruction = builder.ids(case["text"]), builder.instruction(case["text"])
        except UsageError:
            refused.append(case["text"])
            continue
        assert [*role, *text, *ends, *role] == case["target"]
        assert instruction is not None and instruction.tolist() == case["instruct"]
    assert refused == ["\nstarts with a newline", "\r\ncarriage", ""]


@torch.no_grad()
def test_the_stages_of_the_codec(base: GoldenModel) -> None:
    codes = torch.from_numpy(base.reference["codec_codes"]).long()[None, :60]
    stages = base.codec.stages(codes, torch.tensor([0]), *base.codec_states(60))
    for name in ("quantized", "pre_conv", "pre_transformer", "upsampled"):
        expected = base.reference[f"codec_{name}"]
        found = next(stages)[0]
        near(found if found.shape == expected.shape else found.T, expected)
    near(next(stages)[0, 0], base.reference["codec_audio"])


@torch.no_grad()
@pytest.mark.parametrize("size", [pytest.param(1, marks=pytest.mark.slow), 7])
def test_frames_decoded_one_after_another_are_those_of_one_call(base: GoldenModel, size: int) -> None:
    """The end of 325 frames, which the official package decodes in parts with less context."""
    codes, states, found = base.reference["codec_codes"][:316], base.codec_states(size), []
    for start in range(0, len(codes), size):
        part = torch.from_numpy(codes[None, start : start + size]).long()
        audio, *states = base.codec(part, torch.tensor([start]), *states)
        found.append(audio[0])
    samples = torch.cat(found)
    near(samples[: len(base.reference["codec_audio"])], base.reference["codec_audio"])
    near(samples[-len(base.reference["codec_whole_tail"]) :], base.reference["codec_whole_tail"])


@torch.no_grad()
def test_the_speech_encoder(base: GoldenModel) -> None:
    encoder = CodecEncoder(
        base.root.speech_tokenizer.encoder,
        base.config.codec.encoder_config,
        max_frames=30,
    )
    *stages, codes, margins = encoder.stages(*framed(base.reference["ref_pcm"]))
    for (name, axis), stage in zip(
        (("seanet", 1), ("transformer", 0), ("downsampled", 1)), stages, strict=True
    ):
        expected = base.reference[f"enc_{name}"]
        near(stage[0].narrow(axis, 0, expected.shape[axis]), expected)
    assert codes[0].tolist() == base.reference["ref_codes"].tolist()
    near(margins[0], base.reference["enc_distance_gap"])
    short, *_ = encoder(*framed(base.reference["short_pcm"]))
    assert short[0].tolist() == base.reference["short_codes"].tolist()


def framed(pcm: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Frames float32 [1, T, 1920], noise behind the end of the recording, and the number of its samples."""
    count = -(-len(pcm) // 1920)
    noise = np.random.default_rng(0).standard_normal(count * 1920 - len(pcm))
    samples = np.concatenate((pcm / 32768, noise)).astype(np.float32)
    return torch.from_numpy(samples).view(1, count, 1920), torch.tensor([len(pcm)])


@torch.no_grad()
def test_the_speaker_encoder_and_its_front_end(base: GoldenModel) -> None:
    mel = speaker_mel(base.reference["ref_pcm"].astype(np.float32) / 32768, 24_000)
    near(mel, base.reference["mel"])
    found = SpeakerEncoder(base.root.speaker_encoder)(torch.from_numpy(mel)[None])
    near(found[0], base.reference["speaker_embedding"])


def test_a_recording_too_short_for_the_speaker_encoder_is_refused() -> None:
    assert speaker_mel(np.zeros(1280, np.float32), 24_000).shape == (5, 128)
    with pytest.raises(UsageError, match="1279 samples"):
        speaker_mel(np.zeros(1279, np.float32), 24_000)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"language": "klingon"}, "language 'klingon'.*english"),
        ({"speaker": "nobody"}, "speaker 'nobody'"),
        ({"speaker": np.zeros(31, np.float32)}, r"shape \[31\], expected \[32\]"),
        ({"text": np.zeros(0, np.int64)}, "at least one word"),
    ],
)
def test_a_prompt_that_the_model_does_not_have_is_refused(
    base: GoldenModel, changes: dict[str, Any], says: str
) -> None:
    prompt = QwenPrompt(np.array([5]), base.tokenizer.newline)
    with pytest.raises(UsageError, match=says):
        PromptEmbedder(base.engine.stream(), base.constants).rows(replace(prompt, **changes))
