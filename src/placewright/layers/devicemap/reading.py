"""What a user hands in as a model becomes a `LanguageModel`."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from placewright.errors import InputError, UnknownNameError, UnsupportedError
from placewright.io.arguments import described_value
from placewright.io.stored import read_data
from placewright.layers.devicemap.configs import (
    DEPTH,
    Config,
    known_architectures,
    model_from_config,
)
from placewright.layers.devicemap.model import LanguageModel

CONFIG = "config.json"


def language_model(source: Any) -> LanguageModel:
    """The layers of a model.

    Parameters
    ----------
    source
        The path of a ``config.json`` or of a folder with one, the name of a model in the cache of
        the Hugging Face hub, a configuration (a mapping, or an object of transformers), or an
        ``nn.Module``, which may be on the meta device.

    Raises
    ------
    InputError
        A size is missing or none; the file is none of these.
    UnsupportedError
        An architecture without formulas that transformers does not know, or is not installed for.
    """
    if isinstance(source, LanguageModel):
        return source
    if isinstance(source, str | os.PathLike):
        path = config_file(os.fspath(source))
        data, _ = read_data(path)
        name = path.parent.name if path.name == CONFIG else path.stem
        return _from_data(data, str(path), name or str(path))
    if isinstance(source, Mapping):
        return _from_data(source, "configuration", str(source.get("_name_or_path") or "model"))
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(source, torch.nn.Module):
        from placewright.layers.devicemap.modules import model_from_module

        return model_from_module(source, type(source).__name__)
    if hasattr(source, "to_dict") and hasattr(source, "model_type"):
        return _from_data(source.to_dict(), type(source).__name__, type(source).__name__)
    raise InputError(
        "must be a configuration of a language model, its file or folder, or an nn.Module",
        where="model",
        by=f"got {described_value(source)}",
        hint="give the config.json that lies beside a model's weights",
    )


def config_file(source: str) -> Path:
    """The configuration's file: itself, in a folder, or in the cache of the hub.

    Raises `InputError`: there is none.
    """
    path = Path(source)
    # By os.path, which says no to a name that is too long for any file.
    if os.path.isdir(path):
        path = path / CONFIG
    if os.path.isfile(path):
        return path
    cached = _cached(source)
    if cached is not None:
        return cached
    hint = "give a config.json, or a folder with one"
    if re.fullmatch(r"[\w.-]+/[\w.-]+", source):
        hint = f"download it: huggingface.co/{source}/resolve/main/config.json"
    raise InputError(
        "no configuration of a model is there",
        where=source,
        by="looked for the file, and in the cache of the Hugging Face hub",
        hint=hint,
    )


def _cached(name: str) -> Path | None:
    """The newest snapshot of a model in the cache of the hub."""
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        return None
    home = os.environ.get("HF_HOME") or os.path.expanduser("~/.cache/huggingface")
    hub = Path(os.environ.get("HF_HUB_CACHE") or os.path.join(home, "hub"))
    if hub.parts[0].startswith("~"):  # no home: a folder of that name here is no cache
        return None
    folder = hub / f"models--{name.replace('/', '--')}" / "snapshots"
    found = sorted(folder.glob(f"*/{CONFIG}"), key=lambda path: path.stat().st_mtime)
    return found[-1] if found else None


def _from_data(data: Any, where: str, name: str) -> LanguageModel:
    if not isinstance(data, Mapping):
        raise InputError(
            "is no configuration of a model",
            where=where,
            by=f"got {described_value(data)}",
            hint="give the config.json that lies beside a model's weights",
        )
    config = Config(data, where)
    kind = data.get("model_type")
    if not isinstance(kind, str) or not kind:
        raise InputError(
            "the configuration does not state its architecture",
            where=f"{where}: model_type",
            by=f"it has {len(data)} keys",
            hint="give the config.json of a language model, as it was published",
        )
    made = model_from_config(config, name)
    return _by_transformers(data, where, name, kind) if made is None else made


def _by_transformers(data: Mapping[str, Any], where: str, name: str, kind: str) -> LanguageModel:
    """Counted in the modules that transformers makes on the meta device."""
    for part in (Config(data, where), Config(data, where).part("text_config")):
        if part.kinds or any(key in part.data for key in DEPTH):
            part.depth()
            break
    else:
        Config(data, where).depth()  # raises: transformers would take sizes of its own
    try:
        from placewright.layers.devicemap.modules import meta_model, model_from_module
    except ModuleNotFoundError:
        module = None
    else:
        module = meta_model(data, where)
    if module is None:
        known = known_architectures()
        unknown = UnknownNameError("architecture", kind, known)
        raise UnsupportedError(
            f"unknown architecture {kind!r}",
            where=f"{where}: model_type",
            by="no formulas are known, and transformers has no language model of it here",
            hint=f"{unknown.hint}; or install transformers, or give the nn.Module itself",
        )
    from dataclasses import replace

    return replace(model_from_module(module, name), architecture=kind)
