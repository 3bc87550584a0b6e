"""Trains voxtral-tts-tiny: text to speech in the published architecture and format.

The recipe, in order. STATE is a folder outside of the repository; every training continues at its last
checkpoint.

    python -m tools.training.voxtral_tts codec --folder STATE           codec: encoder, quantiser, decoder
    python -m tools.training.voxtral_tts language --folder STATE        backbone and acoustic transformer
    python -m tools.training.voxtral_tts write --folder STATE --out DIR writes the checkpoint

Data: `docs/training.md`. The data and the weights follow from --seed.

Each stage has as many steps by default as the embedded model had, the last of them with a falling learning
rate. To measure word error rates, export the written checkpoint and run `voxport evaluate`.
"""

import argparse
import logging

import torch
import torch.nn.functional as F

from tools.training.data.clips import ROBOTS, Clip, Mixture, Shard, Shards, make_shard, natural_shards, unpack
from tools.training.data.tokens import BYTES, Encoder
from tools.training.loop import Losses, Trainer, device, hash_of
from tools.training.speech.batches import (
    IGNORED,
    PromptedSpeech,
    Spoken,
    encode_clips,
    make_sequences,
    reference_codes,
    with_wrong_frames,
)
from tools.training.speech.codec_model import CodecModel
from tools.training.speech.model import (
    REFERENCE_FRAMES,
    VOICES,
    SpeechModel,
    TrainedSpeech,
    semantic_loss,
    trained_config,
)
from tools.training.speech.sound_batches import make_sounds, spectral_distance
from tools.training.voxtral_realtime import add_training_arguments, schedule_of
from tools.training.writing import write_speech
from voxport.bundle.constants.voxtral_tts import FIRST_CODE

CODEC, LANGUAGE = "voxtral_tts_codec", "voxtral_tts_language"
CODEC_STEPS = (5_500, 1_200)  # the second number has a falling learning rate
LANGUAGE_STEPS = (6_000, 1_200)
FRAMES = 24  # 1.92 s, the length of a sound for the codec
HEARD_BY_CODEC = Mixture(steps=16, varied=False, robot_clips=64, natural_shards=3, pool=24)
HEARD = Mixture(steps=16, varied=False, robot_clips=64, natural_shards=3, pool=60)
PHONEME_WEIGHT, COMMITMENT_WEIGHT, LINEAR_WEIGHT = 0.3, 0.25, 0.3
READING_WEIGHT, SPELLING_WEIGHT = 1.0, 1.0
FLOW_FRAMES = (
    0.4  # share of the frames whose acoustic codes are learned in a step; they take a third of its time
)
SPEAKERS = (*VOICES.values(), *ROBOTS)  # all that the model learns; those of espeak-ng are not written
REFERENCE_SHARD = Shard(0, seed=2, varied=False, clips=16)  # its sentences begin the prompts of the voices


def codec_losses(model: CodecModel, clips: list[Clip], seed: str, size: int) -> Losses:
    """Losses of `size` sounds through the codec, and the accuracy of the phonemes of its codes."""
    batch = make_sounds(clips, seed, size, FRAMES)
    samples, phonemes = batch.samples.to(device()), batch.phonemes.to(device()).flatten()
    noise = torch.Generator().manual_seed(hash_of(seed))
    found = model(samples, noise)
    with torch.autocast(device().type, enabled=False):
        logarithmic, linear = spectral_distance(found.samples, samples)
    logits, early = (part.float().flatten(0, 1) for part in (found.phonemes, found.unquantised))
    phoneme_loss = (F.cross_entropy(logits, phonemes) + F.cross_entropy(early, phonemes)) / 2
    phoneme_accuracy = (logits.argmax(-1) == phonemes).float().mean()
    loss = (
        logarithmic
        + LINEAR_WEIGHT * linear
        + PHONEME_WEIGHT * phoneme_loss
        + COMMITMENT_WEIGHT * found.commitment
    )
    return {
        "loss": loss,
        "log_mel": logarithmic,
        "linear": linear,
        "phonemes": phoneme_loss,
        "phoneme_accuracy": phoneme_accuracy,
        "commitment": found.commitment,
        "used": found.used,
    }


def language_losses(model: SpeechModel, batch: PromptedSpeech, seed: str) -> Losses:
    """Losses of a batch, and the share of semantic codes that are chosen, teacher-forced."""
    batch = PromptedSpeech(*(part.to(device()) for part in batch))
    codes, targets, is_code = batch.codes, batch.targets, batch.is_code
    chosen = targets != IGNORED
    noise = torch.Generator().manual_seed(hash_of(seed))
    fed = with_wrong_frames(codes, is_code & chosen, noise)
    states = model.states(model.embed(batch.ids, fed, is_code))
    hidden = model.normed(states[-1])
    reading = model.reading_loss(states, batch)
    phonemes = model.phonemes(states)[chosen].flatten(0, 1)
    spelled = batch.phonemes[chosen].flatten()
    phoneme_loss = F.cross_entropy(phonemes.float(), spelled, ignore_index=IGNORED)
    logits = model.semantic(hidden[chosen])
    semantic = semantic_loss(logits, targets[chosen])
    right = (logits.argmax(-1) == targets[chosen]).float().mean()
    is_frame = chosen & (targets >= FIRST_CODE)  # all but the one before the end
    is_frame &= (torch.rand(is_frame.shape, generator=noise) < FLOW_FRAMES).to(device())
    row, position = torch.nonzero(is_frame, as_tuple=True)
    top = model.config.audio.acoustic_codebook_size - 1
    levels = (codes[row, position + 1, 1:] - FIRST_CODE).float() * 2 / top - 1
    velocities = model.velocities(levels, hidden[row, position], noise)
    flow = F.mse_loss(velocities.found.float(), velocities.expected)
    return {
        "loss": semantic + flow + READING_WEIGHT * reading + SPELLING_WEIGHT * phoneme_loss,
        "semantic": semantic,
        "phonemes": phoneme_loss,
        "flow": flow,
        "reading": reading,
        "right": right,
    }


def train_codec(arguments: argparse.Namespace) -> None:
    model, trainer = _codec(arguments)
    shards = Shards(HEARD_BY_CODEC, arguments.folder, arguments.seed)

    def losses(step: int) -> Losses:
        return codec_losses(model, _of_speakers(shards.at(step)), f"{arguments.seed}:{step}", arguments.batch)

    trainer.run(losses, arguments.save_every)


def train_language(arguments: argparse.Namespace) -> None:
    codec, model, trainer, voices = _language(arguments)
    encoder = Encoder(BYTES)
    shards = Shards(HEARD, arguments.folder, arguments.seed)
    encoded: dict[int, list[Spoken]] = {}

    def losses(step: int) -> Losses:
        clips, index = shards.at(step), shards.index(step)
        if index not in encoded:
            encoded.clear()
            encoded[index] = encode_clips(_of_speakers(clips), codec)
        seed = f"{arguments.seed}:{step}"
        batch = make_sequences(encoded[index], voices, encoder, seed, arguments.batch)
        return language_losses(model, batch, seed)

    trainer.run(losses, arguments.save_every)


def write(arguments: argparse.Namespace) -> None:
    """Writes codec, backbone and acoustic transformer with averaged weights in the published format."""
    codec, _, trainer, voices = _language(arguments)
    model = trainer.averaged()
    assert isinstance(model, SpeechModel)
    _, codec_trainer = _codec(arguments)
    prompts = [voices[speaker] for speaker in VOICES.values()]
    write_speech(arguments.out, TrainedSpeech(model, codec, prompts), [codec_trainer, trainer])


def _of_speakers(clips: list[Clip]) -> list[Clip]:
    return [clip for clip in clips if clip.voice in SPEAKERS]


def _codec(arguments: argparse.Namespace) -> tuple[CodecModel, Trainer]:
    model = CodecModel(trained_config().codec, arguments.seed)
    return model, Trainer(model, arguments.folder, CODEC, schedule_of(arguments, *CODEC_STEPS))


def _language(
    arguments: argparse.Namespace,
) -> tuple[CodecModel, SpeechModel, Trainer, dict[str, torch.Tensor]]:
    """The codec with averaged weights, the model and its trainer, and the codes of the voices' prompts."""
    _, codec_trainer = _codec(arguments)
    if not codec_trainer.path.exists():
        raise FileNotFoundError(f"{codec_trainer.path}: train the codec first, with the stage `codec`")
    codec = codec_trainer.averaged().eval()
    assert isinstance(codec, CodecModel)
    natural = natural_shards(arguments.folder)[0]
    spoken = encode_clips([*make_shard(REFERENCE_SHARD), *unpack(natural.read_bytes())], codec)
    voices = reference_codes(spoken, SPEAKERS, REFERENCE_FRAMES)
    model = SpeechModel(trained_config(), arguments.seed)
    schedule = schedule_of(arguments, *LANGUAGE_STEPS)
    return codec, model, Trainer(model, arguments.folder, LANGUAGE, schedule), voices


STAGES = {"codec": train_codec, "language": train_language, "write": write}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("stage", choices=STAGES)
    add_training_arguments(parser, f"codec {CODEC_STEPS[0]}, language {LANGUAGE_STEPS[0]}", 1.5e-3, batch=16)
    arguments = parser.parse_args()
    if arguments.stage == "write" and arguments.out is None:
        parser.error("write needs --out")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.set_num_threads(arguments.threads)
    try:
        STAGES[arguments.stage](arguments)
    except FileNotFoundError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
