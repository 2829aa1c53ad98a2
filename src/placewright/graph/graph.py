"""Graph: operators, the tensors between them, a model's modules; Program: how to execute them.

An instruction calls one operation on values. Values are program inputs (parameters, buffers,
optimizer state, model inputs) and instruction results. Every tensor of the Graph is a value of
the same name; tensors of zero bytes whose name starts with ``after:`` carry no value, only an
order (an in-place update runs after every reader of what it updates).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from placewright.errors import InputError, UnknownNameError, check_known
from placewright.io.arguments import checked
from placewright.report.text import counted, plain_table, size

INPUT_MARK = ":"
"""In the name of every program input (``parameter:conv1.weight``) and of no other value."""

NO_DTYPE = "none"
"""Dtype of an output that is ``None``."""

DTYPES = (
    "float32",
    "float64",
    "float16",
    "bfloat16",
    "bool",
    *("int8", "int16", "int32", "int64"),
    *("uint8", "uint16", "uint32", "uint64"),
    *("complex32", "complex64", "complex128"),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
    "float4_e2m1fn_x2",
    *("int1", "int2", "int3", "int4", "int5", "int6", "int7"),
    *("uint1", "uint2", "uint3", "uint4", "uint5", "uint6", "uint7"),
    *("qint8", "qint32", "quint8", "quint4x2", "quint2x4"),
    *("bits8", "bits16", "bits1x8", "bits2x4", "bits4x2"),
    NO_DTYPE,
)
"""Dtypes of values, by their names in PyTorch, the usual ones first."""


def input_name(role: str, key: str) -> str:
    """``parameter:conv1.weight``; the colon distinguishes it from operator names."""
    return f"{role}{INPUT_MARK}{key}"


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape, dtype (``float32``) and strides (elements) of one value."""

    shape: tuple[int, ...]
    dtype: str
    stride: tuple[int, ...] = ()


@checked
@dataclass(frozen=True, slots=True)
class Operator:
    """One step of the computation. Its name is its identity.

    Attributes
    ----------
    kind
        The operation, for example ``aten.convolution.default``.
    flops
        Floating-point operations of matrix products, convolutions, attention and recurrent
        layers in one execution: what PyTorch's counter and published figures count.
    elementwise_flops
        Those of everything else: per element, reductions, sorting, transforms.
    uncounted
        Whether there is no formula for what the operator computes: then both counts are 0 and
        nothing but `bytes_accessed` is known.
    bytes_accessed
        Bytes read and written, for the analytic profile.
    resident_bytes
        Weights, optimizer state and buffers that live where the operator lives.
    phase
        ``forward``, ``backward``, ``optimizer`` or ``""``.
    module
        Path of the module that called it, for example ``layer1.0.conv2``.
    signature
        Operators with equal signatures cost the same; empty if unknown.
    colocation
        Operators that name the same group run on one device; empty for none.
    micro_batch
        The micro-batch of a training step that it works on, from 1; 0 for all of the batch.
    from_weights
        Whether it computes from weights alone, for the next operator that is not one of these.
    """

    name: str
    kind: str
    flops: float = 0.0
    bytes_accessed: float = 0.0
    resident_bytes: int = 0
    phase: str = ""
    module: str = ""
    signature: str = ""
    colocation: str = ""
    outputs: tuple[TensorSpec, ...] = ()
    elementwise_flops: float = 0.0
    uncounted: bool = False
    micro_batch: int = 0
    from_weights: bool = False


@checked
@dataclass(frozen=True, slots=True)
class Tensor:
    """A value that flows from its producer to its consumers (operator names).

    A consumer that is ``from_weights`` waits for the value and does not read it.

    `view_of`: the tensor or the program input (``parameter:conv1.weight``) with which it shares
    memory on its producer's device; empty where its memory is its own.
    """

    name: str
    producer: str
    bytes: int
    consumers: tuple[str, ...]
    view_of: str = ""


@checked
@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """Operators in a topological order and the tensors between them.

    Attributes
    ----------
    program
        How to execute the operators (JSON-like data, see `placewright.graph.graph`),
        ``None`` for graphs that can be planned and not run.
    modules
        The modules of the model, ``None`` where they are not known.
    """

    name: str
    operators: tuple[Operator, ...]
    tensors: tuple[Tensor, ...]
    program: Any = None
    modules: ModuleTree | None = None

    def __post_init__(self) -> None:
        position = {op.name: i for i, op in enumerate(self.operators)}
        if len(position) < len(self.operators):
            twice = Counter(op.name for op in self.operators).most_common(1)[0][0]
            raise InputError(f"operator name {twice!r} is used twice", where=self.name)
        if not self.operators:
            raise InputError("a graph needs at least one operator", where=self.name)
        for tensor in self.tensors:
            self._check_tensor(tensor, position)
        self._check_views({tensor.name: tensor for tensor in self.tensors})
        if self.modules is not None:
            self.modules.check_operators(position, self.name)

    def _check_tensor(self, tensor: Tensor, position: dict[str, int]) -> None:
        where = f"{self.name}: tensor {tensor.name!r}"
        for name in (tensor.producer, *tensor.consumers):
            check_known("operator", name, position, where=where)
        for consumer in tensor.consumers:
            if position[consumer] <= position[tensor.producer]:
                raise InputError(
                    f"{consumer!r} uses it before {tensor.producer!r} makes it",
                    where=where,
                    hint="list operators in topological order; a graph must have no cycle",
                )

    def _check_views(self, tensors: dict[str, Tensor]) -> None:
        for tensor in self.tensors:
            base, where = tensor.view_of, f"{self.name}: tensor {tensor.name!r}"
            if not base or INPUT_MARK in base:
                continue
            check_known("tensor", base, tensors, where=f"{where}: view_of")
            if tensor.producer not in tensors[base].consumers:
                raise InputError(
                    "a view must be made by an operator that reads what it is a view of",
                    where=where,
                    by=f"{tensor.producer!r} does not read {base!r}",
                )

    @property
    def operator_names(self) -> tuple[str, ...]:
        """Names in topological order."""
        return tuple(op.name for op in self.operators)

    @property
    def flops(self) -> float:
        """Floating-point operations of one execution, without those of elements."""
        return sum(op.flops for op in self.operators)

    @property
    def resident_bytes(self) -> int:
        """Bytes that stay in memory between executions."""
        return sum(op.resident_bytes for op in self.operators)

    def __repr__(self) -> str:
        return _graph_table(self)


def _graph_table(graph: Graph) -> str:
    """Sizes, and the kinds of operator that compute most."""
    phases = Counter(op.phase for op in graph.operators if op.phase)
    phase_text = ", ".join(f"{count} {phase}" for phase, count in phases.items())
    moved = sum(t.bytes for t in graph.tensors)
    head = (
        f"graph {graph.name}: {counted(graph.operators, 'operator')}"
        + (f" ({phase_text})" if phase_text else "")
        + f", {counted(graph.tensors, 'tensor')}, {graph.flops / 1e9:.3g} GFLOP, "
        f"{size(graph.resident_bytes)} resident, {size(moved)} of tensors"
    )
    return f"{head}\n{_kind_table(graph)}"


MOST_KINDS = 8
"""Most kinds that `repr` lists."""


def _kind_table(graph: Graph) -> str:
    count: Counter[str] = Counter(op.kind for op in graph.operators)
    flops: Counter[str] = Counter()
    for op in graph.operators:
        flops[op.kind] += op.flops  # type: ignore[assignment]  # Counter sums floats as well
    top = sorted(count, key=lambda kind: (-flops[kind], -count[kind], kind))[:MOST_KINDS]
    rows = [(kind, str(count[kind]), f"{flops[kind] / 1e9:.3g}") for kind in top]
    more = len(count) - len(rows)
    table = plain_table(("kind", "operators", "GFLOP"), rows, " rr")
    return table + (f"\n... and {more} more kinds" if more else "")


@dataclass(frozen=True, slots=True)
class ModuleTensor:
    """A parameter or buffer that a module holds itself, not through a child.

    Attributes
    ----------
    name
        Within its module, for example ``weight``.
    bytes
        Of its values alone: no gradient, no optimizer state.
    dtype
        ``float32``, ``bfloat16``, ``bool``, ...
    buffer
        A buffer, not a parameter.
    same_as
        Qualified name of the first tensor that it is tied to, empty where it is the first or
        the only one.
    operator
        An operator that runs where the tensor lives, empty where none touches it.
    """

    name: str
    bytes: int
    dtype: str = ""
    buffer: bool = False
    same_as: str = ""
    operator: str = ""


@dataclass(frozen=True, slots=True)
class Module:
    """One module by its path; `kind` is the name of its class."""

    path: str
    kind: str = ""
    tensors: tuple[ModuleTensor, ...] = ()

    def key(self, tensor: ModuleTensor) -> str:
        """The qualified name of one of its tensors, for example ``lm_head.weight``."""
        return f"{self.path}.{tensor.name}" if self.path else tensor.name


@dataclass(frozen=True, slots=True)
class ModuleTree:
    """Modules in the order of ``named_modules``: the model itself (path ``""``) comes first.

    A module that is reached by two paths is in the tree twice, the second time with tensors tied
    to the first ones.

    `no_split`: classes whose modules run on one device (``_no_split_modules`` of transformers).
    """

    modules: tuple[Module, ...]
    no_split: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        known: set[str] = set()
        keys: set[str] = set()
        for module in self.modules:
            where = f"module {module.path!r}"
            if module.path in known:
                raise InputError("a module is listed twice", where=where)
            if known and parent_of(module.path) not in known:
                raise InputError("a module stands before its parent", where=where)
            known.add(module.path)
            for tensor in module.tensors:
                self._check(module, tensor, keys)
        if "" not in known:
            raise InputError("the first module must be the model itself, with the path ''")

    def _check(self, module: Module, tensor: ModuleTensor, keys: set[str]) -> None:
        key = module.key(tensor)
        if not tensor.bytes >= 0:
            raise InputError("bytes must be >= 0", where=f"tensor {key!r}", by=f"{tensor.bytes}")
        if key in keys:
            raise InputError("a module holds a tensor twice", where=f"tensor {key!r}")
        if tensor.same_as and tensor.same_as not in keys:
            raise UnknownNameError("tensor", tensor.same_as, keys, where=f"tensor {key!r}: same_as")
        keys.add(key)

    def check_operators(self, operators: Collection[str], where: str) -> None:
        """Raise `UnknownNameError` where a tensor lives with an operator that is not there."""
        for module in self.modules:
            for tensor in module.tensors:
                if tensor.operator and tensor.operator not in operators:
                    place = f"{where}: modules: tensor {module.key(tensor)!r}"
                    raise UnknownNameError("operator", tensor.operator, operators, where=place)


def parent_of(path: str) -> str:
    """``model.layers`` of ``model.layers.3``."""
    return path.rpartition(".")[0]


Role = Literal["parameter", "buffer", "state", "input", "target", "setting", "constant"]

ORDER_ONLY = "after:"
"""Prefix of tensors that carry an order and no value."""

SCRATCH = "scratch:"
"""Prefix of tensors that nobody reads: memory that an operator holds while it runs."""


@dataclass(frozen=True, slots=True)
class Ref:
    """A value used as an argument."""

    name: str


def references(argument: Any) -> Iterator[str]:
    """Names of the values in an argument, however deep, in order, repeats included."""
    if isinstance(argument, Ref):
        yield argument.name
    elif isinstance(argument, tuple | list):
        for part in argument:
            yield from references(part)
    elif isinstance(argument, Mapping):
        for part in argument.values():
            yield from references(part)


@dataclass(frozen=True, slots=True)
class Const:
    """A framework constant: kind ``dtype``, ``device``, ``layout`` or ``memory_format``."""

    kind: str
    value: str


@dataclass(frozen=True, slots=True)
class Instruction:
    """One call.

    Attributes
    ----------
    name
        The operator's name in the Graph.
    target
        The operation, for example ``aten.convolution.default``.
    args, kwargs
        Numbers, strings, booleans, ``None``, `Ref`, `Const`, and lists of these.
    results
        One value name per output, ``""`` for an output that is ``None`` or never used;
        a single output has the operator's name, output k of several is ``name.k``.
    mutates
        Program inputs that the call changes in place.
    random
        Whether it draws from the global random-number generator.
    """

    name: str
    target: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    results: tuple[str, ...]
    mutates: tuple[str, ...] = ()
    random: bool = False

    def reads(self) -> tuple[str, ...]:
        """Names of the values in its arguments, each once, in order."""
        return tuple(dict.fromkeys(references((self.args, self.kwargs))))


@dataclass(frozen=True, slots=True)
class ProgramInput:
    """A value that exists before the first instruction.

    Attributes
    ----------
    role
        Parameters, buffers and state live where the operators of `colocation` run;
        inputs, targets, settings (numbers that are fed with every batch, such as the learning
        rate) and constants are present on every device.
    key
        Qualified name in the model (``layer1.0.conv1.weight``), state as
        ``layer1.0.conv1.weight/exp_avg``, inputs by position.
    """

    name: str
    role: Role
    key: str
    spec: TensorSpec
    colocation: str = ""
    mutated: bool = False


@dataclass(frozen=True, slots=True)
class ProgramOutput:
    """A value that the caller wants: ``loss`` or ``output`` or ``output.0`` ..."""

    name: str
    value: str


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """Instructions in a valid order, one per operator of the Graph and in the same order.

    `optimizer`: ``{"name": "adam", "lr": 0.001, ...}``; empty for inference.
    `constants`: Base64 of the raw row-major bytes of every input whose role is ``constant``.
    `source`: The file that it was read from, empty for one that this process captured. A file's
    may only call operators without effects (`placewright.capturing.program_calls`).
    `settings`: of the process, which operators read when they run, as far as a fresh process has
    others: ``{"default_dtype": "float64"}``.
    """

    inputs: tuple[ProgramInput, ...]
    instructions: tuple[Instruction, ...]
    outputs: tuple[ProgramOutput, ...]
    training: bool = False
    optimizer: Mapping[str, Any] = field(default_factory=dict)
    constants: Mapping[str, str] = field(default_factory=dict)
    source: str = ""
    settings: Mapping[str, str | bool | int] = field(default_factory=dict)

    @property
    def draws(self) -> bool:
        """Whether it draws random numbers."""
        return any(call.random for call in self.instructions)

    @property
    def keeps_state(self) -> bool:
        """Whether a run depends on those before it: on buffers, weights or random numbers."""
        changed = any(item.mutated for item in self.inputs)
        return changed or self.draws
