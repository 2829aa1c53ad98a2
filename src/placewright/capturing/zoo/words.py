"""Token sequences and the loss of predicting the next one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy


def tokens(batch: int, sequence: int, vocabulary: int) -> Tensor:
    """Shape (batch, sequence), token numbers."""
    return torch.randint(0, vocabulary, (batch, sequence))


def token_loss(output: Any, target: Tensor) -> Tensor:
    """Mean cross-entropy over all tokens; `output` has shape (batch, sequence, vocabulary)."""
    logits = output if isinstance(output, Tensor) else output.logits
    return cross_entropy(logits.flatten(0, 1), target.flatten())
