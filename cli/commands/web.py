"""Write a static folder that speaks and transcribes in a browser: the page of examples/web with bundles."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import tempfile
from html import escape
from itertools import chain, count
from pathlib import Path

from voxport.bundle.errors import UsageError
from voxport.bundle.manifest import MANIFEST, VECTORS, Bundle
from voxport.cli.arguments import add_json, embedded_bundle, folder

PAGE = Path(__file__).parents[2] / "web"  # a link to examples/web in a clone
TARGET, STANDARD = "onnx", "standard"
FAMILIES = ("voxtral_tts", "qwen3_tts", "voxtral_realtime", "qwen3_asr")  # that runner.js has
SUFFIXES = (".js", ".html", ".json", ".md")  # what the page consists of
BUNDLES = '<datalist id="bundles"></datalist>'  # in index.html; the page opens its first option
# Threads need memory that threads may share, which browsers allow isolated pages only.
ISOLATION = {"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Embedder-Policy": "require-corp"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "bundles",
        type=folder,
        nargs="*",
        metavar="BUNDLE",
        help=f"folder of a bundle, exported with --target {TARGET} (default: both embedded models)",
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="a new or empty folder")
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    bundles = [_checked(Bundle(path)) for path in arguments.bundles or _embedded()]
    out: Path = arguments.out.absolute()
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise UsageError(f"{out}: exists and is not an empty folder; give a new one", field="out")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as made:
        written = Path(made) / "page"
        names = _write(written, bundles)
        os.replace(written, out)
    if arguments.json:
        print(json.dumps({"out": str(out), "bundles": names}))
    else:
        print(f"cd {shlex.quote(str(arguments.out))} && npm install --ignore-scripts && npx --yes serve")
    return 0


def _embedded() -> list[Path]:
    from voxport.runtime.speech_to_text import SpeechToText
    from voxport.runtime.text_to_speech import TextToSpeech

    return [embedded_bundle(TextToSpeech), embedded_bundle(SpeechToText)]


def _checked(bundle: Bundle) -> Bundle:
    """Raises UsageError on a bundle that browsers cannot run, IntegrityError on a damaged one."""
    if bundle.job.target != TARGET:
        raise UsageError(
            f"{bundle.folder}: made for {bundle.job.target}; export it with --target {TARGET}",
            field="bundles",
        )
    if bundle.job.family not in FAMILIES:
        raise UsageError(
            f"{bundle.folder}: family {bundle.job.family} has no page; expected {', '.join(FAMILIES)}",
            field="bundles",
        )
    constants, precision = bundle.job.constants, bundle.job.compute_precision
    if precision != "float32":
        raise UsageError(f"{bundle.folder}: computes in {precision}; export it in float32", field="bundles")
    if constants.get("kind") == "base" or bundle.job.options.get("split", STANDARD) != STANDARD:
        raise UsageError(
            f"{bundle.folder}: the page neither clones voices nor runs graphs of another split; "
            "export a CustomVoice or VoiceDesign checkpoint",
            field="bundles",
        )
    if constants.get("kind") == "aligner":
        raise UsageError(
            f"{bundle.folder}: the page gives no times to words, which is what an aligner does; "
            "export a recogniser, such as Qwen3-ASR-0.6B",
            field="bundles",
        )
    bundle.check_hashes()
    return bundle


def _write(out: Path, bundles: list[Bundle]) -> list[str]:
    """Writes the folder. Returns the path of each bundle in it."""
    out.mkdir()
    for path in sorted(PAGE.iterdir()):
        if path.is_file() and path.suffix in SUFFIXES:
            shutil.copyfile(path, out / path.name)
    names = list[str]()
    for bundle in bundles:
        names.append(_unused(bundle.folder.resolve().name, names))
        for file in (MANIFEST, VECTORS, *bundle.manifest.files):
            if (bundle.folder / file).is_file():
                target = out / names[-1] / file
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(bundle.folder / file, target)
    options = "".join(f'<option value="{escape(name)}">' for name in names)
    index = (out / "index.html").read_text(encoding="utf-8")
    (out / "index.html").write_text(index.replace(BUNDLES, BUNDLES.replace("><", f">{options}<")), "utf-8")
    headers = [{"key": name, "value": value} for name, value in ISOLATION.items()]
    (out / "serve.json").write_text(json.dumps({"headers": [{"source": "**", "headers": headers}]}), "utf-8")
    return names


def _unused(name: str, taken: list[str]) -> str:
    """The folder of a bundle in the page: `name`, with a number if another bundle has it."""
    plain = re.sub(r"[^\w.-]", "-", name)
    candidates = chain((f"bundles/{plain}",), (f"bundles/{plain}-{number}" for number in count(2)))
    return next(each for each in candidates if each not in taken)
