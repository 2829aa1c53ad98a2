"""Problems and plans of wing 4 as YAML or JSON, packed or not: see `placewright.io.stored`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from placewright.cluster.schema import Bandwidth, Bytes, Seconds
from placewright.errors import InputError, check_known
from placewright.io.boundary import FileModel, errors_in, validate
from placewright.io.stored import read_data, stem, write_data
from placewright.numerics.arrays import FloatArray
from placewright.planning.contract import Proposal
from placewright.planning.result import Result, ResultFile, head_json
from placewright.planning.wing import Document, Format
from placewright.requests.plan import RequestPlan
from placewright.requests.policies import start
from placewright.requests.problem import RequestProblem
from placewright.requests.readers import read_arrivals, serving_problem
from placewright.requests.service import MOST_ENTRIES, Service
from placewright.requests.stream import COLUMNS, Stream, gamma, mmpp, poisson, scaled, stream_of

Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Finite = Annotated[Seconds, Field(allow_inf_nan=False)]
Rate = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]


class VariantFileEntry(FileModel):
    """A variant of a family.

    `candidate`: not there yet: ``plan --target-success`` says what it would add, nothing else sees
    it.
    """

    name: str
    family: str
    accuracy: Share
    memory: Bytes = 0.0
    candidate: bool = False


class ServerFileEntry(FileModel):
    """A server.

    Attributes
    ----------
    latency
        Variant -> seconds of batches of 1, 2, ... requests; ``null``: cannot run this size. A
        variant that is missing cannot run here.
    load
        Variant -> seconds to load it; 0 where it is missing.
    memory
        For loaded variants; unlimited where absent.
    bandwidth, round_trip
        Access link; unlimited and 0 where absent.
    candidate
        Not there yet: ``plan --target-success`` says what it would add, nothing else sees it.
    """

    name: str
    latency: dict[str, list[Seconds | None]]
    load: dict[str, Seconds] = Field(default_factory=dict)
    memory: Bytes | None = None
    bandwidth: Annotated[Bandwidth, Field(gt=0)] | None = None
    round_trip: Seconds = 0.0
    candidate: bool = False


class ArrivalEntry(FileModel):
    """An arrival process of one family.

    Attributes
    ----------
    process
        ``poisson``; ``mmpp`` and ``gamma`` are burstier at the same mean; ``azure`` takes the
        first times of a trace file, sped up to the rate.
    deadline
        Seconds after arrival; or uniform between two.
    min_accuracy
        One, or one of several at random.
    """

    family: str
    rate: Positive
    process: Literal["poisson", "mmpp", "gamma", "azure"] = "poisson"
    deadline: Seconds | tuple[Finite, Finite]
    min_accuracy: Share | Annotated[list[Share], Field(min_length=1)] = 0.0
    time_sensitivity: Share = 0.5
    accuracy_sensitivity: Share = 0.5
    input_bytes: Bytes = 0.0
    burst: Annotated[float, Field(ge=1, le=100)] = 3.0
    variation: Annotated[float, Field(gt=0, le=20)] = 2.0
    file: str = ""


class RequestColumns(FileModel):
    """Requests one by one; lists of one length, seconds and bytes."""

    family: list[str]
    arrival_s: list[float]
    deadline_s: list[float]
    min_accuracy: list[float]
    time_sensitivity: list[float]
    accuracy_sensitivity: list[float]
    input_bytes: list[float]


class RequestFile(FileModel):
    """A problem of wing 4 as a file: servers, variants, and arrivals or requests.

    `noise`: relative standard deviation of service times.
    `seed`: of arrivals and of noise.
    """

    schema_version: Literal[1] = 1
    name: str = ""
    variants: Annotated[list[VariantFileEntry], Field(min_length=1)]
    servers: Annotated[list[ServerFileEntry], Field(min_length=1, max_length=10_000)]
    duration: Annotated[Finite, Field(gt=0)]
    arrivals: list[ArrivalEntry] | None = None
    requests: RequestColumns | None = None
    noise: Annotated[float, Field(ge=0, lt=0.5)] = 0.0
    seed: Annotated[int, Field(ge=0)] = 0
    rates_per_s: list[Rate] = Field(default_factory=list)
    rate_variants: list[str] = Field(default_factory=list)


class RequestPlanEntry(FileModel):
    """A policy; everything but its name, parameters and seed is for people."""

    policy: str
    parameters: dict[str, Any] = Field(default_factory=dict)
    seed: int = 0
    summary: dict[str, Any] = Field(default_factory=dict)


class RequestPlanFile(ResultFile):
    """A plan with its result."""

    requests: int = 0
    success_rate: float = 0.0
    violation_rate: float = 0.0
    accuracy_of_successes: float = 0.0
    effective_accuracy: float = 0.0
    plan: RequestPlanEntry


problem_document = Document("requests", ("servers", "variants", "duration"), RequestFile)
plan_document = Document("requests-plan", ("plan.policy",), RequestPlanFile)

formats = (Format("serving", "a published scenario of servers and requests", serving_problem),)

HEADLINES = (
    "requests",
    "success_rate",
    "violation_rate",
    "accuracy_of_successes",
    "effective_accuracy",
)
"""Numbers of the summary that stand at the top of a result file too."""


def read_problem(path: str | Path, seed: int | None = None) -> RequestProblem:
    """Read servers, variants and arrivals.

    `seed`: of arrivals and noise, in place of the file's.
    Raises `InputError`, which names the file, the line or the field, and what is wrong.
    """
    data, text = read_data(path)
    if seed is not None and isinstance(data, dict):
        data = {**data, "seed": seed}
    where, folder = str(path), Path(path).parent
    return problem_from(data, where=where, name=stem(path), text=text, folder=folder)


def problem_from(
    data: Any, *, where: str, name: str, text: str = "", folder: Path = Path()
) -> RequestProblem:
    """The problem of a file's data; `folder`: where the traces are that it names."""
    entry = validate(RequestFile, data, where=where, text=text)
    with errors_in(where):
        return _problem(entry, name, folder)


def read_catalogue(path: str | Path) -> Service | None:
    """The service with the file's candidates, servers and variants; None where it has none.

    Raises `InputError`, which names the file, the line or the field, and what is wrong.
    """
    data, text = read_data(path)
    entry = validate(RequestFile, data, where=str(path), text=text)
    listed = [each.candidate for each in entry.servers]
    listed += [each.candidate for each in entry.variants]
    if not any(listed):
        return None
    with errors_in(path):
        return _service(entry)


def write_problem(problem: RequestProblem, path: str | Path) -> Path:
    """Write a file that `read_problem` reads back equal: requests one by one."""
    return write_data(problem_json(problem), path)


def read_proposal(path: str | Path, problem: RequestProblem) -> Proposal[RequestPlan]:
    """Read the policy of a plan file.

    Raises `InputError`: a policy or a parameter that does not exist.
    """
    plan = read_plan(path)
    with errors_in(path):
        check_plan(problem, plan)
    return Proposal(plan)


def read_plan(path: str | Path) -> RequestPlan:
    """Read a plan without its problem, for a server whose requests are not known.

    Raises `InputError`, which names the file, the line or the field, and what is wrong.
    """
    data, text = read_data(path)
    entry = validate(RequestPlanFile, data, where=str(path), text=text).plan
    parameters = tuple(
        (key, tuple(value) if isinstance(value, list) else value)
        for key, value in entry.parameters.items()
    )
    return RequestPlan(entry.policy, parameters, entry.seed)


def check_plan(problem: RequestProblem, plan: RequestPlan) -> None:
    """Raise where a plan's policy cannot be started."""
    start(plan, problem.service)


def result_json(result: Result) -> dict[str, Any]:
    """What ``-f json`` prints and `Result.save` writes; infinite numbers are ``null``."""
    summary = result.judgement.summary_json()
    return head_json(result) | {
        **{key: summary[key] for key in HEADLINES},
        "plan": {
            "policy": result.plan.policy,
            "parameters": dict(result.plan.parameters),
            "seed": result.plan.seed,
            "summary": summary,
        },
    }


def problem_json(problem: RequestProblem) -> dict[str, Any]:
    """A problem as data."""
    s, stream = problem.service, problem.stream
    return {
        "schema_version": 1,
        "name": problem.name,
        "duration": problem.duration_s,
        "noise": s.noise,
        "seed": problem.noise_seed,
        "variants": [
            {
                "name": name,
                "family": s.family_names[int(s.family[v])],
                "accuracy": float(s.accuracy[v]),
                "memory": float(s.memory_bytes[v]),
            }
            for v, name in enumerate(s.variant_names)
        ],
        "servers": [_server_json(s, i) for i in range(s.servers)],
        "requests": {
            "family": [s.family_names[f] for f in stream.family.tolist()],
            **{key: getattr(stream, key).tolist() for key in COLUMNS},
        },
        "rates_per_s": problem.rates_per_s.tolist(),
        "rate_variants": [s.variant_names[v] for v in problem.rate_variants.tolist()],
    }


def _server_json(s: Service, i: int) -> dict[str, Any]:
    runs = [v for v in range(s.variants) if np.isfinite(s.latency_s[i, v, 1:]).any()]
    rows = {
        s.variant_names[v]: [
            x if math.isfinite(x) else None for x in s.latency_s[i, v, 1:].tolist()
        ]
        for v in runs
    }
    entry: dict[str, Any] = {
        "name": s.server_names[i],
        "latency": rows,
        "load": {s.variant_names[v]: float(s.load_s[i, v]) for v in range(s.variants)},
        "round_trip": float(s.round_trip_s[i]),
    }
    if math.isfinite(s.server_memory_bytes[i]):
        entry["memory"] = float(s.server_memory_bytes[i])
    if s.seconds_per_byte[i] > 0:
        entry["bandwidth"] = _inverse(float(s.seconds_per_byte[i]))
    return entry


def _inverse(value: float) -> float:
    """A number whose inverse is `value` to the last bit, or else the nearest one."""
    found = 1.0 / value
    near = (found, math.nextafter(found, 0.0), math.nextafter(found, math.inf))
    return next((x for x in near if 1.0 / x == value), found)


def _problem(entry: RequestFile, name: str, folder: Path) -> RequestProblem:
    service = _service(_without_candidates(entry))
    if (entry.arrivals is None) == (entry.requests is None):
        raise InputError("needs either arrivals or requests")
    if entry.requests is not None:
        stream = _listed(entry.requests, service)
    else:
        stream = _drawn(entry, service, folder)
    return RequestProblem(
        service,
        stream,
        entry.duration,
        entry.seed,
        np.array(entry.rates_per_s),
        np.array([_index("variant", v, service.variant_names) for v in entry.rate_variants], int),
        entry.name or name,
    )


def _without_candidates(entry: RequestFile) -> RequestFile:
    """The file's servers and variants that are there."""
    gone = {each.name for each in entry.variants if each.candidate}
    servers = []
    for each in entry.servers:
        if not each.candidate:
            rows = {name: row for name, row in each.latency.items() if name not in gone}
            load = {name: seconds for name, seconds in each.load.items() if name not in gone}
            servers.append(each.model_copy(update={"latency": rows, "load": load}))
    variants = [each for each in entry.variants if not each.candidate]
    return entry.model_copy(update={"servers": servers, "variants": variants})


def _service(entry: RequestFile) -> Service:
    names = tuple(v.name for v in entry.variants)
    families = tuple(dict.fromkeys(v.family for v in entry.variants if not v.candidate))
    for each in entry.variants:  # a candidate that nobody asks for could not add anything
        _index("family", each.family, families, f"variant {each.name!r}")
    sizes = max((len(row) for x in entry.servers for row in x.latency.values()), default=0)
    n, m = len(entry.servers), len(names)
    if n * m * (sizes + 1) > MOST_ENTRIES:
        raise InputError("too many latencies", by=f"{n} x {m} x {sizes}, at most {MOST_ENTRIES}")
    latency_s, load_s = np.full((n, m, sizes + 1), np.inf), np.zeros((n, m))
    latency_s[:, :, 0] = 0.0
    for i, server in enumerate(entry.servers):
        for variant, row in server.latency.items():
            v = _index("variant", variant, names, f"server {server.name!r}")
            known = [math.inf if x is None else x for x in row]
            latency_s[i, v, 1 : len(row) + 1] = known
        for variant, seconds in server.load.items():
            load_s[i, _index("variant", variant, names, f"server {server.name!r}")] = seconds
    memory = [math.inf if x.memory is None else x.memory for x in entry.servers]
    return Service(
        tuple(x.name for x in entry.servers),
        names,
        families,
        np.array([families.index(v.family) for v in entry.variants]),
        np.array([v.accuracy for v in entry.variants]),
        latency_s,
        np.array([v.memory for v in entry.variants]),
        np.array(memory),
        load_s,
        np.array([x.round_trip for x in entry.servers]),
        np.array([0.0 if x.bandwidth is None else 1.0 / x.bandwidth for x in entry.servers]),
        entry.noise,
    )


def _listed(entry: RequestColumns, service: Service) -> Stream:
    lengths = {len(getattr(entry, key)) for key in (*COLUMNS, "family")}
    if len(lengths) != 1:
        raise InputError("columns of requests differ in length", by=f"{sorted(lengths)}")
    family = [_index("family", f, service.family_names) for f in entry.family]
    columns = {key: getattr(entry, key) for key in COLUMNS[1:]}
    return stream_of(np.array(entry.arrival_s), family=np.array(family, int), **columns)


def _drawn(entry: RequestFile, service: Service, folder: Path) -> Stream:
    parts: list[dict[str, Any]] = []
    for k, process in enumerate(entry.arrivals or []):
        rng = np.random.default_rng([entry.seed, k])
        _refuse_unused(process, f"arrivals[{k}]")
        times = _times(rng, process, entry.duration, folder)
        n = len(times)
        low, high = _pair(process.deadline)
        floors = process.min_accuracy
        parts.append(
            {
                "arrival_s": times,
                "deadline_s": rng.uniform(low, high, n) if high > low else np.full(n, low),
                "min_accuracy": rng.choice(floors if isinstance(floors, list) else [floors], n),
                "family": np.full(n, _index("family", process.family, service.family_names)),
                "time_sensitivity": np.full(n, process.time_sensitivity),
                "accuracy_sensitivity": np.full(n, process.accuracy_sensitivity),
                "input_bytes": np.full(n, process.input_bytes),
            }
        )
    if not parts:
        raise InputError("needs at least one arrival process", where="arrivals")
    joined = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    order = np.argsort(joined["arrival_s"], kind="stable")
    return stream_of(**{key: column[order] for key, column in joined.items()})


def _pair(deadline: Any) -> tuple[float, float]:
    low, high = deadline if isinstance(deadline, tuple) else (deadline, deadline)
    if low > high:
        raise InputError("the shorter deadline comes first", where="deadline", by=f"{low}, {high}")
    return low, high


OF_PROCESS = {"burst": "mmpp", "variation": "gamma", "file": "azure"}
"""Keys of arrivals that one process has, and the others do not."""


def _refuse_unused(process: ArrivalEntry, where: str) -> None:
    """Raise where a key says what this process does not have, or its trace is not named."""
    for key, owner in OF_PROCESS.items():
        value = getattr(process, key)
        if process.process != owner and value != ArrivalEntry.model_fields[key].default:
            raise InputError(
                f"{key} is of the process {owner}",
                where=f"{where}.{key}",
                by=f"got {value!r} of {process.process}",
                hint=f"write process: {owner}, or leave {key} out",
            )
    if process.process == "azure" and not process.file:
        hint = "name a CSV file with the column TIMESTAMP"
        raise InputError("the trace is missing", where=f"{where}.file", hint=hint)


def _times(
    rng: np.random.Generator, process: ArrivalEntry, duration_s: float, folder: Path
) -> FloatArray:
    if process.process == "mmpp":
        return mmpp(rng, process.rate, duration_s, process.burst)
    if process.process == "gamma":
        return gamma(rng, process.rate, duration_s, process.variation)
    if process.process == "azure":
        times, long_s = scaled(read_arrivals(folder / process.file), process.rate)
        if long_s < duration_s * (1 - 1e-9):
            raise InputError(
                "the trace ends before the duration",
                where=str(folder / process.file),
                by=f"{len(times)} requests at {process.rate:g}/s last {long_s:g} s of "
                f"{duration_s:g} s",
                hint="give a shorter duration, a lower rate or a longer trace",
            )
        return times[times < duration_s]
    return poisson(rng, process.rate, duration_s)


def _index(kind: str, name: str, names: tuple[str, ...], where: str = "") -> int:
    check_known(kind, name, names, where=where)
    return names.index(name)
