"""Bars for errors that rounding alone makes, relative to the largest value: 4 standard deviations.

A rounding is spread evenly up to the unit roundoff u, so its deviation is u / sqrt(3). Independent roundings
add up as the root of their number. No step between them is assumed to amplify them.
"""

from math import sqrt

FLOAT32, FLOAT16 = 2**-24, 2**-11  # unit roundoffs


def float32_bar(sums: int, products: int) -> float:
    """The difference of two libraries after that many consecutive sums of that many products each.

    Addition k of n rounds a partial sum of size sqrt(k), with a deviation of u * sqrt(k / 3). All n of them
    have u * n / sqrt(6), for a sum of size sqrt(n). Two libraries differ by sqrt(2) of it.
    """
    return 4 * sqrt(sums) * sqrt(2) * FLOAT32 * sqrt(products / 6)


def float16_bar(roundings: int) -> float:
    """That many roundings on the longest path."""
    return 4 * sqrt(roundings / 3) * FLOAT16
