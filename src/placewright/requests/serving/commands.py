"""placewright requests serve and run: the real server, and open-loop load against it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from placewright.io.output import output_file
from placewright.report.text import plain_table

if TYPE_CHECKING:
    from placewright.cli.console import Console
    from placewright.cluster.cluster import Cluster
    from placewright.planning.wing import TextModel
    from placewright.requests.problem import RequestProblem
    from placewright.requests.serving.auto import AutoPolicy
    from placewright.requests.serving.families import Family
    from placewright.requests.serving.server import PlannedPolicy

SERVERS = ("a:1", "b:0.6", "c:0.35", "d:0.2")
"""Unequal servers for a first try."""

FamilyOption = Annotated[
    list[str] | None,
    typer.Option(
        "--family", metavar="NAME", help="digits, or FILE.yaml of ONNX models; several times."
    ),
]
ServerOption = Annotated[
    list[str] | None,
    typer.Option(
        "--server",
        metavar="NAME:SPEED",
        help="A worker process and its speed relative to this machine; several times.",
    ),
]
ClusterOption = Annotated[
    Path | None,
    typer.Option("--on", metavar="CLUSTER", help="Servers as the devices of a cluster file."),
]
EngineOption = Annotated[
    Literal["local", "testbed", "ray"],
    typer.Option(
        "--engine",
        help="local: slow servers wait; testbed: CPU quotas and links, as root; "
        "ray: actors on the machines of a Ray cluster.",
    ),
]
PolicyOption = Annotated[
    str,
    typer.Option(
        "--policy",
        metavar="NAME",
        help="Who decides: auto (chosen for the requests that come), rolling, 'rolling(price=3)', "
        "edf-fastest, thesis, ...",
    ),
]
PlanOption = Annotated[
    Path | None,
    typer.Option(
        "--plan",
        metavar="FILE",
        help="Policy and parameters that `requests plan -o FILE` has chosen, in place of --policy.",
    ),
]
ModelsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--models",
        metavar="MODEL",
        help="FILE.pt, FILE.pt2 or package.module:factory of a family, which runs code of its own; "
        "several times.",
    ),
]
ExpectOption = Annotated[
    Path | None,
    typer.Option(
        "--expect",
        metavar="FILE",
        help="A problem file, or a log of a server (.jsonl), with requests like those that will "
        "come: auto chooses for them before it listens. Without it auto begins with its own --log.",
    ),
]
WorthOption = Annotated[
    float,
    typer.Option(
        "--success-worth",
        min=0.0,
        max=1e6,
        help="What a success is worth beside the accuracy of its answer, for auto.",
    ),
]
LogOption = Annotated[
    Path | None,
    typer.Option(
        "--log",
        metavar="FILE",
        callback=output_file,
        help="Append every request: one JSON object a line.",
    ),
]
LanguageOption = Annotated[
    Path | None,
    typer.Option(
        "--language-model",
        metavar="FOLDER",
        help="In place of families: a language model as save_pretrained writes it, its layers on "
        "the devices of --on, by OpenAI's protocol.",
    ),
]
ContextOption = Annotated[
    int | None,
    typer.Option(
        "--context", min=1, metavar="TOKENS", help="Of a language model: kept of each user."
    ),
]
UsersOption = Annotated[
    int | None,
    typer.Option(
        "--users", min=1, max=1000, metavar="N", help="Of a language model: texts at a time."
    ),
]
BatchOption = Annotated[int, typer.Option("--max-batch", min=1, help="Rows of a batch.")]
CertificatesOption = Annotated[
    Path | None,
    typer.Option(
        "--ca-file",
        metavar="FILE",
        help="PEM: certificates that a server of https:// is checked by, in place of the system's.",
    ),
]


def serve(
    console: Console,
    family: FamilyOption = None,
    server: ServerOption = None,
    cluster: ClusterOption = None,
    engine: EngineOption = "local",
    policy: PolicyOption = "auto",
    plan: PlanOption = None,
    models: ModelsOption = None,
    expect: ExpectOption = None,
    success_worth: WorthOption = 0.0,
    language_model: LanguageOption = None,
    context: ContextOption = None,
    users: UsersOption = None,
    host: str = "127.0.0.1",
    allow_host: list[str] | None = None,
    port: int = 8000,
    grpc_port: Annotated[
        int | None,
        typer.Option(
            "--grpc-port", min=0, max=65535, help="Answer gRPC there, too; 0: a free one."
        ),
    ] = None,
    tls_cert: Annotated[
        Path | None,
        typer.Option("--tls-cert", metavar="FILE", help="PEM; answer over TLS alone."),
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option("--tls-key", metavar="FILE", help="Of the certificate, PEM.")
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-origin",
            metavar="ORIGIN",
            help="Answer pages of https://example.org, too (CORS); several times.",
        ),
    ] = None,
    max_waiting: Annotated[
        int, typer.Option("--max-waiting", min=1, help="Rows that may wait; 429 beyond.")
    ] = 1000,
    max_batch: BatchOption = 16,
    deadline: Annotated[
        float, typer.Option("--deadline", min=1e-3, help="Seconds, of requests that give none.")
    ] = 10.0,
    drain: Annotated[
        float, typer.Option("--drain", min=0.0, help="Seconds to finish requests at the end.")
    ] = 10.0,
    log: LogOption = None,
    log_format: Annotated[
        Literal["text", "json"] | None,
        typer.Option("--log-format", help="Events on standard error: losses, refusals, changes."),
    ] = None,
) -> None:
    """Serve model variants by the Open Inference Protocol until SIGTERM or Ctrl-C.

    With --language-model it serves texts by OpenAI's protocol: /v1/completions and
    /v1/chat/completions.

    Clients other than this machine's need the token in the environment variable PLACEWRIGHT_TOKEN.
    Without it a token for /admin is made and printed.
    """
    import os
    import sys
    from dataclasses import replace

    from placewright.requests.serving.auto import AutoPolicy
    from placewright.requests.serving.observing import log_events
    from placewright.requests.serving.server import (
        TOKEN,
        Running,
        Serving,
        ServingOptions,
        check_start,
        serve_forever,
        serve_text_forever,
    )
    from placewright.requests.serving.site import HttpLimits

    if log_format is not None:
        log_events(log_format)
    options = ServingOptions(
        policy=_policy(policy, plan, expect, success_worth),
        engine=engine,
        host=host,
        port=port,
        token=os.environ.get(TOKEN, ""),
        hosts=tuple(allow_host or ()),
        origins=tuple(allow_origin or ()),
        tls_cert=tls_cert,
        tls_key=tls_key,
        grpc_port=grpc_port,
        most_waiting=max_waiting,
        most_batch=max_batch,
        drain_s=drain,
        log=log,
        limits=HttpLimits(deadline_s=deadline),
    )

    def ready(running: Serving) -> None:
        alone = running.dispatcher.fleet.alone if isinstance(running, Running) else {}
        for variant, why in alone.items():
            console.note(f"{variant} is served in batches of one row: {why}")
        names = running.application.models
        made = "" if options.token or language_model else running.application.admin_token
        console.show(
            lambda: (
                {"url": running.url, "models": names}
                | ({"grpc": running.grpc} if running.grpc else {})
                | ({"admin_token": made} if made else {})
            ),
            lambda: (
                f"serving {', '.join(names)} at {running.url}"
                + ("/v1" if language_model else " (live page there too)")
                + (f", gRPC at {running.grpc}" if running.grpc else "")
                + (f"\ntoken for /admin: {made}" if made else "")
            ),
        )
        sys.stdout.flush()  # a parent process may wait for it

    if language_model is not None:
        refused = {
            "--family": family,
            "--server": server,
            "--plan": plan,
            "--models": models,
            "--expect": expect,
            "--log": log,
            "--grpc-port": grpc_port is not None,
            "--policy": policy != "auto",
            "--success-worth": success_worth,
            "--max-batch": max_batch != 16,
            "--deadline": deadline != 10,
        }
        with _text_model(
            console, language_model, cluster, context, users, engine, refused
        ) as model:
            serve_text_forever(model, options, on_ready=ready)
        return
    refuse({"--context": context, "--users": users}, "is for --language-model", "leave it out")
    servers = _servers(server, cluster)
    check_start(servers, options)
    families = _families(family, console, models or ())
    learns = log is not None and policy == "auto" and plan is None and expect is None
    if log is not None and learns and (learned := _learned(log, families)) is not None:
        console.note(f"choosing the policy for the last {len(learned.stream)} requests of {log}")
        options = replace(options, policy=AutoPolicy(learned, success_worth))
    counts = sum(len(each.variants) * len(each.buckets()) for each in families)
    console.note(f"starting servers, and measuring {counts} variants on each of them")
    serve_forever(families, servers, options, on_ready=ready)


def evaluate(
    console: Console,
    family: Annotated[str, typer.Argument(metavar="FAMILY", help="FILE.yaml, or digits.")],
    data: Annotated[
        Path,
        typer.Argument(
            metavar="DATA.npz", help="An array of NumPy for each input, by name, and of labels."
        ),
    ],
    labels: Annotated[
        str, typer.Option("--labels", metavar="NAME", help="The array of what is right.")
    ] = "labels",
    answer: Annotated[
        str, typer.Option("--answer", metavar="NAME", help="The output that labels are of.")
    ] = "",
    top: Annotated[
        int, typer.Option("--top", min=1, help="Right is a label among so many largest scores.")
    ] = 1,
    tolerance: Annotated[
        float | None,
        typer.Option(
            "--tolerance",
            min=0.0,
            help="Right is a number as near as this; 0.5: a probability on the right side.",
        ),
    ] = None,
    models: ModelsOption = None,
    update: Annotated[
        bool, typer.Option("--update", help="Write what was measured into FAMILY.")
    ] = False,
) -> None:
    """Measure how often each variant of a family is right on labelled rows."""
    from placewright.requests.serving import accuracy

    refuse({"--update": update and family == "digits"}, "is for a file", "leave it out")
    (made,) = _families([family], console, models or [])
    rows = accuracy.read_rows(data, made, labels)
    with console.meter(f"evaluating {made.name}", unit="") as meter:
        measure = accuracy.Measure(answer, top, tolerance)
        found = accuracy.evaluate(made, rows, measure, meter.step)
    if update:
        console.kept(accuracy.state_accuracies(family, found))
    head, table = accuracy.accuracy_table(found)
    console.show(
        lambda: [each.as_json() for each in found],
        lambda: plain_table(head, table, " " + "r" * (len(head) - 1)),
    )
    console.keep(lambda: [each.as_json() for each in found])
    for each in found:
        if each.failed:
            console.note(f"{each.name}: {each.failed} rows were not computed: {each.why[:200]}")


def profile(
    console: Console,
    url: Annotated[str, typer.Argument(metavar="URL", help="Of a running server.")],
    family: Annotated[
        str | None, typer.Option("--family", metavar="NAME", help="Of several, this one.")
    ] = None,
    deadline: Annotated[
        float, typer.Option("--deadline", min=1e-3, help="Seconds, of every request.")
    ] = 0.2,
    min_accuracy: Annotated[
        float, typer.Option("--min-accuracy", min=0.0, max=1.0, help="Of every request.")
    ] = 0.0,
    rate: Annotated[
        float | None,
        typer.Option("--rate", min=1e-3, help="Requests per second; else half of full load."),
    ] = None,
    certificates: CertificatesOption = None,
) -> None:
    """Read what a running server has measured, as a problem file for `requests plan`.

    A server with a token wants it in the environment variable PLACEWRIGHT_TOKEN.
    """
    from placewright.requests.serving.measured import measured_problem, read_status

    found = measured_problem(
        read_status(url, certificates),
        "measured",
        family,
        deadline_s=deadline,
        min_accuracy=min_accuracy,
        rate=rate,
    )
    counts = f"{len(found['servers'])} servers, {len(found['variants'])} variants"
    expected = f"{found['arrivals'][0]['rate']:.4g} requests per second expected"
    console.answer(lambda: found, lambda: f"{counts}, {expected}")


def run(
    console: Console,
    family: FamilyOption = None,
    server: ServerOption = None,
    cluster: ClusterOption = None,
    engine: EngineOption = "local",
    policy: PolicyOption = "auto",
    plan: PlanOption = None,
    load: Annotated[
        list[float] | None,
        typer.Option("--load", min=0.01, help="1: every server always busy; several times."),
    ] = None,
    arrivals: Annotated[
        str,
        typer.Option("--arrivals", metavar="KIND", help="poisson, mmpp, or a file of times."),
    ] = "poisson",
    duration: Annotated[
        float, typer.Option("--duration", min=1.0, help="Seconds of each load.")
    ] = 20.0,
    scale: Annotated[
        float, typer.Option("--deadlines", min=0.01, help="Times the usual 40 to 600 ms.")
    ] = 1.0,
    needs: Annotated[
        Path | None,
        typer.Option(
            "--needs",
            metavar="FILE",
            help="A problem file, or a log of a server (.jsonl): deadlines, least accuracies and "
            "sensitivities of its requests, in place of the usual ones.",
        ),
    ] = None,
    inputs: Annotated[
        Path | None,
        typer.Option(
            "--inputs",
            metavar="DATA.npz",
            help="Recorded rows to send: an array of NumPy for each input, by name.",
        ),
    ] = None,
    max_batch: BatchOption = 16,
    seed: int = 0,
    log: LogOption = None,
    url: Annotated[
        str | None,
        typer.Option("--url", metavar="URL", help="Of a server that runs, in place of one's own."),
    ] = None,
    certificates: CertificatesOption = None,
) -> None:
    """Send open-loop load to a real server; measured success beside the simulation's prediction.

    Requests are sent at their arrival whether or not others were answered. Deadlines are 40 to
    600 ms, half of the requests ask for more than the least accuracy, and inputs are random; or
    all that is as in --needs and --inputs.

    A server of --url with a token wants it in the environment variable PLACEWRIGHT_TOKEN.
    """
    import os

    from numpy.random import default_rng

    from placewright.requests.planners import named_policy
    from placewright.requests.serving.load import (
        Traffic,
        arrival_times,
        load_target,
        run_loads,
        table,
        target_at,
    )
    from placewright.requests.serving.server import (
        TOKEN,
        PlannedPolicy,
        ServingOptions,
        check_start,
    )

    like = None if needs is None else _expected(needs)
    traffic = Traffic(arrivals, duration, scale, seed, like, inputs)
    loads = load or [0.5, 1.0, 1.5]
    arrival_times(traffic, default_rng(seed), 1.0)
    if url is not None:
        own = {
            "--server": server,
            "--on": cluster,
            "--engine": engine != "local",
            "--policy": policy != "auto",
            "--plan": plan,
            "--max-batch": max_batch != 16,
            "--log": log,
        }
        refuse(own, "is for a server of one's own", "leave it out, or --url")
        names = family or []
        refuse({"--family": names[1:]}, "is one where --url is given", "give one of them")
        target = target_at(url, next(iter(names), None), os.environ.get(TOKEN, ""), certificates)
        found = load_target(target, loads, traffic, console.note)
        console.show(lambda: [each.as_json() for each in found], lambda: table(found))
        console.keep(lambda: [each.as_json() for each in found])
        return
    refuse({"--ca-file": certificates}, "is for a server of --url", "leave it out")
    # What it begins with: the simulation has to know who decides.
    fixed = PlannedPolicy(named_policy(policy)) if plan is None else _policy(policy, plan)
    options = ServingOptions(policy=fixed, engine=engine, port=0, most_batch=max_batch, log=log)
    servers = _servers(server, cluster)
    check_start(servers, options)
    found = run_loads(_families(family, console), servers, options, loads, traffic, console.note)
    console.show(lambda: [each.as_json() for each in found], lambda: table(found))
    console.keep(lambda: [each.as_json() for each in found])


def refuse(options: Mapping[str, object], why: str, hint: str) -> None:
    """Raise an `InputError` of the first of these options that was given."""
    from placewright.errors import InputError

    for name, given in options.items():
        if given:
            raise InputError(why, where=name, hint=hint)


@contextmanager
def _text_model(
    console: Console,
    folder: Path,
    on: Path | None,
    context: int | None,
    users: int | None,
    engine: Literal["local", "testbed", "ray"],
    others: Mapping[str, object],
) -> Iterator[TextModel]:
    """A language model on the devices of a cluster, or of this machine.

    `others`: what was given of options that are not for one.
    """
    from placewright.cluster.cluster import Cluster
    from placewright.cluster.files import load_cluster
    from placewright.planning.wings import wings

    refuse(others, "is not for a language model", "leave it out, or --language-model")
    loader = next(each.language for each in wings().values() if each.language is not None)
    cluster = Cluster.detect() if on is None else load_cluster(str(on))
    with ExitStack() as stack:
        with console.meter(f"loading {folder.name}"):
            made = loader().text_model(
                folder, cluster, context=context, users=users or 1, engine=engine
            )
            model = stack.enter_context(made)
        yield model


def _families(
    names: list[str] | None, console: Console, models: Sequence[str] = ()
) -> list[Family]:
    from placewright.errors import InputError, UnknownNameError
    from placewright.requests.serving.digits import digits
    from placewright.requests.serving.families import read_family
    from placewright.requests.serving.models import SUFFIXES

    found = []
    for name in names or ["digits"]:
        if name == "digits":
            console.note("training the digits")
        elif not (Path(name).suffix or Path(name).exists()):
            raise UnknownNameError("family", name, ("digits", "FILE.yaml"))
        elif Path(name).suffix in (".onnx", *SUFFIXES):
            raise InputError(
                "is a model, and a family is a YAML file that names models",
                where=name,
                hint=f"write name: m, and variants: {{v: {{file: {Path(name).name}, accuracy: "
                "0.9}} into FILE.yaml beside it: --family FILE.yaml",
            )
        found.append(digits() if name == "digits" else read_family(name, models))
    return found


def _servers(names: list[str] | None, cluster: Path | None) -> dict[str, float] | Cluster:
    from placewright.errors import InputError

    if cluster is not None:
        from placewright.cluster.files import load_cluster

        if names:
            raise InputError("give --server or --on, not both", where="--server")
        return load_cluster(str(cluster))
    found: dict[str, float] = {}
    for written in names or SERVERS:
        name, _, speed = written.partition(":")
        if not name.strip():
            raise InputError(
                "a server needs a name",
                where="--server",
                by=f"got {written!r}",
                hint="give NAME or NAME:SPEED, as in --server big:1 --server small:0.3",
            )
        if name in found:
            raise InputError(f"there are two servers {name!r}", where="--server")
        try:
            found[name] = float(speed or 1)
        except ValueError:
            raise InputError(f"{written!r} is not NAME:SPEED", where="--server") from None
    return found


def _expected(path: Path) -> RequestProblem:
    """What a problem file expects, or what a log has seen."""
    from placewright.errors import InputError
    from placewright.requests.files import read_problem
    from placewright.requests.serving.measured import requests_of_log

    if path.suffix != ".jsonl":
        return read_problem(path)
    found = requests_of_log(path)
    if found is None:
        raise InputError(
            "the log has no request with a deadline",
            where=str(path),
            hint="name a file that `requests serve --log` has written",
        )
    return found


def _learned(log: Path, families: Sequence[Family]) -> RequestProblem | None:
    """What the log of this server has seen, where it is enough to choose a policy for."""
    from placewright.requests.serving.measured import LEAST_LEARNED, requests_of_log

    found = requests_of_log(log, {family.name for family in families})
    return found if found is not None and len(found.stream) >= LEAST_LEARNED else None


def _policy(
    name: str,
    path: Path | None,
    expected: Path | None = None,
    success_worth: float = 0.0,
) -> PlannedPolicy | AutoPolicy:
    from placewright.errors import InputError
    from placewright.requests.files import read_plan
    from placewright.requests.planners import named_policy
    from placewright.requests.serving.auto import AutoPolicy
    from placewright.requests.serving.server import PlannedPolicy

    if name == "auto" and path is None:
        return AutoPolicy(None if expected is None else _expected(expected), success_worth)
    if expected is not None or success_worth > 0:
        raise InputError(
            "only auto chooses a policy for what is expected",
            where="--expect" if expected is not None else "--success-worth",
            by=f"--plan {path}" if path else f"--policy {name}",
            hint="leave --policy and --plan out",
        )
    if path is None:
        return PlannedPolicy(named_policy(name))
    if name != "auto":
        raise InputError("give --policy or --plan, not both", where="--plan", by=f"{name}, {path}")
    return PlannedPolicy(read_plan(path))
