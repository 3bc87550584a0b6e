"""Voxtral-4B-TTS: text to speech. `model.md` gives the data flow with shapes."""
