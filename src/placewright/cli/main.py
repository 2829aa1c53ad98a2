"""The command line: one thin file per verb; here they are put together.

Exit codes: 0 done, 1 error, 2 wrong usage, 3 infeasible; 130 where Ctrl-C left nothing to show,
as shells expect of it.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from typing import NoReturn

import typer

from placewright.cli import (
    capture,
    devices,
    doctor,
    operators,
    pbqp,
    profile,
    samples,
    schema,
    show,
    testbed,
)
from placewright.errors import InputError, PlacewrightError

INTERRUPTED = 130

app = typer.Typer(
    name="placewright",
    help="Decides where deep learning runs, says how far from the best possible that is, and runs "
    "it.\n\n[bold]Start here:[/bold]  placewright quickstart",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(asked: bool) -> None:
    if asked:
        from placewright._version import __version__

        print(f"placewright {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", help="Print the version.", is_eager=True, callback=_print_version
    ),
) -> None:
    """The options before the verb; the help text is that of the app."""


def _register() -> None:
    """The verbs, in the order of the story they tell."""
    from placewright.cli import quickstart

    app.command("quickstart")(quickstart.quickstart)
    app.command("devices")(devices.devices)
    app.command("doctor")(doctor.doctor)
    app.command("capture")(capture.capture)
    app.command("profile")(profile.profile)
    app.add_typer(operators.app, name="operators")
    app.add_typer(samples.app, name="samples")
    app.add_typer(pbqp.app, name="pbqp")
    app.add_typer(testbed.app, name="testbed")
    app.command("show")(show.show)
    app.command("schema")(schema.schema)


_register()


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and leave with its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        app(given)
    except PlacewrightError as error:
        if _wants_traceback(given):
            raise
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    except (KeyboardInterrupt, SystemExit) as stopped:
        if isinstance(stopped, SystemExit) and stopped.code != INTERRUPTED:
            raise
        print(_interrupted(stopped), file=sys.stderr)
        raise SystemExit(INTERRUPTED) from None
    except BrokenPipeError:
        # The reader has left (`| head`); keep the interpreter from complaining at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(0) from None
    except OSError as error:
        if error.filename is None or _wants_traceback(given):
            raise
        told = InputError(
            f"cannot be used: {error.strerror}",
            where=str(error.filename),
            hint="give a path that is there and that you may read and write",
        )
        print(f"error: {told}", file=sys.stderr)
        raise SystemExit(1) from None
    raise SystemExit(0)


def _interrupted(stopped: BaseException) -> str:
    """What Ctrl-C left behind, in the words of whoever was interrupted."""
    cause: BaseException | None = stopped
    while cause is not None and not isinstance(cause, KeyboardInterrupt):
        cause = cause.__cause__ or cause.__context__
    words = "" if cause is None else str(cause)
    return f"interrupted: {words}" if words else "interrupted"


def _wants_traceback(arguments: Sequence[str]) -> bool:
    """Whether ``-v`` was given twice."""
    short = sum(len(a) - 1 for a in arguments if re.fullmatch(r"-v+", a))
    return short + list(arguments).count("--verbose") >= 2
