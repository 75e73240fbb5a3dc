"""A merge of an adapter with a base that ranks share out, one module after the other.

PEFT merges in place, in a process that has the whole model. Here PEFT's own code merges each module
that the adapter changes while the file of weights is written: the module's tensors are read, merged
and passed on, and no two modules are held together. The bits are those of ``merge_and_unload``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from sealtrain.training.devices import compute_device
from sealtrain.training.errors import TrainingDiverged
from sealtrain.training.weight_file import WeightSource

BASE: Final = "base_model.model."
"""Where a model of PEFT has its base."""
Lead = Callable[[Sequence[str]], WeightSource]
"""Has all ranks read tensors that they share out."""


def merges_by_module(model: Any) -> bool:
    """Whether no module that the adapter changes shares a weight with another one.

    PEFT merges into a tied weight under both of its names, so it has to have both modules.

    Args:
        model: A PEFT model whose adapter changes weights.
    """
    changed = tuple(f"{path}." for path, _ in _list_changed_modules(model))
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    tied = (name for each in names.values() if len(each) > 1 for name in each)
    return not any(name.startswith(changed) for name in tied)


class MergeByModule:
    """What a merge publishes, and what it reads for that.

    Attributes:
        merged: The base with the adapter merged in, without memory.
        tensors: Of the PEFT model by name, without memory.
    """

    def __init__(self, outline: Any) -> None:
        """Read nothing yet.

        Args:
            outline: Of the PEFT model, without memory; it is used up.
        """
        self.tensors = outline.state_dict(keep_vars=True)
        self._modules = {path: copy.deepcopy(each) for path, each in _list_changed_modules(outline)}
        self.merged = outline.unload()

    def read_with(self, lead: Lead, order: Sequence[str]) -> WeightSource:
        """A source of tensors of the PEFT model.

        Args:
            lead: ``SharedModel.lead``, called once.
            order: Names of the tensors, as they are read.
        """
        return lead(order)

    def sources(self, published: Mapping[str, Any]) -> dict[str, Any]:
        """Tensors of the PEFT model from which these of ``merged`` are made, by their names."""
        found: dict[str, Any] = {}
        for name in published:
            path = self.module_of(BASE + name)
            if path in self._modules:
                inside = _names_read(self._modules[path])
                found |= {f"{path}.{each}": self.tensors[f"{path}.{each}"] for each in inside}
            else:
                found[path] = self.tensors[path]
        return found

    def module_of(self, name: str) -> str:
        """The changed module that a tensor of the PEFT model belongs to, or the tensor's name."""
        parts = name.split(".")
        paths = (".".join(parts[:length]) for length in range(1, len(parts)))
        return next((path for path in paths if path in self._modules), name)

    def merge(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """Make tensors of ``merged`` from all tensors of some modules.

        Raises:
            TrainingDiverged: A merged weight is not a finite number.
        """
        merged: dict[str, Any] = {}
        inside: dict[str, dict[str, Any]] = {}
        for name, tensor in tensors.items():
            path = self.module_of(name)
            if path in self._modules:
                inside.setdefault(path, {})[name.removeprefix(f"{path}.")] = tensor
            else:
                merged[name.removeprefix(BASE)] = tensor
        for path, own in inside.items():
            made = _merge_module(self._modules[path], own)
            merged |= {f"{path.removeprefix(BASE)}.{name}": each for name, each in made.items()}
        return merged


def _list_changed_modules(model: Any) -> Iterator[tuple[str, Any]]:
    """The outermost modules that PEFT put in place of the base's, by name."""
    before = None
    for path, module in model.named_modules():
        if before is not None and path.startswith(before):
            continue
        if path.startswith(BASE) and (_unloads_itself(module) or hasattr(module, "base_layer")):
            before = f"{path}."
            yield path, module


def _unloads_itself(module: Any) -> bool:
    return hasattr(module, "unload_and_optionally_merge_module")


def _names_read(module: Any) -> list[str]:
    """Tensors of a changed module that its merge reads."""
    names = list(module.state_dict())
    if hasattr(module, "modules_to_save"):  # learned whole: what was there before is dropped
        names = [name for name in names if name.startswith("modules_to_save.")]
    return names


def _merge_module(outline: Any, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """State of the base's module after the merge; PEFT names no tensor that is NaN."""
    without_memory = any(tensor.is_meta for tensor in tensors.values())
    device = "meta" if without_memory else compute_device()
    module = copy.deepcopy(outline)
    # As training left it; of a rank with a GPU, the merge has that GPU's bits.
    held = {name: each.to(device) for name, each in tensors.items()}
    module.load_state_dict(held, assign=True, strict=False)
    merges = not without_memory  # types and shapes stay
    try:
        if _unloads_itself(module):
            base = module.unload_and_optionally_merge_module(
                merge=merges, safe_merge=True, adapter_names=None
            )
        else:
            if merges:
                module.merge(safe_merge=True)
            base = module.get_base_layer()
    except ValueError:
        raise merge_not_finite() from None
    place = "meta" if without_memory else "cpu"
    return {name: tensor.detach().to(place) for name, tensor in base.state_dict().items()}


def merge_not_finite() -> TrainingDiverged:
    """The refusal of a merge whose weights are not finite."""
    return TrainingDiverged("the merge of the adapter and its base is not finite", check="weights")
