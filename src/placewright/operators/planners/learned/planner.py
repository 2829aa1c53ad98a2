"""Base of the learned planners: a search within a budget of evaluations.

What all of them need is here, too: parameters in safetensors files, with what they were learned
for; drawing devices from a policy, baselines, and the settings of torch while a planner learns.

One that learns from measured runs rehearses on the judge, measures, and chooses in turns.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np

from placewright.errors import InputError, MissingDependencyError, UnsupportedError
from placewright.io.boundary import open_file
from placewright.io.stored import write_file
from placewright.numerics.arrays import BoolArray, FloatArray, IntArray
from placewright.operators.plan import OperatorPlan
from placewright.operators.planners.learned.evaluation import Evaluations
from placewright.operators.problem import Objective, OperatorProblem
from placewright.planning.contract import Context, Proposal
from placewright.report.text import seconds

Answer = Literal["best", "policy"]
"""The best plan of all, or the best one that the policy itself drew."""


class LearnedPlanner(Protocol):
    """A planner that draws placements until its budget of evaluations is spent.

    A planner inherits from it, adds its parameters as fields, and says what they belong to and how
    it learns. `on_request` keeps it out of ``auto`` and of comparisons that do not name it: it
    takes long.
    """

    __slots__ = ()
    on_request: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """Name on the command line."""
        ...

    @property
    def samples(self) -> int:
        """Evaluations allowed, trivial plans included."""
        ...

    @property
    def checkpoint(self) -> str:
        """File of the parameters to start from, empty for none."""
        ...

    def schema(self, problem: OperatorProblem) -> Schema:
        """Schema of its parameters."""
        ...

    def learn(self, evaluations: Evaluations) -> None:
        """Draw, judge and learn until `evaluations` has no room; keep parameters on the way."""
        ...

    def unsupported_reason(self, problem: OperatorProblem) -> str | None:
        """Plans that are drawn device by device need not be contiguous."""
        return "does not keep plans contiguous" if problem.contiguous else None

    def __call__(self, problem: OperatorProblem, context: Context) -> Proposal[OperatorPlan]:
        """The best plan seen within its own budget, after Ctrl-C too.

        Raises `InfeasibleError`: a group that no device can run.
        Raises `MissingDependencyError`: it needs torch, which is not installed.
        Raises `UnsupportedError`: the policy's own plan is asked for, and it drew none that fits.
        """
        if by_runs(self):
            given, limit = given_parameters(self, problem), self.samples
            return learn_from_runs(self, problem, context, limit=limit, parameters=given).proposal
        return learned(self, Evaluations(problem, context, limit=self.samples))


def by_runs(planner: object) -> bool:
    """Whether a planner is rewarded by measured runs instead of the judge."""
    return getattr(planner, "reward", "judge") == "measured"


def given_parameters(planner: LearnedPlanner, problem: OperatorProblem) -> dict[str, Any]:
    """Those of its checkpoint; none without one."""
    if not planner.checkpoint:
        return {}
    return load_parameters(planner.checkpoint, planner.schema(problem))[0]


def learned(planner: LearnedPlanner, evaluations: Evaluations) -> Proposal[OperatorPlan]:
    """Let a planner learn within a given budget, from its checkpoint if it has one."""
    if not evaluations.parameters:
        evaluations.parameters = given_parameters(planner, evaluations.problem)
    interrupted = False
    try:
        planner.learn(evaluations)
    except KeyboardInterrupt:
        interrupted = True
    drawn = evaluations.best_of.get("sample")
    if getattr(planner, "answer", "best") == "policy":
        if drawn is None:
            raise UnsupportedError(
                "its policy drew no plan that fits",
                where=f"planner {planner.name!r} with answer='policy'",
                by=f"{evaluations.count} evaluations, the best plan is: {evaluations.best_origin}",
                hint="allow more samples, or leave answer out",
            )
        note = f"the policy alone, {evaluations.count} evaluations"
        return Proposal(drawn.plan(), interrupted=interrupted, note=note)
    note = f"{evaluations.count} evaluations, the best is: {evaluations.best_origin}"
    return Proposal(evaluations.best.plan(), interrupted=interrupted, note=note)


def state_of(parameters: dict[str, Any], prefix: str) -> dict[str, Any]:
    """Parameters of one network: those whose names begin with `prefix` and a dot."""
    return {k[len(prefix) + 1 :]: v for k, v in parameters.items() if k.startswith(prefix + ".")}


FORMAT = "placewright-policy"
VERSION = 1
LARGEST_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Schema:
    """Identity of the planner and problem that parameters belong to; others are refused.

    Attributes
    ----------
    planner
        Its name, with the profile where that changes the network.
    features
        Names or a version of the features, in order.
    shape
        Sizes on which parameters depend: groups, devices, hidden units.
    problem
        Hash of the problem, where parameters make sense for that one only.
    """

    planner: str
    features: str
    shape: str = ""
    problem: str = ""


def save_parameters(
    path: str | Path, parameters: Mapping[str, Any], schema: Schema, **facts: Any
) -> Path:
    """Write parameters, their schema and `facts` (JSON data) to one safetensors file, atomically.

    Raises `InputError`: the file cannot be written.
    Raises `MissingDependencyError`: safetensors is not installed.
    """
    save = _safetensors().save
    arrays = {name: np.array(value, order="C") for name, value in parameters.items()}
    head = {"format": FORMAT, "version": VERSION, "schema": asdict(schema), "facts": facts}
    return write_file(path, save(arrays, metadata={FORMAT: json.dumps(head)}))


def load_parameters(path: str | Path, schema: Schema) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parameters and facts of a checkpoint.

    Raises `InputError`: no file, no safetensors file, a damaged one, or one of another planner,
    other features, sizes or another problem.
    Raises `MissingDependencyError`: safetensors is not installed.
    """
    load, where = _safetensors().load, str(path)
    data = _bytes(path)
    try:
        head = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        header = json.loads(head["__metadata__"][FORMAT])
        arrays = dict(load(data))
        found, facts = Schema(**header["schema"]), dict(header["facts"])
        version = int(header["version"])
    except Exception as error:  # whatever a damaged file makes of a parser
        raise InputError(
            "is no checkpoint of a learned planner, or a damaged one",
            where=where,
            by=f"{type(error).__name__}: {error}"[:120],
            hint="write it again with `placewright operators train`",
        ) from None
    _check(found, version, schema, where)
    if not all(np.isfinite(array).all() for array in arrays.values()):
        raise InputError(
            "holds parameters that are not finite",
            where=where,
            by=", ".join(name for name, a in arrays.items() if not np.isfinite(a).all())[:120],
            hint="train again, with a smaller learning rate",
        )
    return arrays, facts


def check_parameters(
    given: Mapping[str, Any], needed: Mapping[str, tuple[int, ...]], planner: str
) -> None:
    """Raise `InputError` if a parameter that a planner needs is missing or of another shape."""
    for name, shape in needed.items():
        got = tuple(np.shape(given[name])) if name in given else None
        if got != shape:
            raise InputError(
                f"the checkpoint is damaged: its parameter {name!r} does not fit",
                where=f"planner {planner!r}",
                by=f"{'missing' if got is None else f'shape {got}'}, needs shape {shape}",
                hint="write it again with `placewright operators train`",
            )


def _check(found: Schema, version: int, wanted: Schema, where: str) -> None:
    if version != VERSION:
        raise InputError(
            "is a checkpoint of another version",
            where=where,
            by=f"version {version}, this is {VERSION}",
            hint="train again",
        )
    for key, got in asdict(found).items():
        need = asdict(wanted)[key]
        if got != need:
            raise InputError(
                f"is a checkpoint for another {_WORDS[key]}",
                where=where,
                by=f"has {_short(got)}, needs {_short(need)}",
                hint="train one for this source and these parameters, or leave it out",
            )


_WORDS = {
    "planner": "planner",
    "features": "set of features",
    "shape": "size of network",
    "problem": "problem",
}


def _short(text: str) -> str:
    return repr(text if len(text) <= 48 else text[:45] + "...")


def _bytes(path: str | Path) -> bytes:
    try:
        with open_file(path) as file:
            data = file.read(LARGEST_BYTES + 1)
        if len(data) > LARGEST_BYTES:
            raise InputError(
                "is too large for a checkpoint of a learned planner",
                where=str(path),
                by=f"{Path(path).stat().st_size} bytes, at most {LARGEST_BYTES}",
                hint="name the file that `placewright operators train` wrote",
            )
        return data
    except OSError as error:
        raise InputError(
            "the checkpoint cannot be read",
            where=str(path) or "its path is empty",
            by=str(error.strerror or error),
            hint="name a file that `placewright operators train` wrote",
        ) from None


def _safetensors() -> Any:
    try:
        from safetensors import numpy
    except ImportError:
        raise MissingDependencyError("safetensors", extra="torch", purpose="a checkpoint") from None
    return numpy


def softmax(logits: FloatArray, allowed: BoolArray) -> FloatArray:
    """Shape (groups, m): probabilities, zero where a group may not go."""
    masked = np.where(allowed, logits, -np.inf)
    weight = np.exp(masked - masked.max(axis=-1, keepdims=True))
    chances: FloatArray = weight / weight.sum(axis=-1, keepdims=True)
    return chances


def drawn(chances: FloatArray, count: int, rng: np.random.Generator) -> IntArray:
    """Shape (count, groups): a device per group, drawn independently."""
    below = np.cumsum(chances, axis=-1)
    below[:, -1] = np.inf
    last = chances.shape[1] - 1 - (chances[:, ::-1] > 0).argmax(axis=1)  # against rounding
    found = (rng.random((count, len(chances), 1)) >= below).sum(axis=-1)
    devices: IntArray = np.minimum(found, last)
    return devices


@dataclass(slots=True)
class MovingAverage:
    """Exponential moving average of costs; the first one sets it unless it has a start."""

    decay: float = 0.9
    value: float | None = None

    def update(self, cost: float) -> float:
        """Take a cost in; the average before it, which is the baseline of that cost."""
        before = cost if self.value is None else self.value
        self.value = self.decay * before + (1.0 - self.decay) * cost
        return before


@contextmanager
def torch_session(planner: Any, evaluations: Evaluations) -> Iterator[None]:
    """Seed torch, limit it to one thread, make tensors on the planner's `device`; all restored.

    Networks here are so small that more threads cost more than they bring. What importing torch
    takes is added to the deadline, and to when it began: it is no planning.

    Raises `InputError`: PyTorch cannot compute on that device.
    Raises `MissingDependencyError`: torch is not installed.
    """
    began = time.perf_counter()
    try:
        import torch
    except ImportError:
        raise MissingDependencyError(
            "torch", extra="torch", purpose=f"the planner {planner.name}"
        ) from None
    device = _torch_device(planner.name, planner.device)
    context, took_s = evaluations.context, time.perf_counter() - began
    evaluations.context = replace(context, deadline_s=context.deadline_s + took_s)
    evaluations.begun_s += took_s
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with _elsewhere(device), torch.random.fork_rng(devices=[]):
            torch.manual_seed(context.seed)
            yield
    finally:
        torch.set_num_threads(before)


def _torch_device(planner: str, name: str) -> Any:
    """The device of this name, on which a sum has been computed."""
    import torch

    try:
        device = torch.device(name)
        torch.ones(2, device=device).sum().item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # not compiled in: assert
        raise InputError(
            f"PyTorch cannot compute on the device {name!r}",
            where=f"planner {planner!r}",
            by=str(error).partition("\n")[0][:120],
            hint="name 'cpu', or an accelerator that PyTorch finds, such as 'cuda:0'",
        ) from None
    return device


@contextmanager
def _elsewhere(device: Any) -> Iterator[None]:
    """New tensors on an accelerator, whose random numbers go on as they were; nothing on the CPU.

    PyTorch asks at every call where tensors are to be made once it is told a device.
    """
    import torch

    if device.type == "cpu":
        yield
        return
    with torch.random.fork_rng(devices=[device], device_type=device.type), device:
        yield


REHEARSAL_SHARE, MEASURING_SHARE = 0.25, 0.85
"""Shares of the time limit after which rehearsing, and learning from measured runs, end."""

FINALISTS, ROUNDS = 3, 5
"""How many of the fastest placements are measured again in turns, and how often."""


class Estimate(NamedTuple):
    """Median of measured steps, half the 95 % interval of their mean, and how many they were."""

    median_s: float
    half_s: float
    steps: int


class Measured(Protocol):
    """Executes placements, each once: `placewright.deployment.workers.MeasuredPlacements`."""

    @property
    def known(self) -> dict[bytes, Estimate]:
        """Measurements by placement (its bytes); ``inf`` where the engine refused it."""
        ...

    @property
    def refused(self) -> dict[bytes, str]:
        """Reasons of refusals, by placement."""
        ...

    @property
    def repeated(self) -> int:
        """Number of placements that came again and were not executed again."""
        ...

    def __call__(self, placements: IntArray) -> FloatArray:
        """Median seconds of each row of shape (k, operators)."""
        ...

    def in_turns(
        self, placements: Sequence[IntArray], rounds: int, deadline_s: float = math.inf
    ) -> list[list[float]]:
        """Median step of each placement in every round; rounds go forwards, then backwards.

        No round but the first begins after the deadline (of ``time.perf_counter()``).
        """
        ...


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """Result of a planner that learned from measured runs.

    `evaluations`: the measured ones, with the parameters that were learned.
    `proposal`: the plan that was fastest when the finalists ran in turns.
    """

    evaluations: Evaluations
    proposal: Proposal[OperatorPlan]


def learn_from_runs(
    planner: Any,
    problem: OperatorProblem,
    context: Context,
    *,
    limit: float,
    parameters: dict[str, Any] | None = None,
) -> MeasuredRun:
    """Train a planner on the judge, then on measured runs; choose by runs in turns.

    1. `planner.rehearsal` evaluations of the judge, in a quarter of the time: what a run costs
       seconds, the judge costs microseconds.
    2. From those parameters `limit` measured placements, the trivial plans and the rehearsal's best
       ones among them. A median of few steps is noisy, so that the least of many is too small.
    3. Therefore the `FINALISTS` fastest and the fastest trivial plan run again in turns; one that
       is not faster than the trivial plan then is not returned.

    Raises `UnsupportedError`: nothing can be executed, or nothing that was tried ran.
    """
    measure: Measured | None = context.measure
    if measure is None:
        raise UnsupportedError(
            "learns from measured runs, and there is nothing to run",
            where=f"planner {planner.name!r} with reward='measured', {problem.name}",
            by="the problem comes without a model and an engine",
            hint="give a model as SOURCE (or placewright.place), or leave reward out for the judge",
        )
    if problem.objective is not Objective.LATENCY:
        raise UnsupportedError(
            "measures steps, and the objective is another",
            where=f"planner {planner.name!r} with reward='measured', {problem.name}",
            by=f"objective {problem.objective}",
            hint="leave reward out for the judge, or ask for latency",
        )
    rehearsed = _rehearsed(planner, problem, context, parameters or {})
    inner = _within(context, MEASURING_SHARE)
    run = Evaluations(
        problem, inner, limit=limit, measure=measure, parameters=dict(rehearsed.parameters)
    )
    trivial = run.best
    if trivial.score.over_bytes > 0 and not rehearsed.archive:
        raise _nothing_ran(planner, problem, measure)
    interrupted = False
    try:
        with run.given_by("rehearsal"):
            for _, place in rehearsed.archive[:FINALISTS]:
                if run.room(1):
                    run.costs(place)
        planner.learn(run)
    except KeyboardInterrupt:
        interrupted = True
    if run.best.score.over_bytes > 0:
        raise _nothing_ran(planner, problem, measure)
    chosen, against = run.best.place, ""
    if not interrupted:
        try:
            chosen, against = _chosen(run, trivial.place, measure, context)
        except KeyboardInterrupt:
            interrupted = True
    note = f"{_text(measure, chosen)}{against}; {_counts(measure)}"
    plan = OperatorPlan(np.array(chosen))
    return MeasuredRun(run, Proposal(plan, interrupted=interrupted, note=note))


def _rehearsed(
    planner: Any, problem: OperatorProblem, context: Context, parameters: dict[str, Any]
) -> Evaluations:
    """The planner trained on the judge; not at all where its parameters are given."""
    inner = replace(_within(context, REHEARSAL_SHARE), measure=None)
    limit = 0 if parameters else planner.rehearsal
    judged = Evaluations(problem, inner, limit=limit, parameters=parameters)
    if limit:
        planner.learn(judged)
    return judged


def _within(context: Context, share: float) -> Context:
    """With a share of the time that is left."""
    return replace(context, deadline_s=time.perf_counter() + share * context.remaining_s())


def _chosen(
    run: Evaluations, trivial: IntArray, measure: Measured, context: Context
) -> tuple[IntArray, str]:
    """The fastest of the finalists in turns, and by how much it beats the trivial plan."""
    rows = [place for _, place in run.archive[:FINALISTS]]
    if not any(np.array_equal(row, trivial) for row in rows):
        rows.append(trivial)
    own = next(k for k, row in enumerate(rows) if np.array_equal(row, trivial))
    if len(rows) == 1 or context.remaining_s() <= 0:
        return run.best.place, ""
    times = measure.in_turns(rows, ROUNDS, context.deadline_s)
    best = min(range(len(rows)), key=lambda k: (mean(times[k]), k != own))
    ratio = mean(a / b for a, b in zip(times[own], times[best], strict=True))
    return rows[best], f", {ratio:.3f} times as fast as the best trivial plan in turns"


def _nothing_ran(planner: Any, problem: OperatorProblem, measure: Measured) -> UnsupportedError:
    reasons = list(dict.fromkeys(measure.refused.values()))
    return UnsupportedError(
        "no placement that was tried could be executed",
        where=f"planner {planner.name!r} with reward='measured', {problem.name}",
        by=f"{len(measure.refused)} refused: {'; '.join(reasons[:2]) or 'no reason given'}",
        hint="run a plan with `placewright operators run` first to see why",
    )


def _text(measure: Measured, place: IntArray) -> str:
    found = measure.known.get(place.astype(np.int64).tobytes())
    if found is None:
        return "measured"
    half = f" ± {seconds(found.half_s)}" if math.isfinite(found.half_s) else ""
    return f"measured {seconds(found.median_s)}{half} ({found.steps} steps)"


def _counts(measure: Measured) -> str:
    """Numbers of placements executed, known before, and refused, as text."""
    ran = len(measure.known) - len(measure.refused)
    return f"{ran} placements measured, {measure.repeated} known, {len(measure.refused)} refused"
