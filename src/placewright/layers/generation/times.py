"""`LayerTimes`: what was measured of a model's layers and of links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from placewright.numerics.arrays import FloatArray

Row = Sequence[float]


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds, on each of m devices, of one token of each of so many users, computed together.

    Attributes
    ----------
    block_s, head_s
        Of a block; of what follows the last one.
    visit_s
        What a stage takes beyond its layers; below zero where a pause before it is worth time.
    answer_s
        From the end of the last stage, on this device, to the begin of the first one: logits are
        sent, tokens are chosen and orders are given.
    """

    users: int
    block_s: Row
    head_s: Row
    visit_s: Row
    answer_s: Row

    def of(self, devices: Sequence[int]) -> StepTimes:
        """The same for some of the devices."""
        rows = (self.block_s, self.head_s, self.visit_s, self.answer_s)
        return StepTimes(self.users, *(_some(row, devices) for row in rows))


@dataclass(frozen=True, slots=True)
class LayerTimes:
    """Seconds on each of m devices.

    Attributes
    ----------
    tokens
        Of the prompt, and those before the token that is timed.
    block_s, head_s, visit_s, answer_s
        Of one stream alone, whose stages wait for each other; see `StepTimes`. m numbers each.
    prompt_block_s, prompt_head_s
        Of the prompt.
    latency_s, seconds_per_byte
        From device to device, with the time of both ends; m rows, ``inf`` without a link.
    busy
        While all devices compute without a pause, by rising numbers of users from 1; nothing where
        that was not measured.
    """

    tokens: int
    block_s: Row
    head_s: Row
    prompt_block_s: Row
    prompt_head_s: Row
    visit_s: Row
    answer_s: Row
    latency_s: Sequence[Row]
    seconds_per_byte: Sequence[Row]
    busy: Sequence[StepTimes] = ()

    def of(self, devices: Sequence[int]) -> LayerTimes:
        """The same for some of the devices."""
        return LayerTimes(
            self.tokens,
            _some(self.block_s, devices),
            _some(self.head_s, devices),
            _some(self.prompt_block_s, devices),
            _some(self.prompt_head_s, devices),
            _some(self.visit_s, devices),
            _some(self.answer_s, devices),
            [_some(self.latency_s[d], devices) for d in devices],
            [_some(self.seconds_per_byte[d], devices) for d in devices],
            tuple(each.of(devices) for each in self.busy),
        )

    def between(self, name: str, users: int) -> FloatArray:
        """A row of `busy` for a number of users: linear between measured ones, and beyond."""
        counts = [each.users for each in self.busy]
        rows = np.array([getattr(each, name) for each in self.busy])
        if len(rows) == 1:
            found: FloatArray = rows[0]
            return found
        k = min(max(int(np.searchsorted(counts, users)), 1), len(rows) - 1)
        share = (users - counts[k - 1]) / (counts[k] - counts[k - 1])
        rise = rows[k] - rows[k - 1]
        # Beyond what was measured more users take no less.
        found = rows[k] + (share - 1.0) * (rise if share <= 1 else np.maximum(rise, 0.0))
        return np.asarray(found)


def _some(row: Row, devices: Sequence[int]) -> list[float]:
    return [row[d] for d in devices]
