"""What a planner of wing 4 answers: a policy by name, with its parameters."""

from __future__ import annotations

from dataclasses import dataclass

from placewright.errors import InputError
from placewright.io.arguments import AnyNumber, checked

Parameter = AnyNumber | int | str | bool | tuple[AnyNumber, ...] | tuple[str, ...]


@checked
@dataclass(frozen=True, slots=True)
class RequestPlan:
    """Which policy decides, and with which parameters; the stream is decided as it arrives.

    `placewright.requests.policies.start` makes the policy object.

    Attributes
    ----------
    policy
        A name of `placewright.requests.policies.POLICIES`.
    parameters
        Name and value, sorted by name; what is missing has its default.
    seed
        Of the policy's own randomness.
    """

    policy: str
    parameters: tuple[tuple[str, Parameter], ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.policy:
            raise InputError("a plan names a policy", where="plan")
        object.__setattr__(self, "parameters", tuple(sorted(self.parameters)))
