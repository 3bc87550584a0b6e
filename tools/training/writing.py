"""Writes trained models as checkpoints in the published formats, in bfloat16."""

import json
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file

from tools.training.data.tokens import BYTES, tekken_document
from tools.training.loop import Trainer, device
from tools.training.recognition.model import RecognitionModel
from tools.training.recognition.model import trained_params as recognition_params
from tools.training.speech.model import VOICES, TrainedSpeech
from tools.training.speech.model import trained_params as speech_params
from voxport.model.mistral_layout import PARAMS, TOKENIZER, WEIGHTS
from voxport.model.voxtral_realtime.synthetic import SPECIALS as RECOGNITION_SPECIALS
from voxport.model.voxtral_realtime.synthetic import audio_document as recognition_audio
from voxport.model.voxtral_tts.layouts import VOICES as VOICE_FOLDER
from voxport.model.voxtral_tts.synthetic import SPECIALS as SPEECH_SPECIALS
from voxport.model.voxtral_tts.synthetic import audio_document as speech_audio
from voxport.runtime.machine import describe_machine

CARD = "README.md"
WIDTH = 100  # of the card's lines
SENTENCES = "sentences of `tools/training/data`, a part of them from WordNet 3.0"
KOKORO = "spoken by Kokoro-82M (Apache-2.0), with the phonemes of espeak-ng"
LICENCE = (
    "Apache-2.0, as this project. WordNet's licence is in NOTICE. The licence of espeak-ng, the GPL, covers "
    "the program and its data, not what it gives. No recording of a person was used."
)


def write_recognition(out: Path, model: RecognitionModel, tokens: Sequence[bytes], trainer: Trainer) -> None:
    """Writes voxtral-realtime-tiny. Raises FileExistsError where `out` exists."""
    params = recognition_params()
    tekken = tekken_document(tokens, RECOGNITION_SPECIALS, recognition_audio(params))
    with_head = dict(model.weights.named_parameters())  # the tied head is listed once, as the token table
    documents = {PARAMS: params, TOKENIZER: tekken}
    data = f"{SENTENCES}; {KOKORO}, and by espeak-ng"
    _write(out, documents, with_head, _card("voxtral-realtime-tiny", "Speech to text.", data, [trainer]), {})


def write_speech(out: Path, trained: TrainedSpeech, trainers: Sequence[Trainer]) -> None:
    """Writes voxtral-tts-tiny. Raises FileExistsError where `out` exists."""
    (model, codec, voices), params = trained, speech_params()
    tekken = tekken_document(
        BYTES, SPEECH_SPECIALS, speech_audio(params, {name: len(voices[0]) for name in VOICES})
    )
    weights = dict(model.weights.named_parameters())
    weights |= {f"audio_tokenizer.{name}": value for name, value in codec.weights.named_parameters()}
    nothing = torch.zeros(1, len(voices[0]), dtype=torch.long, device=device())
    are_codes = torch.ones_like(nothing, dtype=torch.bool)
    rows = {
        name: model.embed(nothing, codes[None].to(device()), are_codes)[0]
        for name, codes in zip(VOICES, voices, strict=True)
    }
    documents = {PARAMS: params, TOKENIZER: tekken}
    card = _card("voxtral-tts-tiny", "Text to speech.", f"{SENTENCES}; {KOKORO}", trainers)
    _write(out, documents, weights, card, rows)


def _write(
    out: Path,
    documents: Mapping[str, object],
    weights: Mapping[str, torch.Tensor],
    card: str,
    voices: Mapping[str, torch.Tensor],
) -> None:
    """`documents` are the JSON files by name. To a folder beside `out`, which is renamed at the end."""
    if out.exists():
        raise FileExistsError(f"{out}: exists; choose another folder")
    partial = out.with_name(f".{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    (partial / VOICE_FOLDER if voices else partial).mkdir(parents=True)
    stored = {name: value.detach().cpu().to(torch.bfloat16).contiguous() for name, value in weights.items()}
    save_file(stored, partial / WEIGHTS)
    (partial / WEIGHTS).chmod(0o644)  # the library lets only the owner read
    for name, document in documents.items():
        (partial / name).write_text(json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False) + "\n")
    for name, rows in voices.items():
        torch.save(rows.detach().cpu().to(torch.bfloat16).clone(), partial / VOICE_FOLDER / "voice_embed.pt")
        (partial / VOICE_FOLDER / "voice_embed.pt").rename(partial / VOICE_FOLDER / f"{name}.pt")
    (partial / CARD).write_text(card)
    partial.rename(out)


def _card(name: str, purpose: str, data: str, trainers: Sequence[Trainer]) -> str:
    """The model card: data, steps, time, machine, licence."""
    lines = ["---", "language: [en]", "license: apache-2.0", "---", "", f"# {name}", ""]
    lines += [f"{purpose} Trained by `tools/training` of voxport.", ""]
    entries = [f"Data: {data}."]
    entries += [
        f"{each.path.stem}: {each.step} steps, {each.seconds / 3600:.2f} core-hours." for each in trainers
    ]
    processor = f"{describe_machine(None, 'torch')['processor']}, {torch.backends.cpu.get_cpu_capability()}"
    entries += [f"Written on: {processor}", f"Licence: {LICENCE}"]
    for entry in entries:
        lines += textwrap.wrap(entry, WIDTH, initial_indent="- ", subsequent_indent="  ")
    return "\n".join([*lines, ""])
