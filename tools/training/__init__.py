"""Trains the embedded models of text to speech and speech to text. Nothing else imports this package.

`python -m tools.training.voxtral_realtime` trains speech to text, `python -m tools.training.voxtral_tts` text
to speech. Both make their data on the spot with espeak-ng from the word lists and templates of this package.

Licence of the result: the texts are written for this project and are under its licence, Apache-2.0. espeak-ng
is free software under the GPL; its licence covers the program and its data files, not the sound that it makes
from a text. No recording of a person and no other model is used. So the weights are under the project's
licence.
"""
