"""Speech to text: the engine thread, its jobs and live streams, and POST /v1/audio/transcriptions."""
