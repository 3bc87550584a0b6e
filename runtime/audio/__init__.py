"""Audio in and out: files, recordings, live input, resampling, log-mel frames, captions."""
