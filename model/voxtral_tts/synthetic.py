"""Synthetic Voxtral-TTS checkpoints: random weights that make a runner behave as with real ones.

Codes change from frame to frame, the audio is noise of moderate loudness, and a sentence ends after some
seconds.
"""

from pathlib import Path

import numpy as np
import torch

from voxport.bundle.constants.voxtral_tts import END_AUDIO
from voxport.bundle.json_types import Json
from voxport.model.family import Distribution, Synthetic
from voxport.model.mistral_layout import PARAMS, TOKENIZER, WEIGHTS
from voxport.model.synthetic.checkpoint import generator, plain_distribution, scale_for_chance, values
from voxport.model.synthetic.tokenizer import tekken
from voxport.model.voxtral_tts.config import VoxtralTTSConfig
from voxport.model.voxtral_tts.layouts import VOICES
from voxport.model.voxtral_tts.sizes import SIZES

SPECIALS = {
    24: "[AUDIO]",
    25: "[BEGIN_AUDIO]",
    26: "[OUTPUT_AUDIO]",
    34: "[TRANSCRIBE]",  # unused for synthesis, yet mistral_common opens no tokenizer of speech without it
    35: "[REPEAT_AUDIO_TEXT]",
    36: "[NEXT_AUDIO_TEXT]",
}
# Probability of END_AUDIO per frame if logits were independent normals. In fact a sentence has 10 to 50
# frames on average.
END_CHANCE = 0.08
AUDIO_GAIN = 0.15  # scales the last convolution: audio of about 0.1 RMS
USAGE = 8.0  # mean of cluster_usage, far from zero at a spread of 1
TEXT_TABLE = "mm_audio_embeddings.tok_embeddings.weight"
SEMANTIC_HEAD = "acoustic_transformer.semantic_codebook_output.weight"


def audio_document(params: Json, voices: dict[str, int]) -> Json:
    """The audio section of the tekken.json that belongs to a params.json. `voices`: rows of each voice."""
    config = VoxtralTTSConfig.model_validate(params)
    return {
        "sampling_rate": config.codec.sampling_rate,
        "frame_rate": config.audio.audio_encoding_args.frame_rate,
        "audio_encoding_config": {
            "num_mel_bins": 128,
            "hop_length": 160,
            "window_size": 400,
        },  # unused for speech synthesis
        "voice_num_audio_tokens": voices,
    }


def _tekken(size: str) -> Json:
    chosen = SIZES[size]
    params = chosen.params()
    audio = audio_document(params, chosen.voices)
    return tekken(params["vocab_size"], chosen.num_vocab_tokens, SPECIALS, audio)


class VoxtralTTSSynthetic(Synthetic[VoxtralTTSConfig]):
    version = 3
    sizes = tuple(SIZES)
    weight_files = {WEIGHTS: ""}

    def documents(self, size: str) -> dict[str, Json]:
        return {PARAMS: SIZES[size].params(), TOKENIZER: _tekken(size)}

    def distribution(self, name: str, shape: tuple[int, ...], config: VoxtralTTSConfig) -> Distribution:
        fixed = {  # mean and standard deviation by the end of the name
            "_scale": (0.5, 0.1),
            # norms of kernels; upsamplers add two taps of half the channels' energy
            "output_proj.conv.parametrizations.weight.original0": (AUDIO_GAIN, AUDIO_GAIN / 10),
            "original0": (1.0, 0.1),
            "original1": (0.0, 1.0),  # only its direction matters
            "cluster_usage": (USAGE, 1.0),
            "embedding_sum": (0.0, USAGE * 3**-0.5),  # as large as the acoustic values of uniform levels
            TEXT_TABLE: (0.0, 1.0),
            # a frame, the sum of 37 rows, is as large as a text row
            "audio_codebook_embeddings.embeddings.weight": (0.0, config.n_codebooks**-0.5),
        }
        mean, spread = next(
            (values for end, values in fixed.items() if name.endswith(end)), plain_distribution(name, shape)
        )
        # keeps deep layers from outweighing the new frame
        if name.startswith("layers.") and name.endswith(("wo.weight", "w2.weight")):
            spread *= (2 * config.n_layers) ** -0.5
        return np.float32(mean), np.float32(spread)

    def adjust(self, name: str, first: int, rows: np.ndarray, seed: int, config: VoxtralTTSConfig) -> None:
        """Makes END_AUDIO win with END_CHANCE, by a row of the semantic head that is orthogonal to the
        markers.

        The embedding of [BEGIN_AUDIO] or [AUDIO] is most of the hidden state of frame 0, for any text.
        Without orthogonality some seeds would end every sentence at frame 0.
        """
        if name != SEMANTIC_HEAD or first:
            return
        markers = [config.audio.audio_token_id, config.audio.begin_audio_token_id]
        beginning = (max(markers) + 1, config.dim)
        table = torch.cat(list(values(self, TEXT_TABLE, beginning, seed, config))).reshape(beginning)
        basis, _ = np.linalg.qr(table[markers].double().numpy().T)  # [dim, 2]
        row, scale = rows[END_AUDIO], scale_for_chance(config.audio.semantic_codebook_size, END_CHANCE)
        rows[END_AUDIO] = scale * (row - basis @ (basis.T @ row))

    def write_extra_files(self, folder: Path, size: str, seed: int) -> None:
        """Bare bfloat16 tensors [rows, dim], as large as text rows.

        Saved as `voice_embed`, which names the archive's root as published.
        """
        (folder / VOICES).mkdir()
        dim, saved = SIZES[size].params()["dim"], folder / VOICES / "voice_embed.pt"
        for voice, rows in SIZES[size].voices.items():
            found = generator(seed, f"voice_embedding/{voice}").standard_normal((rows, dim), dtype=np.float32)
            torch.save(torch.from_numpy(found).to(torch.bfloat16), saved)
            saved.rename(folder / VOICES / f"{voice}.pt")


SYNTHETIC = VoxtralTTSSynthetic()
