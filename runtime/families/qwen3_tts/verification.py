"""Fixed runs of Qwen3-TTS for verification, and checks of the choices that graphs make themselves."""

from collections.abc import Iterable

import numpy as np

from voxport.bundle.constants.qwen3_tts import Constants
from voxport.runtime.audio.comparison import compare_audio
from voxport.runtime.engines.base import Stream
from voxport.runtime.families.base import ChoiceResult, ForcedRun, Rollout, VerificationWorkload
from voxport.runtime.families.qwen3_tts.cloning import SPEECH_ENCODER
from voxport.runtime.families.qwen3_tts.decoder import END, SpeechDecoder, draw_noise
from voxport.runtime.families.qwen3_tts.prompt import Prompt, PromptEmbedder
from voxport.runtime.families.qwen3_tts.split_stream import standard_stream
from voxport.runtime.sampler import SamplerSettings

PROMPT_IDS = 16
DRAWN_FRAMES = 4  # of each setting
SETTINGS = (SamplerSettings(0.9, 50), SamplerSettings(0.7, 20, 0.8), SamplerSettings(1.2, 0, 0.9))
NUCLEUS_SLACK = 1e-3  # of top_p: what rounding moves a sum of probabilities by
ENCODED_FRAMES = 12


def teacher_forced_run(
    stream: Stream, constants: Constants, steps: int, forced: np.ndarray | None = None
) -> ForcedRun:
    """Frames of a fixed prompt, each code the one with the largest logit.

    With `forced` codes int64 [steps, K] the predictor runs after all steps of the talker.
    """
    decoder = _start(stream, constants)
    hidden, logits, others = list[np.ndarray](), list[np.ndarray](), list[np.ndarray]()
    codes = np.zeros((steps, constants.n_codebooks), np.int64)
    for index in range(steps):
        hidden.append(decoder.hidden)
        logits.append(decoder.logits[: constants.first_codes])
        codes[index, 0] = logits[-1].argmax()
        decoder.force(int(codes[index, 0]))
        if forced is None:
            codes[index], found = decoder.predict(int(codes[index, 0]))
            others.append(found)
        if index + 1 < steps:
            decoder.step(codes[index] if forced is None else forced[index])
    for index in range(steps if forced is not None else 0):
        assert forced is not None
        decoder.hidden = hidden[index]
        _, found = decoder.predict(int(forced[index, 0]), others=forced[index, 1:])
        others.append(found)
        codes[index, 1:] = found.argmax(axis=-1)
    return ForcedRun(codes, np.stack(logits), np.stack(hidden), other_logits=np.stack(others))


def free_run(stream: Stream, constants: Constants, steps: int) -> np.ndarray:
    """Samples float32 [n] of the same prompt with the sampling of the checkpoint, up to the end or `steps`
    frames.
    """
    decoder, generator = _start(stream, constants), np.random.default_rng(6)
    codes: list[np.ndarray] = []
    for _ in range(steps):
        noise = draw_noise(generator, constants)
        code = decoder.first_code(noise)
        if code == END:
            break
        codes.append(decoder.predict(code, noise)[0])
        decoder.step(codes[-1])
    return decoder.decode(np.array(codes, dtype=np.int64).reshape(-1, constants.n_codebooks))


def rollout(stream: Stream, constants: Constants, frames: int) -> Rollout:
    """As `free_run`, without the end."""
    decoder, generator = _start(stream, constants), np.random.default_rng(7)
    codes = np.zeros((frames, constants.n_codebooks), np.int64)
    for index in range(frames):
        noise = draw_noise(generator, constants)
        codes[index], _ = decoder.predict(decoder.first_code(noise, may_end=False), noise)
        if index + 1 < frames:
            decoder.step(codes[index])
    return Rollout(codes, decoder.decode(codes))


def check_choices(
    found: Stream, expected: Stream, constants: Constants, bar: float
) -> Iterable[ChoiceResult]:
    """The codes that the predictor draws follow from its own logits. The codes of a recording are equal but
    where two entries are about equally near.
    """
    yield _check_drawn(standard_stream(found, constants), constants, bar)
    if SPEECH_ENCODER in found.signatures:
        yield _check_encoded(found, expected, bar)


def _check_drawn(stream: Stream, constants: Constants, bar: float) -> ChoiceResult:
    generator, wrong, count = np.random.default_rng(8), 0, 0
    for settings in SETTINGS:
        for _ in range(DRAWN_FRAMES):
            noise = draw_noise(generator, constants).others
            top_k = min(settings.top_k or constants.other_codes, constants.other_codes)
            codes = np.full((1, constants.n_codebooks), -1)
            codes[0, 0] = generator.integers(constants.first_codes)
            inputs = {
                "hidden": generator.standard_normal((1, 1, constants.dim), dtype=np.float32),
                "codes": codes,
                "noise": noise[None],
                "temperature": np.array([settings.temperature], np.float32),
                "top_k": np.array([top_k]),
                "top_p": np.array([settings.top_p], np.float32),
            }
            outputs = stream.run("code_predictor", inputs)
            for chosen, logits, row in zip(
                outputs["chosen"][0, 1:], outputs["logits"][0], noise, strict=True
            ):
                wrong += not _may_be_drawn(int(chosen), logits, row, settings, bar)
                count += 1
    return ChoiceResult("drawn codes", wrong == 0, f"{count - wrong} of {count} follow from the logits")


def _may_be_drawn(
    chosen: int, logits: np.ndarray, noise: np.ndarray, settings: SamplerSettings, bar: float
) -> bool:
    """Whether rounding, which moves a score by up to `slack`, can make `chosen` the best of the kept ids."""
    scores = logits.astype(np.float64) / settings.temperature
    slack = bar * float(np.abs(scores).max() + np.abs(noise).max())
    top_k = settings.top_k or len(scores)
    loose, strict = (
        _least_kept(scores, top_k, min(settings.top_p + side, 1.0))
        for side in (NUCLEUS_SLACK, -NUCLEUS_SLACK)
    )
    surely_kept = scores >= strict + slack
    best = float((scores + noise)[surely_kept].max()) if surely_kept.any() else -np.inf
    return bool(scores[chosen] >= loose - slack and scores[chosen] + noise[chosen] >= best - slack)


def _least_kept(scores: np.ndarray, top_k: int, top_p: float) -> float:
    """The least score float64 of [V] that top_k and then top_p keep."""
    ordered = np.sort(scores)[::-1][:top_k]
    weights = np.exp(ordered - ordered[0])
    before = (np.cumsum(weights) - weights) / weights.sum()
    return float(ordered[np.flatnonzero(before < top_p)[-1]])


def _check_encoded(found: Stream, expected: Stream, bar: float) -> ChoiceResult:
    """A code may differ where its margin is within `bar` of the largest one. Codes behind it then differ."""
    size = found.signatures[SPEECH_ENCODER].inputs[0].shape[-1]
    assert isinstance(size, int)
    audio = 0.1 * np.random.default_rng(9).standard_normal((1, ENCODED_FRAMES, size), dtype=np.float32)
    inputs = {"audio": audio, "length": np.array([audio.size - size // 3])}
    outputs, reference = (stream.run(SPEECH_ENCODER, inputs) for stream in (found, expected))
    equal = outputs["codes"][0] == reference["codes"][0]
    near = reference["margins"][0] <= bar * reference["margins"].max()
    # the first book and the others are two quantisers
    affected = np.concatenate((near[:, :1], np.logical_or.accumulate(near[:, 1:], axis=1)), axis=1)
    detail = f"{int(equal.sum())} of {equal.size} equal, {int(affected.sum())} behind a near choice"
    return ChoiceResult("codes of a recording", bool((equal | affected).all()), detail)


def _start(stream: Stream, constants: Constants) -> SpeechDecoder:
    """A decoder that has read a fixed prompt without a speaker."""
    stream = standard_stream(stream, constants)
    ids = np.random.default_rng(5).integers(0, constants.text_vocab_size, PROMPT_IDS)
    rows = PromptEmbedder(stream, constants).rows(Prompt(ids, newline=int(ids[0]), streaming=True))
    decoder = SpeechDecoder(stream, constants)
    decoder.start(rows)
    return decoder


VERIFICATION = VerificationWorkload[Constants](
    teacher_forced_run,
    free_run,
    lambda found, expected, constants: compare_audio(found, expected, constants.sample_rate),
    check_choices=check_choices,
    rollout=rollout,
)
