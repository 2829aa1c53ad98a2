"""Weights of a placed model on their way out: a state dict, safetensors files, a plain module."""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from placewright.capturing.source import copied
from placewright.errors import InputError, RunError
from placewright.io.stored import to_disk
from placewright.io.tensor_files import (
    GENERATION,
    INDEX,
    WHOLE,
    AnyTensor,
    StoredFileError,
    StoredTensor,
    read_index,
    size_of,
    write_tensors,
)

if TYPE_CHECKING:
    from placewright.capturing.model import Captured, State
    from placewright.deployment.workload import Workload

MOST_BYTES = 5_000_000_000
"""Of one file; a larger tensor has a file of its own."""


def current_weights(
    captured: Captured,
    values: State,
    weights: Mapping[str, StoredTensor],
    changed: Mapping[str, Tensor],
) -> dict[str, AnyTensor]:
    """Parameters and persistent buffers by every name in the model's ``state_dict``.

    `values`: by program input; `weights`: those in files, by name in the model.
    `changed`: what workers have changed since they started, by program input.
    """
    model, program = captured.source.model, captured.program
    inputs = {i.key: i.name for i in program.inputs if i.role in ("parameter", "buffer")}
    first = {name: key for key, names in captured.source.aliases().items() for name in names}
    found: dict[str, AnyTensor] = {}
    for name, own in model.state_dict(keep_vars=True).items():
        if not isinstance(own, Tensor):
            continue
        key = first.get(name, name)
        entry = inputs.get(key, "")
        if entry in changed:
            found[name] = changed[entry]
        elif not own.is_meta:
            found[name] = own.detach()
        elif entry in values:
            found[name] = values[entry]
        elif key in weights or name in weights:
            found[name] = weights.get(key) or weights[name]
        else:
            raise RunError(
                f"the weights lack {name!r}, which no operator of the placed step reads",
                where=f"model {captured.graph.name}",
                hint="give weights that have it, or build it off the meta device",
            )
    return found


def own_tensor(weight: AnyTensor) -> Tensor:
    """A tensor that shares no memory with the model.

    Raises `InputError`: its file is gone, or has changed.
    """
    if not isinstance(weight, StoredTensor):
        return weight.clone()
    try:
        return weight.read()
    except OSError as error:
        raise _gone(error) from error


def _gone(error: OSError) -> InputError:
    return InputError(
        f"the weights cannot be read: {error.strerror or error}",
        where=str(error.filename or "files of weights"),
        hint="place the model again, with the weights that are there now",
    )


LOCK = ".saving"
"""Held while a folder is saved to, and removed then; its snapshots may be written meanwhile."""


@contextmanager
def only_saver(folder: Path) -> Iterator[None]:
    """Make a folder and hold its lock, so that no two saves mix their files.

    Where the file system has no locks (NFS) nothing is held.

    Raises `InputError`: another save holds it.
    Raises `RunError`: the folder does not take a file.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = _lock(folder / LOCK)
    except BlockingIOError:
        raise InputError(
            "another save into this folder is under way",
            where=str(folder),
            hint="wait until it has ended, or save into another folder",
        ) from None
    except OSError as error:
        raise _no_room(error, folder) from error
    try:
        yield
    finally:
        with suppress(OSError):
            (folder / LOCK).unlink()
        os.close(handle)


def _lock(path: Path) -> int:
    """A handle on a locked file; a `BlockingIOError` where another process has it."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Its last holder may have removed it between the opening and the lock.
            if path.exists() and os.path.samestat(os.fstat(handle), path.stat()):
                return handle
        except BlockingIOError:
            os.close(handle)
            raise
        except OSError:
            return handle
        os.close(handle)


def save_weights(workload: Workload, weights: Mapping[str, AnyTensor], folder: Path) -> None:
    """Write safetensors files, with an index where they are several, and the configuration.

    Whoever reads the folder, at any moment and after a kill or a power failure, finds the weights
    that were there or these: all files have new names, one rename makes them the folder's, and
    only then the old ones are removed. Where the configuration changes, too, nothing is the
    folder's from before it does until the new weights are: what a kill leaves then has no weights
    for its readers, and the earlier ones in files that end in ``.old``. The caller holds the folder
    by `only_saver`.

    A tied weight is written under the first of its names. Weights in files are copied from file to
    file: this process holds none of them.

    Raises `InputError`: the folder is the one that the weights are read from, or they are gone.
    Raises `RunError`: the disk does not take them; what was there before is left.
    """
    _check_apart(weights, folder)
    tied = {name for names in workload.source.aliases().values() for name in names[1:]}
    shards = _shards({name: value for name, value in weights.items() if name not in tied})
    generation = secrets.token_hex(4)
    names = [_file_name(k, len(shards), generation) for k in range(len(shards))]
    # In the order in which they are renamed; the last one, the index if there is one, counts.
    drafts = {name: folder / f".{name}.{generation}.new" for name in names}
    config, before = folder / f".config.{generation}.new", _indexed_files(folder)
    try:
        changes = _draft_config(getattr(workload.source.model, "config", None), config, folder)
        for name, shard in zip(names, shards, strict=True):
            write_tensors(drafts[name], shard, generation)
        if len(shards) > 1:
            drafts[INDEX] = folder / f".{INDEX}.{generation}.new"
            where = {key: n for n, s in zip(names, shards, strict=True) for key in s}
            total = sum(size_of(value) for shard in shards for value in shard.values())
            metadata = {"total_size": total, GENERATION: generation}
            text = json.dumps({"metadata": metadata, "weight_map": where}, indent=1)
            drafts[INDEX].write_text(text, encoding="utf-8")
        _put(drafts, config, folder, hide=generation if changes else "")
    except OSError as error:
        with suppress(OSError):
            _remove_others(folder, before | _indexed_files(folder), set())
        if isinstance(error, StoredFileError):
            raise _gone(error) from error
        raise _no_room(error, folder, sum(map(size_of, weights.values()))) from error
    finally:
        for draft in drafts.values():
            draft.unlink(missing_ok=True)
        shutil.rmtree(config, ignore_errors=True)
    with suppress(OSError):  # what cannot be removed is not read
        # First the name that readers may take instead of the new one.
        (folder / (INDEX if names == [WHOLE] else WHOLE)).unlink(missing_ok=True)
        old = {file.name for file in folder.iterdir() if _OLD.fullmatch(file.name)}
        _remove_others(folder, set(names), before | old)


def _put(drafts: Mapping[str, Path], config: Path, folder: Path, *, hide: str) -> None:
    """Rename drafts, the last of which counts, and the files of a drafted configuration.

    `hide`: ends the names that the earlier weights get before the configuration takes its place.
    """
    # Contents before names, and all names before the one that counts.
    for draft in drafts.values():
        to_disk(draft)
    for name in (INDEX, WHOLE) if hide else ():
        with suppress(FileNotFoundError):
            (folder / name).rename(folder / f".{name}.{hide}.old")
    for file in config.iterdir():
        file.replace(folder / file.name)
    *names, last = drafts
    for name in names:
        drafts[name].replace(folder / name)
    to_disk(folder)
    drafts[last].replace(folder / last)
    to_disk(folder)


def _no_room(error: OSError, folder: Path, size: int = 0) -> RunError:
    return RunError(
        f"the weights cannot be written: {error.strerror or error}",
        where=str(folder),
        by=f"{size / 1e6:.0f} MB" if size else "",
        hint="free space there, or give another folder",
    )


_OURS = re.compile(
    r"model-[0-9a-f]{8}-\d{5}-of-\d{5}\.safetensors|"
    r"\.(model.*\.safetensors.*|plan\.json|config)\.[0-9a-f]{8}\.new"
)
"""Names of shards and of drafts, which no reader looks for without an index."""

_OLD = re.compile(r"\.model\.safetensors.*\.[0-9a-f]{8}\.old")
"""Earlier names of weights whose configuration is another one."""


def _remove_others(folder: Path, kept: set[str], more: set[str]) -> None:
    """Remove shards and drafts of other saves, those that were killed too, and `more` files."""
    for file in folder.iterdir():
        if file.name in kept or not (file.name in more or _OURS.fullmatch(file.name)):
            continue
        if file.is_dir():  # a draft of a configuration
            shutil.rmtree(file)
        else:
            file.unlink()


def _indexed_files(folder: Path) -> set[str]:
    """Files of tensors that the index of the folder names now: whoever wrote it, no others."""
    try:
        named = set(read_index(folder / INDEX).files.values())
        return {name for name in named if name.endswith(".safetensors")}
    except InputError:
        return set()


def _draft_config(config: Any, draft: Path, folder: Path) -> bool:
    """Write the configuration of a model that has one into `draft`, a new folder.

    Whether the folder's own says something else: it is of another model, say.
    """
    draft.mkdir()
    if hasattr(config, "save_pretrained"):
        config.save_pretrained(str(draft))
    earlier = ((file, folder / file.name) for file in draft.iterdir())
    return any(not old.is_file() or old.read_bytes() != new.read_bytes() for new, old in earlier)


def _check_apart(weights: Mapping[str, AnyTensor], folder: Path) -> None:
    read = {Path(w.path).parent for w in weights.values() if isinstance(w, StoredTensor)}
    if any(folder.resolve() == source.resolve() for source in read):
        raise InputError(
            "the workers read their weights from this folder",
            where=str(folder),
            hint="save into another folder",
        )


def _shards(weights: Mapping[str, AnyTensor]) -> list[dict[str, AnyTensor]]:
    """The weights in order, cut where a file would become larger than `MOST_BYTES`."""
    shards: list[dict[str, AnyTensor]] = [{}]
    size = 0
    for name, value in weights.items():
        if shards[-1] and size + size_of(value) > MOST_BYTES:
            shards.append({})
            size = 0
        shards[-1][name] = value
        size += size_of(value)
    return shards


def _file_name(k: int, count: int, generation: str) -> str:
    # Transformers, which goes by the index, removes files of such names when it saves there.
    numbered = f"model-{generation}-{k + 1:05d}-of-{count:05d}.safetensors"
    return WHOLE if count == 1 else numbered


def plain_module(model: nn.Module, weights: Mapping[str, AnyTensor]) -> nn.Module:
    """A copy of the model with these weights on the CPU; tied ones stay tied."""
    made, _ = copied(model, None)
    _materialise(made)
    with torch.no_grad():
        for name, own in made.state_dict(keep_vars=True).items():
            if name in weights:
                given = weights[name]
                own.copy_(own_tensor(given) if isinstance(given, StoredTensor) else given)
    return made


def _materialise(model: nn.Module) -> None:
    """Give parameters and buffers on the meta device memory on the CPU."""
    known: dict[int, tuple[Tensor, Tensor]] = {}  # with the old one, or its id would be used again
    for module in model.modules():
        for held in (module._parameters, module._buffers):
            for name, value in held.items():
                if value is None or not value.is_meta:
                    continue
                empty = torch.empty_like(value, device="cpu")
                if isinstance(value, nn.Parameter):
                    empty = nn.Parameter(empty, requires_grad=value.requires_grad)
                held[name] = known.setdefault(id(value), (value, empty))[1]  # type: ignore[assignment]
