"""Order of a stage's passes and, where transfers block, of its sends and receives."""

from __future__ import annotations

from itertools import accumulate

from placewright.layers.plan import LayerPlan, Schedule

Instruction = tuple[str, int, int]
"""``forward``, ``backward``, or where transfers block ``send_act``, ``recv_act``, ``send_grad``,
``recv_grad``; the stage, and the micro-batch."""


def groups_of(plan: LayerPlan) -> tuple[int, ...]:
    """Stage -> the first stage of the same workers: another one where stages are interleaved."""
    first = {stage.workers: s for s, stage in reversed(list(enumerate(plan.stages)))}
    return tuple(first[stage.workers] for stage in plan.stages)


def in_flight(plan: LayerPlan, s: int) -> int:
    """Micro-batches whose activations a stage holds at its peak."""
    if plan.schedule is Schedule.GPIPE:
        return plan.micro_batches
    if plan.schedule is Schedule.ONE_F_ONE_B:
        return min(len(plan.stages) - s, plan.micro_batches)
    own = (what for what, stage, _ in order_of(plan, s) if stage == s)
    return max(accumulate(1 if what == "forward" else -1 for what in own))


def order_of(plan: LayerPlan, s: int) -> list[Instruction]:
    """Passes of the workers of stage `s`: kind, stage, micro-batch."""
    M, S = plan.micro_batches, len(plan.stages)
    if plan.schedule is Schedule.INTERLEAVED:
        return _interleaved(plan, s, groups_of(plan))
    # 1F1B: one micro-batch more ahead per stage that follows; then forward and backward in turn.
    ahead = M if plan.schedule is Schedule.GPIPE else min(S - s - 1, M)
    found = [("forward", s, m) for m in range(ahead)]
    for m in range(M):
        if m + ahead < M:
            found.append(("forward", s, m + ahead))
        found.append(("backward", s, m))
    return found


def _interleaved(plan: LayerPlan, s: int, group: tuple[int, ...]) -> list[Instruction]:
    """Megatron's order (Narayanan et al. 2021, arXiv 2104.04473): runs of P micro-batches."""
    groups = sorted(set(group))
    P, rank = len(groups), groups.index(group[s])
    own = [i for i, g in enumerate(group) if g == group[s]]
    total = plan.micro_batches * len(own)
    runs = range(0, plan.micro_batches, P)
    ahead = [(i, m) for run in runs for i in own for m in range(run, run + P)]
    back = [(i, m) for run in runs for i in reversed(own) for m in range(run, run + P)]
    # With a single run nothing can alternate; else Megatron's warm-up of its rank.
    warm = total if plan.micro_batches == P else min(total, 2 * (P - rank - 1) + (len(own) - 1) * P)
    found = [("forward", i, m) for i, m in ahead[:warm]]
    for k in range(total):
        if k + warm < total:
            found.append(("forward", *ahead[k + warm]))
        found.append(("backward", *back[k]))
    return found


def blocking_order(plan: LayerPlan, s: int, *, activations_first: bool) -> list[Instruction]:
    """`order_of`, with the sends and receives of blocking transfers."""
    if plan.schedule is Schedule.ONE_F_ONE_B:
        return _slots(s, len(plan.stages), plan.micro_batches, activations_first)
    found: list[Instruction] = []
    for what, stage, m in order_of(plan, s):
        kind = "act" if what == "forward" else "grad"
        found += [(f"recv_{kind}", stage, m), (what, stage, m), (f"send_{kind}", stage, m)]
    return found


def _slots(s: int, S: int, M: int, activations_first: bool) -> list[Instruction]:
    """Stage `s` of DeepSpeed's 1F1B: forward and backward slots alternate, idle ones too."""
    found: list[Instruction] = []
    previous = -1
    for step in range(2 * (M + S - 1) + 1):
        base, forward = step // 2, step % 2 == s % 2
        if forward:
            # Step of the forward of micro-batch m on stage s is s + 2 m; its backward comes at 2 S
            # - 1 - s + 2 m. Numbers outside 0 .. M - 1 are idle slots.
            m = base - s // 2
        else:
            m = base - S + (s + 1) // 2 if step % 2 == 0 else base - S + 1 + s // 2
        act = ("recv_act", m) if forward else ("send_act", previous)
        grad = ("send_grad", previous) if forward else ("recv_grad", m)
        todo = [act, grad] if activations_first else [grad, act]
        todo.append(("forward" if forward else "backward", m))
        found += [(what, s, i) for what, i in todo if 0 <= i < M]
        previous = m
    return found
