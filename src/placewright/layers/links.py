"""Links of wing 2: how long a message takes between two nodes, or inside one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placewright.errors import InputError
from placewright.io.arguments import Unlimited, checked
from placewright.numerics.arrays import FloatArray, IntArray, freeze_arrays


@checked
@dataclass(frozen=True, slots=True, eq=False)
class Link:
    """Measured or computed times of messages that several pairs of workers send at once.

    The times of one row are those of pairs that share whatever the two ends have in common (a
    network card, a bus): with one card per worker all rows are equal, with one card per node
    row p is p times as long as row 1 for large messages.

    Attributes
    ----------
    pairs
        Shape (p,): numbers of pairs that send at once, ascending.
    message_bytes
        Shape (k,): what *each* pair sends, ascending.
    message_s
        Shape (p, k): seconds until all of them have it. Between the sizes it is interpolated,
        above the largest the last bandwidth holds, below the smallest the first time.
    """

    pairs: IntArray
    message_bytes: FloatArray
    message_s: FloatArray

    def __post_init__(self) -> None:
        freeze_arrays(self)
        shape = (len(self.pairs), len(self.message_bytes))
        if self.message_s.shape != shape or 0 in shape:
            raise InputError(
                "message_s needs a row per number of pairs and a column per size",
                where="link",
                by=f"{self.message_s.shape}, expected {shape}",
            )
        ascending = (np.diff(self.message_bytes) > 0).all() and (np.diff(self.pairs) > 0).all()
        if not ascending or self.pairs[0] < 1 or not (self.message_s >= 0).all():
            raise InputError(
                "a link needs times >= 0, of ascending sizes and ascending numbers of pairs",
                where="link",
                by=f"sizes {self.message_bytes.tolist()}, pairs {self.pairs.tolist()}",
            )

    @staticmethod
    @checked
    def linear(
        bandwidth: Unlimited, latency_s: float = 0.0, shared_bandwidth: float = float("inf")
    ) -> Link:
        """Of `bandwidth` bytes/s per pair; all pairs together get `shared_bandwidth`."""
        pairs = np.array([1, 2, 4, 8, 16, 32, 64])
        sizes = np.array([0.0, 1.0])
        each = np.minimum(bandwidth, shared_bandwidth / pairs)
        return Link(pairs, sizes, latency_s + sizes / each[:, None])

    def seconds(self, each_bytes: float, pairs: int = 1) -> float:
        """Seconds of a message of `each_bytes` per pair, `pairs` of them at once."""
        return float(self.times(np.array([each_bytes]), pairs)[0])

    def times(self, each_bytes: FloatArray, pairs: int = 1) -> FloatArray:
        """`seconds` of many sizes."""
        # The next larger measured number of pairs, which takes as long or longer.
        row, sent = int(np.searchsorted(self.pairs, pairs)), each_bytes
        if row == len(self.pairs):  # more than any row has: the last one's bytes per second
            row, sent = row - 1, each_bytes * (pairs / float(self.pairs[-1]))
        sizes, table = self.message_bytes, self.message_s[row]
        found = np.interp(sent, sizes, table)
        if len(sizes) > 1:
            over = sent > sizes[-1]
            if sizes[-2] == 0.0:  # a straight line: latency and bandwidth
                beyond = table[0] + (table[1] - table[0]) * sent / sizes[1]
            else:
                beyond = table[-1] * sent / sizes[-1]
            found = np.where(over, beyond, found)
        return np.asarray(np.where(each_bytes > 0, found, 0.0), dtype=np.float64)
