"""Measure a placed model in turns with the best single device: steps, or a stream of samples."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from placewright.operators.run import Runner
from placewright.operators.streaming.run import measure_stream
from placewright.planning.contract import STEPS

if TYPE_CHECKING:
    from placewright.deployment.workers import Workers
    from placewright.deployment.workload import Workload
    from placewright.measurement.measurement import Measurement
    from placewright.operators.streaming.run import StreamMeasurement
    from placewright.planning.contract import Monitor
    from placewright.planning.result import Result
    from placewright.runtime.session import Session


def measured_steps(
    workload: Workload,
    workers: Workers,
    result: Result,
    single: Result | None,
    monitor: Monitor,
    **settings: Any,
) -> Measurement:
    """Measure steps of a plan and of the best single device that fits, on the same workers.

    `single`: ``None`` where the model fits on no device.
    `settings`: further ones of `placewright.operators.run.Runner.measure`.
    """
    with _up(workload, workers, monitor) as session:
        what = f"running the plan{_beside(single)}"
        with monitor.meter(what, STEPS) as meter:
            meter.step("first steps")
            return Runner(session).measure(result, beside=single, progress=meter, **settings)


def measured_stream(
    workload: Workload,
    workers: Workers,
    result: Result,
    single: Result | None,
    monitor: Monitor,
    **settings: Any,
) -> StreamMeasurement:
    """As `measured_steps`, with a stream of samples; `settings` are those of `measure_stream`."""
    with _up(workload, workers, monitor) as session:
        what = f"streaming samples through the plan{_beside(single)}"
        with monitor.meter(what, STEPS) as meter:
            return measure_stream(session, result, beside=single, progress=meter, **settings)


@contextmanager
def _up(workload: Workload, workers: Workers, monitor: Monitor) -> Iterator[Session]:
    """The workers, started while progress is shown."""
    with ExitStack() as up:
        with monitor.meter("starting workers"):
            session = up.enter_context(workers.session(workload.graph, workload.values))
        yield session


def _beside(single: Result | None) -> str:
    return "" if single is None else f" and {single.planner} in turns"
