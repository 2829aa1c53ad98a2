"""Run the command line inside the test's process."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from placewright.cli.main import main


@dataclass(frozen=True)
class CliOutput:
    """Exit code and output of one command."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """Stdout parsed as JSON; infinities fail, since JSON has none."""
        assert self.out, self.err
        return json.loads(self.out, parse_constant=pytest.fail)


def run_cli(capsys: pytest.CaptureFixture[str], *arguments: object) -> CliOutput:
    """Run ``placewright ARGUMENTS`` in this process and return its output."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as exited:
        main([str(a) for a in arguments])
    out, err = capsys.readouterr()
    code = exited.value.code
    return CliOutput(0 if code is None else int(code), out, err)
