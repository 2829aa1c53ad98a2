"""Every error Placewright raises on purpose.

    PlacewrightError
    ├── InputError               a file, a field or an argument is wrong           exit 1
    │   ├── UnknownNameError     a name that does not exist, with the nearest one  exit 1
    │   └── UnsupportedError     a model, operator or problem we cannot take       exit 1
    ├── InfeasibleError          no plan can fit; says by how much and where       exit 3
    │   └── OutOfTimeError       a planner gave up: another plan is there already  exit 3
    ├── MissingDependencyError   an optional package is not installed              exit 1
    └── RunError                 executing a plan failed                           exit 1
        ├── WorkerError          one worker process died or raised                 exit 1
        │   └── WorkerLostError  it was killed or stopped: another may be started  exit 1
        └── CheckError           a run differs from plain eager PyTorch            exit 1

A message has up to four parts: what is wrong, where, by how much, and what to do next.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from signal import Signals
from typing import TypeVar

T = TypeVar("T")


class PlacewrightError(Exception):
    """Base of all errors raised on purpose.

    Parameters
    ----------
    what
        What is wrong, one clause.
    where
        The named operator, device, file, field or line.
    by
        By how much, with units.
    hint
        What to do next; that of the kind of error, `otherwise`, where none is given.
    """

    exit_code = 1
    otherwise = "-vv, or a Python shell, shows where it was raised"

    def __init__(self, what: str, *, where: str = "", by: str = "", hint: str = "") -> None:
        self.what, self.where, self.by, self.hint = what, where, by, hint
        super().__init__(what, where, by, hint)

    @property
    def parts(self) -> dict[str, str]:
        """The four parts, as other programs read them."""
        hint = self.hint or self.otherwise
        return {"what": self.what, "where": self.where, "by": self.by, "next": hint}

    @property
    def brief(self) -> str:
        """Without what to do next: to stand in another message."""
        what, where, by = map(_shortened, (self.what, self.where, self.by))
        head = f"{where}: {what}" if where else what
        return head + (f" ({by})" if by else "")

    def __str__(self) -> str:
        return f"{self.brief}\n  next: {_shortened(self.hint or self.otherwise)}"

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.what, self.where, self.by, self.hint))


class InputError(PlacewrightError):
    """A file, a field or an argument is wrong."""

    otherwise = "correct it there; `placewright schema` prints what our own files may hold"


class UnknownNameError(InputError):
    """A name that does not exist; the message offers the nearest one.

    Parameters
    ----------
    kind
        What the name should have been, for example ``"planner"``.
    name
        The name that was given.
    known
        The names that exist.
    """

    def __init__(
        self, kind: str, name: str, known: Iterable[str], *, where: str = "", by: str = ""
    ) -> None:
        names = [str(k) for k in known]
        near = get_close_matches(str(name)[:LONGEST], names, n=1, cutoff=0.5)
        listed = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
        hint = f"did you mean {near[0]!r}?" if near else f"known: {listed or 'none'}"
        super().__init__(f"unknown {kind} {name!r}", where=where, by=by, hint=hint)


def check_known(kind: str, name: str, known: Collection[str], where: str = "") -> None:
    """Raise `UnknownNameError` of a name that is none of those which exist."""
    if name not in known:
        raise UnknownNameError(kind, name, known, where=where)


def look_up(kind: str, name: str, known: Mapping[str, T], where: str = "") -> T:
    """What has a name; raises `UnknownNameError` where nothing has it."""
    check_known(kind, name, known, where)
    return known[name]


class UnsupportedError(InputError):
    """A model, operator or problem that cannot be taken, and why."""

    otherwise = "see docs/reference/planners.md for planners and docs/reference/cli.md for verbs"


class InfeasibleError(PlacewrightError):
    """No plan can satisfy the constraints."""

    exit_code = 3
    otherwise = "loosen what it names: more memory, another device, a pin or a limit less"


class OutOfTimeError(InfeasibleError):
    """A planner gave up at the deadline because another plan is there already."""


class MissingDependencyError(PlacewrightError):
    """An optional package is needed and not installed."""

    def __init__(self, package: str, *, extra: str, purpose: str) -> None:
        hint = f"pip install 'placewright[{extra}]'"
        super().__init__(f"{purpose} needs the package {package!r}", hint=hint)

    @classmethod
    def of(cls, error: ModuleNotFoundError, purpose: str) -> MissingDependencyError | None:
        """What a failed import of an optional package means; ``None`` for one of the user's own."""
        package = (error.name or "").partition(".")[0]
        extra = EXTRAS.get(package)
        return None if extra is None else cls(package, extra=extra, purpose=purpose)


EXTRAS = {
    **dict.fromkeys(("torch", "safetensors", "transformers"), "torch"),
    **dict.fromkeys(("ortools", "highspy", "pymetis"), "exact"),
    **dict.fromkeys(("onnx", "onnxruntime"), "onnx"),
    **dict.fromkeys(("alembic", "dbos", "fastapi", "jinja2", "sqlalchemy"), "service"),
    **dict.fromkeys(("httptools", "prometheus_client", "sklearn", "uvicorn", "uvloop"), "serve"),
    **{name: name for name in ("openvino", "pandas", "ray", "tensorflow")},
}
"""The extra that brings an optional package."""


class RunError(PlacewrightError):
    """Executing a plan failed."""

    otherwise = "try again with -vv, which shows the workers' own messages"


class WorkerError(RunError):
    """One worker process died or raised."""


class WorkerLostError(WorkerError):
    """A worker process was killed, stopped or has crashed; others can be started in its place."""


class CheckError(RunError):
    """A run differs from plain eager PyTorch by more than its tolerance."""

    otherwise = "see docs/concepts/exactness.md for what must be equal; please report the rest"


class Terminated(SystemExit):
    """SIGTERM or SIGHUP has arrived: not an error, and not a model's own `sys.exit`."""

    def __str__(self) -> str:
        return Signals(int(str(self.code)) - 128).name


LONGEST = 1000
"""Characters that a message shows of each of its parts: names come from files, at any length."""


def _shortened(part: str) -> str:
    half = LONGEST // 2
    return part if len(part) <= LONGEST else f"{part[:half]} ... {part[-half:]}"


def described(error: BaseException) -> str:
    """An error in one line, to stand in another message: PyTorch's may be pages of C++ frames."""
    lines = text_of(error).strip().splitlines() or [""]
    words = error.brief if isinstance(error, PlacewrightError) else lines[0]
    return f"{type(error).__name__}: {words}"


def text_of(error: BaseException) -> str:
    """What an error says; that of a user's own class may raise in turn."""
    try:
        return str(error)
    except Exception:
        return "its text cannot be read"


def _rebuild(
    kind: type[PlacewrightError], what: str, where: str, by: str, hint: str
) -> PlacewrightError:
    """Rebuild an error after it crossed a process boundary."""
    error = kind.__new__(kind)
    PlacewrightError.__init__(error, what, where=where, by=by, hint=hint)
    return error
