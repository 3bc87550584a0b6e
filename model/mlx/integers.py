"""Integers as MLX packs them, and the floats that MLX computes from them."""

import torch

WORD = 32  # bits
GROUPS = (32, 64, 128)  # weights that share a scale
BITS = (2, 3, 4, 5, 6, 8)
CHUNK = 2**20  # words that are unpacked together


def dequantized(words: torch.Tensor, scales: torch.Tensor, biases: torch.Tensor, bits: int) -> torch.Tensor:
    """uint32 [N, K * bits / 32], scales and biases [N, K / group] -> [N, K] in the dtype of the scales."""
    values = scales.new_empty(len(words), words.shape[1] * WORD // bits)
    step = max(1, CHUNK // words.shape[1])  # rows at a time: the parts of a large table take several GB
    for start in range(0, len(words), step):
        rows = slice(start, start + step)
        grouped = unpack(words[rows], bits).unflatten(1, (scales.shape[1], -1)).to(scales.dtype)
        values[rows] = (grouped * scales[rows, :, None] + biases[rows, :, None]).flatten(1)
    return values


def unpack(words: torch.Tensor, bits: int) -> torch.Tensor:
    """uint32 [N, W] as MLX packs them, the first integer in the lowest bits -> uint8 [N, W * 32 / bits].

    An integer of 3, 5 or 6 bits may begin in one word and end in the next.
    """
    step = max(1, CHUNK // words.shape[1])
    return torch.cat([_unpack_rows(part.contiguous(), bits) for part in words.split(step)])


def _unpack_rows(words: torch.Tensor, bits: int) -> torch.Tensor:
    octets = words.view(torch.uint8)
    if 8 % bits == 0:
        parts = [octets >> place & ((1 << bits) - 1) for place in range(0, 8, bits)]
        return torch.stack(parts, dim=-1).flatten(1)
    places = (octets[..., None] >> torch.arange(8, dtype=torch.uint8)) & 1  # bits, the lowest first
    weights = torch.tensor([1 << place for place in range(bits)], dtype=torch.uint8)
    integers: torch.Tensor = (places.flatten(1).unflatten(1, (-1, bits)) * weights).sum(-1, dtype=torch.uint8)
    return integers
