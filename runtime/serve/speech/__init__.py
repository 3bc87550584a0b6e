"""Text to speech: the engine thread, its jobs, and POST /v1/audio/speech."""
