"""Drawing rows by what they are: the same ones in any order, batch, tile or process."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int, UInt64


def row_keys(seed: int, text: str, rows: Int[np.ndarray, " row"]) -> UInt64[np.ndarray, " row"]:
    """A number for every row of a text that looks random and depends on nothing else (splitmix64, Vigna 2015).

    >>> row_keys(0, "00ff", np.array([1])) == row_keys(0, "00ff", np.array([0, 1]))[1:]
    array([ True])
    """
    with np.errstate(over="ignore"):
        mixed = np.uint64(int(text, 16) ^ (seed * 0x9E3779B97F4A7C15) & (2**64 - 1)) + np.asarray(rows, np.uint64) * (
            np.uint64(0xBF58476D1CE4E5B9)
        )
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
        return mixed ^ (mixed >> np.uint64(31))
