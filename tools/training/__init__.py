"""Trains the embedded models of text to speech and speech to text. Nothing else imports this package.

`python -m tools.training.voxtral_realtime` trains speech to text, `python -m tools.training.voxtral_tts` text
to speech. `docs/training.md` has the recipe, NOTICE the sources.
"""

import voxport.bundle  # noqa: F401  # turns off the telemetry of ONNX Runtime, on which Kokoro runs
