"""Serve bundles over HTTP and WebSockets, for clients of the OpenAI audio API.

Without --bundle, the embedded models are served.
"""

import argparse

from voxport.embedded import embedded_bundle, make_bundle_optional
from voxport.model.families import DEFAULT_OF_TASK
from voxport.runtime.commands import serve


def add_arguments(parser: argparse.ArgumentParser) -> None:
    serve.add_arguments(parser)
    make_bundle_optional(parser, "the embedded models")


def run(arguments: argparse.Namespace) -> int:
    ready = serve.check(arguments)  # before an export that takes a minute
    with ready.listener:
        arguments.bundle = arguments.bundle or [embedded_bundle(task) for task in DEFAULT_OF_TASK]
        return serve.serve_bundles(arguments, ready)
