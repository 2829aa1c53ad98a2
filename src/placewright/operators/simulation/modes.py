"""What the kernels of the judge are asked to play, and what they say of it."""

from __future__ import annotations

from typing import NamedTuple

DONE, NO_LINK, NO_KERNEL, STUCK = 0, 1, 2, 3
"""Played to the end, a pair without a link, an operator its device cannot run, an order that
contradicts the graph."""


class Mode(NamedTuple):
    """What is played.

    Attributes
    ----------
    contended
        Channels carry one transfer at a time.
    serial
        One operator or transfer at a time in the whole system.
    in_order
        Devices wait for the next operator of the order.
    memory
        Peaks are wanted.
    """

    contended: bool
    serial: bool
    in_order: bool
    memory: bool
