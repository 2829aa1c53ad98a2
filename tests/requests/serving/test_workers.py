"""Server processes of this machine."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

from placewright.requests.serving import workers
from placewright.requests.serving.workers import LocalProcess


def test_a_start_that_is_cancelled_leaves_no_process() -> None:
    """The thread goes on starting it: only then it can be ended."""
    happened: list[str] = []
    begun = threading.Event()

    class Group:
        def launch(self) -> None:
            begun.set()
            time.sleep(0.1)
            happened.append("launched")

        def close(self) -> None:
            happened.append("closed")

    class Engine:
        def group(self, *arguments: Any) -> Group:
            return Group()

    async def main() -> None:
        process = LocalProcess("a", 1.0, lambda reason: None)
        process._engine = Engine()  # type: ignore[assignment]
        starting = asyncio.create_task(process.start({}))
        await asyncio.to_thread(begun.wait, 60)  # the thread may have others to end before
        starting.cancel()
        await asyncio.wait([starting])

    asyncio.run(main())
    workers._STARTING.submit(lambda: None).result()  # after all that it was given before
    assert happened == ["launched", "closed"]
