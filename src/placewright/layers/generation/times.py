"""`LayerTimes`: what was measured of a model's layers and of links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Row = Sequence[float]


@dataclass(frozen=True, slots=True)
class LayerTimes:
    """Seconds on each of m devices, of one stream.

    Attributes
    ----------
    tokens
        Of the prompt, and those before the token that is timed.
    block_s, head_s
        Of one token: a block; what follows the last one. m numbers each.
    prompt_block_s, prompt_head_s
        Of the prompt.
    visit_s
        What a stage takes beyond its layers; below zero where a pause before it is worth time.
    answer_s
        From the end of the last stage, on this device, to the begin of the first one: logits are
        sent, a token is chosen and orders are given.
    latency_s, seconds_per_byte
        From device to device, with the time of both ends; m rows, ``inf`` without a link.
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

    def of(self, devices: Sequence[int]) -> LayerTimes:
        """The same for some of the devices."""

        def some(row: Row) -> list[float]:
            return [row[d] for d in devices]

        return LayerTimes(
            self.tokens,
            some(self.block_s),
            some(self.head_s),
            some(self.prompt_block_s),
            some(self.prompt_head_s),
            some(self.visit_s),
            some(self.answer_s),
            [some(self.latency_s[d]) for d in devices],
            [some(self.seconds_per_byte[d]) for d in devices],
        )
