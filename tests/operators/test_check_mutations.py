"""A check finds deliberate faults; the whole list is benchmarks/check_mutations.py."""

from __future__ import annotations

import pytest
from benchmarks.check_mutations import FAULTS, results

SOME = {
    "a step": [
        "operands swapped",
        "weight decay dropped",
        "received tensor of the last step",
        "mode of a module, in both",
    ],
    "inference": ["the same, in inference", "new inputs not taken", "arguments swapped, in both"],
    "micro-batches": ["micro-batches weighed alike, in both", "ignored labels counted, in both"],
    "layers": ["gradients averaged, not summed", "layers: learning rate off by 10 %"],
}


@pytest.mark.parametrize("kind", SOME)
def test_a_check_finds_faults_and_passes_without_one(kind: str) -> None:
    """In the program, in workers, and in what capture and reference share."""
    for name, said in results(SOME[kind]):
        assert bool(said) == bool(name), name or said


def test_there_are_thirty() -> None:
    """Of every part."""
    assert len(FAULTS) >= 30
