"""Networks that learned planners share. Imports torch: import this module inside functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from placewright.operators.planners.learned.planner import check_parameters, state_of


class SequencePlacer(nn.Module):
    """Group after group gets a device: an LSTM in both directions, and an LSTM with attention.

    After Mirhoseini et al., ICML 2017 and ICLR 2018: the decoder reads the device of the group
    before and the encoding of its own group; attention over all encodings follows it (Luong), so
    that the probabilities of given devices are computed for all groups at once.
    """

    def __init__(self, width: int, hidden: int, devices: int) -> None:
        super().__init__()
        self.devices = devices
        self.encoder = nn.LSTM(width, hidden, bidirectional=True, batch_first=True)
        self.embedding = nn.Embedding(devices + 1, hidden)
        self.decoder = nn.LSTM(3 * hidden, hidden, batch_first=True)
        self.query = nn.Linear(hidden, 2 * hidden)
        self.head = nn.Linear(3 * hidden, devices)

    def logits(self, features: Tensor, devices: Tensor) -> Tensor:
        """Shape (k, groups, m): of each device, given those of the groups before.

        `features`: Shape (k, groups, width).
        `devices`: Shape (k, groups).
        """
        encoded, _ = self.encoder(features)
        none = torch.full_like(devices[:, :1], self.devices)
        before = self.embedding(torch.cat([none, devices[:, :-1]], dim=1))
        decoded, _ = self.decoder(torch.cat([before, encoded], dim=2))
        return self._scored(decoded, encoded)

    @torch.no_grad()
    def sample(
        self, features: Tensor, allowed: Tensor, noise: float = 0.0, greedy: bool = False
    ) -> Tensor:
        """Shape (k, groups): devices drawn one after another among the allowed ones."""
        encoded, _ = self.encoder(features)
        last = torch.full((len(features), 1), self.devices, dtype=torch.int64)
        state, drawn = None, []
        for g in range(features.shape[1]):
            here = torch.cat([self.embedding(last), encoded[:, g : g + 1]], dim=2)
            decoded, state = self.decoder(here, state)
            scores = self._scored(decoded, encoded)[:, 0]
            scores = scores + noise * torch.randn_like(scores) if noise else scores
            scores = scores.masked_fill(~allowed[:, g], -torch.inf)
            if greedy:
                last = scores.argmax(dim=1, keepdim=True)
            else:
                last = torch.multinomial(scores.softmax(dim=1), 1)
            drawn.append(last)
        return torch.cat(drawn, dim=1)

    def _scored(self, decoded: Tensor, encoded: Tensor) -> Tensor:
        weight = (self.query(decoded) @ encoded.transpose(1, 2)).softmax(dim=2)
        scores: Tensor = self.head(torch.cat([decoded, weight @ encoded], dim=2))
        return scores


def chosen_log(logits: Tensor, allowed: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Log probability of the choices, and entropy, each summed over all but the first axis."""
    masked = logits.masked_fill(~allowed, -1e9)
    logs = masked.log_softmax(dim=-1)
    own = logs.gather(-1, chosen.unsqueeze(-1)).squeeze(-1)
    entropy = -(logs.exp() * logs).sum(dim=-1)
    return own.flatten(1).sum(dim=1), entropy.flatten(1).sum(dim=1)


def stored(networks: Mapping[str, nn.Module]) -> dict[str, Any]:
    """Parameters of networks as arrays, by ``network.parameter``."""
    return {
        f"{name}.{key}": value.numpy(force=True).copy()
        for name, network in networks.items()
        for key, value in network.state_dict().items()
    }


def restore(
    networks: Mapping[str, nn.Module], parameters: dict[str, Any], planner: str = "learned"
) -> None:
    """Put `stored` parameters back; does nothing where there are none.

    Raises `InputError`: a parameter is missing, or of another shape.
    """
    if parameters:
        needed = {name: np.shape(value) for name, value in stored(networks).items()}
        check_parameters(parameters, needed, planner)
    for name, network in networks.items():
        state = {k: torch.tensor(np.array(v)) for k, v in state_of(parameters, name).items()}
        if state:
            network.load_state_dict(state)


def stepped(
    optimiser: torch.optim.Optimizer, loss: Tensor, parameters: Iterable[Tensor], norm: float = 1.0
) -> float:
    """One step down the gradient, its norm clipped; the loss before it."""
    optimiser.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(parameters, norm)
    optimiser.step()
    return float(loss.detach())
