"""Serve bundles over HTTP and WebSockets, for clients of the OpenAI audio API.

Without --bundle, the embedded models are served. Their weights are random.
"""

import argparse
import logging
import sys
from contextlib import redirect_stdout
from pathlib import Path

from bundle.user_cache import user_cache
from runtime.commands import serve

EMBEDDED = ("voxtral-tts", "voxtral-realtime")
log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    serve.add_arguments(parser)
    for action in parser._actions:
        if action.dest == "bundle":
            action.required = False
            action.help = f"{action.help} (default: the embedded models, which are exported on first use)"


def run(arguments: argparse.Namespace) -> int:
    serve.check(arguments)  # before an export that takes a minute
    arguments.bundle = arguments.bundle or [_embedded(model) for model in EMBEDDED]
    return serve.run(arguments)


def _embedded(model: str) -> Path:
    """The bundle of an embedded model in the user's cache folder; exported where it is missing."""
    from export.commands import export
    from model.families import find_family
    from runtime.families import open_family

    folder = user_cache() / "bundles" / f"{model}-tiny"
    if not folder.exists():
        log.info("%s: exporting the embedded model, once", folder)
        parser = argparse.ArgumentParser()
        export.add_arguments(parser)
        arguments = parser.parse_args(["--target", "onnx", "--model", model, "--out", str(folder)])
        vars(arguments).update(open_family(find_family(model)).server_options)
        with redirect_stdout(sys.stderr):
            export.run(arguments)
    return folder
