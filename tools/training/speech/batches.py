"""Batches for backbone and acoustic transformer: prompts as published, then the frames of the sentence."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch

from tools.training.data.clips import Clip
from tools.training.data.sound import SPEECH_RATE, samples_of
from tools.training.data.tokens import Encoder
from tools.training.loop import device
from tools.training.speech.codec_model import FRAME_SAMPLES, SUBFRAMES, CodecModel
from tools.training.speech.sound_batches import subframe_phonemes
from voxport.bundle.constants.voxtral_tts import END_AUDIO, FIRST_CODE
from voxport.runtime.text.cleanup import clean_sentence

BOS, AUDIO, BEGIN_AUDIO, REPEAT_AUDIO_TEXT, NEXT_AUDIO_TEXT = 1, 24, 25, 35, 36
MAX_WRONG_FRAMES = 0.5  # the largest share of wrong frames that are fed back
NEAR_SPREAD = 0.35  # largest standard deviation of the error of acoustic values in [-1, 1]
IGNORED = -100
NO_WORD = -1
FRAME_RATE = SPEECH_RATE / FRAME_SAMPLES
ENCODER_BATCH = 32  # clips


class Spoken(NamedTuple):
    """A sentence, the name of its voice, its codes int64 [T, K], and the word that each frame speaks [T].

    A frame after the last word has the number of the words. phonemes [T, 4]: of the parts of each frame.
    """

    text: str
    voice: str
    codes: torch.Tensor
    words: torch.Tensor
    phonemes: torch.Tensor


class PromptedSpeech(NamedTuple):
    """ids [S], codes [S, K], is_code [S], and the semantic code that each position must choose [S].

    word_of [S]: the word that a text token belongs to; the token after the text has the number of the words.
    reads [S]: the word of the frame that a position chooses. Both are NO_WORD elsewhere. phonemes [S, 4]: of
    that frame, IGNORED elsewhere.
    """

    ids: torch.Tensor
    codes: torch.Tensor
    is_code: torch.Tensor
    targets: torch.Tensor
    word_of: torch.Tensor
    reads: torch.Tensor
    phonemes: torch.Tensor


def product_text(text: str) -> str | None:
    """A text of training as the product gives it to the model. None if it says numbers or has other words.

    The product replaces digits and dashes. Training on them teaches nothing about their replacements.
    """
    cleaned = clean_sentence(text, "en")
    is_equal = len(cleaned.split()) == len(text.split()) and not any(map(str.isdigit, cleaned))
    return cleaned if is_equal else None


@torch.no_grad()
def encode_clips(clips: Sequence[Clip], codec: CodecModel) -> list[tuple[Clip, Spoken]]:
    """Whole clips with their codes, completed with silence. There is one frame more than of sound.

    Clips without a `product_text` are left out.
    """
    found: list[tuple[Clip, Spoken]] = []
    kept = [(clip, text) for clip in clips if (text := product_text(clip.utterance.text))]
    for first in range(0, len(kept), ENCODER_BATCH):
        part = kept[first : first + ENCODER_BATCH]
        sounds = [torch.from_numpy(samples_of(clip, SPEECH_RATE)) for clip, _ in part]
        frames = [-(-len(sound) // FRAME_SAMPLES) for sound in sounds]
        padded = torch.zeros(len(part), max(frames) * FRAME_SAMPLES)
        for row, sound in enumerate(sounds):
            padded[row, : len(sound)] = sound
        codes = codec.codes(padded.to(device())).cpu()
        for row, ((clip, text), of_sound) in enumerate(zip(part, frames, strict=True)):
            count = of_sound + 1
            phonemes = torch.tensor(subframe_phonemes(clip, 0, SUBFRAMES * count)).unflatten(0, (count, -1))
            words = words_spoken(clip, count)
            found.append((clip, Spoken(text, clip.voice, codes[row, :count].clone(), words, phonemes)))
    return found


def words_spoken(clip: Clip, frames: int) -> torch.Tensor:
    """The word of the middle of each frame, int64 [frames]. A pause belongs to the word after it.

    NO_WORD if the times are not known.
    """
    if not clip.utterance.words:
        return torch.full((frames,), NO_WORD)
    middles = (np.arange(frames) + 0.5) / FRAME_RATE * clip.utterance.rate
    return torch.from_numpy(np.searchsorted(clip.utterance.words, middles, side="right"))


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


def reference_codes(codes: torch.Tensor, frames: int) -> torch.Tensor:
    """The prompt of a voice: the first frames of a sentence, and END_AUDIO: int64 [frames + 1, K]."""
    end = torch.zeros_like(codes[:1])
    end[0, 0] = END_AUDIO
    return torch.cat((codes[:frames], end))


def make_sequence(spoken: Spoken, voice: torch.Tensor, encoder: Encoder) -> PromptedSpeech:
    """The prompt of a voice's codes [N, K] and the text, then the frames of the sentence.

    The last position of the prompt chooses frame 0, and each frame the next one; the last chooses END_AUDIO.
    """
    text_ids, codes = encoder.encode(spoken.text), spoken.codes
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
    word_of = words_of_tokens(spoken.text, encoder.lengths(text_ids))
    end = word_of[-1] + 1
    belongs[first - 2 - len(word_of) : first - 1] = torch.tensor([*word_of, end])
    reads[first - 1 : -1], reads[-1] = spoken.words, end
    sounds = torch.full((len(ids), SUBFRAMES), IGNORED)
    sounds[first - 1 : -1] = spoken.phonemes
    return PromptedSpeech(ids, all_codes, ids == AUDIO, targets, belongs, reads, sounds)


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


def with_near_codes(
    codes: torch.Tensor, is_frame: torch.Tensor, top: int, noise: torch.Generator
) -> torch.Tensor:
    """codes int64 [B, S, K] whose acoustic codes, at most `top`, are off by up to `NEAR_SPREAD` of a value.

    `is_frame` bool [B, S] says where frames are fed back. The frames that a model gives are off by as much.
    """
    spread = NEAR_SPREAD * torch.rand(len(codes), 1, 1, generator=noise) * top / 2
    acoustic = codes[..., 1:]
    moved = acoustic + (spread * torch.randn(acoustic.shape, generator=noise)).round().long().to(codes.device)
    found, place = codes.clone(), is_frame[..., None]
    found[..., 1:] = torch.where(place, moved.clamp(FIRST_CODE, FIRST_CODE + top), acoustic)
    return found


def make_sequences(
    spoken: Sequence[Spoken], voices: Mapping[str, torch.Tensor], encoder: Encoder
) -> PromptedSpeech:
    """These sentences, padded on the right to the longest: each tensor [B, S, ...]."""
    return join_sequences([make_sequence(one, voices[one.voice], encoder) for one in spoken])


def join_sequences(rows: Sequence[PromptedSpeech]) -> PromptedSpeech:
    """Sequences as a batch, padded on the right to the longest."""
    padding = (0, 0, False, IGNORED, NO_WORD, NO_WORD, IGNORED)
    pad = torch.nn.utils.rnn.pad_sequence
    columns = zip(*rows, strict=True)
    return PromptedSpeech(
        *(pad(list(column), True, fill) for column, fill in zip(columns, padding, strict=True))
    )
