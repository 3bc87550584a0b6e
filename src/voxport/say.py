"""Speak a text, into a file or as raw samples on stdout. Without --bundle, the embedded model speaks."""

import argparse

from voxport.embedded import embedded_bundle, make_bundle_optional
from voxport.model.families import TEXT_TO_SPEECH
from voxport.runtime.commands import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    say.add_arguments(parser)
    make_bundle_optional(parser, "the embedded model")


def run(arguments: argparse.Namespace) -> int:
    say.check(arguments)  # before an export that takes half a minute
    arguments.bundle = arguments.bundle or embedded_bundle(TEXT_TO_SPEECH)
    return say.speak(arguments)
