"""What a wing that runs language models gives to a server of text, which is of another wing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from placewright.cluster.cluster import Cluster


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen, and when a text ends; ``None`` is what the model's folder says.

    Attributes
    ----------
    new_tokens
        At most so many.
    temperature
        0 takes the likeliest token.
    top_p
        Of the likeliest tokens, those that have this probability together.
    seed
        The same seed gives the same tokens; without one they differ.
    stop
        Texts before which the text ends.
    """

    new_tokens: int
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a text.

    `new_tokens`: that were generated; `reason`: ``stop`` at the model's own end or a text of
    `Sampling.stop`, ``length`` at `Sampling.new_tokens`.
    """

    new_tokens: int
    reason: Literal["stop", "length"]


class TextModel(Protocol):
    """A language model that several users may ask at the same time, each in a thread."""

    @property
    def name(self) -> str:
        """What clients call it."""
        ...

    @property
    def context(self) -> int:
        """Tokens of a prompt and its answer together, at most."""
        ...

    @property
    def users(self) -> int:
        """Texts that may be generated at the same time."""
        ...

    def prompt(self, given: str | Sequence[int]) -> list[int]:
        """Tokens of a prompt; `InputError`: there is no tokenizer, or no such token."""
        ...

    def chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Tokens of a conversation; `InputError`: there is no template for one."""
        ...

    def generate(
        self,
        tokens: Sequence[int],
        how: Sampling,
        put: Callable[[str], object],
        left: Callable[[], bool],
    ) -> Ended:
        """Generate a text.

        Parameters
        ----------
        put
            Called with each piece of the text when it is known.
        left
            Whether nobody waits for the text any more, which ends it.

        Raises
        ------
        RunError
            A worker died.
        """
        ...

    def as_json(self) -> dict[str, Any]:
        """Which device holds what, and the predicted times, as data."""
        ...


class LanguageModels(Protocol):
    """Language models on the devices of a cluster."""

    def text_model(
        self,
        folder: Path,
        cluster: Cluster,
        *,
        context: int | None = None,
        users: int = 1,
        engine: Literal["local", "testbed", "torchrun", "ray"] = "local",
    ) -> AbstractContextManager[TextModel]:
        """Load a model on workers for the length of the block.

        Parameters
        ----------
        folder
            With ``config.json`` and safetensors.
        context
            Tokens that are kept of each user; by default as many as fit.
        """
        ...
