# dependencies: litellm
"""LiteLLM with its provider openai."""

import litellm

from tools.clients.checks import RECORDING, TEXT, WORD, check


def speech() -> object:
    found = litellm.speech(model="openai/tts-1", voice="alloy", input=TEXT)
    return len(found.content) > 5000


def transcription() -> object:
    with RECORDING.open("rb") as file:
        return WORD in litellm.transcription(model="openai/whisper-1", file=file).text


check("litellm", speech, transcription)
