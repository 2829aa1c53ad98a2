"""torch.distributed over a testbed: two processes, two namespaces, one shaped link."""

from __future__ import annotations

from pathlib import Path

from placewright.testbed import Testbed
from tests.processes import output_of
from tests.testbed import inside

SIZE = 1_000_000
EXCHANGE = """
os.environ["GLOO_SOCKET_IFNAME"] = handle.interface
import torch
import torch.distributed as dist
rank = int(sys.argv[2])
dist.init_process_group("gloo", init_method=sys.argv[3], rank=rank, world_size=2)
data = torch.full((int(sys.argv[4]) // 4,), float(rank))
dist.barrier()
start = time.perf_counter()
if rank == 0:
    dist.send(data + 7, 1)
    dist.recv(data, 1)
else:
    dist.recv(data, 0)
    dist.send(data, 0)
print(time.perf_counter() - start, bool((data == 7).all()))
dist.destroy_process_group()
"""


def test_gloo_exchanges_a_tensor_at_the_shaped_rate(duo: Testbed, tmp_path: Path) -> None:
    """1 MB there and back at 40 Mbit/s: 0.4 s and two delays, never less; not a bit is lost."""
    duo.set_device("right", memory_bytes=float("inf"))
    meeting = f"file://{tmp_path / 'meeting'}"
    processes = [
        inside.start(duo.handle(name), EXCHANGE, rank, meeting, SIZE)
        for rank, name in enumerate(("left", "right"))
    ]
    took_s, equal = output_of(processes[0]).split()
    output_of(processes[1])
    assert equal == "True"
    assert float(took_s) >= 0.98 * (2 * SIZE / 5e6 + 2 * 5e-3)
    carried = [duo.links.get("bytes", i, 1 - i) for i in (0, 1)]
    assert all(SIZE <= count < 1.05 * SIZE for count in carried)
