"""The configuration of voxtral-tts-tiny as trained: 15.7 MB in bfloat16."""

from voxport.bundle.json_types import Json
from voxport.model.synthetic.tokenizer import SPECIALS
from voxport.model.training.data.tokens import VOCAB_SIZE
from voxport.model.voxtral_tts.config import VoxtralTTSConfig, parse_config
from voxport.model.voxtral_tts.sizes import Size

REFERENCE_FRAMES = 12  # of a voice's prompt; one row more for the end
VOICE_NAMES = ("clear_female", "clear_male")  # in the order of `clips.VOICES`
ACOUSTIC_CODES = 24
_BLOCK = {"dim": 256, "head_dim": 64, "n_heads": 4, "n_kv_heads": 2}

TRAINED_SIZE = Size(
    backbone=_BLOCK | {"n_layers": 4, "hidden_dim": 640, "vocab_size": VOCAB_SIZE},
    acoustic=_BLOCK | {"n_layers": 2, "hidden_dim": 512},
    codec={
        "dim": 192,
        "hidden_dim": 384,
        "head_dim": 32,
        "n_heads": 6,
        "n_kv_heads": 6,
        "semantic_dim": 64,
        "acoustic_dim": ACOUSTIC_CODES,
        "decoder_transformer_lengths_str": "1,1,1,2",
    },
    semantic_codes=510,
    num_vocab_tokens=VOCAB_SIZE - SPECIALS,
    voices={name: REFERENCE_FRAMES + 1 for name in VOICE_NAMES},
)


def trained_params() -> Json:
    """The content of params.json."""
    params = TRAINED_SIZE.params()
    audio = params["multimodal"]["audio_model_args"]
    encoding = audio["audio_encoding_args"] | {"num_codebooks": 1 + ACOUSTIC_CODES}
    audio |= {"n_acoustic_codebook": ACOUSTIC_CODES, "audio_encoding_args": encoding}
    return params


def trained_config() -> VoxtralTTSConfig:
    return parse_config(trained_params())
