"""Transcribe a recording, or live audio from stdin. Without --bundle, the embedded model listens."""

import argparse

from voxport.embedded import embedded_bundle, make_bundle_optional
from voxport.model.families import SPEECH_TO_TEXT
from voxport.runtime.commands import transcribe


def add_arguments(parser: argparse.ArgumentParser) -> None:
    transcribe.add_arguments(parser)
    make_bundle_optional(parser, "the embedded model")


def run(arguments: argparse.Namespace) -> int:
    transcribe.check(arguments)  # before an export that takes half a minute
    arguments.bundle = arguments.bundle or embedded_bundle(SPEECH_TO_TEXT)
    return transcribe.transcribe(arguments)
