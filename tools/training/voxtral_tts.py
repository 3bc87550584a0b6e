"""Trains voxtral-tts-tiny: text to speech in the published architecture and format.

The recipe, in order. STATE is a folder outside of the repository; every training continues at its last
checkpoint.

    python -m tools.training.voxtral_tts codec --folder STATE           codec: encoder, quantiser, decoder
    python -m tools.training.voxtral_tts language --folder STATE        backbone and acoustic transformer
    python -m tools.training.voxtral_tts decoder --folder STATE         the codec's decoder, for their frames
    python -m tools.training.voxtral_tts write --folder STATE --out DIR writes the checkpoint

Data: `docs/training.md`. The data and the weights follow from --seed.

Each stage has as many steps by default as the embedded model had, the last of them with a falling learning
rate. To measure word error rates, export the written checkpoint and run `voxport evaluate`.
"""

import argparse
import logging
import random
from collections.abc import Callable

import torch

from tools.training.data.clips import Clip, Mixture, Shards, natural_shards, unpack
from tools.training.data.tokens import BYTES, Encoder
from tools.training.loop import Losses, Trainer
from tools.training.speech.batches import Spoken, encode_clips, make_sequences, reference_codes
from tools.training.speech.codec_model import CodecModel
from tools.training.speech.losses import FRAMES, codec_losses, decoder_losses, language_losses, sequences_of
from tools.training.speech.model import REFERENCE_FRAMES, VOICES, SpeechModel, TrainedSpeech, trained_config
from tools.training.voxtral_realtime import add_training_arguments, schedule_of
from tools.training.writing import write_speech

CODEC, LANGUAGE, DECODER = "voxtral_tts_codec", "voxtral_tts_language", "voxtral_tts_decoder"  # in STATE
CODEC_STEPS = (9_000, 1_800)  # the second number has a falling learning rate
LANGUAGE_STEPS, DECODER_STEPS = (10_000, 2_000), (1_000, 400)
HEARD_BY_CODEC = Mixture(steps=16, natural_shards=5, pool=64)
HEARD = Mixture(steps=32, natural_shards=6, pool=115)
Prompts = dict[str, torch.Tensor]  # codes of the prompt of each voice


def train_codec(arguments: argparse.Namespace) -> None:
    model, trainer = _codec(arguments)
    shards = Shards(HEARD_BY_CODEC, arguments.folder, arguments.seed)

    def losses(step: int) -> Losses:
        return codec_losses(model, _of_voices(shards.at(step)), f"{arguments.seed}:{step}", arguments.batch)

    trainer.run(losses, arguments.save_every)


def train_language(arguments: argparse.Namespace) -> None:
    codec, model, trainer, voices = _language(arguments)
    encoder, encoded = Encoder(BYTES), _Encoded(arguments, codec, shift=0)

    def losses(step: int) -> Losses:
        seed, spoken = f"{arguments.seed}:{step}", [one for _, one in encoded.at(step)]
        return language_losses(model, make_sequences(spoken, voices, encoder, seed, arguments.batch), seed)

    trainer.run(losses, arguments.save_every)


def train_decoder(arguments: argparse.Namespace) -> None:
    codec, trainer, model, voices = _decoder(arguments)
    encoder, encoded = Encoder(BYTES), _Encoded(arguments, codec, shift=1)

    def losses(step: int) -> Losses:
        seed = f"{arguments.seed}:decoder:{step}"
        long = [pair for pair in encoded.at(step) if len(pair[1].codes) >= FRAMES]
        chosen = random.Random(seed).sample(long, min(arguments.batch, len(long)))
        sequences = sequences_of([one for _, one in chosen], voices, encoder)
        return decoder_losses(codec, model, chosen, sequences, seed)

    trainer.run(losses, arguments.save_every)


def write(arguments: argparse.Namespace) -> None:
    """Writes codec, backbone and acoustic transformer with averaged weights in the published format."""
    codec, decoder, model, voices = _decoder(arguments)
    decoder.averaged()
    prompts = [voices[speaker] for speaker in VOICES.values()]
    trainers = [_codec(arguments)[1], _language(arguments)[2], decoder]
    write_speech(arguments.out, TrainedSpeech(model, codec, prompts), trainers)


class _Encoded:
    """The clips of a step, with their codes. `shift` changes the order of the shards."""

    def __init__(self, arguments: argparse.Namespace, codec: CodecModel, shift: int):
        self._codec = codec
        self._shards = Shards(HEARD, arguments.folder, arguments.seed + shift)
        self._index, self._pairs = -1, list[tuple[Clip, Spoken]]()

    def at(self, step: int) -> list[tuple[Clip, Spoken]]:
        if self._shards.index(step) != self._index:
            clips = _of_voices(self._shards.at(step))
            self._pairs = list(zip(clips, encode_clips(clips, self._codec), strict=True))
            self._index = self._shards.index(step)
        return self._pairs


def _of_voices(clips: list[Clip]) -> list[Clip]:
    return [clip for clip in clips if clip.voice in VOICES.values()]


def _codec(arguments: argparse.Namespace) -> tuple[CodecModel, Trainer]:
    model = CodecModel(trained_config().codec, arguments.seed)
    return model, Trainer(model, arguments.folder, CODEC, schedule_of(arguments, *CODEC_STEPS))


def _language(
    arguments: argparse.Namespace,
) -> tuple[CodecModel, SpeechModel, Trainer, Prompts]:
    """The codec with averaged weights, the model and its trainer, and the codes of the voices' prompts."""
    _, codec_trainer = _codec(arguments)
    _check_trained(codec_trainer)
    codec = codec_trainer.averaged().eval()
    assert isinstance(codec, CodecModel)
    first = _of_voices(unpack(natural_shards(arguments.folder)[0].read_bytes()))
    voices = reference_codes(encode_clips(first, codec), VOICES.values(), REFERENCE_FRAMES)
    model = SpeechModel(trained_config(), arguments.seed)
    schedule = schedule_of(arguments, *LANGUAGE_STEPS)
    return codec, model, Trainer(model, arguments.folder, LANGUAGE, schedule), voices


def _decoder(arguments: argparse.Namespace) -> tuple[CodecModel, Trainer, SpeechModel, Prompts]:
    """The codec and the trainer of its decoder, the trained language model, and the voices' prompts."""
    codec, _, language, voices = _language(arguments)
    _check_trained(language)
    model = language.averaged()
    assert isinstance(model, SpeechModel)
    codec.requires_grad_(False)
    decoder = codec.weights.requires_grad_(True)
    schedule = schedule_of(arguments, *DECODER_STEPS)
    return codec, Trainer(decoder, arguments.folder, DECODER, schedule), model, voices


def _check_trained(trainer: Trainer) -> None:
    if not trainer.path.exists():
        stage = trainer.path.stem.removeprefix("voxtral_tts_")
        raise FileNotFoundError(f"{trainer.path}: train it first, with the stage `{stage}`")


STAGES: dict[str, Callable[[argparse.Namespace], None]] = {
    "codec": train_codec,
    "language": train_language,
    "decoder": train_decoder,
    "write": write,
}


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
