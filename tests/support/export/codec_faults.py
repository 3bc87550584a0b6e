"""Faults in the speech decoder of Qwen3-TTS, which stay in the module that they are planted in."""

from typing import Any, cast

import torch
from torch import nn

from voxport.model.qwen3_tts.codec.decoder import CodecDecoder, SnakeBeta, States, Upsampler


class _Given:
    """States that give one value."""

    def __init__(self, before: torch.Tensor) -> None:
        self.before = before

    def extend(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat((self.before, x), dim=-1)


def drop_a_state(codec: CodecDecoder) -> None:
    """The first transposed convolution with a state has zeros in place of it. It writes it as before."""
    upsampler = next(part for part in codec.modules() if isinstance(part, Upsampler) and part.context)

    def forward(x: torch.Tensor, states: States) -> torch.Tensor:
        whole = states.extend(x)
        empty = torch.zeros_like(whole[..., : upsampler.context])
        return Upsampler.forward(upsampler, whole[..., upsampler.context :], cast(Any, _Given(empty)))

    vars(upsampler)["forward"] = forward


def exchange_alpha_and_beta(codec: CodecDecoder) -> None:
    """Of the first SnakeBeta."""
    snake = next(part for part in codec.modules() if isinstance(part, SnakeBeta))
    frequency, amplitude = nn.Buffer(1 / snake.amplitude), nn.Buffer(1 / snake.frequency)
    snake.frequency, snake.amplitude = frequency, amplitude


def exchange_halves(codec: CodecDecoder) -> None:
    """The acoustic tables come first and the semantic one last, as if the halves were joined so."""
    books = codec.books.unflatten(0, (-1, codec.size))
    codec.books = nn.Buffer(books.roll(-1, dims=0).flatten(0, 1), persistent=False)


def move_tables(codec: CodecDecoder) -> None:
    """The tables of the acoustic half are moved by one; the semantic half stays."""
    books = codec.books.unflatten(0, (-1, codec.size))
    moved = torch.cat((books[:1], books[1:].roll(1, dims=0)))
    codec.books = nn.Buffer(moved.flatten(0, 1), persistent=False)


WRONG_VALUES = (exchange_alpha_and_beta, exchange_halves, move_tables)
