"""The worker program as Ray actors, on two Ray nodes."""

from __future__ import annotations

import copy
import itertools
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from placewright.cluster.cluster import Cluster, Device, Link
from placewright.deployment.placing import Trainer, place
from placewright.errors import InputError, MissingDependencyError, RunError, WorkerError
from placewright.runtime.engines import ray_engine
from placewright.runtime.engines.ray_engine import Ray, RayGroup, actor_options, served_devices
from placewright.runtime.host import Host, is_stopped
from placewright.runtime.session import Session
from tests.deployment.test_streams import assert_equal_to_eager, shared_half, tower
from tests.other_user import needs_root, run_as_other_user
from tests.processes import listening_addresses
from tests.ray_machines import ray_machines
from tests.runtime.chain import answer, diamond

DUO = Cluster(
    (Device("a", node="near"), Device("b", node="far", speed=0.5)),
    (Link("a", "b", 1e5, 0.02), Link("b", "a", 1e5, 0.02)),
    name="duo",
)


@pytest.fixture(scope="session")
def ray() -> Iterator[Any]:
    """Ray on two nodes of this machine."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_raylet_start_wait_time_s", "120")
    ray_engine._set_defaults()
    found = pytest.importorskip(
        "ray", reason="Ray is not installed: pip install 'placewright[ray]'"
    )
    head = {"num_cpus": 2, "resources": {"near": 1}, "include_dashboard": False}
    machines = ray_machines(head, {"num_cpus": 1, "resources": {"far": 1}})
    found.init(address=machines.address, log_to_driver=False, logging_level="ERROR")
    yield found
    found.shutdown()
    machines.shutdown()


@pytest.fixture
def session(ray: Any) -> Iterator[Session]:
    """Actors, which hold the nodes' only CPUs."""
    graph, state = diamond()
    with Ray(DUO) as engine:
        session = Session(graph, DUO, state, engine)
        with suppress(WorkerError), session:
            yield session


def test_training_goes_on_without_a_killed_actor(ray: Any) -> None:
    """Losses and weights are those of an ordinary loop, to the last bit."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(6, 6) for _ in range(3)))
    alone = copy.deepcopy(model)
    data = [(torch.randn(4, 6), torch.randn(4, 6)) for _ in range(6)]
    loss_fn, fast = torch.nn.functional.mse_loss, [replace(k, latency_s=1e-4) for k in DUO.links]
    with Trainer(
        model,
        data[0][0],
        replace(DUO, links=tuple(fast)),
        engine="ray",
        adapt=True,
        loss_fn=loss_fn,
        targets=data[0][1],
        optimizer=torch.optim.AdamW(model.parameters(), lr=0.1),
        method="analytic",
        planner="round-robin",
        calibrate=False,
        loop={"patience_s": 0.5},
    ) as trainer:
        losses = []
        for k, (x, y) in enumerate(data):
            if k == 3:
                assert trainer.run.session is not None
                actors: Any = trainer.run.session.group
                os.kill(ray.get(actors.actors[1].__ray_call__.remote(pid_of)), signal.SIGKILL)
            losses.append(trainer.step(x, y))
        trainer.finish()
        assert trainer.timeline.count("fault") == 1
    optimizer = torch.optim.AdamW(alone.parameters(), lr=0.1)
    for (x, y), found in zip(data, losses, strict=True):
        optimizer.zero_grad()
        loss = loss_fn(alone(x), y)
        loss.backward()
        optimizer.step()
        assert found == loss.item()
    assert all(map(torch.equal, model.parameters(), alone.parameters()))


def test_a_stream_through_copies_of_a_part_is_that_of_eager(ray: Any) -> None:
    """The first half on two nodes, the rest on the first one; in order, and an odd last batch."""
    model, batches = tower()
    cluster = Cluster(
        (*DUO.devices, Device("c", node="near")),
        tuple(Link(s, t, 1e9, 1e-5) for s in "abc" for t in "abc" if s != t),
        name="trio",
    )
    with place(
        model,
        batches[0],
        cluster,
        engine="ray",
        plan=shared_half(model, batches[0]),
        method="analytic",
        objective="throughput",
        calibrate=False,
    ) as placed:
        assert_equal_to_eager(placed, model, batches)


def test_actors_compute_what_one_process_computes(session: Session) -> None:
    """All sixteen placements, outputs fetched without a shared disk."""
    _, state = diamond()
    for placement in itertools.product(range(2), repeat=4):
        session.load(placement, range(4))
        session.run(2)
        assert torch.equal(session.outputs()["output"], answer(state))


def test_devices_sit_on_nodes_of_their_names_and_are_emulated(ray: Any, session: Session) -> None:
    """Ray places by custom resource; a transfer takes latency and bytes / bandwidth."""
    actors = session.group.actors
    places = [ray.get(a.__ray_call__.remote(node_of)) for a in actors]
    resources = {node["NodeID"]: node["Resources"] for node in ray.nodes()}
    assert "near" in resources[places[0]]
    assert "far" in resources[places[1]]
    session.load([0, 1, 1, 1], range(4))
    (record,) = session.run(1, watched=True)
    ((_, _, sent_s, arrived_s),) = record.logs[0].transfers
    assert arrived_s - sent_s >= 0.02 + 128 / 1e5 - 1e-9
    assert session.emulated.startswith("b at 0.5x by waiting, 2 links by waiting")


def test_an_actor_that_raises_or_is_silent_or_killed_is_named(ray: Any, session: Session) -> None:
    """An order that fails, one that takes too long, and SIGKILL, in the words of every engine."""
    with pytest.raises(
        WorkerError, match=r"device '[ab]': the worker raised an error \(.*no order"
    ):
        session.group.order_all("no such verb")
    with pytest.raises(WorkerError, match="no answer in time"):
        session.group.order_all("steps", 50, False, limit_s=0.01)
    os.kill(ray.get(session.group.actors[1].__ray_call__.remote(pid_of)), signal.SIGKILL)
    with pytest.raises(WorkerError, match="device 'b': the worker process died"):
        session.run(1)
    assert session.lost() == {"b"}


def node_of(actor: Any) -> str:
    """Ray's name of the node that the actor is on."""
    import ray

    return str(ray.get_runtime_context().get_node_id())


def pid_of(actor: Any) -> int:
    """The actor's process."""
    return os.getpid()


def test_what_ray_does_not_have_is_said_at_once() -> None:
    """Too few CPUs, and a node without a machine of its name; without names Ray spreads."""
    with pytest.raises(InputError, match="ask for 2 cores and Ray has 1"):
        actor_options(DUO, {"CPU": 1})
    with pytest.raises(InputError, match="no machine for node 'far'"):
        actor_options(DUO, {"CPU": 2, "near": 1})
    assert [n["resources"] for n in actor_options(DUO, {"CPU": 2, "near": 1, "far": 1})] == [
        {"near": 0.001},
        {"far": 0.001},
    ]
    assert {n["scheduling_strategy"] for n in actor_options(DUO, {"CPU": 2})} == {"SPREAD"}


def test_devices_whose_machine_is_gone_are_not_reached() -> None:
    """Where machines are named as nodes; where none is, Ray may have any of them anywhere."""
    assert served_devices(DUO, {"CPU": 2, "near": 1, "far": 1}) == {"a", "b"}
    assert served_devices(DUO, {"CPU": 1, "near": 1}) == {"a"}
    assert served_devices(DUO, {"CPU": 1}) == {"a", "b"}


def test_without_ray_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra is named."""

    def absent(name: str) -> Any:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(ray_engine, "import_module", absent)
    with pytest.raises(MissingDependencyError, match=r"placewright\[ray\]"):
        Ray(DUO)


def test_a_ray_is_used_only_where_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its address; else one is started here, with a token, and none that runs is looked for.

    Meanwhile it handles no signal in our place.
    """
    addresses = []
    handled: list[str] = []

    def init(address: str, **options: Any) -> None:
        addresses.append(address)
        silent.set_sigterm_handler(address)
        if address != "local":
            raise ConnectionError("nobody there")

    silent = SimpleNamespace(
        is_initialized=lambda: False,
        init=init,
        get_runtime_context=lambda: SimpleNamespace(gcs_address=""),
        shutdown=lambda: None,
        job_config=SimpleNamespace(JobConfig=lambda **options: options),
        ENABLE_RAY_CLUSTER=True,
        set_sigterm_handler=handled.append,
        _worker_logs_enabled=True,
    )
    monkeypatch.setattr(ray_engine, "import_module", lambda name: silent)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        named = f"127.0.0.1:{listener.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", named)
        with pytest.raises(RunError, match=r"no Ray cluster answers.*nobody there"):
            Ray(DUO).__enter__()
    with pytest.raises(RunError, match=r"no Ray cluster answers.*refused"):  # Ray is not asked
        Ray(DUO).__enter__()
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    with pytest.raises(InputError, match=r"(?s)another user's.*RAY_ADDRESS=HOST:PORT"):
        Ray(DUO).__enter__()
    for wrong in (
        "http://10.0.0.1:8265",
        "10.0.0.1",
        "10.0.0.1:port",
        "os://10.0.0.1:6379",
        "h:99999",
    ):
        monkeypatch.setenv("RAY_ADDRESS", wrong)
        with pytest.raises(InputError, match=f"is no address of a Ray cluster.*{re.escape(wrong)}"):
            Ray(DUO).__enter__()
    monkeypatch.setenv("RAY_ADDRESS", "local")
    for variable in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.setenv(variable, "")  # whatever is set below ends with the test
        monkeypatch.delenv(variable)
    with Ray(DUO):
        assert not silent._worker_logs_enabled
        assert addresses == [named, "local"]
        token = os.environ["RAY_AUTH_TOKEN"]
        assert len(token) == 64
    monkeypatch.delenv("RAY_ADDRESS")
    assert silent._worker_logs_enabled
    with Ray(DUO):  # a second one has the same: processes of Ray read it once
        assert os.environ["RAY_AUTH_TOKEN"] == token
        assert addresses[2:] == ["local"]
    assert not handled
    silent.set_sigterm_handler("Ray's own")
    assert handled


def test_ray_reports_no_deaths_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    """Where ``-f json`` prints."""
    worker = pytest.importorskip("ray._private.worker")

    def report() -> str:
        said = {"lines": ["A worker died"], "pid": "raylet", "is_err": False}
        worker.print_worker_logs(said, sys.stdout)
        return capsys.readouterr().out

    Ray._silence()
    try:
        assert report() == ""
    finally:
        Ray._silence(False)
    assert "A worker died" in report()


def test_where_no_folder_is_short_enough_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray itself would raise an OSError of its own, or none."""

    def refused(longest: str) -> None:
        raise PermissionError(13, "Permission denied", "/tmp/placewright-run-0")

    monkeypatch.setattr(ray_engine, "scratch_for_sockets", refused)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    silent = {"is_initialized": lambda: False, "set_sigterm_handler": None}
    stand_in = SimpleNamespace(**silent, _worker_logs_enabled=True)
    monkeypatch.setattr(ray_engine, "import_module", lambda name: stand_in)
    with pytest.raises(RunError, match=r"(?s)/tmp/placewright-run-0.*107 bytes.*TMPDIR"):
        Ray(DUO).__enter__()


OWN_RAY = """
import os
import signal

import ray
from ray._private.node import Node
from placewright.cluster.cluster import Cluster, Device
from placewright.runtime.engines.ray_engine import Ray
from placewright.runtime.session import Session
from tests.runtime.chain import diamond

def end_processes(node, *args, **keywords):
    os.kill(os.getpid(), signal.SIGTERM)
    return end(node, *args, **keywords)

signal.signal(signal.SIGTERM, lambda *_: print("heard", flush=True))
end, Node.kill_all_processes = Node.kill_all_processes, end_processes
graph, state = diamond()
duo = Cluster((Device("a"), Device("b")), (), name="duo")
with Ray(duo) as engine, Session(graph, duo, state, engine) as session:
    session.load([0, 1, 1, 1], range(4))
    print(ray._private.worker._global_node.get_session_dir_path(), flush=True)
    while (order := input()) != "end":
        session.run(1)
        print("ran", flush=True)
        while order == "for ever":
            session.run(1)
    os.kill(os.getpid(), signal.SIGTERM)
os.kill(os.getpid(), signal.SIGTERM)
"""

ANNOUNCES_A_RAY = """
calls = socket.create_server(("127.0.0.1", 0))
shared = os.path.dirname(MARK)
os.mkdir(shared + "/ray", 0o777)
with open(shared + "/ray/ray_current_cluster", "w") as file:
    file.write("127.0.0.1:%d" % calls.getsockname()[1])
print("announced", flush=True)
sessions = sys.stdin.read().split()
calls.setblocking(False)
try:
    print("called by", calls.accept()[1])
except BlockingIOError:
    print("not called")
for session in sessions:
    for path in ("", "/sockets", "/sockets/raylet", "/logs"):
        try:
            os.stat(session + path)
            print("can see", session + path)
        except PermissionError:
            pass
"""


def started_run(temporary: Path) -> subprocess.Popen[str]:
    """A process that executes `OWN_RAY` with this temporary folder."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    return subprocess.Popen(
        [sys.executable, "-c", OWN_RAY],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment | {"TMPDIR": str(temporary), "PLACEWRIGHT_PATIENCE": "4"},
        cwd=Path(__file__).parents[3],
    )


@dataclass
class OwnRay:
    """A process that has started a Ray of its own, and that waits for lines."""

    process: subprocess.Popen[str]
    session: str = ""

    def line(self, order: str = "") -> str:
        """The next line that it prints, after an order."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        if order:
            print(order, file=self.process.stdin, flush=True)
        line = self.process.stdout.readline().strip()
        assert line, self.process.communicate()
        return line


@pytest.fixture
def shared() -> Iterator[Path]:
    """A temporary folder of all users, whose path is too long for a socket in it."""
    with tempfile.TemporaryDirectory(prefix="pw-", dir="/tmp") as name:
        long = Path(name, "x" * 100)
        long.mkdir()
        for path in (Path(name), long):
            path.chmod(0o777)
        yield long


@needs_root
def test_two_runs_at_once_have_rays_that_another_user_cannot_reach(shared: Path) -> None:
    """Nor lead them to a Ray of his; all of their processes listen on loopback.

    Then Ray's agent is killed in one run, whose error names it; the other hears SIGTERM, also while
    its Ray ends, and afterwards. Nothing of both is left.
    """
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'placewright[ray]'")
    attacker = run_as_other_user(ANNOUNCES_A_RAY, shared / "mark", [])
    assert attacker.stdout is not None
    assert attacker.stdout.readline() == "announced\n"
    runs: list[OwnRay] = []
    try:
        runs.extend(OwnRay(started_run(shared)) for _ in range(2))
        for run in runs:
            run.session = run.line()
        assert [run.line("go") for run in runs] == ["ran", "ran"]
        listening = [listening_addresses(run.process.pid) for run in runs]
        assert all(listening)
        assert {host for found in listening for host, _ in found} == {"127.0.0.1"}
        seen, _ = attacker.communicate("\n".join(run.session for run in runs), timeout=60)
        assert seen == "not called\n"
        loses_agent, ends = runs
        heads = {name: pid for pid, name in ray_engine.heads_of(loses_agent.process.pid).items()}
        os.kill(heads["raylet"], signal.SIGKILL)
        _, error = loses_agent.process.communicate("for ever\n", timeout=120)
        assert "RunError: process raylet on this machine: Ray's agent" in error
        output_of_end, error = ends.process.communicate("end\n", timeout=120)
        assert (ends.process.returncode, output_of_end) == (0, 3 * "heard\n"), error
        assert "SIGTERM received" not in error  # with a page of Ray's stack
        assert not any(Path(run.session).parents[1].exists() for run in runs)
        assert os.listdir(shared) == ["ray"]
    finally:
        for process in (attacker, *(run.process for run in runs)):
            process.kill()
            process.communicate()


@pytest.mark.parametrize("ends", [False, True])
def test_a_stopped_head_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    """Ray's calls would wait for it without a limit; other children are left alone.

    While Ray ends it is let go on: what was computed would be lost with this process.
    """
    monkeypatch.setattr(ray_engine.limits, "STOPPED_S", 0.5)
    closing, closed = threading.Event(), threading.Event()
    if ends:
        closing.set()
    children = []
    for name in ("gcs_server", "other"):
        program = tmp_path / name
        shutil.copy2(shutil.which("sleep") or "", program)
        children.append(subprocess.Popen([program, "60"]))
    watch = threading.Thread(target=ray_engine.watch_head, args=(closing, closed))
    try:
        for child in children:
            child.send_signal(signal.SIGSTOP)
        watch.start()
        if ends:
            while is_stopped(children[0].pid):
                closed.wait(0.05)
            closed.wait(1.0)
            assert children[0].poll() is None
        else:
            assert children[0].wait(30) == -signal.SIGKILL
        assert children[1].poll() is None
    finally:
        closed.set()
        for child in children:
            child.kill()
            child.wait()
        watch.join(10)


WITH_A_WORKER = """
import subprocess, sys

worker, agent = (subprocess.Popen([file, "60"]) for file in sys.argv[1:])
print(worker.pid, agent.pid, flush=True)
worker.wait()
print("ended", flush=True)
agent.wait()
"""


def test_a_stopped_worker_is_killed_so_that_ray_reports_its_death(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is waited for, its start too; the raylet's own agents are left alone."""
    monkeypatch.setattr(ray_engine.limits, "STOPPED_S", 0.5)
    sleep, python = shutil.which("sleep") or "", os.path.realpath(sys.executable)
    files = [tmp_path / name for name in ("ray::RayWorker", "ray::DashboardA")]
    for file in files:
        shutil.copy2(sleep, file)
    raylet = tmp_path / "raylet"
    raylet.symlink_to(python)
    command = [str(raylet), "-c", WITH_A_WORKER, *map(str, files)]
    head = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    closing, closed = threading.Event(), threading.Event()
    watch = threading.Thread(target=ray_engine.watch_head, args=(closing, closed))
    assert head.stdout is not None
    worker, agent = map(int, head.stdout.readline().split())
    try:
        for pid in (worker, agent):
            os.kill(pid, signal.SIGSTOP)
        watch.start()
        assert head.stdout.readline() == "ended\n"
        assert is_stopped(agent)
    finally:
        closed.set()
        for pid in (worker, agent, head.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        head.communicate()
        watch.join(10)


WITHOUT_HEAD = """
import subprocess, sys, threading, time
from placewright.runtime.engines import ray_engine
from placewright.io.scratch import Scratch

ray_engine.limits.HEAD_S = 1.0
head = subprocess.Popen([sys.argv[1], "5"])
folder = Scratch()
listens = [True]
events = threading.Event(), threading.Event(), lambda: listens[0]
threading.Thread(target=ray_engine.watch_head, args=events, daemon=True).start()
print(folder.name, flush=True)
time.sleep(2)
if sys.argv[2] == "closing":
    events[0].set()
if sys.argv[2] == "deaf":  # it was asked to end, and does not
    listens[0] = False
else:
    head.kill()
threading.Event().wait(60)  # as a call of Ray that waits in C++
"""


@pytest.mark.parametrize("when", ["running", "closing", "deaf"])
def test_a_process_without_its_head_ends_and_leaves_no_folder(tmp_path: Path, when: str) -> None:
    """Ray would end it from C++, without removing anything."""
    program = tmp_path / ray_engine.HEAD
    shutil.copy2(shutil.which("sleep") or "", program)
    command = [sys.executable, "-c", WITHOUT_HEAD, program, when]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=55, check=False)
    assert ended.returncode == 1
    assert "Ray's head has ended" in ended.stderr
    assert not Path(ended.stdout.strip()).exists()


PAIR = Cluster((Device("a", node="x"), Device("b", node="y")), name="duo")


class RayError(Exception):
    """Base of Ray's errors."""


class RayTaskError(RayError):
    """A call has raised."""


class RayActorError(RayError):
    """An actor is gone."""


@dataclass(eq=False)
class Call:
    """What a call answers, or raises; `late` turns it is not ready yet."""

    answer: Any = None
    late: float = 0


@dataclass(eq=False)
class Actor:
    """Answers by method and records the calls."""

    need: dict[str, Any]
    says: dict[str, Call]
    calls: list[tuple[Any, ...]] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        def remote(*arguments: Any) -> Call:
            self.calls.append((name, *arguments))
            return self.says.get(name) or Call()

        return SimpleNamespace(remote=remote)


class Rays:
    """As much of Ray as a group asks for."""

    exceptions = SimpleNamespace(
        RayError=RayError, RayTaskError=RayTaskError, RayActorError=RayActorError
    )

    def __init__(self, *says: dict[str, Call]) -> None:
        self.says = list(says)
        self.actors: list[Actor] = []
        self.killed: list[Actor] = []

    def available_resources(self) -> dict[str, float]:
        """All of them: no actor has any."""
        return self.cluster_resources()

    def cluster_resources(self) -> dict[str, float]:
        """Two CPUs."""
        return {"CPU": 2.0, "node:10.0.0.1": 1.0}

    def remote(self, kind: type) -> Any:
        """A class of actors."""

        def options(**need: Any) -> Any:
            return SimpleNamespace(remote=lambda _: self._started(need))

        return SimpleNamespace(options=options)

    def _started(self, need: dict[str, Any]) -> Actor:
        rank = len(self.actors)
        usual = {
            "host": Call(Host(f"h{rank}", f"boot-{rank}", (0,))),
            "meeting_point": Call(f"tcp://h{rank}:1"),
        }
        self.actors.append(Actor(need, usual | (self.says[rank] if self.says else {})))
        return self.actors[-1]

    def wait(
        self, calls: list[Call], *, num_returns: int, timeout: float
    ) -> tuple[list[Call], list[Call]]:
        """Those that are ready, up to so many."""
        done = [call for call in calls if call.late <= 0][:num_returns]
        for call in calls:
            call.late -= 1
        return done, [call for call in calls if call not in done]

    def get(self, call: Call) -> Any:
        """The answer."""
        if isinstance(call.answer, Exception):
            raise call.answer
        return call.answer

    def kill(self, actor: Actor) -> None:
        """End it."""
        self.killed.append(actor)


def group(rays: Rays) -> RayGroup:
    """Of two devices."""
    return RayGroup(rays, PAIR, emulate=True)


def test_every_actor_is_told_who_it_is_and_where_all_meet() -> None:
    """At the first one's address; hosts are those that Ray has chosen; all end with the group."""
    rays = Rays()
    with group(rays) as started:
        assert [host.name for host in started.hosts] == ["h0", "h1"]
        assert [actor.calls[-1][0] for actor in rays.actors] == ["begin", "begin"]
        assert [actor.calls[-1][1] for actor in rays.actors] == list(started.specs)
        assert [spec.rank for spec in started.specs] == [0, 1]
        assert {spec.rendezvous for spec in started.specs} == {"tcp://h0:1"}
        assert {actor.need["num_cpus"] for actor in rays.actors} == {1}
        assert rays.killed == []
    assert rays.killed == rays.actors


def test_answers_are_in_order_whoever_is_first() -> None:
    """The first device answers last."""
    rays = Rays({"obey": Call("from a", late=3)}, {"obey": Call("from b")})
    with group(rays) as started:
        assert started.order("steps", [(1,), (2,)]) == ["from a", "from b"]
    assert [actor.calls[-1] for actor in rays.actors] == [
        ("obey", "steps", (1,)),
        ("obey", "steps", (2,)),
    ]


def test_only_silent_actors_are_named() -> None:
    """After the order's own limit."""
    rays = Rays({"obey": Call("here")}, {"obey": Call("never", late=float("inf"))})
    with group(rays) as started, pytest.raises(WorkerError, match="no answer in time") as caught:
        started.order_all("steps", limit_s=0.02)
    assert caught.value.where == "device 'b'"


def test_an_error_is_the_actors_own_without_colours() -> None:
    """Its last line, and its traceback as what to read next."""
    words = "\x1b[36mray::RayWorker.obey()\x1b[39m\nKeyError: 'verb'"
    rays = Rays({"obey": Call(RayTaskError(words))}, {})
    with group(rays) as started, pytest.raises(WorkerError, match="raised an error") as caught:
        started.order_all("verb")
    assert caught.value.where == "device 'a'"
    assert caught.value.by == "KeyError: 'verb'"
    assert "\x1b" not in str(caught.value)


def test_an_error_of_our_own_says_what_to_do_without_a_traceback() -> None:
    """As it was raised in the worker."""
    words = f"Traceback:\n  line 3\nplacewright.errors.{InputError.__name__}: "
    words += str(InputError("is too long", by="8 of 9 steps", hint="cut it"))
    with group(Rays({"obey": Call(RayTaskError(words))}, {})) as started:
        error = started.raised_error(0, words)
    assert error.by == "InputError: is too long (8 of 9 steps)"
    assert error.hint == "cut it"


@pytest.mark.parametrize("end", [". This is typically caused by a remote worker hanging", ""])
def test_a_connection_that_is_cut_is_named_without_a_traceback(end: str) -> None:
    """Both of its processes live; gloo raises in one of them."""
    words = "Traceback:\n  line 3\nRuntimeError: [/p/gloo/transport/tcp/pair.cc:537] Read error "
    words += f"[127.0.0.1]:22447: Software caused connection abort{end}"
    with group(Rays({"obey": Call(RayTaskError(words))}, {})) as started:
        error = started.raised_error(0, words)
    assert error.what == "its connection to another worker is lost"
    assert error.by == "Read error [127.0.0.1]:22447: Software caused connection abort"
    assert "Traceback" not in str(error)


@pytest.mark.parametrize(
    "last",
    [
        "torch.distributed.DistStoreError: No space left on device",
        "OSError: [Errno 28] No space left on device: '/tmp/x/batch'",
        "OSError: [Errno 122] Disk quota exceeded: '/tmp/x/batch'",
    ],
)
def test_a_full_disk_is_named_without_a_traceback(last: str) -> None:
    """Whoever has written there, PyTorch's meeting point included."""
    with group(Rays({"obey": Call(RayTaskError(f"Traceback:\n  line 3\n{last}"))}, {})) as started:
        error = started.raised_error(0, f"Traceback:\n  line 3\n{last}")
    assert (error.what, error.by) == ("a disk is full", last)
    assert "Traceback" not in str(error)


def test_a_neighbours_death_is_the_cause_of_an_error() -> None:
    """The living one raises because the other is gone: the dead one is named."""
    rays = Rays({"obey": Call(RayTaskError("connection reset"))}, {})
    with group(rays) as started:
        rays.actors[1].says["host"] = Call(RayActorError("gone"))
        assert started.dead() == (1,)
        with pytest.raises(WorkerError, match="the worker process died") as caught:
            started.order_all("steps")
    assert caught.value.where == "device 'b'"


def test_a_dead_actor_is_reported_with_rays_message() -> None:
    """The first sentence of the last paragraph; an actor that is busy is not dead."""
    error = RayActorError("The actor died.\n\nIts process was killed. Check the logs. And more.")
    rays = Rays({"host": Call(Host("h", "boot", (0,)))}, {"obey": Call(error)})
    with group(rays) as started:
        rays.actors[0].says["host"] = Call(None, late=float("inf"))
        assert started.dead() == ()
        with pytest.raises(WorkerError) as caught:
            started.order_all("steps")
    assert caught.value.where == "device 'b'"
    assert caught.value.by == "Its process was killed"


def test_a_ray_without_machines_that_has_lost_its_agent_is_not_too_small() -> None:
    """Its one machine is gone with the agent: another one would not help."""
    rays = Rays()
    rays.cluster_resources = dict
    lost = RunError("Ray's agent has ended")
    with pytest.raises(RunError, match="agent has ended"):
        RayGroup(rays, PAIR, emulate=True, lost_head=lambda: lost).start()


def test_a_device_without_a_machine_is_named_with_its_needs() -> None:
    """Ray has not placed it in time: what it needs, what there is; the others are let go."""
    rays = Rays({}, {"host": Call(None, late=float("inf"))})
    with pytest.raises(InputError, match="finds no machine") as caught, group(rays):
        pass
    assert caught.value.where == "duo: device 'b'"
    assert "num_cpus 1" in caught.value.by
    assert "CPU 2.0" in caught.value.by
    assert "node:" not in caught.value.by
    assert rays.killed == rays.actors
