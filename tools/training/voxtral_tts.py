"""Trains voxtral-tts-tiny: text to speech in the published architecture and format.

The recipe, in order. STATE is a folder outside of the repository; every training continues at its last
checkpoint.

    python -m tools.training.voxtral_tts codec --folder STATE           codec: encoder, quantiser, decoder
    python -m tools.training.voxtral_tts language --folder STATE        backbone and acoustic transformer
    python -m tools.training.voxtral_tts decoder --folder STATE         the codec's decoder, for their frames
    python -m tools.training.voxtral_tts write --folder STATE --out DIR writes the checkpoint

Data: `docs/training.md`. The data and the weights follow from --seed.

Each stage has as many steps by default as for the embedded model, the last of them with a falling learning
rate. To measure word error rates, export the written checkpoint and run `voxport evaluate`.
"""

import argparse
import random
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path

import torch
from torch import nn

from tools.training.command import WRITE, Stages, run_command, schedule_of, settings_of
from tools.training.data.clips import (
    ALL_VOICES,
    SPEECH_FOLDER,
    SPEECH_VOICES,
    Clip,
    Mixture,
    Shards,
    Source,
    shard_files,
    unpack,
)
from tools.training.data.tokens import BYTES, Encoder
from tools.training.loop import Losses, Trainer
from tools.training.speech.batches import Spoken, encode_clips, make_sequences, reference_codes
from tools.training.speech.codec_model import CodecModel
from tools.training.speech.losses import FRAMES, codec_losses, decoder_losses, language_losses
from tools.training.speech.model import REFERENCE_FRAMES, VOICES, SpeechModel, TrainedSpeech, trained_config
from tools.training.writing import write_speech

CODEC, LANGUAGE, DECODER = "voxtral_tts_codec", "voxtral_tts_language", "voxtral_tts_decoder"  # in STATE
CODEC_STEPS = (9_000, 1_800)  # the second number has a falling learning rate
LANGUAGE_STEPS, DECODER_STEPS = (10_000, 2_000), (1_000, 400)
CODEC_SOURCES = (*ALL_VOICES, ("speech-own", 36, 40))
SOURCES = (*ALL_VOICES, *SPEECH_VOICES)
CODEC_MIXTURE = Mixture(steps=16, natural_shards=5)


class TrainedStages:
    """The models of the stages, as far as the folder of the state has them."""

    def __init__(self, arguments: argparse.Namespace):
        self._arguments, self._folder = arguments, arguments.folder

    @cached_property
    def codec(self) -> Trainer:
        model = CodecModel(trained_config().codec, self._arguments.seed)
        schedule = schedule_of(self._arguments, *CODEC_STEPS)
        return Trainer(model, self._folder, CODEC, schedule, settings_of(self._arguments))

    @cached_property
    def trained_codec(self) -> CodecModel:
        """With averaged weights."""
        model = _trained(self.codec).eval()
        assert isinstance(model, CodecModel)
        return model.requires_grad_(False)

    @cached_property
    def language(self) -> Trainer:
        model = SpeechModel(trained_config(), self._arguments.seed)
        settings = settings_of(self._arguments) | {CODEC: self.codec.step}
        schedule = schedule_of(self._arguments, *LANGUAGE_STEPS)
        return Trainer(model, self._folder, LANGUAGE, schedule, settings)

    @cached_property
    def trained_language(self) -> SpeechModel:
        """With averaged weights."""
        model = _trained(self.language)
        assert isinstance(model, SpeechModel)
        return model.requires_grad_(False)

    @cached_property
    def decoder(self) -> Trainer:
        """Of the trained codec's decoder, in place. The code book stays."""
        decoder = self.trained_codec.weights
        for name, parameter in decoder.named_parameters():
            parameter.requires_grad_(not name.startswith("quantizer"))
        steps = {CODEC: self.codec.step, LANGUAGE: self.language.step}
        schedule = schedule_of(self._arguments, *DECODER_STEPS)
        return Trainer(decoder, self._folder, DECODER, schedule, settings_of(self._arguments) | steps)

    def files(self, sources: Sequence[Source]) -> list[Path]:
        """The shards of Kokoro, and those of recordings of the voices."""
        folder = self._folder / SPEECH_FOLDER
        recorded = [path for voice in VOICES.values() for path in sorted(folder.glob(f"{voice}-*.npz"))]
        return [*shard_files(self._folder, sources), *recorded]

    def spoken(self) -> Iterator[tuple[Clip, Spoken]]:
        """All clips of the voices, with their codes."""
        for path in self.files(SOURCES):
            yield from encode_clips(_of_voices(unpack(path.read_bytes())), self.trained_codec)

    def prompts(self) -> dict[str, torch.Tensor]:
        """The codes of each voice's prompt, of its first sentence that is long enough.

        Raises FileNotFoundError.
        """
        found: dict[str, torch.Tensor] = {}
        for _, one in self.spoken():
            if one.voice not in found and len(one.codes) >= REFERENCE_FRAMES:
                found[one.voice] = reference_codes(one.codes, REFERENCE_FRAMES)
                if len(found) == len(VOICES):
                    return found
        missing = next(voice for voice in VOICES.values() if voice not in found)
        raise FileNotFoundError(f"{self._folder / SPEECH_FOLDER}: has no sentence of the voice {missing}")


def train_codec(arguments: argparse.Namespace) -> None:
    stages = TrainedStages(arguments)
    model, shards = stages.codec.model, Shards(CODEC_MIXTURE, stages.files(CODEC_SOURCES), arguments.seed)
    assert isinstance(model, CodecModel)

    def losses(step: int) -> Losses:
        return codec_losses(model, _of_voices(shards.at(step)), f"{arguments.seed}:{step}", arguments.batch)

    stages.codec.run(losses, arguments.save_every)


def train_language(arguments: argparse.Namespace) -> None:
    """In batches of about one length: with random sentences, two of five positions were padding."""
    stages, encoder, size = TrainedStages(arguments), Encoder(BYTES), arguments.batch
    codec, model = stages.trained_codec, stages.language.model
    assert isinstance(model, SpeechModel)
    voices, likeness = stages.prompts(), codec.likeness(model.semantic_rows)
    ordered = sorted((one for _, one in stages.spoken()), key=lambda one: len(one.codes) + len(one.text))

    def losses(step: int) -> Losses:
        seed = f"{arguments.seed}:{step}"
        first = random.Random(seed).randrange(len(ordered) - size + 1)
        batch = make_sequences(ordered[first : first + size], voices, encoder)
        return language_losses(model, batch, likeness, seed)

    stages.language.run(losses, arguments.save_every)


def train_decoder(arguments: argparse.Namespace) -> None:
    stages, encoder = TrainedStages(arguments), Encoder(BYTES)
    codec, model, voices = stages.trained_codec, stages.trained_language, stages.prompts()
    long = [pair for pair in stages.spoken() if len(pair[1].codes) >= FRAMES]

    def losses(step: int) -> Losses:
        seed = f"{arguments.seed}:decoder:{step}"
        chosen = random.Random(seed).sample(long, arguments.batch)
        sequences = make_sequences([one for _, one in chosen], voices, encoder)
        return decoder_losses(codec, model, chosen, sequences, seed)

    stages.decoder.run(losses, arguments.save_every)


def write(arguments: argparse.Namespace) -> None:
    """Writes codec, backbone and acoustic transformer with averaged weights in the published format."""
    stages = TrainedStages(arguments)
    codec, model = stages.trained_codec, stages.trained_language
    _trained(stages.decoder)
    voices = stages.prompts()
    trained = TrainedSpeech(model, codec, [voices[name] for name in VOICES.values()])
    write_speech(arguments.out, trained, [stages.codec, stages.language, stages.decoder])


def _of_voices(clips: list[Clip]) -> list[Clip]:
    return [clip for clip in clips if clip.voice in VOICES.values()]


def _trained(trainer: Trainer) -> nn.Module:
    """The model with averaged weights. Raises FileNotFoundError if it was not trained."""
    if not trainer.path.exists():
        stage = trainer.path.stem.removeprefix("voxtral_tts_")
        raise FileNotFoundError(f"{trainer.path}: train it first, with the stage `{stage}`")
    return trainer.averaged()


STAGES: Stages = {
    "codec": train_codec,
    "language": train_language,
    "decoder": train_decoder,
    WRITE: write,
}


def main() -> None:
    steps = f"codec {CODEC_STEPS[0]}, language {LANGUAGE_STEPS[0]}, decoder {DECODER_STEPS[0]}"
    run_command(__doc__, STAGES, steps, rate=1.5e-3, batch=16)


if __name__ == "__main__":
    main()
