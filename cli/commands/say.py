"""Speak a text: play it, write it into a file, or stream it. Without --bundle, the embedded model speaks."""

from __future__ import annotations

import argparse
import json
import logging
import math
import sys
import time
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, cast

from voxport.bundle.errors import UsageError
from voxport.cli.arguments import STDOUT, add_json, add_output, add_task_arguments, integer, open_task
from voxport.cli.terminal import Progress
from voxport.runtime.speech_request import SAMPLING, TEXT_LAYOUTS

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from contextlib import AbstractContextManager
    from io import BufferedIOBase

    import numpy as np

    from voxport.runtime.audio.files import AudioWriter

STREAM_FRAMES = 5  # frames per piece, 0.4 s: short, for low latency
FILE_FRAMES = 125  # 10 s: fewer calls, because nobody waits for the first sound of a file
log = logging.getLogger(__name__)


REASONS = {  # by value of `runtime.batching.Status`
    "budget": "speech that is much longer than its text takes was stopped; --budget changes the limit",
    "repetition": "speech that repeated itself for 4 s was stopped; try another --seed (--budget 0 lets it)",
    "silence": "speech was stopped after 4 s of silence; try another --seed (--budget 0 lets it)",
    "cache": "speech was stopped: the cache is full; give less text or export with a larger cache length",
    "limit": "speech was stopped at --max-frames, or a part of the text at 2048 frames",
}


def budget(text: str) -> float:
    """For argparse: 0 or a positive number."""
    value = float(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text}: expected 0 or a positive number")
    return value


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _add_text_arguments(parser)
    parser.add_argument(
        "--voice",
        help="name of a voice or of a preset speaker, or a .safetensors file of a voice "
        "(default: the model's default, else its first voice)",
    )
    parser.add_argument(
        "--instruct",
        metavar="TEXT",
        help="how to speak, in words; for a VoiceDesign model a description of the voice",
    )
    parser.add_argument(
        "--text-layout",
        choices=TEXT_LAYOUTS,
        help="streaming: Qwen3-TTS gets the text with the frames; non_streaming: all of it before them "
        "(default: streaming for a Base model, non_streaming for the others)",
    )
    parser.add_argument(
        "--seed",
        type=integer(0),
        default=0,
        metavar="N",
        help="seed of the noise, and of the codes that a model draws; the same on every target (default: 0)",
    )
    _add_outputs(parser)
    _add_limits(parser)
    _add_sampling(parser)
    add_json(parser)
    add_task_arguments(parser, default="the embedded model")


def _add_outputs(parser: argparse.ArgumentParser) -> None:
    add_output(
        parser,
        "FILE",
        "file to write, through links, one of .wav .flac .mp3 .ogg .opus .pcm; - writes a WAV to stdout "
        "(default: play)",
    )
    parser.set_defaults(takes_stdout=True)
    parser.add_argument(
        "--stream",
        action="store_true",
        help="write raw 16-bit mono PCM to stdout while it is generated; with the text -, speak each "
        "sentence when the next one begins, or an empty line ends its paragraph",
    )
    parser.add_argument(
        "--lines",
        action="store_true",
        help="with --stream and the text -: speak each line when it ends (default: if stdin is a terminal)",
    )
    parser.add_argument(
        "--chunk-frames",
        type=integer(1),
        metavar="N",
        help=f"with --stream: frames of 80 ms per piece (default: {STREAM_FRAMES})",
    )


def _add_text_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("text", nargs="?", help="text to speak; - reads it from stdin")
    parser.add_argument(
        "--file",
        type=Path,
        metavar="FILE",
        help="speak the text of a file, in UTF-8, or UTF-16 with a byte order mark",
    )
    parser.add_argument(
        "--verbatim",
        action="store_true",
        help="speak the text as it is; by default markup, emoji and quotes are removed, and addresses and "
        "amounts become words (-v shows the changes)",
    )
    parser.add_argument(
        "--language",
        metavar="LANGUAGE",
        help="language of the text: an ISO 639 code or an English name, as in fr or french, a name that the "
        "model has, or auto, by which the model decides; also decides where sentences end and how amounts "
        "are read (default: the language of the voice)",
    )
    parser.add_argument(
        "--speed",
        type=float,
        default=1.0,
        metavar="FACTOR",
        help="speak faster or slower, 0.25 to 4, with the same pitch (default: 1)",
    )
    parser.add_argument(
        "--pause",
        type=float,
        default=0.2,
        metavar="SECONDS",
        help="silence between the parts of a long text (default: 0.2)",
    )


def _add_limits(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--max-frames",
        type=integer(1),
        metavar="N",
        help="maximum number of frames of 80 ms (default: no limit)",
    )
    parser.add_argument(
        "--budget",
        type=budget,
        default=3.0,
        metavar="FACTOR",
        help="stop speech that is so many times as long as its text usually takes, that repeats itself or "
        "is silent for 4 s; 0 turns all of this off (default: 3)",
    )


def _add_sampling(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("sampling of a model that draws codes", "The model has the defaults.")
    for name, text in SAMPLING.items():
        flag, is_count = f"--{name.replace('_', '-')}", name.endswith("top_k")
        group.add_argument(
            flag, type=integer(0) if is_count else float, metavar="N" if is_count else "X", help=text
        )


def _sampling(arguments: argparse.Namespace) -> dict[str, float] | None:
    given = {name: getattr(arguments, name) for name in SAMPLING}
    return {name: value for name, value in given.items() if value is not None} or None


def run(arguments: argparse.Namespace) -> int:
    from voxport.bundle.names import language_code
    from voxport.runtime.text.preparation import await_speakable, read_speakable
    from voxport.runtime.text_to_speech import TextToSpeech

    is_arriving = arguments.stream and arguments.text == "-"
    read = await_speakable if is_arriving else read_speakable
    text = read(_pieces(arguments), language_code(arguments.language or "") or "en", arguments.verbatim)
    task = open_task(TextToSpeech, arguments)
    pieces = task.speak(
        text,
        voice=arguments.voice,
        instruct=arguments.instruct,
        text_layout=arguments.text_layout,
        sampling=_sampling(arguments),
        seed=arguments.seed,
        max_frames=arguments.max_frames,
        chunk_frames=(arguments.chunk_frames or STREAM_FRAMES) if arguments.stream else FILE_FRAMES,
        language=arguments.language,
        verbatim=arguments.verbatim,
        lines=is_arriving and (arguments.lines or sys.stdin.isatty()),
        pause=arguments.pause,
        budget=arguments.budget or None,
    )
    total = None if is_arriving else task.estimated_seconds("".join(text)) / arguments.speed
    has_place = arguments.stream or arguments.output not in (None, STDOUT)
    with nullcontext(arguments.output) if has_place else _temporary_file(arguments.output) as place:
        _write(pieces, task.sample_rate, total, place, arguments)
    return 0


def _temporary_file(output: Path | None) -> AbstractContextManager[Path]:
    from voxport.cli.player import copy_to_stdout, delivered, find_player

    return delivered(copy_to_stdout if output else find_player())


def check_arguments(arguments: argparse.Namespace) -> None:
    """Raises UsageError on options that contradict each other, and on an output that cannot be written."""
    from voxport.runtime.audio.files import check_format

    is_wav_on_stdout = arguments.output == STDOUT
    if arguments.stream + arguments.json + is_wav_on_stdout > 1:
        raise UsageError("say: --stream, --json and -o - write to stdout; give one of them")
    if arguments.chunk_frames is not None and not arguments.stream:
        raise UsageError("say: --chunk-frames needs --stream")
    if arguments.lines and not (arguments.stream and arguments.text == "-"):
        raise UsageError("say: --lines needs --stream and the text -")
    if (arguments.text is None) == (arguments.file is None):
        raise UsageError("say: expected one text; give it as an argument, with --file, or - for stdin")
    if (arguments.stream or is_wav_on_stdout) and sys.stdout is not None and sys.stdout.isatty():
        flag, player = (
            ("--stream", "`| aplay -f S16_LE -c 1 -r RATE` with the model's rate, as 24000")
            if arguments.stream
            else ("-o -", "`| aplay`")
        )
        raise UsageError(
            f"say: {flag} writes samples, and stdout is a terminal; pipe them into a player, as in "
            f"{player}, or write a file with -o FILE in place of {flag}"
        )
    if arguments.speed != 1:
        _check_speed(arguments.speed)
    if arguments.output and not is_wav_on_stdout:
        check_format(arguments.output)
    elif not arguments.output and not arguments.stream:
        from voxport.cli.player import find_player

        find_player()


def _check_speed(speed: float) -> None:
    if find_spec("av") is None:
        reason = "needs the package av; run pip install 'voxport[media]'"
        raise UsageError(f"speed: {reason}", field="speed")
    from voxport.runtime.audio.tempo import check_speed

    check_speed(speed)


def _pieces(arguments: argparse.Namespace) -> Iterator[str]:
    from voxport.runtime.text.preparation import read_text

    if arguments.file:
        with _open(arguments.file) as file:
            yield from read_text(file, str(arguments.file))
    elif arguments.text == "-":
        if sys.stdin is None:  # Python starts so if the descriptor is closed
            raise UsageError("stdin is closed; pipe a text into it, or give the text as an argument")
        yield from read_text(cast("BufferedIOBase", sys.stdin.buffer), "stdin")
    else:
        yield arguments.text


def _open(path: Path) -> BufferedIOBase:
    try:
        return open(path, "rb")
    except OSError as error:
        advice = "give - in place of --file to read stdin" if str(path) == "-" else "give a text file"
        raise UsageError(f"--file {path}: {error.strerror}; {advice}") from None


@contextmanager
def _keeping_partial(writer: AudioWriter | None) -> Iterator[None]:
    """Keeps what was spoken before an error or an interruption."""
    try:
        yield
    except BaseException:
        if writer and writer.seconds:
            log.warning("%.2f s of speech are %s", writer.seconds, writer.keep_partial())
        raise


def _write(
    pieces: Generator[np.ndarray, None, str],
    rate: int,
    total: float | None,
    place: Path | None,
    arguments: argparse.Namespace,
) -> None:
    """`total` is about the number of seconds; None if the text still arrives. `place` is a file to write."""
    from voxport.runtime.audio.files import audio_writer, pcm16

    started, first, seconds = time.perf_counter(), 0.0, 0.0
    status = "end"

    def spoken() -> Iterator[np.ndarray]:
        nonlocal status
        status = yield from pieces

    output = audio_writer(place, rate) if place else nullcontext()
    with output as writer, nullcontext() if arguments.stream else Progress(total, "s of speech") as progress:
        with _keeping_partial(writer if place == arguments.output else None):
            for piece in _at_speed(spoken(), rate, arguments.speed):
                first = first or time.perf_counter() - started
                seconds += len(piece) / rate
                if arguments.stream:
                    sys.stdout.buffer.write(pcm16(piece))
                    sys.stdout.buffer.flush()
                if progress:
                    progress.update(seconds, f"{seconds:.1f} s of speech so far")
                if writer:
                    writer.write(piece)
        elapsed = time.perf_counter() - started
    after = f", first sound after {first:.2f} s" if arguments.stream else ""
    if status in REASONS:
        log.warning("%s (after %.2f s)", REASONS[status], seconds)
    log.info("%.2f s of speech in %.2f s%s", seconds, elapsed, after)
    if arguments.json:
        output_name = str(arguments.output) if arguments.output else None
        result = {"output": output_name, "seconds": seconds, "sample_rate": rate}
        print(json.dumps(result | {"elapsed": elapsed, "ended": status}))
    elif arguments.output not in (None, STDOUT) and not arguments.stream:
        print(arguments.output)


def _at_speed(pieces: Iterator[np.ndarray], rate: int, speed: float) -> Iterator[np.ndarray]:
    if speed == 1:
        return pieces
    from voxport.runtime.audio.tempo import Tempo

    return Tempo(rate, speed).changed(pieces)
