"""Transcribe a recording, or live audio from stdin. Without --bundle, the embedded model listens."""

import argparse
import io
import logging
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from voxport.bundle.errors import UsageError
from voxport.bundle.files import StagedFile
from voxport.cli.arguments import add_output, add_task_arguments, integer, open_task
from voxport.cli.terminal import Progress
from voxport.runtime.audio.captions import Word, as_json, as_json_line, as_lines, as_srt, as_text_line, as_vtt
from voxport.runtime.audio.gain import (
    SpeechLevel,
    amplified,
    check_gain,
    reason_without_text,
    recording_gain_db,
    with_quiet_warning,
)
from voxport.runtime.audio.opening import check_exists, raw_stdin
from voxport.runtime.audio.sources import LiveSource, Recording
from voxport.runtime.audio.turns import TurnSettings, turns_of
from voxport.runtime.speech_to_text import SpeechToText, TranscriptDelta

FORMATS = ("text", "srt", "vtt", "json")
TEXTS = (".txt", ".srt", ".vtt", ".json", ".md", ".text", "")  # extensions that no recording has
# options with --live, and their defaults
LIVE_ONLY = {"rate": 16000, "channels": 1, "chunk": 1, "turns": False, "blank_penalty": False}
LIVE_WINDOW = 10_000  # blocks of live sound in which its level is measured
log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("audio", type=Path, help="audio file of any rate and number of channels; - is stdin")
    parser.add_argument(
        "--format", choices=FORMATS, help="output format (default: by the extension of FILE, else text)"
    )
    parser.add_argument(
        "--timestamps",
        action="store_true",
        help="add times: before each line of text, or of each word in json",
    )
    parser.add_argument(
        "--partial",
        action="store_true",
        default=None,
        help="transcribe a truncated or damaged recording up to its damage",
    )
    add_output(parser, "FILE", "file to write, through links (default: stdout)")
    parser.add_argument(
        "--delay-ms",
        type=int,
        metavar="MS",
        help="delay of text behind sound, one of the bundle's delays (default: the first for live sound, the "
        "last for recordings)",
    )
    parser.add_argument(
        "--gain",
        type=check_gain,
        metavar="auto|off|DB",
        help="gain in decibels; auto raises quiet speech of a recording to a peak of -1 dBFS (default: auto "
        "for recordings, off for live sound)",
    )
    _add_live_arguments(parser)
    add_task_arguments(parser, default="the embedded model")


def _add_live_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--live",
        action="store_true",
        help="read raw 16-bit little-endian samples from stdin and print words while they are spoken",
    )
    parser.add_argument(
        "--rate",
        type=integer(1, 768_000),
        metavar="HZ",
        help=f"with --live: sample rate (default: {LIVE_ONLY['rate']})",
    )
    parser.add_argument(
        "--channels",
        type=integer(1, 64),
        metavar="N",
        help=f"with --live: number of channels, which are mixed (default: {LIVE_ONLY['channels']})",
    )
    parser.add_argument(
        "--chunk",
        type=integer(1, 32),
        metavar="N",
        help="with --live: number of 80 ms steps per encoder call; N costs less per step "
        f"and adds (N - 1) * 80 ms of delay (default: {LIVE_ONLY['chunk']})",
    )
    parser.add_argument(
        "--turns",
        action="store_true",
        default=None,
        help="with --live: print a line for each turn of speech, which a pause of 0.5 s ends; sound between "
        "turns is not transcribed",
    )
    parser.add_argument(
        "--blank-penalty",
        action="store_true",
        default=None,
        help="with --live: make text likelier after 16 s without any, because the model may ignore speech",
    )


def run(arguments: argparse.Namespace) -> int:
    _check(arguments)
    task = open_task(SpeechToText, arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # on every terminal, file and pipe; names of files may have other bytes
        sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")
    (_transcribe_live if arguments.live else _transcribe_file)(task, arguments)
    return 0


def _check(arguments: argparse.Namespace) -> None:
    """Raises UsageError on options that contradict each other. Sets the format and defaults of LIVE_ONLY."""
    ending = arguments.output.suffix[1:].lower() if arguments.output else ""
    arguments.format = arguments.format or (ending if ending in FORMATS else "text")
    if arguments.live and str(arguments.audio) != "-":
        raise UsageError(
            f"transcribe: --live reads stdin; give - in place of {arguments.audio}, or leave --live out"
        )
    if arguments.live and (arguments.format in ("srt", "vtt") or arguments.output):
        raise UsageError("transcribe: --live writes text or json to stdout; leave -o, srt and vtt out")
    if arguments.live and arguments.partial:
        raise UsageError("transcribe: --partial is for recordings; leave it out with --live")
    if arguments.live and arguments.gain == "auto":
        raise UsageError("gain: auto measures a whole recording; with --live give decibels", field="gain")
    if arguments.timestamps and arguments.format in ("srt", "vtt"):
        raise UsageError(
            f"transcribe: --timestamps is for text and json; {arguments.format} always has times"
        )
    check_exists(Path(arguments.audio))  # before a bundle is opened, or even exported
    for name, default in LIVE_ONLY.items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, default)
        elif not arguments.live:
            raise UsageError(f"transcribe: --{name.replace('_', '-')} needs --live; give both or none")
    if arguments.output and arguments.output.suffix.lower() not in TEXTS:
        names = " ".join(TEXTS).strip()
        raise UsageError(f"-o {arguments.output}: may be the name of a recording; end it in one of {names}")


def _transcribe_file(task: SpeechToText, arguments: argparse.Namespace) -> None:
    source = Recording(arguments.audio, task.sample_rate)
    started = time.perf_counter()
    text = ""
    words: list[Word] = []
    prints_deltas = arguments.format == "text" and not arguments.timestamps and not arguments.output
    chosen, peak = arguments.gain or "auto", source.peak_dbfs()
    if not arguments.partial:
        source.check_whole("record it again, or give --partial for the text before")
    gain = recording_gain_db(chosen, peak)
    if gain:
        log.info("gain of %.1f dB", gain)
    blocks = amplified(source.blocks(), gain, chosen == "auto") if gain else source.blocks()
    with StagedFile(arguments.output) if arguments.output else nullcontext() as staged:
        try:
            with nullcontext() if prints_deltas else Progress(source.length_s, "s of sound") as progress:
                for delta in task.transcribe(blocks, delay_ms=arguments.delay_ms):
                    if prints_deltas:
                        print(delta.text if text.strip() else delta.text.lstrip(), end="", flush=True)
                    text += delta.text
                    words += delta.words
                    if progress:
                        so_far = f"{source.seconds:.0f} s of sound so far, {len(words)} words"
                        progress.update(source.seconds, so_far)
        except BaseException:
            if staged and words:
                content = _formatted(text, words, source.seconds, arguments)
                kept = staged.keep_partial(content.encode())
                log.warning("%d words of %.1f s are %s", len(words), source.seconds, kept)
            raise
        if staged:
            staged.write(_formatted(text, words, source.seconds, arguments).encode())
    elapsed = time.perf_counter() - started
    if prints_deltas:
        print(flush=True)
    count = f"{len(words)} word{'' if len(words) == 1 else 's'}"
    log.info("%.1f s of sound in %.1f s, %s", source.seconds, elapsed, count)
    if not text.strip():
        log.warning("no text: %s", reason_without_text(source.level, gain, source.damage))
    if arguments.output:
        print(arguments.output)
    elif not prints_deltas:
        sys.stdout.write(_formatted(text, words, source.seconds, arguments))


def _formatted(text: str, words: list[Word], seconds: float, arguments: argparse.Namespace) -> str:
    if arguments.format == "json":
        return as_json(text.strip(), words if arguments.timestamps else None, seconds=seconds)
    if arguments.format == "text":
        return as_lines(words) if arguments.timestamps else f"{text.lstrip()}\n"
    return (as_srt if arguments.format == "srt" else as_vtt)(words)


def _transcribe_live(task: SpeechToText, arguments: argparse.Namespace) -> None:
    """Transcribes stdin, and prints words as soon as they are known.

    The first interruption ends the sound, and the remaining text is printed. The second one stops.
    """
    task.check_live()
    source = LiveSource(raw_stdin(), arguments.rate, arguments.channels, task.sample_rate)
    level, has_text = SpeechLevel(task.sample_rate, LIVE_WINDOW), False
    blocks = source.blocks()
    if arguments.gain not in (None, "off"):
        blocks = amplified(blocks, arguments.gain)
    blocks = with_quiet_warning(blocks, level)
    with _first_interruption(source.end):
        for start_s, part in turns_of(blocks, TurnSettings()) if arguments.turns else [(0.0, blocks)]:
            deltas = task.transcribe(
                part,
                delay_ms=arguments.delay_ms,
                live=True,
                chunk_tokens=arguments.chunk,
                blank_penalty=arguments.blank_penalty,
            )
            has_text = _print(deltas, arguments, start_s) or has_text
    if not has_text and level.seconds:
        log.warning("no text: %s", reason_without_text(level))


def _print(deltas: Iterator[TranscriptDelta], arguments: argparse.Namespace, start_s: float) -> bool:
    """Prints text as it arrives, or a line for each word. Returns whether there is text.

    With --turns, the deltas are a turn that begins at `start_s` and becomes one line.
    """
    prints_text = arguments.format == "text" and not arguments.timestamps
    has_text = False
    for delta in _whole(deltas, start_s) if arguments.turns else deltas:
        has_text = has_text or bool(delta.text.strip())
        if prints_text:
            print(delta.text, end="", flush=True)
            continue
        for word in delta.words:
            is_json, name = arguments.format == "json", "text" if arguments.turns else "word"
            print(as_json_line(word, name) if is_json else as_text_line(word), flush=True)
    if prints_text and (has_text or not arguments.turns):
        print(flush=True)
    return has_text


def _whole(deltas: Iterator[TranscriptDelta], start_s: float) -> Iterator[TranscriptDelta]:
    """One delta for a turn that begins at `start_s`, with all its text as one word."""
    found = list(deltas)
    text, words = (
        "".join(each.text for each in found).strip(),
        [word for each in found for word in each.words],
    )
    if words:
        yield TranscriptDelta(text, [Word(text, start_s + words[0].start, start_s + words[-1].end)])


@contextmanager
def _first_interruption(end: Callable[[], None]) -> Iterator[None]:
    """Calls `end` on the first SIGINT or SIGTERM; another one raises KeyboardInterrupt."""

    def handle(number: int, frame: object) -> None:
        end()
        for each, handler in before.items():
            signal.signal(each, handler)

    before = {each: signal.signal(each, handle) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
