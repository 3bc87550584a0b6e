"""Audio in and out: files, recordings, live input, log-mel frames, captions."""
