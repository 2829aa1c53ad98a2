"""Write a placed ONNX model: sub-models, and a manifest by which plain ONNX Runtime runs them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from placewright.capturing.files.model_file import Array
from placewright.errors import InputError
from placewright.io.stored import write_file
from placewright.runtime.model_files.contract import FilePlacement, threads_of
from placewright.runtime.model_files.onnx_sessions import OnnxSessions, open_session

MANIFEST = "manifest.json"


def export_onnx(placement: FilePlacement, folder: Path) -> list[Path]:
    """Write one ``.onnx`` file per part, each loaded once, and ``manifest.json`` beside them.

    Running the parts of the manifest in order, each on the values it names, gives the model's
    outputs; parts on different devices may overlap where their inputs are there.
    """
    with OnnxSessions(placement, folder) as sessions:
        parts, files = sessions.parts, sessions.files
    devices = placement.cluster.devices
    manifest = {
        "schema_version": 1,
        "format": "onnx",
        "model": placement.file.graph.name,
        "inputs": [spec.name for spec in placement.file.inputs],
        "outputs": list(placement.file.outputs),
        "devices": {
            devices[d].name: {"kind": devices[d].kind, "threads": threads_of(devices[d])}
            for d in sorted({part.device for part in parts})
        },
        "parts": [
            {
                "file": file.name,
                "device": devices[part.device].name,
                "inputs": list(part.inputs),
                "outputs": list(part.outputs),
                "operators": list(part.nodes),
            }
            for part, file in zip(parts, files, strict=True)
        ],
    }
    path = write_file(folder / MANIFEST, json.dumps(manifest, indent=1))
    return [path, *files]


def run_exported(manifest: Path, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Outputs of what `export_onnx` wrote: its parts one after another in ONNX Runtime."""
    data: dict[str, Any] = json.loads(manifest.read_text(encoding="utf-8"))
    values = dict(inputs)
    for part in data["parts"]:
        session = open_session(str(manifest.parent / part["file"]), part["file"])
        missing = [name for name in part["inputs"] if name not in values]
        if missing:
            raise InputError(
                "a part comes before those that make its inputs",
                where=f"{manifest}: {part['file']}",
                by=", ".join(missing),
                hint="export the plan again",
            )
        made = session.run(part["outputs"], {name: values[name] for name in part["inputs"]})
        values |= dict(zip(part["outputs"], made, strict=True))
    return {name: values[name] for name in data["outputs"]}
