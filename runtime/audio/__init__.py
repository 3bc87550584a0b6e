"""Audio in and out: files, recordings, live sources, log-mel frames, captions."""
