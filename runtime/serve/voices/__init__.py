"""Voices that clients make from recordings: the store and /v1/audio/voices."""
