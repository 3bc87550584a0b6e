"""Transcribe recordings, or live audio from stdin. Without --bundle, the embedded model listens."""

import argparse
import io
import logging
import os
import sys
import time
from contextlib import nullcontext
from itertools import count
from pathlib import Path

from voxport.bundle.errors import UsageError, VoxportError
from voxport.bundle.files import StagedFile
from voxport.cli.arguments import add_task_arguments, engine_options, folder, integer, open_task
from voxport.cli.live_output import Timed, first_interruption, print_cues, print_words
from voxport.cli.terminal import Progress
from voxport.cli.transcripts import FORMATS, format_of, transcript_files
from voxport.runtime.audio.captions import CAPTIONS, Word, as_json, as_lines
from voxport.runtime.audio.gain import (
    SpeechLevel,
    amplified,
    check_gain,
    reason_without_text,
    recording_gain_db,
    with_quiet_warning,
)
from voxport.runtime.audio.opening import raw_stdin
from voxport.runtime.audio.sources import LiveSource, Recording
from voxport.runtime.audio.turns import TurnSettings, turns_of
from voxport.runtime.speech_to_text import SpeechToText, TranscriptionOptions
from voxport.runtime.text.languages import check_language, without_repeats

# options with --live, and their defaults
LIVE_ONLY = {"rate": 16000, "channels": 1, "chunk": 1, "turns": False}
LIVE_WINDOW = 10_000  # blocks of live sound in which its level is measured
log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "audio", type=Path, nargs="+", help="audio files of any rate and number of channels; - is stdin"
    )
    parser.add_argument(
        "--format",
        choices=FORMATS,
        help="output format (default: by the extension of FILE; any other extension is plain text)",
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
    _add_output(parser)
    _add_hints(parser)
    parser.add_argument(
        "--delay-ms",
        type=int,
        metavar="MS",
        help="delay of text behind sound, one of the bundle's delays (default: the first for live sound, the "
        "last for recordings)",
    )
    parser.add_argument(
        "--channel",
        type=integer(1),
        metavar="N",
        help="transcribe only this channel of a recording; the first is 1 (default: all, mixed)",
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


def _add_hints(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--language",
        metavar="CODE",
        help="the language that is spoken, by its code or English name (default: auto, the model finds it)",
    )
    parser.add_argument(
        "--context",
        default="",
        metavar="TEXT",
        help="names and words that may be spoken, for a model that takes them",
    )
    parser.add_argument(
        "--aligner",
        type=folder,
        metavar="DIR",
        help="bundle of an aligner, which finds the times of words in recordings (default: the model's own "
        "times, if it has any)",
    )


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(takes_stdout=True)
    parser.add_argument(
        "-o",
        "--output",
        dest="transcripts",
        metavar="FILE",
        help="file to write, through links, or a folder with a file for each recording (default: stdout; the "
        "current folder for several recordings whose format is not text)",
    )


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
        help="make text likelier after 16 s without any, because the model may ignore speech",
    )


def run(arguments: argparse.Namespace) -> int:
    files = [] if arguments.live else transcript_files(arguments)
    task = open_task(SpeechToText, arguments)
    if arguments.aligner:
        from voxport.runtime import opening
        from voxport.runtime.families.qwen3_asr.aligned import AlignedSpeechToText
        from voxport.runtime.forced_alignment import ForcedAlignment

        options = engine_options(arguments)
        aligner = opening.open_task(ForcedAlignment, arguments.aligner, options, not arguments.no_check)
        task = AlignedSpeechToText(task, aligner)
    _check_task(task, arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # on every terminal, file and pipe; names of files may have other bytes
        sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")
    if arguments.live:
        _transcribe_live(task, arguments)
    else:
        _transcribe_files(task, arguments, files)
    return 0


def check_arguments(arguments: argparse.Namespace) -> None:
    """Raises UsageError on options that contradict each other. Sets the format and defaults of LIVE_ONLY."""
    arguments.format = format_of(arguments)
    if arguments.live and arguments.audio != [Path("-")]:
        given = " ".join(map(str, arguments.audio))
        raise UsageError(f"transcribe: --live reads stdin; give - in place of {given}, or leave --live out")
    if arguments.live and arguments.transcripts not in (None, "-"):
        raise UsageError("transcribe: --live writes to stdout; leave -o out")
    if arguments.live and arguments.format == "textgrid":
        raise UsageError("transcribe: --format textgrid is for recordings; leave it out with --live")
    for name in ("partial", "channel", "aligner"):
        if arguments.live and getattr(arguments, name):
            raise UsageError(f"transcribe: --{name} is for recordings; leave it out with --live")
    if arguments.live and arguments.gain == "auto":
        raise UsageError("gain: auto measures a whole recording; with --live give decibels", field="gain")
    if arguments.timestamps and arguments.format in CAPTIONS:
        raise UsageError(
            f"transcribe: --timestamps is for text and json; {arguments.format} always has times"
        )
    if arguments.aligner and arguments.format not in CAPTIONS and not arguments.timestamps:
        log.warning("--aligner: has no effect without --timestamps, srt, vtt or textgrid")
        arguments.aligner = None
    for name, default in LIVE_ONLY.items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, default)
        elif not arguments.live:
            raise UsageError(f"transcribe: --{name.replace('_', '-')} needs --live")


def _check_task(task: SpeechToText, arguments: argparse.Namespace) -> None:
    """Raises UsageError on options that the model cannot follow, and warns of those without an effect."""
    if arguments.language:
        check_language(arguments.language, task.languages)
    hints = ("context",) if arguments.aligner else ("language", "context")  # an aligner needs the language
    ignored = (*(() if task.has_hints else hints), *task.ignored, *(() if arguments.live else task.live_only))
    given = [n for n in ignored if getattr(arguments, n) not in ("", None, LIVE_ONLY.get(n, False))]
    if given:
        options = " and ".join(f"--{name.replace('_', '-')}" for name in given)
        log.warning("%s: has no effect on this model", options)
    if not task.has_word_times and (arguments.timestamps or arguments.format in CAPTIONS):
        advice = "" if arguments.live else "give --aligner, or "
        raise UsageError(
            f"transcribe: this model has no times of words; {advice}leave --timestamps, srt, vtt and "
            "textgrid out"
        )


def _transcribe_files(
    task: SpeechToText, arguments: argparse.Namespace, files: list[tuple[Path, Path | None]]
) -> None:
    """An error of one of several recordings does not stop the others. It is raised at the end."""
    errors = list[VoxportError]()
    for recording, output in files:
        if len(files) > 1 and output is None and arguments.format != "json":
            print(f"==> {recording} <==", flush=True)
        try:
            named = {"recording": os.fsencode(recording).decode(errors="replace")} if len(files) > 1 else {}
            fields = {"language": "", **named} if task.has_hints else named
            given = {**vars(arguments), "audio": recording, "output": output, "json_fields": fields}
            _transcribe_file(task, argparse.Namespace(**given))
        except VoxportError as error:
            if len(files) == 1:
                raise
            place = "" if str(recording) in str(error) else f"{recording}: "
            log.error("%s%s", place, error)
            errors.append(error)
    if errors:
        found = f"{len(errors)} of {len(files)} recordings"
        raise type(errors[0])(f"{found} could not be transcribed; their errors are above")


def _transcribe_file(task: SpeechToText, arguments: argparse.Namespace) -> None:
    source = Recording(arguments.audio, task.sample_rate, arguments.channel)
    started = time.perf_counter()
    text = ""
    words, languages = list[Word](), list[str]()
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
                for delta in task.transcribe(blocks, **_options(arguments)):
                    if prints_deltas:
                        print(delta.text if text.strip() else delta.text.lstrip(), end="", flush=True)
                    text += delta.text
                    words += delta.words
                    languages.append(delta.language)
                    if progress:
                        so_far = f"{source.seconds:.0f} s of sound so far, {_count_words(text)}"
                        progress.update(source.seconds, so_far)
        except BaseException:
            if staged and text.strip():
                content = _formatted(text, words, languages, source.seconds, arguments)
                kept = staged.keep_partial(content.encode())
                log.warning("%s of %.1f s are %s", _count_words(text), source.seconds, kept)
            raise
        if staged:
            staged.write(_formatted(text, words, languages, source.seconds, arguments).encode())
    elapsed = time.perf_counter() - started
    if prints_deltas:
        print(flush=True)
    if found := without_repeats(languages):
        log.info("language: %s", ", ".join(found))
    log.info("%.1f s of sound in %.1f s, %s", source.seconds, elapsed, _count_words(text))
    if not text.strip():
        log.warning("no text: %s", reason_without_text(source.level, gain, source.damage))
    if arguments.output:
        print(arguments.output)
    elif not prints_deltas:
        sys.stdout.write(_formatted(text, words, languages, source.seconds, arguments))


def _options(arguments: argparse.Namespace) -> TranscriptionOptions:
    return TranscriptionOptions(
        delay_ms=arguments.delay_ms,
        blank_penalty=arguments.blank_penalty,
        language=arguments.language,
        context=arguments.context,
    )


def _count_words(text: str) -> str:
    count = len(text.split())
    return f"{count} word{'' if count == 1 else 's'}"


def _formatted(
    text: str, words: list[Word], languages: list[str], seconds: float, arguments: argparse.Namespace
) -> str:
    if arguments.format == "json":
        timed, found = words if arguments.timestamps else None, ",".join(without_repeats(languages))
        fields = {"seconds": seconds, **arguments.json_fields, **({"language": found} if found else {})}
        return as_json(text.strip(), timed, **fields)
    if arguments.format == "text":
        return as_lines(words) if arguments.timestamps else f"{text.lstrip()}\n"
    return CAPTIONS[arguments.format](words, seconds)


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
    if arguments.format == "vtt":
        print("WEBVTT\n", flush=True)
    numbers = count(1)  # numbers of cues
    with first_interruption(source.end):
        for start_s, part in turns_of(blocks, TurnSettings()) if arguments.turns else [(0.0, blocks)]:
            live = TranscriptionOptions(live=True, chunk_tokens=arguments.chunk)
            sound = Timed(part, start_s, task.sample_rate)
            deltas = task.transcribe(sound, **(_options(arguments) | live))
            if arguments.format in CAPTIONS:
                has_text = print_cues(deltas, arguments.format, start_s, numbers) or has_text
            else:
                has_text = print_words(deltas, arguments, sound, task.has_word_times) or has_text
    if not has_text and level.seconds:
        log.warning("no text: %s", reason_without_text(level))
