"""Files of a Voxtral-Realtime checkpoint: Mistral's format."""

from voxport.model.mistral_format import MistralFormat
from voxport.model.voxtral_realtime.config import TOKENS

FORMAT = MistralFormat("whisper_model_args", tuple(TOKENS.values()))
