"""Files of a Voxtral-TTS checkpoint: Mistral's format, and a folder of voices."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from model.mistral_format import MistralFormat

if TYPE_CHECKING:
    import torch

    from model.voxtral_tts.config import VoxtralTTSConfig

VOICES = "voice_embedding"


class VoxtralTTSFormat(MistralFormat):
    """`voice_embedding/NAME.pt` holds the rows of a voice."""

    has_voices = True

    def voice_files(self, folder: Path) -> list[str]:
        return sorted(f"{VOICES}/{path.name}" for path in (folder / VOICES).glob("*.pt"))

    def voices(self, folder: Path, config: VoxtralTTSConfig) -> dict[str, torch.Tensor]:
        from model.voxtral_tts.voices import load_voices

        return load_voices([folder / name for name in self.voice_files(folder)], config.dim)


FORMAT = VoxtralTTSFormat("audio_model_args")
