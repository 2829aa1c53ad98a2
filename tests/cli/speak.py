"""Running the command line inside the test's process."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from placewright.cli.main import main


@dataclass(frozen=True)
class Said:
    """What a verb answered."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """What stdout says as JSON; infinities are not JSON."""
        assert self.out, self.err
        return json.loads(self.out, parse_constant=pytest.fail)


def speak(capsys: pytest.CaptureFixture[str], *arguments: object) -> Said:
    """``placewright ARGUMENTS``."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as left:
        main([str(a) for a in arguments])
    out, err = capsys.readouterr()
    code = left.value.code
    return Said(0 if code is None else int(code), out, err)
