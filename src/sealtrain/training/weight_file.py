"""A model's file of weights, made one tensor after the other and never held together.

A file of safetensors begins with names, types and shapes, which are known without a single weight.
So rank 0 writes the header first, then gathers each tensor, passes its bytes on and drops them. The
bytes are those of ``safetensors.torch.save``.

A library may publish other tensors than it trains: several as one, or one as several. Those are
converted in groups, of which one is held at a time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Protocol

from sealtrain.errors import UsageError
from sealtrain.training.tensor_types import TYPE_NAMES, dtype_name

if TYPE_CHECKING:
    import torch

BLOCK_BYTES: Final = 16 << 20
"""Most bytes of a tensor that are on their way at once."""

Convert = Callable[[dict[str, Any]], Mapping[str, Any]]
"""From tensors under the names of training to those that are published."""


class WeightSource(Protocol):
    """Tensors of a trained model, wherever they lie."""

    def read(self, name: str) -> Iterator[torch.Tensor]:
        """A tensor's elements in C order: flat blocks of at most ``BLOCK_BYTES`` on the CPU.

        Where ranks share the tensor out, all of them take part and rank 0 alone gets blocks.
        """


class HeldWeights:
    """``WeightSource`` of tensors that this process has."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors = tensors

    def read(self, name: str) -> Iterator[torch.Tensor]:
        """See ``WeightSource``."""
        return blocks_of(self._tensors[name])


def blocks_of(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """A tensor's elements in C order, at most ``BLOCK_BYTES`` of them at a time, on the CPU."""
    flat = tensor.detach().contiguous().view(-1)
    step = max(1, BLOCK_BYTES // flat.element_size())
    for at in range(0, len(flat), step):
        yield flat[at : at + step].to("cpu")


def bytes_of(block: torch.Tensor) -> memoryview:
    """A block's bytes, where they lie."""
    import torch

    flat: memoryview = block.contiguous().view(torch.uint8).numpy().data
    return flat


@dataclass(frozen=True, slots=True, kw_only=True)
class _TensorGroup:
    """Tensors of training that become tensors of the file together.

    Attributes:
        sources: Their names, with type and shape.
        convert: Makes the published ones; ``None`` where one tensor is published as it is.
    """

    sources: Mapping[str, Any]
    convert: Convert | None = None

    def read(self, source: WeightSource) -> dict[str, torch.Tensor]:
        """What the group publishes, whole."""
        import torch

        if self.convert is None:
            raise AssertionError("a tensor that is published as it is goes by in blocks")
        held: dict[str, torch.Tensor] = {}
        for name, outline in self.sources.items():
            whole = torch.empty(outline.shape, dtype=outline.dtype)
            flat, at = whole.view(-1), 0
            for block in source.read(name):
                _require_fit(name, at + len(block) <= len(flat) and block.dtype == flat.dtype)
                flat[at : at + len(block)] = block
                at += len(block)
            _require_fit(name, at == len(flat))
            held[name] = whole
        return {name: tensor.contiguous() for name, tensor in self.convert(held).items()}


class WeightFile:
    """A file of weights.

    Attributes:
        name: Of the file.
        size: Its bytes.
        order: Names of the tensors in the order in which ``blocks`` reads them.
    """

    def __init__(
        self,
        name: str,
        outlines: Mapping[str, torch.Tensor],
        *,
        convert: Convert | None = None,
        unit_of: Callable[[str], str] | None = None,
    ) -> None:
        """Lay the file out.

        Args:
            name: Of the file.
            outlines: Tensors by the names under which a source reads them, also without memory.
            convert: What is published in place of them; ``None`` for the same. It is tried on
                tensors without memory.
            unit_of: Names what a tensor is converted with; ``None`` where no part of the model
                smaller than a layer is known.
        """
        self.name = name
        by_name = {each: _without_memory(tensor) for each, tensor in outlines.items()}
        groups = _plain(by_name) if convert is None else _group_tensors(by_name, convert, unit_of)
        self._tensors = dict(sorted(groups.items(), key=_as_safetensors_orders))
        self._header = _header({each: tensor for each, (tensor, _) in self._tensors.items()})
        self.size = len(self._header) + sum(_size(tensor) for tensor, _ in self._tensors.values())
        self.order = tuple(chain.from_iterable(group.sources for group in self._groups()))

    def _groups(self) -> Iterator[_TensorGroup]:
        """Each group as ``blocks`` reads it: again where another one came between."""
        before: _TensorGroup | None = None
        for _, group in self._tensors.values():
            if group is not before:
                yield group
            before = group

    def blocks(self, source: WeightSource) -> Iterator[memoryview]:
        """The file's bytes, of which each block is gone with the next.

        Args:
            source: Reads the tensors, in ``order``.

        Raises:
            UsageError: A tensor has another type or shape than was laid out.
        """
        yield memoryview(self._header)
        held: dict[str, torch.Tensor] = {}
        before: _TensorGroup | None = None
        for name, (outline, group) in self._tensors.items():
            left = _size(outline)
            if group.convert is None:
                blocks: Iterable[torch.Tensor] = source.read(next(iter(group.sources)))
            else:
                if group is not before:
                    held.clear()  # before the next are read
                    held.update(group.read(source))
                whole = held.pop(name)
                _require_fit(name, whole.shape == outline.shape)
                # A block that still lies somewhere would hold the whole.
                blocks = (block.clone() for block in blocks_of(whole))
                del whole
            before = group
            for block in blocks:
                left -= block.numel() * block.element_size()
                _require_fit(name, left >= 0 and block.dtype == outline.dtype)
                yield bytes_of(block)
            _require_fit(name, left == 0)

    def to_bytes(self, source: WeightSource) -> bytes:
        """The whole file."""
        return b"".join(self.blocks(source))


def _without_memory(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")


def _size(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _require_fit(name: str, fits: bool) -> None:
    if not fits:
        raise UsageError(
            "the ranks of this training did not end with one model",
            check="ranks",
            got=f"another type or shape of {name[:200]}",
            expected="the tensors that the model was trained with",
            hint="resume from the last checkpoint: sealtrain resume",
        )


_TensorGroups = dict[str, tuple[Any, _TensorGroup]]
"""Published name → type and shape, and the group that makes it."""


def _plain(outlines: Mapping[str, Any]) -> _TensorGroups:
    return {
        name: (tensor, _TensorGroup(sources={name: tensor})) for name, tensor in outlines.items()
    }


def _group_tensors(
    outlines: Mapping[str, Any], convert: Convert, unit_of: Callable[[str], str] | None
) -> _TensorGroups:
    """The smallest groups that publish what all tensors together do."""
    whole = dict(convert(dict(outlines)))
    names = {id(tensor): name for name, tensor in outlines.items()}
    if all(id(tensor) in names for tensor in whole.values()):  # renamed at most
        return {
            name: (tensor, _TensorGroup(sources={names[id(tensor)]: tensor}))
            for name, tensor in whole.items()
        }
    keys: list[Callable[[str], str]] = [] if unit_of is None else [unit_of]
    for key in (*keys, _layer_of, _whole_model):
        parts: dict[str, dict[str, Any]] = {}
        for name, tensor in outlines.items():
            parts.setdefault(key(name), {})[name] = tensor
        found: _TensorGroups = {}
        for part in parts.values():
            made = convert(dict(part))
            renamed = [id(each) for each in made.values()] == [id(each) for each in part.values()]
            changes = len(part) > 1 or not renamed
            group = _TensorGroup(sources=part, convert=convert if changes else None)
            found |= {name: (tensor, group) for name, tensor in made.items()}
        if _describe_groups(found) == {name: _form(tensor) for name, tensor in whole.items()}:
            return found
    raise AssertionError("all tensors together publish what all tensors together do")


def _whole_model(_name: str) -> str:
    """All tensors together."""
    return ""


def _layer_of(name: str) -> str:
    """A name as far as its first number: the layer."""
    parts = name.split(".")
    numbers = [at for at, part in enumerate(parts) if part.isdigit()]
    return ".".join(parts[: numbers[0] + 1]) if numbers else name


def _describe_groups(groups: _TensorGroups) -> dict[str, Any]:
    return {name: _form(tensor) for name, (tensor, _) in groups.items()}


def _form(tensor: Any) -> tuple[Any, ...]:
    return tensor.dtype, tuple(tensor.shape)


_ORDER: Final = tuple(TYPE_NAMES.values())


def _as_safetensors_orders(entry: tuple[str, tuple[Any, _TensorGroup]]) -> tuple[int, str]:
    name, (tensor, _) = entry
    return _ORDER.index(dtype_name(tensor.dtype)), name


def _header(tensors: Mapping[str, torch.Tensor]) -> bytes:
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    begin = 0
    for name, tensor in tensors.items():
        end = begin + _size(tensor)
        entries[name] = {
            "dtype": dtype_name(tensor.dtype),
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
        begin = end
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def read_order(source: WeightSource, order: Sequence[str]) -> None:
    """Take part in reading tensors that another rank writes into a file."""
    for name in order:
        for _ in source.read(name):
            raise AssertionError("rank 0 alone gets blocks")
