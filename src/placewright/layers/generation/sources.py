"""Where the weights of a language model come from: this process, a folder, random numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch
from safetensors import safe_open
from torch import Tensor

from placewright.errors import InputError, UnsupportedError


class Loaded:
    """A model in this process.

    Raises `UnsupportedError`: it is none of transformers.
    """

    files: tuple[str, ...] = ()

    def __init__(self, model: Any) -> None:
        if not hasattr(model, "generate") or not hasattr(model, "get_decoder"):
            raise UnsupportedError(
                "tokens come from decoder-only language models of transformers",
                where=type(model).__name__,
                hint="give one, or its folder",
            )
        self._state: Mapping[str, Tensor] = model.state_dict()
        self._tied = dict(getattr(model, "all_tied_weights_keys", None) or {})
        self._generation = model.generation_config
        self.config = model.config.to_json_string(use_diff=False)
        self.dtype = str(model.dtype).removeprefix("torch.")
        self.attention = model.config._attn_implementation or "eager"
        self.nbytes = sum(each.nbytes for each in self._state.values())

    def generation_config(self, shell: Any) -> Any:
        """What `generate` does where an option is not given."""
        return self._generation

    def tensors(self, names: Sequence[str]) -> dict[str, Tensor]:
        """Those that a stage needs; of tied ones one."""
        copies = {n for n in names if self._tied.get(n, n) != n and self._tied[n] in names}
        own = [n for n in names if n in self._state and n not in copies]
        return {n: self._state[n].detach().contiguous().clone() for n in own}


class Checkpoint:
    """The folder of a model with its ``config.json`` and safetensors.

    Raises `InputError`: one of them is not there.
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)
        files = sorted(self._folder.glob("*.safetensors"))
        config = self._folder / "config.json"
        if not config.is_file() or not files:
            missing = "*.safetensors" if config.is_file() else "config.json"
            hint = "give the folder that save_pretrained has written"
            raise InputError(
                "is no model of transformers", where=str(folder), by=missing, hint=hint
            )
        from transformers import AutoConfig

        found = AutoConfig.from_pretrained(self._folder)
        self.config = found.to_json_string(use_diff=False)
        self.dtype = str(found.dtype or torch.float32).removeprefix("torch.")
        self.attention = ""
        self.files = tuple(str(each.resolve()) for each in files)
        self.nbytes = sum(each.stat().st_size for each in files)

    def generation_config(self, shell: Any) -> Any:
        """What its folder says of `generate`."""
        from transformers import GenerationConfig

        if (self._folder / "generation_config.json").is_file():
            return GenerationConfig.from_pretrained(self._folder)
        return shell.generation_config

    def tensors(self, names: Sequence[str]) -> dict[str, Tensor]:
        """Those that a stage needs."""
        found: dict[str, Tensor] = {}
        for name in self.files:
            with safe_open(name, "pt") as file:
                for key in set(names).intersection(file.keys()):
                    found[key] = file.get_tensor(key)
        return found


class RandomWeights:
    """A model without weights: workers get their stages by `Generator.give`.

    Parameters
    ----------
    config
        Of transformers, as JSON.
    dtype
        Of the weights: ``float32``, ``bfloat16``, ``float16``.
    """

    files: tuple[str, ...] = ()

    def __init__(self, config: str, dtype: str, nbytes: float = 0.0) -> None:
        self.config, self.dtype, self.attention, self.nbytes = config, dtype, "", nbytes

    def generation_config(self, shell: Any) -> Any:
        """That of its architecture."""
        return shell.generation_config


Source: TypeAlias = Loaded | Checkpoint | RandomWeights


def source_of(model: Any) -> Source:
    """That of a model, or of its folder."""
    if isinstance(model, RandomWeights):
        return model
    return Checkpoint(model) if isinstance(model, str | Path) else Loaded(model)
