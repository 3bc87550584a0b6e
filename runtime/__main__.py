"""`python -m runtime`: speak from a bundle, or look into one. Needs no torch (a bundle for ExecuTorch does)."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
from pathlib import Path

from runtime.errors import RuntimeFault, UsageError

FORMATS = ".wav .flac .mp3 .ogg .pcm"
DEFAULT_CHUNK = 5  # frames of a streamed piece: 0.4 s
log = logging.getLogger("runtime")


def main(argv: list[str] | None = None) -> int:
    """Returns the exit code: 0, 2 usage, 3 failed, 5 integrity."""
    arguments = _parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(message)s", force=True)
    try:
        return arguments.run(arguments)
    except RuntimeFault as error:
        print(f"voxport: error: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # whoever listened has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("voxport: interrupted", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m runtime", description="Run a voxport bundle.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    say = commands.add_parser("say", help="text to speech", description="Speak a text from a bundle.")
    say.add_argument("text")
    say.add_argument("--bundle", type=Path, required=True, metavar="DIR")
    say.add_argument("--voice", help="name of a voice (default: neutral_female, else the first), or a .safetensors file with key `embedding`")
    say.add_argument("--seed", type=int, default=0, help="of the start noise; the same on every target (default: 0)")
    say.add_argument("-o", "--output", type=Path, metavar="FILE", help=f"one of {FORMATS}")
    say.add_argument("--stream", action="store_true", help="raw 16-bit mono PCM on stdout as it is made")
    say.add_argument("--chunk-frames", type=int, default=DEFAULT_CHUNK, metavar="N", help=f"frames of 80 ms a streamed piece (default: {DEFAULT_CHUNK})")
    say.add_argument("--max-frames", type=int, default=2048, metavar="N", help="stop after so many frames (default: 2048)")
    say.add_argument("--clean-text", action="store_true", help="take out markup and spell out what is not speakable (English)")
    say.add_argument("--threads", type=int, metavar="N", help="of the engine (default: all cores)")
    say.add_argument("--json", action="store_true", help="what was made, as JSON on stdout")
    say.set_defaults(run=_say)

    info = commands.add_parser("info", help="what a bundle is", description="What a bundle holds and how it was verified.")
    info.add_argument("bundle", type=Path)
    info.add_argument("--json", action="store_true", help="the manifest")
    info.set_defaults(run=_info)

    voices = commands.add_parser("voices", help="the voices of a bundle")
    voices.add_argument("bundle", type=Path)
    voices.add_argument("--json", action="store_true")
    voices.set_defaults(run=_voices)

    trace = commands.add_parser("trace", help="every intermediate value", description="Every intermediate value of an utterance, from a bundle.")
    trace.add_argument("bundle", type=Path)
    trace.add_argument("--inputs", type=Path, required=True, metavar="IN.npz")
    trace.add_argument("-o", "--output", type=Path, required=True, metavar="OUT.npz")
    trace.add_argument("--threads", type=int, metavar="N")
    trace.set_defaults(run=_trace)
    return parser


def _say(arguments: argparse.Namespace) -> int:
    from runtime.audio import check_format, pcm16, write_audio
    from runtime.synthesis import Synthesizer

    if not arguments.stream and arguments.output is None:
        raise UsageError("say: give -o FILE or --stream")
    if arguments.stream and arguments.json:
        raise UsageError("say: --stream and --json both want stdout; leave one out")
    for name in ("chunk_frames", "max_frames", "threads"):
        value = getattr(arguments, name)
        if value is not None and value < 1:
            raise UsageError(f"say: --{name.replace('_', '-')} {value}: expected at least 1")
    if arguments.seed < 0:
        raise UsageError(f"say: --seed {arguments.seed}: expected 0 or more")
    if arguments.output:
        check_format(arguments.output)
    synthesizer = Synthesizer(arguments.bundle, arguments.threads)
    started, first, pieces = time.perf_counter(), None, []
    chunk = arguments.chunk_frames if arguments.stream else synthesizer.whole
    for piece in synthesizer.speak(arguments.text, arguments.voice, arguments.seed, arguments.max_frames, chunk, arguments.clean_text):
        first = first or time.perf_counter() - started
        if arguments.stream:
            sys.stdout.buffer.write(pcm16(piece))
            sys.stdout.buffer.flush()
        if arguments.output:
            pieces.append(piece)
    return _report(arguments, synthesizer, pieces, time.perf_counter() - started, first, write_audio)


def _report(arguments, synthesizer, pieces, elapsed: float, first: float | None, write_audio) -> int:
    import numpy as np

    seconds = synthesizer.samples / synthesizer.sample_rate
    if synthesizer.samples == 0:
        raise RuntimeFault("say: the model ended the speech before its first frame; try another seed or text")
    if arguments.output:
        write_audio(arguments.output, np.concatenate(pieces), synthesizer.sample_rate)
    log.info("%.2f s of speech in %.2f s, first sound after %.2f s", seconds, elapsed, first or 0.0)
    if arguments.json:
        print(json.dumps({"output": str(arguments.output), "seconds": seconds, "sample_rate": synthesizer.sample_rate, "elapsed": elapsed}))
    elif arguments.output and not arguments.stream:
        print(arguments.output)
    return 0


def _info(arguments: argparse.Namespace) -> int:
    from runtime.bundle import Bundle

    bundle = Bundle(arguments.bundle)
    manifest = bundle.manifest
    if arguments.json:
        print(manifest.model_dump_json(indent=1))
        return 0
    size = sum(entry.size for entry in manifest.files.values())
    print(f"{manifest.source.name} ({manifest.family}) for {manifest.target}, recipe {manifest.recipe['name']}, {size / 1e6:.1f} MB")
    print(f"verification: {manifest.verification['status']}; numerics: {manifest.numerics}")
    print("switches: " + ", ".join(f"{name} {value}" for name, value in manifest.switches.items()) + f"; cache {manifest.cache_length} rows")
    print(f"voices: {', '.join(manifest.voices) or 'none'}; tokenizer: {'yes' if manifest.tokenizer else 'no'}; licence: {manifest.licence}")
    for entry in manifest.components:
        print(f"  {entry.name:<14} {entry.recipe:<6} {entry.bits_per_weight:>6.2f} bits/weight  {entry.file}:{entry.entry_point}  {entry.purpose}")
    return 0


def _voices(arguments: argparse.Namespace) -> int:
    from runtime.bundle import Bundle
    from runtime.voices import load_voice

    bundle = Bundle(arguments.bundle)
    rows = {name: len(load_voice(bundle, name)) for name in bundle.manifest.voices}
    print(json.dumps(rows) if arguments.json else "\n".join(f"{name:<16} {count} rows" for name, count in rows.items()))
    return 0


def _trace(arguments: argparse.Namespace) -> int:
    from runtime.bundle import Bundle
    from runtime.engines import open_engine
    from runtime.trace import read_inputs, trace, write_outputs
    from runtime.voxtral_tts import parse_constants

    bundle = Bundle(arguments.bundle)
    constants = parse_constants(bundle.manifest.constants)
    inputs = read_inputs(arguments.inputs, constants)
    engine = open_engine(bundle, arguments.threads)
    write_outputs(arguments.output, trace(engine, constants, bundle.manifest.switches["first_frame"], inputs))
    print(arguments.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
