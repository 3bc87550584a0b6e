"""Fixed runs of Voxtral-TTS, for comparisons with eager PyTorch."""

import numpy as np

from voxport.bundle.constants.voxtral_tts import EMPTY_AUDIO, END_AUDIO, FIRST_CODE, Constants
from voxport.runtime.audio.comparison import compare_audio
from voxport.runtime.engines.base import Stream
from voxport.runtime.families.base import ForcedRun, VerificationWorkload
from voxport.runtime.families.voxtral_tts.decoder import SpeechDecoder

PROMPT_IDS = 16
SEED = 5  # of the prompt and the noise


def teacher_forced_run(
    stream: Stream, constants: Constants, steps: int, forced: np.ndarray | None = None
) -> ForcedRun:
    """Frames of a fixed prompt.

    With `forced` codes int64 [steps, K] each graph runs all steps before the next one.
    """
    embed = SpeechDecoder(stream, constants).embed
    embedded = [] if forced is None else [embed(row[None]) for row in forced]
    decoder, noise = _start(stream, constants, steps)
    outputs, frames = [decoder.output], []
    for index in range(steps - 1):
        if forced is None:
            frames.append(decoder.frame_and_values(noise[index]))
        decoder.step(decoder.embed(frames[-1][0]) if forced is None else embedded[index])
        outputs.append(decoder.output)
    frames += [decoder.frame_and_values(noise[index], outputs[index]) for index in range(len(frames), steps)]
    allowed = slice(EMPTY_AUDIO + 1, FIRST_CODE + constants.semantic_codes)
    return ForcedRun(
        np.concatenate([codes for codes, _ in frames]),
        np.concatenate([output.semantic_logits[:, allowed] for output in outputs]),
        np.stack([output.hidden for output in outputs]),
        first=EMPTY_AUDIO + 1,
        values=np.concatenate([values for _, values in frames]),
        value_calls=constants.euler_steps + 1,  # each Euler step, and the step of the backbone
    )


def free_run(stream: Stream, constants: Constants, steps: int) -> np.ndarray:
    """Samples float32 [n] of the same prompt, up to END_AUDIO or `steps` frames."""
    decoder, noise = _start(stream, constants, steps)
    codes: list[np.ndarray] = []
    for index in range(steps):
        frame = decoder.frame(noise[index])
        if frame[0, 0] == END_AUDIO:
            break
        codes.append(frame[0])
        decoder.step(decoder.embed(frame))
    return decoder.decode(np.array(codes, dtype=np.int64).reshape(-1, constants.n_codebooks))


def _start(stream: Stream, constants: Constants, frames: int) -> tuple[SpeechDecoder, np.ndarray]:
    """A decoder that has read a fixed prompt without a voice, and fixed noise float32 [frames, 1, K - 1]."""
    generator = np.random.default_rng(SEED)
    text = generator.integers(0, constants.vocab_size, PROMPT_IDS)
    ids = np.concatenate(([constants.bos_id, constants.begin_audio_id], text))
    decoder = SpeechDecoder(stream, constants)
    noise = generator.standard_normal((frames, 1, constants.n_codebooks - 1), dtype=np.float32)
    decoder.prefill(ids[ids != constants.audio_id])
    return decoder, noise


VERIFICATION = VerificationWorkload[Constants](
    teacher_forced_run,
    free_run,
    lambda found, expected, constants: compare_audio(found, expected, constants.sample_rate),
)
