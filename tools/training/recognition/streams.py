"""Streams of recognition: sentences in a row, with the tokens that are due at each 80 ms."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from tools.training.data.clips import Clip
from tools.training.data.espeak import phoneme_classes
from tools.training.data.sound import RECOGNITION_RATE, at_speed, augment, samples_of
from tools.training.data.tokens import Encoder
from voxport.model.voxtral_realtime.config import Schedule

TOKENS = 320  # 25.6 s, the length of a stream
DRAWS = 4  # sentences that are tried for the end of a stream
TOKEN_SAMPLES = 1280
FRAMES_PER_TOKEN = 4  # encoder frames
DELAYS = (6, 6, 12, 30, 30)  # in tokens, the two defaults more often
MIN_LEFT_PADS = 4
IGNORED = -100  # a target without a loss
NOWHERE = -1000.0
MAX_WRONG_TOKENS = 0.5  # the largest share of text tokens that are fed back wrong
PHONEME_LAG = 0.06  # seconds of sound that the encoder has after the middle of a phoneme's frame
SPEEDS = 0.85, 1.18  # factors of the rate of a clip
TAIL_TOKENS = 6  # tokens for the last words of a stream
SCHEDULE = Schedule()


@dataclass(frozen=True)
class StreamBatch:
    """samples [B, T · 1280], fed and targets int64 [B, T], delay int64 [B], phonemes int64 [B, 4·T].

    heard [B, T]: the position whose sound is spelled by the token that a position must choose, or NOWHERE.
    """

    samples: torch.Tensor
    fed: torch.Tensor
    targets: torch.Tensor
    delay: torch.Tensor
    phonemes: torch.Tensor
    heard: torch.Tensor


@dataclass(frozen=True)
class DueWord:
    """The tokens of a word, the position where they are due, and the positions of its sound."""

    position: int
    ids: Sequence[int]
    sound: tuple[float, float] = (0.0, 0.0)


def stream_tokens(due: Sequence[DueWord], length: int) -> tuple[list[int], list[float]]:
    """The tokens of a stream: [STREAMING_WORD] at the position where a word is due, then its tokens, else
    [STREAMING_PAD]. A word waits for the end of the word before. Words beyond `length` are left out.

    Also the position whose sound each token spells, as if all tokens of a word were equally long.
    """
    tokens, heard, free = [SCHEDULE.pad_id] * length, [NOWHERE] * length, 0
    for word in due:
        start, count = max(word.position, free), len(word.ids)
        free = start + 1 + count
        if free > length:
            break
        tokens[start:free] = [SCHEDULE.word_id, *word.ids]
        first, last = word.sound
        places = [(index + 0.5) / count for index in range(count)]
        heard[start:free] = [last, *(first + (last - first) * place for place in places)]
    return tokens, heard


def with_wrong_tokens(fed: torch.Tensor, noise: torch.Generator) -> torch.Tensor:
    """fed int64 [B, T] with up to `MAX_WRONG_TOKENS` of the text tokens of a row taken from other places.

    The next token often follows from the ones before. A model that can rely on them learns to continue texts,
    and not to listen.
    """
    is_text = fed >= SCHEDULE.first_text_id
    share = MAX_WRONG_TOKENS * torch.rand(len(fed), 1, generator=noise)
    is_wrong = is_text & (torch.rand(fed.shape, generator=noise) < share)
    texts = fed[is_text]
    found = fed.clone()
    found[is_wrong] = texts[torch.randint(len(texts), (int(is_wrong.sum()),), generator=noise)]
    return found


def fed_and_targets(tokens: Sequence[int], prompt: int) -> tuple[list[int], list[int]]:
    """What each position is fed and what it must choose.

    The prompt is BOS and `prompt - 1` times [STREAMING_PAD]; its last position chooses the first token.
    """
    fed = [SCHEDULE.bos_id, *[SCHEDULE.pad_id] * (prompt - 1), *tokens[prompt - 1 : -1]]
    return fed, [IGNORED] * (prompt - 1) + list(tokens[prompt - 1 :])


class _Stream:
    """A stream while sentences are added."""

    def __init__(self, left_pads: int, delay: int, length: int):
        self.length, self.left_pads, self.delay = length, left_pads, delay
        self.samples = np.zeros(length * TOKEN_SAMPLES, np.float32)
        self.due: list[DueWord] = []
        self.phonemes = np.zeros(length * FRAMES_PER_TOKEN, np.int64)
        self.end = left_pads * TOKEN_SAMPLES

    def add(self, clip: Clip, gap: float, encoder: Encoder) -> bool:
        """Adds a sentence after `gap` seconds if there is room for it and for its words."""
        start = self.end + int(gap * RECOGNITION_RATE)
        sound = samples_of(clip, RECOGNITION_RATE)
        end = start + len(sound)
        if -(-end // TOKEN_SAMPLES) + self.delay + TAIL_TOKENS > self.length:
            return False
        self.samples[start:end] = sound
        self.end = end
        begin = start / TOKEN_SAMPLES
        for word, ended in zip(clip.utterance.text.split(), clip.utterance.words, strict=True):
            finish = start + ended * RECOGNITION_RATE // clip.utterance.rate
            last, place = -(-finish // TOKEN_SAMPLES) - 1, finish / TOKEN_SAMPLES
            self.due.append(DueWord(last + self.delay, encoder.encode(f" {word}"), (begin, place)))
            begin = place
        frame = TOKEN_SAMPLES // FRAMES_PER_TOKEN
        covered = np.arange(start // frame, min(len(self.phonemes), -(-end // frame) + 3))
        times = covered * frame + frame // 2 - PHONEME_LAG * RECOGNITION_RATE - start
        times = times * clip.utterance.rate / RECOGNITION_RATE
        self.phonemes[covered] = phoneme_classes(clip.utterance, times)
        return True


def make_stream(
    clips: Sequence[Clip], encoder: Encoder, seed: str, length: int = TOKENS
) -> tuple[np.ndarray, list[int], list[int], int, np.ndarray, list[float]]:
    """Random sentences of `clips` with random pauses, speeds and disturbances: one row of a `StreamBatch`.

    Sentences with digits are left out: how a number is spoken does not follow from its spelling. So are
    clips without times.
    """
    rng, noise = random.Random(seed), np.random.default_rng(list(seed.encode()))
    stream = _Stream(rng.randint(MIN_LEFT_PADS, SCHEDULE.left_pad_tokens), rng.choice(DELAYS), length)
    spelled = [
        clip for clip in clips if clip.utterance.words and not any(map(str.isdigit, clip.utterance.text))
    ]
    misses = 0
    while misses < DRAWS:
        clip = at_speed(rng.choice(spelled), rng.uniform(*SPEEDS))
        misses += not stream.add(clip, rng.uniform(0.0, 0.6), encoder)
    first = stream.left_pads * TOKEN_SAMPLES
    last = min(len(stream.samples), stream.end + int(rng.uniform(0, 0.5) * RECOGNITION_RATE))
    stream.samples[first:last] = augment(stream.samples[first:last], noise)
    tokens, heard = stream_tokens(stream.due, length)
    fed, targets = fed_and_targets(tokens, 1 + stream.left_pads + stream.delay)
    return stream.samples, fed, targets, stream.delay, stream.phonemes, heard


def make_batch(
    clips: Sequence[Clip], encoder: Encoder, seed: str, size: int, length: int = TOKENS
) -> StreamBatch:
    """`size` streams; equal arguments give equal batches."""
    rows = [make_stream(clips, encoder, f"{seed}:{row}", length) for row in range(size)]
    samples, fed, targets, delays, phonemes, heard = zip(*rows, strict=True)
    return StreamBatch(
        torch.from_numpy(np.stack(samples)),
        torch.tensor(fed),
        torch.tensor(targets),
        torch.tensor(delays),
        torch.from_numpy(np.stack(phonemes)),
        torch.tensor(heard),
    )
