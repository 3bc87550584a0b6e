"""Transcribe a recording, or live audio from stdin."""

from __future__ import annotations

import argparse
import io
import logging
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bundle.command import integer
from bundle.errors import UsageError
from bundle.progress import Progress
from runtime.commands.engine_arguments import add_task_arguments, engine_options

if TYPE_CHECKING:
    from runtime.audio.captions import Word
    from runtime.speech_to_text import SpeechToText

FORMATS = ("text", "srt", "vtt", "json")
LIVE_ONLY = {"rate": 16000, "channels": 1, "chunk": 1, "late": "wait"}  # and their defaults
log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("audio", type=Path, help="audio file of any rate and number of channels; - is stdin")
    formats = "output format (default: by the extension of FILE, else text)"
    parser.add_argument("--format", choices=FORMATS, help=formats)
    stamps = "add times: before each line of text, or of each word in json"
    parser.add_argument("--timestamps", action="store_true", help=stamps)
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="file to write (default: stdout)")
    delay = "delay of text behind sound, one of the bundle's delays (default: its first)"
    parser.add_argument("--delay-ms", type=int, metavar="MS", help=delay)
    live = "read raw 16-bit little-endian samples from stdin and print words while they are spoken"
    parser.add_argument("--live", action="store_true", help=live)
    rate = f"with --live: sample rate (default: {LIVE_ONLY['rate']})"
    parser.add_argument("--rate", type=integer(1, 768_000), metavar="HZ", help=rate)
    channels = f"with --live: number of channels, which are mixed (default: {LIVE_ONLY['channels']})"
    parser.add_argument("--channels", type=integer(1, 64), metavar="N", help=channels)
    chunk = (
        "with --live: number of 80 ms steps per encoder call; N costs less per step "
        f"and adds (N - 1) * 80 ms of delay (default: {LIVE_ONLY['chunk']})"
    )
    parser.add_argument("--chunk", type=integer(1, 32), metavar="N", help=chunk)
    late = "with --live: what happens to sound that arrives faster than it is transcribed (default: wait)"
    parser.add_argument("--late", choices=("wait", "drop"), help=late)
    add_task_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    from bundle.files import check_writable
    from runtime.opening import open_task
    from runtime.speech_to_text import SpeechToText

    ending = arguments.output.suffix[1:].lower() if arguments.output else ""
    arguments.format = arguments.format or (ending if ending in FORMATS else "text")
    _check(arguments)
    if arguments.output:
        check_writable(arguments.output)
    task = open_task(SpeechToText, arguments.bundle, engine_options(arguments), not arguments.no_check)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")  # on every terminal, file and pipe
    if arguments.live:
        from runtime.commands.live import transcribe_live

        transcribe_live(task, arguments)
    else:
        _transcribe_file(task, arguments)
    return 0


def _check(arguments: argparse.Namespace) -> None:
    """Raises UsageError on options that contradict each other. Sets the defaults of LIVE_ONLY."""
    if arguments.live:
        if str(arguments.audio) != "-":
            found = arguments.audio
            raise UsageError(
                f"transcribe: --live reads stdin; give - in place of {found}, or leave --live out"
            )
        if arguments.format in ("srt", "vtt") or arguments.output:
            raise UsageError("transcribe: --live writes text or json to stdout; leave -o, srt and vtt out")
    if arguments.timestamps and arguments.format in ("srt", "vtt"):
        raise UsageError(
            f"transcribe: --timestamps is for text and json; {arguments.format} always has times"
        )
    for name, default in LIVE_ONLY.items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, default)
        elif not arguments.live:
            raise UsageError(f"transcribe: --{name} needs --live; give both or none")


def _transcribe_file(task: SpeechToText, arguments: argparse.Namespace) -> None:
    from bundle.files import write_whole
    from runtime.audio.recordings import Recording

    source, started = Recording(arguments.audio, task.sample_rate), time.perf_counter()
    text = ""
    words: list[Word] = []
    prints_at_once = arguments.format == "text" and not arguments.timestamps and not arguments.output
    with Progress() as progress:
        for delta in task.transcribe(source.blocks(), delay_ms=arguments.delay_ms):
            if prints_at_once:
                print(delta.text if text.strip() else delta.text.lstrip(), end="", flush=True)
            text += delta.text
            words += delta.words
            if not prints_at_once:
                progress.update(source.seconds, f"{source.seconds:.0f} s of sound so far, {len(words)} words")
    elapsed = time.perf_counter() - started
    log.info("%.1f s of sound in %.1f s, %d words", source.seconds, elapsed, len(words))
    if prints_at_once:
        print()
        return
    content = _formatted(text, words, source.seconds, arguments)
    if arguments.output:
        write_whole(arguments.output, content.encode())
        print(arguments.output)
    else:
        sys.stdout.write(content)


def _formatted(text: str, words: list[Word], seconds: float, arguments: argparse.Namespace) -> str:
    from runtime.audio.captions import as_json, as_lines, as_srt, as_vtt

    if arguments.format == "json":
        return as_json(text.strip(), words if arguments.timestamps else None, seconds=seconds)
    if arguments.format == "text":
        return as_lines(words) if arguments.timestamps else f"{text.lstrip()}\n"
    return (as_srt if arguments.format == "srt" else as_vtt)(words)
