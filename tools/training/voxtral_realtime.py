"""Trains voxtral-realtime-tiny: speech to text in the published architecture and format.

    python -m tools.training.voxtral_realtime train --folder STATE           trains, or continues
    python -m tools.training.voxtral_realtime write --folder STATE --out DIR writes the checkpoint

Data: `docs/training.md`. `train` continues at the last checkpoint in STATE. By default it takes as many steps
as the embedded model had. To measure word error rates, export the written checkpoint and run `voxport
evaluate`.
"""

import argparse

import torch
import torch.nn.functional as F

from tools.training.command import WRITE, run_command, schedule_of, settings_of
from tools.training.data.clips import ALL_VOICES, SPEECH_VOICES, Clip, Mixture, Shards, shard_files
from tools.training.data.sound import log_mel
from tools.training.data.tokens import Encoder, load_tokens
from tools.training.loop import Losses, Trainer, device, hash_of
from tools.training.recognition.model import VOCAB_SIZE, RecognitionModel, trained_params
from tools.training.recognition.streams import IGNORED, SCHEDULE, make_batch, with_wrong_tokens
from tools.training.writing import write_recognition
from voxport.model.voxtral_realtime.config import VoxtralRealtimeConfig

NAME, TOKENS = "voxtral_realtime", "recognition-tokens.json"  # files in STATE
STEPS = (8_000, 2_000)  # the second number has a falling learning rate
RARELY = 4  # a shard of the two speech voices is heard so many times less often than one of all voices
MIXTURE = Mixture(steps=12, natural_shards=4, robot_clips=128)
PHONEME_WEIGHT, LISTENING_WEIGHT = 1.0, 0.5
PAD_WEIGHT = 0.3  # weight of [STREAMING_PAD], which is most of the targets


def recognition_losses(
    model: RecognitionModel, clips: list[Clip], encoder: Encoder, seed: str, size: int
) -> Losses:
    """Losses of a batch of `size` streams, and the share of text tokens that are chosen, teacher-forced."""
    batch = make_batch(clips, encoder, seed, size)
    fed = with_wrong_tokens(batch.fed, torch.Generator().manual_seed(hash_of(seed)))
    logits = model(log_mel(batch.samples.to(device())), fed.to(device()), batch.delay.to(device()))
    listening = model.listening_loss(logits.states, batch.heard.to(device()))
    weight = torch.ones(logits.tokens.shape[-1], device=device())
    weight[SCHEDULE.pad_id] = PAD_WEIGHT
    targets, phonemes = batch.targets.to(device()).flatten(), batch.phonemes.to(device()).flatten()
    tokens, frames = logits.tokens.float().flatten(0, 1), logits.phonemes.float().flatten(0, 1)
    token_loss = F.cross_entropy(tokens, targets, weight, ignore_index=IGNORED)
    phoneme_loss = F.cross_entropy(frames, phonemes)
    right = (tokens.argmax(-1) == targets)[targets >= SCHEDULE.first_text_id].float().mean()
    phoneme_accuracy = (frames.argmax(-1) == phonemes).float().mean()
    loss = token_loss + PHONEME_WEIGHT * phoneme_loss + LISTENING_WEIGHT * listening
    return {
        "loss": loss,
        "tokens": token_loss,
        "phonemes": phoneme_loss,
        "listening": listening,
        "right": right,
        "phoneme_accuracy": phoneme_accuracy,
    }


def train(arguments: argparse.Namespace) -> None:
    """Trains to the end of the schedule."""
    model, trainer = _trainer(arguments)
    encoder = Encoder(load_tokens(arguments.folder / TOKENS, VOCAB_SIZE))
    files = [shard_files(arguments.folder, sources) for sources in (ALL_VOICES, SPEECH_VOICES)]
    shards = Shards(MIXTURE, [*(files[0] * RARELY), *files[1]], arguments.seed)

    def losses(step: int) -> Losses:
        seed = f"{arguments.seed}:{step}"
        return recognition_losses(model, shards.at(step), encoder, seed, arguments.batch)

    trainer.run(losses, arguments.save_every)


def write(arguments: argparse.Namespace) -> None:
    """Writes the averaged weights in the published format."""
    _, trainer = _trainer(arguments)
    _check_trained(trainer)
    model = trainer.averaged()
    assert isinstance(model, RecognitionModel)
    write_recognition(arguments.out, model, load_tokens(arguments.folder / TOKENS, VOCAB_SIZE), trainer)


def _check_trained(trainer: Trainer) -> None:
    if not trainer.path.exists():
        raise FileNotFoundError(
            f"{trainer.path}: train it first, with `python -m tools.training.{NAME} train`"
        )


def _trainer(arguments: argparse.Namespace) -> tuple[RecognitionModel, Trainer]:
    model = RecognitionModel(VoxtralRealtimeConfig.model_validate(trained_params()), arguments.seed)
    schedule = schedule_of(arguments, *STEPS)
    return model, Trainer(model, arguments.folder, NAME, schedule, settings_of(arguments))


def main() -> None:
    run_command(__doc__, {"train": train, WRITE: write}, str(STEPS[0]), rate=2e-3, batch=4)


if __name__ == "__main__":
    main()
