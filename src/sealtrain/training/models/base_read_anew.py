"""A base that training held in four bits, read again in full precision while it is merged.

The folder of the base is read a tensor at a time, beside the adapter that ranks share out, so the
merge never takes the whole base. This fits a base whose files have the model's own tensors: where a
library renames or joins them as it loads them, it has to load them all.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sealtrain.training.finite import require_finite_weights
from sealtrain.training.model_files import plan_files, publishes_as_held
from sealtrain.training.models.merge_by_module import BASE, Lead, MergeByModule, merges_by_module
from sealtrain.training.weight_file import BLOCK_BYTES, WeightSource

if TYPE_CHECKING:
    import torch

_WEIGHTS: Final = "model.safetensors"
_INDEX: Final = "model.safetensors.index.json"


class MergeWithBase(MergeByModule):
    """As ``MergeByModule``, of a base that is read from its folder."""

    def __init__(self, outline: Any, files: Mapping[str, Path], learned: frozenset[str]) -> None:
        """Read nothing yet.

        Args:
            outline: Of the PEFT model over the base in full precision; it is used up.
            files: Where the folder has each tensor of the base.
            learned: Names in the PEFT model of what the ranks have learned.
        """
        super().__init__(outline)
        self._files, self._learned = files, learned

    def read_with(self, lead: Lead, order: Sequence[str]) -> WeightSource:
        """As ``MergeByModule.read_with``; rank 0 alone reads what the folder has."""
        return _FolderAndRanks(self, lead([name for name in order if name in self._learned]))

    def place_of(self, name: str) -> tuple[Path, str] | None:
        """File and name of a tensor of the PEFT model in the folder; ``None`` where none has it."""
        plain = name.removeprefix(BASE).replace(".base_layer.", ".")
        file = None if name in self._learned else self._files.get(plain)
        return None if file is None else (file, plain)

    def is_whole(self) -> bool:
        """Whether ranks and folder have all that the merge reads, in the model's shapes."""
        needed = plan_files(self.merged, None, self).weights.order
        return all(name in self._learned or self._fits(name) for name in needed)

    def _fits(self, name: str) -> bool:
        from safetensors import safe_open

        place = self.place_of(name)
        if place is None:
            return False
        with safe_open(place[0], "pt") as file:
            return list(file.get_slice(place[1]).get_shape()) == list(self.tensors[name].shape)


class _FolderAndRanks:
    """``WeightSource`` of a base in a folder and of what ranks have learned beside it."""

    def __init__(self, merge: MergeWithBase, learned: WeightSource) -> None:
        self._merge, self._learned = merge, learned

    def read(self, name: str) -> Iterator[torch.Tensor]:
        """See ``WeightSource``."""
        from safetensors import safe_open

        dtype = self._merge.tensors[name].dtype
        place = self._merge.place_of(name)
        if place is None:
            for block in self._learned.read(name):
                yield block.to(dtype)
            return
        with safe_open(place[0], "pt") as file:
            rows = file.get_slice(place[1])
            shape = rows.get_shape()
            if not shape:
                yield file.get_tensor(place[1]).to(dtype).view(-1)
                return
            row = dtype.itemsize
            for length in shape[1:]:
                row *= length
            step = max(1, BLOCK_BYTES // max(1, row))
            for at in range(0, shape[0], step):
                block = rows[at : at + step].to(dtype).contiguous().view(-1)
                require_finite_weights({place[1]: block})
                yield block


def merge_with_base(model: Any, folder: Path, dtype: str) -> MergeWithBase | None:
    """The merge of an adapter with the base in a folder; ``None`` where it has to be loaded whole.

    Args:
        model: The trained PEFT model or its outline; it is left as it is.
        folder: Of the base.
        dtype: ``float32`` or ``bfloat16``, the type of the weights that are read.
    """
    import torch
    from peft import PeftModel

    trained = model.get_base_model()
    files = _files_of(folder)
    # Of some models the library loads a few tensors in another type.
    if files is None or getattr(trained, "_keep_in_fp32_modules", None):
        return None
    config = deepcopy(trained.config)
    vars(config).pop("quantization_config", None)
    with torch.device("meta"):
        base = type(trained)(config).to(getattr(torch, dtype))
        base.generation_config = deepcopy(trained.generation_config)
        outline = PeftModel(base, deepcopy(model.active_peft_config), low_cpu_mem_usage=True)
    if not merges_by_module(outline) or not publishes_as_held(base):
        return None
    named = model.named_parameters(remove_duplicate=False)
    learned = frozenset(name for name, each in named if each.requires_grad)
    merge = MergeWithBase(outline, files, learned)
    return merge if merge.is_whole() else None


def _files_of(folder: Path) -> dict[str, Path] | None:
    """Where a folder has each tensor, as its library finds it; ``None`` where that is not known."""
    from safetensors import safe_open

    whole, index = folder / _WEIGHTS, folder / _INDEX
    if whole.is_file():
        with safe_open(whole, "pt") as file:
            return dict.fromkeys(file.keys(), whole)
    if not index.is_file():
        return None
    listed = json.loads(index.read_text("utf-8")).get("weight_map", {})
    if any(Path(file).name != file for file in listed.values()):
        return None  # a file elsewhere, which the lock does not name
    return {name: folder / file for name, file in listed.items()}
