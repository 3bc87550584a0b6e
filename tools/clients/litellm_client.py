# dependencies: litellm
"""LiteLLM with its provider openai."""

import litellm

from tools.clients.checks import RECORDING, TEXT, WORD, check

SOUND = RECORDING.open("rb")
check(
    "litellm",
    speech=lambda: len(litellm.speech(model="openai/tts-1", voice="alloy", input=TEXT).content) > 5000,
    transcription=lambda: WORD in litellm.transcription(model="openai/whisper-1", file=SOUND).text,
)
