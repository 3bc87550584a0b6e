"""Voxtral-TTS: text to speech."""
