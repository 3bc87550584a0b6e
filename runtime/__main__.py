"""`python -m runtime`: speak or listen from a bundle, or look into one. Needs no torch (a bundle for ExecuTorch does)."""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bundle.errors import IntegrityError, UsageError, VoxportError, system_error
from bundle.log import set_up_logging

if TYPE_CHECKING:
    from runtime.engines.base import EngineOptions
    from runtime.speech_to_text import Transcriber

FORMATS = ".wav .flac .mp3 .ogg .pcm"
TOLD_S = 10.0  # between two lines of progress
STREAMED, WHOLE = 5, 125  # frames of a piece: 0.4 s for who listens, 10 s for who waits for a file
FAILED, INTERRUPTED = 3, 130
log = logging.getLogger("runtime")


def main(argv: list[str] | None = None) -> int:
    """Returns the exit code: 0, 2 usage, 3 failed, 5 integrity."""
    arguments = _parser().parse_args(argv)
    set_up_logging("runtime")
    signal.signal(
        signal.SIGTERM, signal.default_int_handler
    )  # who is ended tells it like one who is interrupted
    try:
        code = arguments.run(arguments)
        sys.stdout.flush()  # here, where a full disk behind it can still be told
        return code
    except VoxportError as error:
        print(f"voxport: error: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # whoever listened has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (OSError, MemoryError) as error:
        print(
            f"voxport: error: {system_error(error) if isinstance(error, OSError) else 'not enough memory'}",
            file=sys.stderr,
        )
        if (
            getattr(error, "filename", None) is None
        ):  # of stdout: what is left in its buffer has nowhere to go
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except KeyboardInterrupt:
        print("voxport: interrupted", file=sys.stderr)
        return INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m runtime", description="Run a voxport bundle.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    say = commands.add_parser("say", help="text to speech", description="Speak a text from a bundle.")
    say.add_argument("text", help="what to speak; - reads it from stdin")
    say.add_argument("--bundle", type=Path, required=True, metavar="DIR")
    say.add_argument(
        "--voice",
        help="name of a voice (default: neutral_female, else the first), or a .safetensors file with key `embedding`",
    )
    say.add_argument(
        "--seed",
        type=int,
        default=0,
        help="of the start noise, which is then the same on every target; what is spoken may differ by rounding (default: 0)",
    )
    say.add_argument("-o", "--output", type=Path, metavar="FILE", help=f"one of {FORMATS}")
    say.add_argument("--stream", action="store_true", help="raw 16-bit mono PCM on stdout as it is made")
    say.add_argument(
        "--chunk-frames",
        type=int,
        metavar="N",
        help=f"with --stream: frames of 80 ms in a piece (default: {STREAMED})",
    )
    say.add_argument(
        "--max-frames", type=int, default=2048, metavar="N", help="stop after so many frames (default: 2048)"
    )
    say.add_argument(
        "--clean-text",
        action="store_true",
        help="take out markup and spell out what is not speakable (English)",
    )
    say.add_argument(
        "--no-check",
        action="store_true",
        help="start without comparing the bundle's files with their hashes (0.6 s per GB)",
    )
    _add_engine(say)
    say.add_argument("--json", action="store_true", help="what was made, as JSON on stdout")
    say.set_defaults(run=_say)

    transcribe = commands.add_parser(
        "transcribe", help="speech to text", description="Write down what is said in a recording, or live."
    )
    transcribe.add_argument("audio", type=Path, help="a file of any rate and number of channels; - is stdin")
    transcribe.add_argument("--bundle", type=Path, required=True, metavar="DIR")
    transcribe.add_argument(
        "--format",
        choices=("text", "srt", "vtt", "json"),
        help="of what is written (default: as FILE ends, else text)",
    )
    transcribe.add_argument(
        "--timestamps",
        action="store_true",
        help="with text: times before each line; with json: times of each word",
    )
    transcribe.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="where to write it (default: stdout)"
    )
    transcribe.add_argument(
        "--live",
        action="store_true",
        help="raw 16-bit little-endian samples on stdin, as arecord gives them; words appear while one speaks",
    )
    transcribe.add_argument(
        "--delay-ms",
        type=int,
        metavar="MS",
        help="how far text lies behind sound: one of the bundle's delays (default: its first)",
    )
    transcribe.add_argument(
        "--rate", type=int, default=16000, metavar="HZ", help="with --live: of the samples (default: 16000)"
    )
    transcribe.add_argument(
        "--channels",
        type=int,
        default=1,
        metavar="N",
        help="with --live: of the samples, taken together (default: 1)",
    )
    transcribe.add_argument(
        "--chunk",
        type=int,
        default=1,
        metavar="N",
        help="with --live: encode N times 80 ms at once: cheaper, and N - 1 times 80 ms later",
    )
    transcribe.add_argument(
        "--late",
        choices=("wait", "drop"),
        default="wait",
        help="with --live, where sound comes faster than it is transcribed (default: wait)",
    )
    transcribe.add_argument(
        "--no-check",
        action="store_true",
        help="start without comparing the bundle's files with their hashes (0.6 s per GB)",
    )
    _add_engine(transcribe)
    transcribe.set_defaults(run=_transcribe)

    info = commands.add_parser(
        "info", help="what a bundle is", description="What a bundle holds and how it was verified."
    )
    info.add_argument("bundle", type=Path)
    info.add_argument("--json", action="store_true", help="the manifest")
    info.set_defaults(run=_info)

    voices = commands.add_parser("voices", help="the voices of a bundle")
    voices.add_argument("bundle", type=Path)
    voices.add_argument("--json", action="store_true", help="rows of each voice")
    voices.set_defaults(run=_voices)

    trace = commands.add_parser(
        "trace",
        help="every intermediate value",
        description="Every intermediate value of an utterance, from a bundle.",
    )
    trace.add_argument("bundle", type=Path)
    trace.add_argument("--inputs", type=Path, required=True, metavar="IN.npz")
    trace.add_argument("-o", "--output", type=Path, required=True, metavar="OUT.npz")
    trace.add_argument(
        "--live", action="store_true", help="speech to text: in steps of 80 ms, as in a live stream"
    )
    _add_engine(trace)
    trace.add_argument("--json", action="store_true", help="shapes of what was written, as JSON on stdout")
    trace.set_defaults(run=_trace)

    bench = commands.add_parser(
        "bench",
        help="how fast a bundle speaks here",
        description="Times per component and frame, against what memory allows.",
    )
    bench.add_argument("bundle", type=Path)
    bench.add_argument(
        "--frames", type=int, default=50, metavar="N", help="frames of 80 ms that are timed (default: 50)"
    )
    bench.add_argument(
        "--prompt-tokens", type=int, metavar="N", help="text to speech: ids of the prompt (default: 20)"
    )
    _add_engine(bench)
    bench.add_argument(
        "--streams",
        type=_counts,
        default=(),
        metavar="N,...",
        help="speak so many utterances at once as well, in one pass over the weights (ONNX, up to 4)",
    )
    bench.add_argument(
        "--chunks",
        type=_counts,
        default=(),
        metavar="N,...",
        help="speech to text: encode so many times 80 ms at once as well",
    )
    bench.add_argument(
        "--compare",
        choices=("eager",),
        help="time the published weights in eager torch, in bfloat16, behind it; needs the extra [export]",
    )
    bench.add_argument(
        "--checkpoint",
        type=Path,
        metavar="DIR",
        help="of --compare: what the bundle was made from (default: the embedded tiny model)",
    )
    bench.add_argument("--json", action="store_true", help="all figures as JSON on stdout")
    bench.set_defaults(run=_bench)

    mil = commands.add_parser(
        "mil",
        help="what a Core ML package holds",
        description="Functions, inputs, states and operations of an .mlpackage.",
    )
    mil.add_argument("package", type=Path, metavar="MLPACKAGE")
    mil.add_argument("--function", metavar="NAME", help="of this function only")
    mil.add_argument("--json", action="store_true", help="the same as JSON on stdout")
    mil.set_defaults(run=_mil)
    return parser


def _add_engine(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--threads", type=int, metavar="N", help="of the engine (default: all cores)")
    parser.add_argument(
        "--compute-precision",
        choices=("float16", "float32"),
        help="Core ML bundles, through the reference executor: float16 rounds where the program says (default, but on macOS Core ML runs), float32 nowhere",
    )
    parser.add_argument(
        "--compute-units",
        choices=("all", "cpu", "cpu_and_gpu", "cpu_and_ne"),
        help="Core ML bundles, on macOS (default: all)",
    )


def _options(arguments: argparse.Namespace) -> EngineOptions:
    from runtime.engines.base import EngineOptions

    return EngineOptions(arguments.threads, arguments.compute_precision, arguments.compute_units)


def _counts(text: str) -> tuple[int, ...]:
    """`1,2,4` -> its numbers."""
    if not all(part.isascii() and part.isdecimal() for part in text.split(",")):
        raise argparse.ArgumentTypeError(f"{text!r}: expected numbers like 1,2,4")
    return tuple(int(part) for part in text.split(","))


def _say(arguments: argparse.Namespace) -> int:
    import numpy as np

    from runtime.audio.files import check_format, pcm16, write_audio
    from runtime.text_to_speech import Synthesizer

    if not arguments.stream and arguments.output is None:
        raise UsageError("say: give -o FILE or --stream")
    if arguments.stream and arguments.json:
        raise UsageError("say: --stream and --json both want stdout; leave one out")
    if arguments.chunk_frames is not None and not arguments.stream:
        raise UsageError("say: --chunk-frames is for --stream; leave it out")
    for name in ("chunk_frames", "max_frames"):
        value = getattr(arguments, name)
        if value is not None and value < 1:
            raise UsageError(f"say: --{name.replace('_', '-')} {value}: expected at least 1")
    if arguments.seed < 0:
        raise UsageError(f"say: --seed {arguments.seed}: expected 0 or more")
    if arguments.output:
        check_format(arguments.output)
    synthesizer = Synthesizer(arguments.bundle, _options(arguments), check=not arguments.no_check)
    started, first, pieces, seconds = time.perf_counter(), 0.0, [], 0.0
    chunk = (arguments.chunk_frames or STREAMED) if arguments.stream else WHOLE
    text = sys.stdin.read() if arguments.text == "-" else arguments.text
    ended = False

    def speech() -> Iterator[np.ndarray]:
        nonlocal ended
        ended = yield from synthesizer.speak(
            text, arguments.voice, arguments.seed, arguments.max_frames, chunk, arguments.clean_text
        )

    for piece in speech():
        first = first or time.perf_counter() - started
        seconds += len(piece) / synthesizer.sample_rate
        if arguments.stream:
            sys.stdout.buffer.write(pcm16(piece))
            sys.stdout.buffer.flush()
        else:
            log.info("%.1f s of speech so far", seconds)
        if arguments.output:
            pieces.append(piece)
    elapsed = time.perf_counter() - started
    if not seconds:
        raise VoxportError("say: the model ended the speech before its first frame; try another seed or text")
    if arguments.output:
        write_audio(arguments.output, np.concatenate(pieces), synthesizer.sample_rate)
    log.info(
        "%.2f s of speech in %.2f s%s",
        seconds,
        elapsed,
        f", first sound after {first:.2f} s" if arguments.stream else "",
    )
    if arguments.json:
        print(
            json.dumps(
                {
                    "output": str(arguments.output),
                    "seconds": seconds,
                    "sample_rate": synthesizer.sample_rate,
                    "elapsed": elapsed,
                    "ended": ended,
                }
            )
        )
    elif arguments.output and not arguments.stream:
        print(arguments.output)
    return 0


def _transcribe(arguments: argparse.Namespace) -> int:
    from bundle.files import check_writable, write_whole
    from runtime.audio.captions import Word, as_json, as_lines, as_srt, as_vtt
    from runtime.audio.recordings import Recording
    from runtime.speech_to_text import Transcriber

    ending = arguments.output.suffix[1:].lower() if arguments.output else ""
    arguments.format = arguments.format or (ending if ending in ("srt", "vtt", "json") else "text")
    _check_transcribe(arguments)
    if arguments.output:
        check_writable(arguments.output)
    transcriber = Transcriber(arguments.bundle, _options(arguments), check=not arguments.no_check)
    transcriber.constants.delay_index(arguments.delay_ms)
    rate = transcriber.sample_rate
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(encoding="utf-8")  # whatever the terminal's, a file's or a pipe's would be
    if arguments.live:
        return _listen(transcriber, arguments)
    source, started, text, words = Recording(arguments.audio, rate), time.perf_counter(), "", list[Word]()
    told, as_it_comes = (
        started,
        arguments.format == "text" and not arguments.timestamps and not arguments.output,
    )
    for heard in transcriber.transcribe(source.blocks(), arguments.delay_ms):
        if as_it_comes:
            print(heard.text if text.strip() else heard.text.lstrip(), end="", flush=True)
        text += heard.text
        words += heard.words
        if not as_it_comes and time.perf_counter() - told >= TOLD_S:
            told = time.perf_counter()
            log.info("%.0f s of sound in %.0f s so far, %d words", source.seconds, told - started, len(words))
    elapsed = time.perf_counter() - started
    log.info("%.1f s of sound in %.1f s, %d words", source.seconds, elapsed, len(words))
    if as_it_comes:
        print()
        return 0
    if arguments.format == "json":
        written = as_json(text.strip(), words if arguments.timestamps else None, seconds=source.seconds)
    elif arguments.format == "text":
        written = as_lines(words) if arguments.timestamps else f"{text.lstrip()}\n"
    else:
        written = (as_srt if arguments.format == "srt" else as_vtt)(words)
    if arguments.output:
        write_whole(arguments.output, written.encode())
        print(arguments.output)
    else:
        sys.stdout.write(written)
    return 0


def _check_transcribe(arguments: argparse.Namespace) -> None:
    """Raises UsageError on options that contradict each other."""
    if arguments.live:
        if str(arguments.audio) != "-":
            raise UsageError(
                f"transcribe: --live listens to stdin; give - in place of {arguments.audio}, or leave --live out"
            )
        if arguments.format in ("srt", "vtt") or arguments.output:
            raise UsageError("transcribe: --live writes text or json to stdout; leave -o, srt and vtt out")
    if arguments.timestamps and arguments.format in ("srt", "vtt"):
        raise UsageError(
            f"transcribe: --timestamps is for text and json; {arguments.format} has times anyway"
        )
    for name, most in (("rate", 768_000), ("channels", 64), ("chunk", 32)):
        value = getattr(arguments, name)
        if not 1 <= value <= most:
            raise UsageError(f"transcribe: --{name} {value}: expected 1 to {most}")
        if value != {"rate": 16000}.get(name, 1) and not arguments.live:
            raise UsageError(f"transcribe: --{name} is for --live; a file says it itself")
    if arguments.late == "drop" and not arguments.live:
        raise UsageError("transcribe: --late is for --live; a file waits")


def _listen(transcriber: Transcriber, arguments: argparse.Namespace) -> int:
    """Live: what is heard goes out at once. An interruption ends the sound, and what is still due is written; a second one stops."""
    from runtime.audio.captions import as_word_line
    from runtime.audio.recordings import LiveSource, raw_stdin

    transcriber.check_live()
    live = LiveSource(
        raw_stdin(),
        arguments.rate,
        arguments.channels,
        transcriber.sample_rate,
        drops=arguments.late == "drop",
    )

    def end(number: int, frame: object) -> None:
        live.end()
        for each in before:
            signal.signal(each, signal.default_int_handler)

    before = {each: signal.signal(each, end) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        for heard in transcriber.transcribe(live.blocks(), arguments.delay_ms, True, arguments.chunk):
            if arguments.format == "text" and not arguments.timestamps:
                print(heard.text, end="", flush=True)
                continue
            for word in heard.words:
                at = replace(
                    word,
                    start=word.start + live.lost_before(word.start),
                    end=word.end + live.lost_before(word.end),
                )
                print(as_word_line(at, arguments.format == "json"), flush=True)
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    if arguments.format == "text" and not arguments.timestamps:
        print(flush=True)
    return 0


def _info(arguments: argparse.Namespace) -> int:
    from bundle.bundle import Bundle

    bundle = Bundle(arguments.bundle)
    manifest, job = bundle.manifest, bundle.job
    if arguments.json:
        print(manifest.model_dump_json(indent=1))
        return 0
    recipe, size = job.request.quant, bundle.size / 1e6
    print(f"{job.source.name} ({job.family}) for {job.target}, recipe {recipe}, {size:.1f} MB")
    executed = f"executed by: {manifest.executed_by}; floats: {job.compute_precision}"
    print(f"verification: {manifest.verification.status} when exported; {executed}")
    options = ", ".join(f"{name} {value}" for name, value in job.options.items())
    print(f"options: {options}; cache {job.cache_length} rows")
    voices, tokenizer = ", ".join(manifest.voices) or "none", "yes" if manifest.tokenizer else "no"
    print(f"voices: {voices}; tokenizer: {tokenizer}; licence: {job.licence}")
    for entry in bundle.components:
        sizes = f"{entry.name:<14} {entry.recipe:<6} {entry.bits_per_weight:>6.2f} bits/weight"
        print(f"  {sizes}  {entry.file}:{entry.entry_point}  {entry.purpose}")
    return 0


def _voices(arguments: argparse.Namespace) -> int:
    from bundle.bundle import Bundle
    from runtime.families import read_constants
    from runtime.families.voxtral_tts.voices import load_voice

    bundle = Bundle(arguments.bundle)
    dim = read_constants(bundle.job).dim
    rows = {name: len(load_voice(bundle, name, dim)) for name in bundle.manifest.voices}
    print(
        json.dumps(rows)
        if arguments.json
        else "\n".join(f"{name:<16} {count} rows" for name, count in rows.items())
    )
    return 0


def _trace(arguments: argparse.Namespace) -> int:
    from bundle.bundle import Bundle
    from bundle.files import check_writable
    from runtime.engines import open_engine
    from runtime.families import open_family, read_constants
    from runtime.trace import read_inputs, write_outputs

    bundle = Bundle(arguments.bundle)
    bundle.check_hashes()
    constants = read_constants(bundle.job)
    family = open_family(bundle.job.family)
    inputs = read_inputs(arguments.inputs, family.trace_inputs(constants))
    check_writable(arguments.output)
    outputs = family.trace(open_engine(bundle, _options(arguments)), constants, inputs, arguments.live)
    write_outputs(arguments.output, outputs)
    print(
        json.dumps({name: array.shape for name, array in outputs.items()})
        if arguments.json
        else arguments.output
    )
    return 0


def _bench(arguments: argparse.Namespace) -> int:
    from bundle.bundle import Bundle
    from runtime.bench import PROMPT_TOKENS, bench, bench_eager, bench_text, check_eager
    from runtime.families import open_family

    for name in ("frames", "prompt_tokens"):
        value = getattr(arguments, name)
        if value is not None and value < 1:
            raise UsageError(f"bench: --{name.replace('_', '-')} {value}: expected at least 1")
    if arguments.checkpoint and not arguments.compare:
        raise UsageError("bench: --checkpoint is for --compare; leave it out")
    if arguments.compare:
        check_eager(arguments.checkpoint)
    manifest = Bundle(arguments.bundle).manifest
    for name in {"streams", "chunks", "prompt_tokens"} - set(open_family(manifest.job.family).BENCH_OPTIONS):
        if getattr(arguments, name):
            raise UsageError(
                f"bench: --{name.replace('_', '-')} says nothing of a bundle of {manifest.job.family}; leave it out"
            )
    at_once = arguments.streams or arguments.chunks
    result = bench(
        arguments.bundle,
        _options(arguments),
        arguments.frames,
        arguments.prompt_tokens or PROMPT_TOKENS,
        at_once,
    )
    if arguments.compare:
        result["eager"] = bench_eager(arguments.checkpoint, result, arguments.threads)
    print(json.dumps(result, indent=1) if arguments.json else bench_text(result))
    return 0


def _mil(arguments: argparse.Namespace) -> int:
    from runtime.engines import check_installed

    check_installed("coreml", str(arguments.package))
    from runtime.mil import CallError, MilError, Package, describe, describe_text

    try:
        description = describe(Package(arguments.package), arguments.function)
    except CallError as error:
        raise UsageError(str(error)) from None
    except MilError as error:
        raise IntegrityError(str(error)) from None
    print(json.dumps(description, indent=1) if arguments.json else describe_text(description))
    return 0


if __name__ == "__main__":
    sys.exit(main())
