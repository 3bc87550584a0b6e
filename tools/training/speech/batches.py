"""Batches for backbone and acoustic transformer: prompts as published, then the frames of the sentence."""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch

from tools.training.data.clips import Clip
from tools.training.data.espeak import PAUSE
from tools.training.data.sound import SPEECH_RATE, samples_of
from tools.training.data.tokens import Encoder
from tools.training.loop import device
from tools.training.speech.codec_model import SUBFRAMES, CodecModel
from tools.training.speech.sound_batches import FRAME_SAMPLES, subframe_phonemes
from voxport.bundle.constants.voxtral_tts import END_AUDIO

BOS, AUDIO, BEGIN_AUDIO, REPEAT_AUDIO_TEXT, NEXT_AUDIO_TEXT = 1, 24, 25, 35, 36
MAX_WRONG_FRAMES = 0.5  # the largest share of wrong frames that are fed back
IGNORED = -100
NO_WORD = -1
FRAME_RATE = SPEECH_RATE / FRAME_SAMPLES
ENCODER_BATCH = 32  # clips


class Spoken(NamedTuple):
    """A sentence, the name of its voice, its codes int64 [T, K], and what each frame speaks.

    words [T]: the word; a frame after the last one has the number of the words. places [T]: how far into the
    word, in [0, 1). phonemes [T, SUBFRAMES]
    """

    text: str
    voice: str
    codes: torch.Tensor
    words: torch.Tensor
    places: torch.Tensor
    phonemes: torch.Tensor


class PromptedSpeech(NamedTuple):
    """ids [S], codes [S, K], is_code [S], and the semantic code that each position must choose [S].

    word_of [S]: the word that a text token belongs to; the token after the text has the number of the words.
    reads [S]: the word of the frame that a position chooses. Both are NO_WORD elsewhere. place_of and
    reads_at [S]: how far into the word both are. phonemes [S, SUBFRAMES]: of the frame that is chosen.
    """

    ids: torch.Tensor
    codes: torch.Tensor
    is_code: torch.Tensor
    targets: torch.Tensor
    word_of: torch.Tensor
    reads: torch.Tensor
    place_of: torch.Tensor
    reads_at: torch.Tensor
    phonemes: torch.Tensor


@torch.no_grad()
def encode_clips(clips: Sequence[Clip], codec: CodecModel) -> list[Spoken]:
    """The codes of whole clips; the last frame is completed with silence."""
    found: list[Spoken] = []
    for first in range(0, len(clips), ENCODER_BATCH):
        part = clips[first : first + ENCODER_BATCH]
        sounds = [torch.from_numpy(samples_of(clip, SPEECH_RATE)) for clip in part]
        frames = [-(-len(sound) // FRAME_SAMPLES) for sound in sounds]
        padded = torch.zeros(len(part), max(frames) * FRAME_SAMPLES)
        for row, sound in enumerate(sounds):
            padded[row, : len(sound)] = sound
        codes = codec.codes(padded.to(device())).cpu()
        found += [
            Spoken(
                clip.utterance.text,
                clip.voice,
                codes[row, : frames[row]],
                words_spoken(clip, frames[row]),
                places_spoken(clip, frames[row]),
                torch.tensor(subframe_phonemes(clip, 0, frames[row] * SUBFRAMES)).unflatten(
                    0, (-1, SUBFRAMES)
                ),
            )
            for row, clip in enumerate(part)
        ]
    return found


def words_spoken(clip: Clip, frames: int) -> torch.Tensor:
    """The word of the middle of each frame, int64 [frames]. A pause belongs to the word after it.

    NO_WORD if the times are not known.
    """
    if not clip.utterance.words:
        return torch.full((frames,), NO_WORD)
    middles = (np.arange(frames) + 0.5) / FRAME_RATE * clip.utterance.rate
    return torch.from_numpy(np.searchsorted(clip.utterance.words, middles, side="right"))


def places_spoken(clip: Clip, frames: int) -> torch.Tensor:
    """How far into its word each frame is, in [0, 1): by phonemes, as if each took as many letters."""
    words, starts = clip.utterance.words, [s for name, s in clip.utterance.phonemes if name != PAUSE]
    if not words:
        return torch.zeros(frames)
    middles = (np.arange(frames) + 0.5) / FRAME_RATE * clip.utterance.rate
    edges = np.searchsorted(starts, [0, *words])  # number of the first phoneme of each word
    word = np.searchsorted(words, middles, side="right").clip(max=len(words) - 1)
    first, count = edges[word], (edges[word + 1] - edges[word]).clip(min=1)
    spoken = np.searchsorted(starts, middles, side="right") - 1 - first
    return torch.from_numpy(((spoken + 0.5) / count).clip(0, 0.999)).float()


def places_of_tokens(word_of: Sequence[int]) -> list[float]:
    """How far into its word each token is, from the word of each."""
    counts = Counter(word_of)
    seen = Counter[int]()
    found = []
    for word in word_of:
        found.append((seen[word] + 0.5) / counts[word])
        seen[word] += 1
    return found


def words_of_tokens(text: str, lengths: Sequence[int]) -> list[int]:
    """The word of `text.split()` that each token belongs to, from the tokens' lengths in bytes.

    A blank belongs to the word after it.
    """
    ends, offset = [], 0
    for word in text.split():
        offset = text.index(word, offset) + len(word)
        ends.append(len(text[:offset].encode()))
    starts = [0, *accumulate(lengths)][:-1]
    return [sum(end <= start for end in ends[:-1]) for start in starts]


def reference_codes(spoken: Sequence[Spoken], voices: Sequence[str], frames: int) -> dict[str, torch.Tensor]:
    """The prompt of each voice: the first frames of one of its sentences, and END_AUDIO: int64 [frames + 1,
    K].
    """
    found = {}
    for voice in voices:
        codes = next(one.codes for one in spoken if one.voice == voice and len(one.codes) >= frames)
        end = torch.zeros_like(codes[:1])
        end[0, 0] = END_AUDIO
        found[voice] = torch.cat((codes[:frames], end))
    return found


def make_sequence(
    text_ids: Sequence[int],
    voice: torch.Tensor,
    codes: torch.Tensor,
    word_of: Sequence[int] = (),
    spoken: Spoken | None = None,
) -> PromptedSpeech:
    """The prompt of a voice's codes [N, K] and a text, then the frames `codes` [T, K].

    The last position of the prompt chooses frame 0, and each frame the next one; the last chooses END_AUDIO.
    `word_of` says which word each text token belongs to, `spoken` what each frame speaks.
    """
    before = [BOS, BEGIN_AUDIO]
    after = [NEXT_AUDIO_TEXT, *text_ids, REPEAT_AUDIO_TEXT, BEGIN_AUDIO]
    ids = torch.tensor([*before, *[AUDIO] * len(voice), *after, *[AUDIO] * len(codes)])
    all_codes = torch.zeros(len(ids), voice.shape[1], dtype=torch.long)
    all_codes[len(before) : len(before) + len(voice)] = voice
    first = len(ids) - len(codes)
    all_codes[first:] = codes
    targets = torch.full((len(ids),), IGNORED)
    targets[first - 1 : -1] = codes[:, 0]
    targets[-1] = END_AUDIO
    belongs, reads = torch.full((2, len(ids)), NO_WORD)
    place_of, reads_at = torch.zeros(2, len(ids))
    phonemes = torch.full((len(ids), SUBFRAMES), IGNORED)
    if spoken is not None:
        end = word_of[-1] + 1
        text = slice(first - 2 - len(word_of), first - 1)
        belongs[text] = torch.tensor([*word_of, end])
        place_of[text] = torch.tensor([*places_of_tokens(word_of), 0.0])
        reads[first - 1 : -1], reads[-1] = spoken.words, end
        reads_at[first - 1 : -1], phonemes[first - 1 : -1] = spoken.places, spoken.phonemes
    return PromptedSpeech(ids, all_codes, ids == AUDIO, targets, belongs, reads, place_of, reads_at, phonemes)


def with_wrong_frames(codes: torch.Tensor, is_frame: torch.Tensor, noise: torch.Generator) -> torch.Tensor:
    """codes int64 [B, S, K] with up to `MAX_WRONG_FRAMES` of the frames of a row taken from other places.

    `is_frame` bool [B, S] says where frames are fed back. A frame nearly always follows from a few earlier
    ones. A model that can rely on them learns to continue sounds, and not to read the text.
    """
    share = MAX_WRONG_FRAMES * torch.rand(len(codes), 1, generator=noise)
    is_wrong = is_frame & (torch.rand(is_frame.shape, generator=noise) < share).to(is_frame.device)
    frames = codes[is_frame]
    others = torch.randint(len(frames), (int(is_wrong.sum()),), generator=noise).to(codes.device)
    fed = codes.clone()
    fed[is_wrong] = frames[others]
    return fed


def make_sequences(
    spoken: Sequence[Spoken], voices: Mapping[str, torch.Tensor], encoder: Encoder, seed: str, size: int
) -> PromptedSpeech:
    """`size` random sentences, padded on the right to the longest: each tensor [B, S, ...]."""
    rng = random.Random(seed)
    chosen = [rng.choice(spoken) for _ in range(size)]
    rows = []
    for one in chosen:
        ids = encoder.encode(one.text)
        word_of = words_of_tokens(one.text, encoder.lengths(ids))
        rows.append(make_sequence(ids, voices[one.voice], one.codes, word_of, one))
    padding = (0, 0, False, IGNORED, NO_WORD, NO_WORD, 0.0, 0.0, IGNORED)
    pad = torch.nn.utils.rnn.pad_sequence
    columns = zip(*rows, strict=True)
    return PromptedSpeech(
        *(pad(list(column), True, fill) for column, fill in zip(columns, padding, strict=True))
    )
