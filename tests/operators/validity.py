"""Check that a schedule is possible, without the judge's code."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

CLOSE = 1e-9


def assert_valid_schedule(p: Any, placement: Any, judgement: Any) -> None:
    """Every operator once, on one device at a time, after its inputs; channels one at a time.

    `judgement` has ``op_start_s``, ``op_end_s`` and ``transfers`` (tensor, source, target,
    start_s, end_s), of which nothing is believed.
    """
    start, end = judgement.op_start_s.tolist(), judgement.op_end_s.tolist()
    assert len(start) == len(end) == p.n
    scale = max([1.0, *end])
    for i in range(p.n):
        assert start[i] >= 0
        assert abs(end[i] - start[i] - p.compute_s[i, placement[i]]) <= CLOSE * scale
    for d in range(p.m):
        _assert_apart([(start[i], end[i]) for i in range(p.n) if placement[i] == d], scale)
    moves = _moves(p, judgement, scale)
    _assert_inputs_first(p, placement, start, end, moves, scale)
    if p.overlap == "serial":
        spans = list(zip(start, end, strict=True)) + [span[:2] for span in moves.values()]
        _assert_apart(spans, scale)
    elif p.links == "contended":
        for x in range(len(p.channel_names)):
            _assert_apart([span[:2] for span in moves.values() if span[2] == x], scale)


def _moves(p: Any, judgement: Any, scale: float) -> dict[tuple[int, int], tuple[float, float, int]]:
    """(start, end, channel) by (tensor, target); each once, each as long as its link says."""
    t = judgement.transfers
    moves: dict[tuple[int, int], tuple[float, float, int]] = {}
    for k, a, b, from_s, until_s in zip(
        t.tensor.tolist(), t.source.tolist(), t.target.tolist(),
        t.start_s.tolist(), t.end_s.tolist(), strict=True,
    ):  # fmt: skip
        assert (k, b) not in moves
        took = p.latency_s[a, b] + p.tensor_bytes[k] * p.seconds_per_byte[a, b]
        assert a != b
        assert abs(until_s - from_s - took) <= CLOSE * scale
        moves[k, b] = (from_s, until_s, int(p.channel[a, b]))
    return moves


def _assert_inputs_first(
    p: Any, placement: Any, start: Any, end: Any, moves: Any, scale: float
) -> None:
    needed = set()
    for k in range(p.t):
        maker = int(p.tensor_producer[k])
        for j in p.consumers[p.consumer_offsets[k] : p.consumer_offsets[k + 1]].tolist():
            if placement[j] == placement[maker]:
                assert start[j] >= end[maker] - CLOSE * scale
                continue
            needed.add((k, int(placement[j])))
            sent, arrived, _ = moves[k, int(placement[j])]
            assert sent >= end[maker] - CLOSE * scale
            assert start[j] >= arrived - CLOSE * scale
    assert needed == set(moves)


def _assert_apart(spans: list[tuple[float, float]], scale: float) -> None:
    """No two spans overlap."""
    for (_, before), (after, _) in pairwise(sorted(spans)):
        assert after >= before - CLOSE * scale
