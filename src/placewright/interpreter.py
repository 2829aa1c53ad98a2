"""Start Python processes that take nothing from folders which others may write to.

``python -c`` and ``python -m`` look in the current folder before they look in the standard library:
a command that is executed in a folder of everybody's would import their ``signal.py``, with the
rights of its user. Every Python that this package starts is started with `python_command` and
`python_environment`, or by `multiprocessing` with `safe_variables` in its environment.
"""

from __future__ import annotations

import os
import sys
import warnings
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from placewright.ownership import open_to_others

SAFE_PATH = "PYTHONSAFEPATH"
"""Does what ``python -P`` does, for a process and those that it starts."""

INDUCTOR_CACHE = "TORCHINDUCTOR_CACHE_DIR"


def safe_variables() -> dict[str, str]:
    """Environment variables of a process that takes nothing from folders of everybody's."""
    return {SAFE_PATH: "1"} | inductor_cache()


def inductor_cache() -> dict[str, str]:
    """Where PyTorch's compiler keeps its files, if nothing says so: in this user's cache.

    Where that cannot be written to, or another user may write there, they last as long as this
    process.

    PyTorch makes and reads ``torchinductor_USER`` in the temporary folder, a name that others know,
    as soon as a model is traced or an optimizer takes a step.
    """
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = os.path.join(caches, "placewright", "torchinductor")
    if INDUCTOR_CACHE in os.environ:
        return {}
    try:
        if not os.path.isabs(folder):  # a user whom the system does not know
            raise FileNotFoundError(folder)
        os.makedirs(folder, mode=0o700, exist_ok=True)
        if why := open_to_others(folder):
            raise PermissionError(why)
    except OSError:  # no home, or one that is not this user's alone
        from placewright.io.scratch import folder_of_process

        folder = os.path.join(folder_of_process(), "torchinductor")
    return {INDUCTOR_CACHE: folder}


NUMBA_FILE = ".numba_config.yaml"


def load_numba_without_file() -> None:
    """Load Numba without settings of the current folder, where there are any.

    `placewright.numerics.njit` undoes them; but what is no YAML, or never ends, would be read.
    """
    if "numba" in sys.modules or not os.path.lexists(NUMBA_FILE):
        return
    modules: dict[str, Any] = cast("Any", sys.modules)
    before = modules.get("yaml")
    modules["yaml"] = None  # without it Numba leaves the file alone, and warns
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import_module("numba.core.config")
    except ImportError:
        pass  # the verb that needs Numba says so
    finally:
        del modules["yaml"]
        if before is not None:
            modules["yaml"] = before


def python_command(*arguments: str) -> list[str]:
    """Command that starts Python with these arguments; goes with `python_environment`."""
    return [sys.executable, "-P", *arguments]


def python_environment() -> dict[str, str]:
    """Environment in which a new Python finds what this one does, but for the current folder."""
    own = str(Path(__file__).parents[1])
    found = [path for path in sys.path if path and not _is_current(path)]
    if own not in found:
        found.append(own)  # a checkout that was started from its own folder
    return os.environ | safe_variables() | {"PYTHONPATH": os.pathsep.join(found)}


def environment_of(pid: int) -> dict[str, str]:
    """Variables that a process of this user was started with; none where none is running.

    Another user can give any variables to a process of his, and to a setuid program that he starts:
    that one has his real user. Root could read them.
    """
    try:
        status = Path(f"/proc/{pid}/status").read_bytes().splitlines()
        users = next(line.split()[1:3] for line in status if line.startswith(b"Uid:"))
        if {*map(int, users)} != {os.geteuid()}:
            return {}
        data = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    pairs = (word.partition("=") for word in os.fsdecode(data).split("\0"))
    return {name: value for name, _, value in pairs if name}


def process_with(variable: str, value: str) -> int | None:
    """The number of a process that was started with a variable of this value, if one is running."""
    numbers = (int(name) for name in os.listdir("/proc") if name.isdigit())
    return next((pid for pid in numbers if environment_of(pid).get(variable) == value), None)


def _is_current(path: str) -> bool:
    try:
        return os.path.samefile(path, os.curdir)
    except OSError:
        return False


def import_from(folder: str, name: str) -> ModuleType:
    """Import a user's module that is looked for in `folder` first.

    Other modules of the folder are found behind the standard library and installed packages: it may
    hold files that others have written, and only `name` was asked for.
    """
    top = name.partition(".")[0]
    if folder not in sys.path:
        sys.path.append(folder)
    spec = None if top in sys.modules else PathFinder.find_spec(top, [folder])
    if spec is not None and spec.loader is not None:
        module = sys.modules[top] = module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except BaseException:
            sys.modules.pop(top, None)
            raise
    return import_module(name)
