"""Read published scenarios in the format ``serving/1``, and measured arrival times.

Scenarios are measured profiles, servers and streams. Times in seconds, accuracies as fractions.
``n`` requests take the latency of the smallest listed batch size that holds them; nothing is loaded
or sent, and service times do not vary.

Arrival times are in CSV files, such as the Azure LLM inference traces. Patel et al., Splitwise,
ISCA 2024: the columns TIMESTAMP, ContextTokens, GeneratedTokens.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from placewright.errors import InputError, UnknownNameError, check_known
from placewright.io.boundary import FileModel, csv_rows, errors_in, validate
from placewright.io.stored import read_data, stem
from placewright.numerics.arrays import FloatArray
from placewright.requests.problem import RequestProblem
from placewright.requests.service import MOST_ENTRIES, Service, service_of
from placewright.requests.stream import Stream, counted, stepped_poisson, stream_of

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class VariantEntry(FileModel, extra="allow"):
    """A variant of a family."""

    accuracy: Annotated[float, Field(ge=0, le=1)]


class StreamEntry(FileModel, extra="allow"):
    """Requests of one family."""

    family: str
    deadline_s: Positive
    step_s: Positive
    process: Literal["poisson", "counts"]
    rate_per_s: list[Positive] | None = None
    counts: list[Annotated[int, Field(ge=0)]] | None = None


class PoliciesEntry(FileModel, extra="allow"):
    """Tables of the reference policies."""

    rates_per_s: list[Positive] = Field(default_factory=list)
    ms_variant: dict[str, str] = Field(default_factory=dict)


class ScenarioEntry(FileModel, extra="allow"):
    """Servers by kind, and what arrives."""

    servers: dict[str, Annotated[int, Field(ge=0, le=10_000)]]
    variants: str
    max_batch: Annotated[int, Field(ge=1, le=4096)]
    duration_s: Positive
    streams: Annotated[list[StreamEntry], Field(min_length=1)]
    policies: PoliciesEntry = Field(default_factory=PoliciesEntry)


class ServingFile(FileModel, extra="allow"):
    """A file of profiles and scenarios."""

    format: Literal["serving/1"]
    families: dict[str, dict[str, VariantEntry]]
    variant_sets: dict[str, list[str]]
    latency_s: dict[str, dict[str, dict[str, Positive]]]
    scenarios: dict[str, ScenarioEntry]
    name: str = ""


def read_serving(path: str | Path) -> ServingFile:
    """Read a file of scenarios.

    Raises `InputError`, which names the file and the field that is wrong.
    """
    data, text = read_data(path)
    return validate(ServingFile, data, where=str(path), text=text)


def serving_problem(path: str | Path, scenario: str, seed: int = 0) -> RequestProblem:
    """A scenario of a file with the arrivals of a seed.

    Raises `InputError`: the file is wrong, or has no such scenario.
    """
    file, entry = _scenario(path, scenario)
    with errors_in(path):
        return _problem(file, entry, seed, f"{file.name or stem(path)}/{scenario}")


def serving_catalogue(path: str | Path, scenario: str) -> Service:
    """The scenario's servers and one of each other kind; all variants of its families.

    Raises `InputError`: the file is wrong, or has no such scenario.
    """
    file, entry = _scenario(path, scenario)
    others = {kind: 1 for kind in file.latency_s if not entry.servers.get(kind)}
    every = sorted({name for family in file.families.values() for name in family})
    file = file.model_copy(update={"variant_sets": {entry.variants: every}})
    with errors_in(path):
        return _service(file, entry.model_copy(update={"servers": entry.servers | others}))


def _scenario(path: str | Path, name: str) -> tuple[ServingFile, ScenarioEntry]:
    file = read_serving(path)
    check_known("scenario", name, file.scenarios, where=str(path))
    return file, file.scenarios[name]


def _problem(file: ServingFile, entry: ScenarioEntry, seed: int, name: str) -> RequestProblem:
    service = _service(file, entry)
    tables = entry.policies
    variant = {v: k for k, v in enumerate(service.variant_names)}
    used = [
        tables.ms_variant[f"{r:g}"] for r in tables.rates_per_s if f"{r:g}" in tables.ms_variant
    ]
    complete = len(used) == len(tables.rates_per_s)
    for listed in used if complete else []:
        check_known("variant", listed, variant, where="policies.ms_variant")
    return RequestProblem(
        service,
        arrivals(entry, service.family_names, seed),
        entry.duration_s,
        noise_seed=seed,
        rates_per_s=np.array(tables.rates_per_s),
        rate_variants=np.array([variant[v] for v in used] if complete else [], dtype=np.int64),
        name=name,
    )


def _service(file: ServingFile, entry: ScenarioEntry) -> Service:
    check_known("variant set", entry.variants, file.variant_sets)
    allowed = set(file.variant_sets[entry.variants])
    wanted = {stream.family for stream in entry.streams}
    for family in sorted(wanted - set(file.families)):
        raise UnknownNameError("family", family, file.families)
    families = [f for f in file.families if f in wanted]
    kinds = [kind for kind, count in entry.servers.items() for _ in range(count)]
    for kind in entry.servers:
        check_known("server kind", kind, file.latency_s)
    variants = [
        (v, k, known.accuracy)
        for k, f in enumerate(families)
        for v, known in file.families[f].items()
        if v in allowed and any(file.latency_s[kind].get(v) for kind in kinds)
    ]
    entries = len(kinds) * len(variants) * (entry.max_batch + 1)
    if entries > MOST_ENTRIES:
        by = f"{len(kinds)} servers x {len(variants)} variants x {entry.max_batch} sizes"
        raise InputError("too many latencies", by=f"{by}, at most {MOST_ENTRIES} in all")
    names = [f"{kind}-{number}" for kind, count in entry.servers.items() for number in range(count)]
    tables = {kind: _table(file, kind, variants, entry.max_batch) for kind in set(kinds)}
    return service_of(
        tuple(names),
        tuple(v for v, _, _ in variants),
        [a for _, _, a in variants],
        np.array([tables[kind] for kind in kinds]).reshape(
            len(kinds), len(variants), entry.max_batch + 1
        ),
        family_names=tuple(families),
        family=np.array([k for _, k, _ in variants], dtype=np.int64),
    )


def _table(
    file: ServingFile, kind: str, variants: list[tuple[str, int, float]], max_batch: int
) -> FloatArray:
    """Shape (variants, max_batch + 1): the latency of the smallest listed size that holds n."""
    table = np.full((len(variants), max_batch + 1), math.inf)
    table[:, 0] = 0.0
    for row, (name, _, _) in enumerate(variants):
        listed = file.latency_s[kind].get(name, {})
        for size, latency in sorted(((_size(s), t) for s, t in listed.items()), reverse=True):
            table[row, 1 : min(size, max_batch) + 1] = latency if size <= max_batch else math.inf
    return table


def _size(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise InputError("a batch size must be a whole number >= 1", by=f"got {text!r}")
    return int(text)


def arrivals(entry: ScenarioEntry, families: tuple[str, ...], seed: int) -> Stream:
    """The requests of a seed: stream k draws from ``default_rng([seed, k])``; ties by k."""
    times, which = [], []
    for k, stream in enumerate(entry.streams):
        rng = np.random.default_rng([seed, k])
        if stream.process == "poisson":
            if not stream.rate_per_s:
                raise InputError("a Poisson stream needs rate_per_s", where=f"streams[{k}]")
            times.append(stepped_poisson(rng, stream.rate_per_s, stream.step_s, entry.duration_s))
        elif not stream.counts:
            raise InputError("a stream of counts needs counts", where=f"streams[{k}]")
        else:
            times.append(counted(rng, stream.counts, stream.step_s))
        which.append(np.full(len(times[-1]), k))
    arrival_s, stream_of_request = np.concatenate(times), np.concatenate(which)
    order = np.lexsort((stream_of_request, arrival_s))
    chosen = stream_of_request[order]
    family = np.array([families.index(s.family) for s in entry.streams])
    deadline_s = np.array([s.deadline_s for s in entry.streams])
    return stream_of(arrival_s[order], deadline_s[chosen], family[chosen])


TIMES = "TIMESTAMP"


def read_arrivals(path: str | Path) -> FloatArray:
    """Seconds from the first request, in order: of the column TIMESTAMP, or else of the first one.

    Times are seconds, or dates as in ISO 8601, which are of UTC where they have no offset.
    Raises `InputError`, which names the file and the line that cannot be read.
    """
    lines = [(k, row) for k, row in enumerate(csv_rows(path), 1) if row]
    head = lines[0][1] if lines else []
    names = [name.strip().upper() for name in head]
    column = names.index(TIMES) if TIMES in names else 0
    if head and _time(head, column) is None:
        del lines[0]
    times = []
    for number, row in lines:
        time_s = _time(row, column)
        if time_s is None:
            by = f"got {','.join(row)!r:.100}"
            raise InputError("has no time", where=f"{path}: line {number}", by=by)
        times.append(time_s)
    if not times:
        raise InputError("holds no requests", where=str(path))
    return np.sort(np.array(times)) - min(times)


def _time(row: list[str], column: int) -> float | None:
    written = row[column] if column < len(row) else ""
    try:
        seconds = float(written)
    except ValueError:
        try:
            date = datetime.fromisoformat(written.strip())
        except ValueError:
            return None
        # Not the zone of this machine, in which an hour may be missing.
        return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    return seconds if math.isfinite(seconds) else None
