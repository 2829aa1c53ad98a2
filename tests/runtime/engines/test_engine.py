"""Workers end with the block that started them."""

from __future__ import annotations

import pytest

from placewright.runtime.engines.local import Local
from tests.runtime.test_session import DUO


def test_a_farewell_that_is_broken_off_leaves_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C between the end of the block and that of the workers."""

    def interrupted() -> None:
        raise KeyboardInterrupt

    group = Local().group(DUO)
    monkeypatch.setattr(group, "dismiss", interrupted)
    with pytest.raises(KeyboardInterrupt), group:
        pass
    assert not any(p.is_alive() for p in group.processes)
