"""Files of a Voxtral-Realtime checkpoint: Mistral's format."""

from model.mistral_format import MistralFormat

FORMAT = MistralFormat("whisper_model_args")
