"""The command line: verbs of the machine and the service; here all verbs are put together.

Exit codes: 0 done, 1 error, 2 wrong usage, 3 infeasible; 130 where Ctrl-C left nothing to show,
143 after SIGTERM and 129 after SIGHUP, as shells expect of them.
"""

from __future__ import annotations

import errno
import os
import platform
import re
import select
import shutil
import signal
import sys
import tempfile
import threading
import webbrowser
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from itertools import takewhile
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer
from typer.core import TyperGroup

from placewright.cli import documents, testbed
from placewright.cli.console import (
    Console,
    console_command,
    flowing,
    leave_stdout,
    progress_lines,
    write,
)
from placewright.cli.options import BatchOption, OnOption, QuietOption
from placewright.errors import (
    InputError,
    MissingDependencyError,
    PlacewrightError,
    RunError,
    Terminated,
)
from placewright.layers.devicemap.commands import devicemap, generate
from placewright.report.text import printable
from placewright.version import __version__

if TYPE_CHECKING:
    from placewright.planning.wing import CommandLine, Wing


OutOption = Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Reports and traces.")]
MachineOption = Annotated[str, typer.Option("--on", metavar="CLUSTER", help="A preset or a file.")]
StepsOption = Annotated[int, typer.Option("--steps", min=1, metavar="N", help="Measured steps.")]


def quickstart(
    on: MachineOption = "edge-duo",
    out: OutOption = Path("quickstart"),
    steps: StepsOption = 10,
    batch: BatchOption = None,
    quiet: QuietOption = False,
) -> None:
    """Place, run, compare and report real models on this machine.

    A stream of samples through Inception-v3 beside the fastest board, AlexNet's training step,
    which fits on neither of the two boards alone, a small language model that both boards train
    together, each with its share of the batch, a language model (random weights) that fits on
    neither and answers from both, and a model of your own in five lines. Worker processes of this
    machine stand in for the boards. Ends with a table of what was measured.

    [bold]Example:[/bold]  placewright quickstart --on edge-duo --out demo
    """
    from placewright.cluster.files import load_cluster
    from placewright.deployment import demonstration
    from placewright.profiling.profile_warnings import ProfileWarning

    console = Console(quiet=quiet)
    cluster = load_cluster(on)
    print(printable(str(cluster)))
    outcomes = []
    with console.noted(ProfileWarning):
        for outcome in demonstration.demonstrate(
            cluster, out, jobs=demonstration.JOBS, steps=steps, batch=batch, monitor=console
        ):
            print(f"\n{outcome.title}\n{outcome.text}")
            for path in outcome.files:
                console.kept(path)
            outcomes.append(outcome)
    print(f"\n{demonstration.outcome_table(outcomes)}")
    for outcome in outcomes:
        if outcome.check is not None:
            outcome.check.demand()
    print(f"\nthese plans and your own models in a browser: placewright serve {out} --open")


FolderArgument = Annotated[
    Path,
    typer.Argument(metavar="[FOLDER]", show_default=True, help="Files, jobs and their results."),
]


def serve(
    console: Console,
    folder: FolderArgument = Path("placewright-service"),
    host: str = "127.0.0.1",
    port: int = 8400,
    allow_host: list[str] | None = None,
    token: Annotated[
        bool, typer.Option("--token", help="Ask for a token on loopback, too.")
    ] = False,
    new_token: Annotated[
        str | None,
        typer.Option(
            "--new-token", metavar="NAME", help="Make a token for NAME; an earlier one of it ends."
        ),
    ] = None,
    end_token: Annotated[
        str | None, typer.Option("--end-token", metavar="NAME", help="End the token of NAME.")
    ] = None,
    database: Annotated[
        str | None,
        typer.Option(
            "--database",
            metavar="URL",
            help="postgresql://... in place of an SQLite file in FOLDER.",
        ),
    ] = None,
    models: Annotated[
        list[str] | None,
        typer.Option(
            "--models",
            metavar="MODEL",
            help="package.module:factory that requests may name; several times.",
        ),
    ] = None,
    language_models: Annotated[
        list[Path] | None,
        typer.Option(
            "--language-models",
            metavar="FOLDER",
            help="A language model that request services may serve; several times.",
        ),
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", min=1, metavar="N", help="At a time.")] = 1,
    engine: Annotated[
        Literal["local", "ray"],
        typer.Option(
            "--engine",
            help="Where jobs run: here, or on the Ray cluster that RAY_API_SERVER_ADDRESS names.",
        ),
    ] = "local",
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Serve everything else that this command does as a web page and an HTTP API.

    Jobs go on if the service ends, and are found again when it starts.

    [bold]Example[/bold]

    [cyan]placewright serve my-folder --open[/cyan]
    """
    from placewright.cli.service_operations import operations_of
    from placewright.service.server import ServiceOptions, serve_forever

    options = ServiceOptions(
        folder=folder,
        host=host,
        port=port,
        hosts=tuple(allow_host or ()),
        token=token,
        new_token=new_token,
        end_token=end_token,
        database=database,
        models=tuple(models or ()),
        language_models=tuple(language_models or ()),
        engine=engine,
        jobs=jobs,
    )

    def ready(url: str, made: str) -> None:
        data = {"url": url} | ({"token": made} if made else {})
        told = f"serving {folder} at {url}" + (f"\ntoken: {made}" if made else "")
        console.show(lambda: data, lambda: told)
        sys.stdout.flush()  # a parent process may wait for it
        if open_page and not webbrowser.open(url):
            console.note("no browser was found; open the page yourself")

    serve_forever(options, lambda: operations_of(every_verb()), on_ready=ready)


PACKAGES = (
    "numpy",
    "numba",
    "pydantic",
    "typer",
    "rich",
    "tensorflow",
    "torch",
    "transformers",
    "ortools",
    "highspy",
    "ray",
)
VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "CUDA_VISIBLE_DEVICES")


def devices(
    console: Console,
    on: OnOption = None,
) -> None:
    """Show the devices and links of this machine, a cluster file or a preset.

    [bold]Examples[/bold]

    [cyan]placewright devices[/cyan]

    [cyan]placewright devices --on edge-duo -o my-cluster.yaml[/cyan]   a file to start from
    """
    from placewright.cli.sources import find_cluster
    from placewright.cluster.files import cluster_data, cluster_to_text
    from placewright.cluster.schema import preset_names

    cluster = find_cluster(on)
    console.show(lambda: cluster_data(cluster), lambda: repr(cluster))
    if console.output is not None and console.output.suffix in (".yaml", ".yml"):
        console.kept(write(console.output, cluster_to_text(cluster)))
    else:
        console.keep(lambda: cluster_data(cluster))
    console.detail(f"presets: {', '.join(preset_names())}")


def doctor(
    console: Console,
) -> None:
    """Print versions and the environment: paste it into a bug report.

    [bold]Example[/bold]

    [cyan]placewright doctor -f json[/cyan]
    """
    findings = examine()
    console.answer(lambda: findings, lambda: _table(findings))


def examine() -> dict[str, dict[str, str]]:
    """Versions, machine, environment variables and checks, each a mapping of texts."""
    return {
        "versions": {
            "placewright": __version__,
            "python": platform.python_version(),
            **{name: _version(name) for name in PACKAGES},
        },
        "machine": _machine(),
        "environment": {name: os.environ.get(name, "") for name in VARIABLES},
        "checks": _checks(),
    }


def _machine() -> dict[str, str]:
    from placewright.cluster.devices import cpu_cores, cpu_model, gpu_texts, host_memory_bytes
    from placewright.report.text import size

    return {
        "platform": platform.platform(),
        "cpu": cpu_model(),
        "cores": str(cpu_cores()),
        "memory": size(host_memory_bytes()),
        **gpu_texts(),
    }


def _checks() -> dict[str, str]:
    torch_missing = "no: capture and run need it; pip install 'placewright[torch]'"
    shared = Path("/dev/shm")
    free = shutil.disk_usage(shared).free / 2**20 if shared.exists() else 0.0
    return {
        "capture and run": "ok" if _version("torch") != "-" else torch_missing,
        "between GPUs": _between_gpus(),
        "temporary files": "ok" if os.access(tempfile.gettempdir(), os.W_OK) else "not writable",
        "shared memory": f"{free:.0f} MiB free" if free else "none",
        "root": "yes" if hasattr(os, "geteuid") and os.geteuid() == 0 else "no",
    }


def _between_gpus() -> str:
    """What carries tensors between GPUs of two processes."""
    if _version("torch") == "-":
        return "-"
    import torch.distributed as dist

    return "NCCL" if dist.is_available() and dist.is_nccl_available() else "gloo: no NCCL here"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "-"


def _table(findings: dict[str, dict[str, str]]) -> str:
    from placewright.report.text import plain_table

    rows = [
        (section if k == 0 else "", key, value or "-")
        for section, entries in findings.items()
        for k, (key, value) in enumerate(entries.items())
    ]
    return plain_table(("", "what", "value"), rows)


INTERRUPTED = 130

_FULL = (errno.ENOSPC, errno.EDQUOT)

UNEXPECTED = "this should not happen"


def _command_line(wing: Wing) -> CommandLine:
    """The wing's own options and verbs, or a problem file as the only source."""
    from placewright.cli.wing_verbs import of_files

    if wing.places_models:
        from placewright.cli import operators

        return operators
    return of_files(wing) if wing.command_line is None else wing.command_line()


class ReaderLeft(Exception):  # noqa: N818  (`| head` is no error)
    """Nobody reads stdout any more."""


def _reader_left() -> bool:
    """Whether a broken pipe is that of stdout, and not one to another process."""
    poll = select.poll()
    with suppress(OSError, ValueError):  # it is no file in tests
        poll.register(sys.stdout.fileno(), select.POLLOUT)
    return any(how & select.POLLERR for _, how in poll.poll(0))


class _Verbs(TyperGroup):
    """All verbs, and a group for every wing, made when it is asked for.

    An `EOFError` of a verb is not the end of typed input, and a `BrokenPipeError` no failure, which
    typer takes them for.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        """The names, those of the wings before `AFTER_WINGS`."""
        from placewright.planning.wings import wings

        own = super().list_commands(ctx)
        at = own.index(AFTER_WINGS)
        return [*own[:at], *wings(), *own[at:]]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The verb or group of this name, ``None`` if there is none."""
        from placewright.cli.wing_verbs import wing_app
        from placewright.planning.wings import wings

        own = super().get_command(ctx, cmd_name)
        if own is not None or cmd_name not in (known := wings()):
            return own
        wing = known[cmd_name]
        group = typer.main.get_command(wing_app(wing, _command_line(wing)))
        group.name = cmd_name
        return group

    def invoke(self, ctx: Any) -> Any:
        """Run a verb."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise (ReaderLeft() if _reader_left() else _unexpected(error)) from error
        except EOFError as error:
            raise _unexpected(error) from error


app = typer.Typer(
    cls=_Verbs,
    name="placewright",
    help="Decides where deep learning runs, says how far from the best possible that is, and runs "
    "it.\n\n[bold]Start here:[/bold]  placewright quickstart",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(requested: bool) -> None:
    if requested:
        print(f"placewright {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", help="Print the version.", is_eager=True, callback=_print_version
    ),
) -> None:
    """The options before the verb; the help text is that of the app."""


AFTER_WINGS = "testbed"
"""The first of the verbs that are listed after those of the wings."""

app.command(help=flowing(quickstart.__doc__ or ""))(quickstart)
app.command("devices")(console_command(devices))
app.command("doctor")(console_command(doctor))
app.command("capture")(console_command(documents.capture))
app.command("profile")(console_command(documents.profile))
app.command("devicemap")(console_command(devicemap))
app.command("generate")(console_command(generate))
app.add_typer(testbed.app, name="testbed")
app.command("show")(console_command(documents.show))
app.command("serve")(console_command(serve))
app.command("bench")(console_command(documents.bench))
app.command("schema")(console_command(documents.schema))


def every_verb() -> Iterator[tuple[tuple[str, ...], Callable[..., None]]]:
    """Every verb as typer reads it, with its path: ``("operators", "plan")``; wings come first."""
    from placewright.cli.wing_verbs import wing_app
    from placewright.planning.wings import wings

    groups = {name: wing_app(wing, _command_line(wing)) for name, wing in wings().items()}
    groups |= {str(g.name): g.typer_instance for g in app.registered_groups if g.typer_instance}
    for name, group in [*groups.items(), ("", app)]:
        for command in group.registered_commands:
            if command.callback is not None:
                verb = command.name or command.callback.__name__
                yield ((name, verb) if name else (verb,)), command.callback


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and leave with its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    _open_closed()
    followed = progress_lines()
    try:
        _run_command(given)
    except SystemExit as left:
        if followed is not None:
            followed.end(left)
        raise


def _open_closed() -> None:
    """Open what the caller has closed (``>&-``) on nothing.

    The first files to be opened would get its number, and what a library prints would be written
    into them.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            # The lowest number that is free; for processes that are started, too.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
        if getattr(sys, name) is None:
            stream = open(number, mode, encoding="utf-8", closefd=False)  # noqa: SIM115  (stays)
            setattr(sys, name, stream)


def _say(text: str) -> None:
    """A message on stderr."""
    print(printable(text), file=sys.stderr)


def _run_command(given: Sequence[str]) -> NoReturn:
    """Run a command line; every error becomes a message and an exit code."""
    try:
        with _ended_by_signals():
            _run_verb(given)
    except PlacewrightError as error:
        if _wants_traceback(given):
            raise
        _say(f"error: {error}")
        raise SystemExit(error.exit_code) from None
    except (KeyboardInterrupt, SystemExit) as stopped:
        if isinstance(stopped, Terminated):
            _say(f"terminated: {stopped}")
        if isinstance(stopped, SystemExit) and stopped.code != INTERRUPTED:
            raise
        _say(_interrupted(stopped))
        raise SystemExit(INTERRUPTED) from None
    except (BrokenPipeError, ReaderLeft):
        leave_stdout()  # the reader has left (`| head`)
        raise SystemExit(0) from None
    except OSError as error:
        if _wants_traceback(given):
            raise
        try:
            sys.stdout.flush()
        except OSError:
            leave_stdout()
        _say(f"error: {_system_error(error)}")
        raise SystemExit(1) from None
    except MemoryError as error:
        if _wants_traceback(given):
            raise
        _say(f"error: {_no_memory(error)}")
        raise SystemExit(1) from None
    except Exception as error:
        if _wants_traceback(given):
            raise
        _say(f"error: {_not_installed(error, given) or _unexpected(error)}")
        raise SystemExit(1) from None
    raise SystemExit(0)


def _run_verb(given: Sequence[str]) -> None:
    """Until everything is written, stdout too: a full disk behind it is an error like others."""
    code: object = 0
    try:
        app(given)
    except SystemExit as left:
        if left.code:
            raise
        code = left.code
    sys.stdout.flush()
    raise SystemExit(code)


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end what is done as an error would: nothing is left behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)}
    for number in (signal.SIGTERM, signal.SIGHUP):
        if before[number] is signal.SIG_DFL:
            signal.signal(number, _terminate)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _terminate(number: int, frame: FrameType | None) -> None:
    """Ignore further signals and unwind; SIGKILL remains for those who cannot wait."""
    for each in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(each, signal.SIG_IGN)
    torch = sys.modules.get("torch")
    if getattr(getattr(torch, "__spec__", None), "_initializing", False):
        # Its C++ would call an exception "terminate", with a page of traceback. Nothing is up yet.
        print(f"terminated: {signal.Signals(number).name}", file=sys.stderr, flush=True)
        os._exit(128 + number)
    raise Terminated(128 + number)


def _system_error(error: OSError) -> PlacewrightError:
    """What a system call refused, in our words."""
    if error.errno in _FULL:
        return RunError(
            error.strerror or "the disk is full",
            where=str(error.filename or "stdout or a file"),
            hint="free space there, or name another temporary folder in TMPDIR",
        )
    if error.filename is None:
        return _unexpected(error)
    return InputError(
        f"cannot be used: {error.strerror}",
        where=str(error.filename),
        hint="give a path that is there and that you may read and write",
    )


def _no_memory(error: MemoryError) -> PlacewrightError:
    """More memory than there is, or than a limit allows."""
    return RunError(
        "there is not enough memory",
        where="this process",
        by=str(error)[:200],
        hint="lower --batch, or give it more: `ulimit -v` and a container's limits count, too",
    )


def _not_installed(error: Exception, arguments: Sequence[str]) -> PlacewrightError | None:
    """An optional package that a verb needs; ``None`` for other errors."""
    if not isinstance(error, ModuleNotFoundError):
        return None
    verb = takewhile(lambda word: re.fullmatch(r"[a-z]+", word), arguments)
    return MissingDependencyError.of(error, " ".join(("placewright", *verb)))


def _unexpected(error: Exception) -> PlacewrightError:
    """An error that no code has foreseen."""
    lines = str(error).strip().splitlines()
    return PlacewrightError(
        f"{UNEXPECTED}: {type(error).__name__}" + (f": {lines[0]}" if lines else ""),
        hint="run it again with -vv, which shows where, and report that",
    )


def _interrupted(stopped: BaseException) -> str:
    """The message of the `KeyboardInterrupt` that caused `stopped`."""
    cause: BaseException | None = stopped
    while cause is not None and not isinstance(cause, KeyboardInterrupt):
        cause = cause.__cause__ or cause.__context__
    words = "" if cause is None else str(cause)
    return f"interrupted: {words}" if words else "interrupted"


def _wants_traceback(arguments: Sequence[str]) -> bool:
    """Whether ``-v`` was given twice."""
    short = sum(len(a) - 1 for a in arguments if re.fullmatch(r"-v+", a))
    return short + list(arguments).count("--verbose") >= 2
