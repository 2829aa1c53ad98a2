"""A flag that ends compiled loops at a deadline: they cannot look at the clock themselves."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from placewright.numerics.arrays import BoolArray


@contextmanager
def stop_flag(deadline_s: float) -> Iterator[BoolArray]:
    """An array of one flag that is set at the deadline, for kernels that release the GIL.

    `deadline_s`: ``time.perf_counter()`` value.
    """
    flag = np.zeros(1, dtype=np.bool_)
    if deadline_s == math.inf:
        yield flag
        return
    timer = threading.Timer(max(0.0, deadline_s - time.perf_counter()), flag.fill, (True,))
    timer.daemon = True
    timer.start()
    try:
        yield flag
    finally:
        timer.cancel()
