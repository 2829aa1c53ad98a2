"""A language model as a chain of layers: what each holds, keeps per token and computes.

Sizes are numbers of parameters or elements; bytes follow from the number formats (`Format`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from placewright.errors import InputError, UnknownNameError


@dataclass(frozen=True, slots=True)
class Format:
    """A number format of weights.

    Attributes
    ----------
    matrix_bytes
        Per weight of a matrix inside a block.
    other_bytes
        Per weight of embeddings, the head, norms and biases, and per element of caches and of
        what passes between layers: quantised models keep those in 16 bits.
    """

    name: str
    matrix_bytes: float
    other_bytes: float = 2.0


FORMATS = {
    each.name: each
    for each in (
        Format("f32", 4.0, 4.0),
        Format("bf16", 2.0),
        Format("f16", 2.0),
        Format("int8", 1.0),
        Format("int4", 0.5625),
    )
}
"""``int8``: a byte a weight (LLM.int8, arXiv:2208.07339: one scale per row is left out). ``int4``:
half a byte and a scale of 16 bits per 32 weights (Q4_0 of llama.cpp), or of 32 bits per 64 (NF4,
arXiv:2305.14314)."""


@dataclass(frozen=True, slots=True)
class Layer:
    """What is placed whole.

    Attributes
    ----------
    name
        A short name: ``embed``, ``block 3``, ``norm``, ``head``.
    modules
        Qualified names of its modules, as in a device map of accelerate.
    parameters
        All that it holds, tied ones included.
    matrices
        Of these, weights of matrices inside a block: what quantisation packs.
    multiplied
        Parameters that every token multiplies, experts left out: read once per step, and two
        FLOPs each per token.
    experts, expert_count, experts_chosen
        Parameters of all routed experts together, how many there are, and how many a token takes.
    cache_width
        Elements kept per token of a user: keys and values.
    state_width
        Elements kept of a user however long the text is: states of recurrent layers.
    window
        Tokens of a user that are kept at most, 0 for all.
    attention_width
        Heads x (size of a key + size of a value): two FLOPs each per pair of tokens.
    workspace
        Elements alive per token in flight while it computes.
    prompt_share
        Share of `multiplied` that tokens of a prompt multiply: 0 for the head, which only the last
        one needs.
    decodes
        Whether a generated token passes it: not so an encoder or a vision tower.
    tied
        Name of the layer that holds the same parameters: one copy, where both are on one device.
    """

    name: str
    modules: tuple[str, ...]
    parameters: int
    matrices: int = 0
    multiplied: int = 0
    experts: int = 0
    expert_count: int = 0
    experts_chosen: int = 0
    cache_width: int = 0
    state_width: int = 0
    window: int = 0
    attention_width: int = 0
    workspace: int = 0
    prompt_share: float = 1.0
    decodes: bool = True
    tied: str = ""

    def weight_bytes(self, form: Format) -> float:
        """Bytes of all that it holds."""
        packed = self.matrices * form.matrix_bytes
        return packed + (self.parameters - self.matrices) * form.other_bytes

    def read_bytes(self, form: Format, tokens: float) -> float:
        """Bytes of weights that a step of so many tokens reads.

        Experts are taken to be equally likely: tokens take some of them in common.
        """
        read = self.multiplied + self.experts * self._experts_read(tokens)
        each = form.matrix_bytes if self.matrices else form.other_bytes
        return read * each

    def products(self, tokens: float) -> float:
        """Multiplications with weights of so many tokens."""
        share = self.experts_chosen / self.expert_count if self.expert_count else 0.0
        return tokens * (self.multiplied + self.experts * share)

    def _experts_read(self, tokens: float) -> float:
        """Expected share of the experts that are taken by any of the tokens."""
        if not self.expert_count:
            return 0.0
        return float(1.0 - (1.0 - self.experts_chosen / self.expert_count) ** tokens)

    def kept_tokens(self, context: int) -> int:
        """Tokens of a user whose keys and values it keeps."""
        return min(context, self.window) if self.window else context

    def kept(self, context: int) -> int:
        """Elements that it keeps of a user."""
        return self.kept_tokens(context) * self.cache_width + self.state_width


@dataclass(frozen=True, slots=True)
class LanguageModel:
    """Layers in the order in which tokens pass them.

    Attributes
    ----------
    architecture
        ``model_type`` of the configuration.
    hidden
        Elements per token that pass from layer to layer.
    form
        Number format of the weights as published.
    longest
        Tokens that its positions reach, 0 where they have no limit.
    block_name
        Prefix of the modules that are never taken apart: ``model.layers``.
    """

    name: str
    architecture: str
    layers: tuple[Layer, ...]
    hidden: int
    form: str = "bf16"
    longest: int = 0
    block_name: str = ""

    def __post_init__(self) -> None:
        if not self.layers:
            raise InputError("has no layers", where=self.name, hint="give a model of one or more")
        for kind, names in (
            ("layer", [layer.name for layer in self.layers]),
            ("module", [name for layer in self.layers for name in layer.modules]),
        ):
            name, count = Counter(names).most_common(1)[0]
            if count > 1:
                raise InputError(
                    f"{kind} name {name!r} is used twice",
                    where=self.name,
                    by=f"{count} times",
                    hint="give every layer a name of its own",
                )
        known = [layer.name for layer in self.layers]
        for layer in self.layers:
            if layer.tied and layer.tied not in known:
                raise UnknownNameError("layer", layer.tied, known, where=f"{self.name}: tied")

    @property
    def blocks(self) -> tuple[int, ...]:
        """Positions of the transformer blocks."""
        names = enumerate(self.layers)
        return tuple(k for k, layer in names if layer.name.startswith("block "))

    @property
    def executed(self) -> tuple[int, ...]:
        """Positions of all blocks, an encoder's too: layers of `Generator`."""
        names = enumerate(self.layers)
        kinds = ("block ", "encoder ")
        return tuple(k for k, x in names if x.name.startswith(kinds) and x.name[-1].isdigit())

    def parameters(self) -> int:
        """Of the whole model, tied ones once."""
        return sum(layer.parameters for layer in self.layers if not layer.tied) + sum(
            layer.parameters - self._shared(layer) for layer in self.layers if layer.tied
        )

    def _shared(self, layer: Layer) -> int:
        """Parameters that a tied layer has in common with the other."""
        other = next(each for each in self.layers if each.name == layer.tied)
        return min(layer.parameters, other.parameters)
