"""Between two placements: which state has to move, and where random numbers are drawn."""

from __future__ import annotations

from collections.abc import Sequence

from placewright.runtime.step.partition import Message, Part


def state_moves(
    before: Sequence[Part], after: Sequence[Part], processes: Sequence[int] | None = None
) -> tuple[Message, ...]:
    """Every tensor that the steps change and that is needed where it is not.

    What the steps do not change (frozen parameters, inputs, constants) every worker has in the
    file that it was loaded from. A move between two processes goes through host memory: there is
    time between two steps, and tags keep it simple.

    Parameters
    ----------
    processes
        The process of every device; one each where nothing is said.
    """
    rank = range(len(after)) if processes is None else processes
    home = {i.name: part.device for part in before for i in part.inputs if i.mutated}
    missing = [
        (item, part.device)
        for part in after
        for item in part.inputs
        if item.mutated and home.get(item.name, part.device) != part.device
    ]
    return tuple(
        Message(
            tag,
            item.name,
            item.spec,
            home[item.name],
            target,
            "copy" if rank[home[item.name]] == rank[target] else "gloo",
        )
        for tag, (item, target) in enumerate(missing)
    )


def random_home(parts: Sequence[Part]) -> int:
    """The device that draws random numbers; all operators that do share one. 0 if none does."""
    drawing = (p.device for p in parts if any(s.instruction.random for s in p.steps))
    return next(drawing, 0)
