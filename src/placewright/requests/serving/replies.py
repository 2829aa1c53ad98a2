"""HTTP answers: of requests that were served or refused, and what clients read of models."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from placewright.errors import PlacewrightError, UnknownNameError
from placewright.requests.serving.errors import Refusal
from placewright.requests.serving.families import Family
from placewright.requests.serving.protocol import LENGTH, InferRequest, write_answer
from placewright.requests.serving.rows import Row
from placewright.requests.serving.tensors import TensorSpec

VERSION = "1"
"""Of every model."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An HTTP answer."""

    body: bytes
    status: int = 200
    kind: bytes = b"application/json"
    headers: tuple[tuple[bytes, bytes], ...] = ()


def json_reply(value: Any) -> Reply:
    """A JSON document."""
    return Reply(json.dumps(value).encode())


def refused(refusal: Refusal) -> Reply:
    """``{"error": reason}``; with ``Retry-After`` where trying again may help."""
    headers: tuple[tuple[bytes, bytes], ...] = ()
    if refusal.retry_after_s is not None:
        headers = ((b"retry-after", str(math.ceil(refusal.retry_after_s)).encode()),)
    if refusal.status == 401:
        headers = ((b"www-authenticate", b"Bearer"),)
    body = json.dumps({"error": refusal.reason, "code": refusal.code}).encode()
    return Reply(body, refusal.status, headers=headers)


def failed(error: PlacewrightError) -> Reply:
    """An error of what a client asks for."""
    if isinstance(error, UnknownNameError):
        return refused(Refusal(404, _reason(error), code="not-found"))
    return refused(Refusal(400, _reason(error)))


def _reason(error: PlacewrightError) -> str:
    """In one line, without what to do next where that speaks of files and shells only."""
    return ": ".join(str(error).split("\n  next: ")[: 2 if error.hint else 1])


async def answered(family: Family, request: InferRequest, rows: Sequence[Row]) -> Reply:
    """The answer of rows that were all served; the last one counts for times.

    Raises `Refusal`: 422: an output is asked for in JSON, which cannot say its values.
    """
    served = [row.done.result() for row in rows]
    last = max(served, key=lambda each: each.end_s)
    head: dict[str, Any] = {"model_name": family.name, "model_version": VERSION}
    if request.id:
        head["id"] = request.id
    head["parameters"] = {
        "variant": _joined(each.variant for each in served),
        "server": _joined(each.server for each in served),
        "accuracy": min(each.accuracy for each in served),
        "batch": last.batch,
        "attempts": max(each.attempts for each in served),
        "deadline_ms": _ms(request.needs.deadline_s),
        "predicted_ms": _ms(max(each.predicted_s for each in served)),
        "latency_ms": _ms(last.real_s),
        "waiting_ms": _ms(last.start_s - rows[0].arrival_s),
        "compute_ms": _ms(last.compute_s),
        "slack_ms": _ms(last.slack_s),
        "in_time": last.slack_s >= 0,
    }
    values = [
        np.concatenate([each.outputs[k] for each in served])
        if len(rows) > 1
        else served[0].outputs[k]
        for k in range(len(family.outputs))
    ]
    body, length = await write_answer(head, request, family.outputs, values)
    if length is None:
        return Reply(body)
    header = (LENGTH.encode(), str(length).encode())
    return Reply(body, kind=b"application/octet-stream", headers=(header,))


def _joined(names: Iterable[str]) -> str:
    return ",".join(dict.fromkeys(names))


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)


def metadata(family: Family) -> dict[str, Any]:
    """A model's metadata."""
    return {
        "name": family.name,
        "versions": [VERSION],
        "platform": "onnxruntime_onnx",
        "inputs": [spec.metadata() for spec in family.inputs],
        "outputs": [spec.metadata() for spec in family.outputs],
        "properties": {f"variant:{v.name}": f"accuracy {v.accuracy:.4f}" for v in family.variants},
    }


def triton_config(family: Family, max_batch: int) -> dict[str, Any]:
    """Triton's model configuration, as far as clients read it."""

    def tensor(spec: TensorSpec) -> dict[str, Any]:
        return {
            "name": spec.name,
            "data_type": f"TYPE_{spec.datatype}",
            "dims": list(spec.shape[1:]),
        }

    return {
        "name": family.name,
        "platform": "onnxruntime_onnx",
        "backend": "onnxruntime",
        "max_batch_size": max_batch,
        "input": [tensor(spec) for spec in family.inputs],
        "output": [tensor(spec) for spec in family.outputs],
    }


def index_entry(family: Family) -> dict[str, Any]:
    """A model in the index of the repository."""
    return {"name": family.name, "version": VERSION, "state": "READY", "reason": ""}
