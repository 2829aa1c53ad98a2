"""Folders of language models as `save_pretrained` writes them, opened by transformers' readers.

A folder may come from anybody. Its files are data: code beside them (``auto_map``) is not imported
and nobody is asked whether to, nothing is fetched, and what is no regular file is not opened.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from placewright.errors import InputError, PlacewrightError, UnsupportedError
from placewright.io.boundary import check_regular, unreadable

CONFIG = "config.json"

ADAPTER = "adapter_config.json"


def from_folder(loader: Any, folder: Path) -> Any:
    """What ``loader.from_pretrained(folder)`` makes of the files, without executing any.

    Raises `InputError`: transformers cannot read them, or one is no regular file.
    """
    check_files(folder)
    with refusing(folder):
        # Without a word on `trust_remote_code` transformers asks on the terminal, and imports what
        # is in the folder where the answer is yes.
        return loader.from_pretrained(folder, trust_remote_code=False, local_files_only=True)


def configured(values: Mapping[str, Any]) -> Any:
    """The configuration of transformers that a ``config.json`` states, infinite numbers too.

    Raises what transformers raises: a value is wrong, or there is no such ``model_type``.
    """
    from transformers import AutoConfig

    return AutoConfig.for_model(**{name: _with_infinities(x) for name, x in values.items()})


def _with_infinities(value: Any) -> Any:
    """A value of JSON, in which transformers writes ``{"__float__": "Infinity"}``."""
    if isinstance(value, Mapping):
        if value.keys() == {"__float__"}:
            return float(value["__float__"])
        return {name: _with_infinities(x) for name, x in value.items()}
    return [_with_infinities(x) for x in value] if isinstance(value, list) else value


@contextmanager
def quiet() -> Iterator[None]:
    """Without the warnings of transformers: of weights that are not there yet, of slow kernels."""
    logger = logging.getLogger("transformers")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def check_files(folder: Path) -> None:
    """Raise where a reader of the folder would wait for ever, or read another model from it.

    Raises `InputError`: a named pipe, a socket or a device is in it, or it cannot be listed.
    Raises `UnsupportedError`: it has an adapter, which transformers applies where PEFT is installed
    and workers never do.
    """
    if os.path.lexists(folder / ADAPTER):
        raise UnsupportedError(
            "weights with an adapter beside them",
            where=str(folder),
            by=ADAPTER,
            hint="merge the adapter (merge_and_unload() of PEFT) and save the model; or remove "
            f"{ADAPTER} for the model without it",
        )
    try:
        for entry in sorted(folder.iterdir()):
            if not entry.is_dir():
                check_regular(entry.stat(), entry)
    except OSError as error:
        raise unreadable(error.filename or folder, error) from None


@contextmanager
def refusing(folder: Path) -> Iterator[None]:
    """Turn what transformers raises in the block into an `InputError`.

    A panic of its tokenizers, which are written in Rust, is not even an `Exception`.
    """
    try:
        yield
    except PlacewrightError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        lines = str(error).strip().splitlines() or [""]
        raise InputError(
            "transformers cannot read the model's files",
            where=str(folder),
            by=f"{type(error).__name__}: {lines[0][:200]}",
            hint="fetch or save the model again, as data alone: code in its folder is not executed",
        ) from None
