"""Training state in safetensors layout: tensors as they lie in memory, everything else as JSON.

::

    u64 header length | header | tensors

The header is safetensors' own, so any reader of that format finds the tensors by their path in the
state (``model.layer.weight``). All other values form one JSON text in its metadata: lists as lists,
``{"dict": [[key, value] …]}``, ``{"tuple": […]}`` and ``{"tensor": path}``. A state of few bits,
which torchao makes of several tensors, is ``{"packed": [name, {part: path …}, [setting …]]}`` by a
name of a closed list. A file holds plain data only and cannot name code.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from io import RawIOBase
from typing import TYPE_CHECKING, Any

from sealtrain.sealing.errors import CheckpointRefused
from sealtrain.training.tensor_types import TYPE_NAMES, dtype_name

if TYPE_CHECKING:
    import torch

MAX_HEADER_BYTES = 1 << 30
_MALFORMED = (
    ValueError, LookupError, TypeError, AttributeError, RuntimeError, MemoryError, AssertionError,
    ImportError,
)  # fmt: skip
_PACKED = {
    "OptimState4bit": "torchao.optim.subclass_4bit",
    "OptimState8bit": "torchao.optim.subclass_8bit",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StateLayout:
    """The layout of a state file.

    Attributes:
        header: Its first bytes, up to the tensors.
        tensors: Tensors with their offset after the header, in order, without a gap.
        size: Bytes of all tensors.
    """

    header: bytes
    tensors: tuple[tuple[int, torch.Tensor], ...]
    size: int

    @property
    def header_view(self) -> memoryview:
        """The header as bytes to write."""
        return memoryview(self.header)


def lay_out(state: Mapping[str, Any]) -> StateLayout:
    """Plan the file of ``state``; no tensor is touched.

    Args:
        state: Nested dicts, lists, tuples, numbers, strings, ``None`` and dense tensors.

    Raises:
        CheckpointRefused: The state holds anything else.
    """
    found: dict[str, torch.Tensor] = {}
    document = _outline(state, "", found, {})
    # Wide types first: every tensor then begins at a multiple of its own width.
    order = sorted(found, key=lambda path: -found[path].element_size())
    table: dict[str, Any] = {"__metadata__": {"state": json.dumps(document)}}
    placed, offset = [], 0
    for path in order:
        tensor = found[path]
        end = offset + tensor.numel() * tensor.element_size()
        table[path] = {
            "dtype": dtype_name(tensor.dtype),
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        placed.append((offset, tensor))
        offset = end
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return StateLayout(
        header=len(text).to_bytes(8, "little") + text, tensors=tuple(placed), size=offset
    )


def outline_state(state: Mapping[str, Any]) -> tuple[Any, dict[str, torch.Tensor]]:
    """A state's plain data with ``{"tensor": path}`` for each tensor, and the tensors by path.

    Unlike in ``lay_out``, tied weights are found under each of their paths. A tensor that ranks
    share out counts as one tensor.

    Raises:
        CheckpointRefused: The state holds anything but plain data and dense tensors.
    """
    found: dict[str, torch.Tensor] = {}
    return _outline(state, "", found, None), found


def fill_state(outline: Any, tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Inverse of ``outline_state``.

    Raises:
        CheckpointRefused: The document is no outline, or names a tensor that is not there.
    """
    try:
        filled: dict[str, Any] = _fill_outline(outline, tensors.__getitem__)
    except _MALFORMED as error:
        raise CheckpointRefused(
            "the checkpoint holds no training state", check="checkpoint"
        ) from error
    return filled


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """The memory of a contiguous CPU tensor, byte by byte."""
    import torch

    flat: memoryview = tensor.detach().reshape(-1).view(torch.uint8).numpy().data
    return flat


def read_state(file: RawIOBase, *, wanted: Iterable[str] | None = None) -> dict[str, Any]:
    """Read a state file.

    Args:
        file: At its beginning; every byte it gives has been authenticated.
        wanted: First-level keys to read, all when ``None``. Tensors of others are passed over.

    Raises:
        CheckpointRefused: The file is not a state file.
        SealRefused: Raised by reading ``file``.
    """
    try:
        return _read(file, None if wanted is None else set(wanted))
    except _MALFORMED as error:
        raise CheckpointRefused(
            "the checkpoint holds no training state", check="checkpoint"
        ) from error


def _read(file: RawIOBase, wanted: set[str] | None) -> dict[str, Any]:
    length = int.from_bytes(_exactly(file, 8), "little")
    if length > MAX_HEADER_BYTES:
        raise ValueError("header is too long")
    table = json.loads(_exactly(file, length))
    outline = json.loads(table.pop("__metadata__")["state"])["dict"]
    start = 8 + length

    def tensor(path: str) -> torch.Tensor:
        if path not in read:
            entry = table[path]
            file.seek(start + entry["data_offsets"][0])
            read[path] = _tensor(file, entry)
        return read[path]

    read: dict[str, torch.Tensor] = {}
    return {
        key: _fill_outline(value, tensor)
        for key, value in outline
        if wanted is None or key in wanted
    }


def _tensor(file: RawIOBase, entry: Mapping[str, Any]) -> torch.Tensor:
    import torch

    kinds = {short: getattr(torch, name) for name, short in TYPE_NAMES.items()}
    made = torch.empty(entry["shape"], dtype=kinds[entry["dtype"]])
    begin, end = entry["data_offsets"]
    if end - begin != made.numel() * made.element_size():
        raise ValueError("tensor has another size than its place")
    if made.numel():
        _fill(file, bytes_of(made))
    return made


def _outline(
    value: Any, path: str, found: dict[str, torch.Tensor], seen: dict[Any, str] | None
) -> Any:
    import torch

    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, float):  # a NumPy number
        return float(value)
    if type(value).__name__ in _PACKED:
        return {"packed": _note_parts(value, path, found, seen)}
    if isinstance(value, torch.Tensor):
        return {"tensor": _note_tensor(value, path, found, seen)}
    if isinstance(value, Mapping):
        return {
            "dict": [
                [key, _outline(inner, f"{path}.{key}" if path else str(key), found, seen)]
                for key, inner in value.items()
                if _is_key(key)
            ]
        }
    if isinstance(value, (list, tuple)):
        items = [_outline(item, f"{path}.{at}", found, seen) for at, item in enumerate(value)]
        return items if isinstance(value, list) else {"tuple": items}
    raise _not_plain(value)


def _note_parts(
    value: Any, path: str, found: dict[str, torch.Tensor], seen: dict[Any, str] | None
) -> list[Any]:
    import torch

    names, settings = value.__tensor_flatten__()
    parts = {
        name: _note_tensor(getattr(value, name), f"{path}.{name}", found, seen) for name in names
    }
    kept = [
        str(setting).removeprefix("torch.") if isinstance(setting, torch.dtype) else setting
        for setting in settings
    ]
    return [type(value).__name__, parts, [list(s) if isinstance(s, tuple) else s for s in kept]]


def _unpack_state(
    name: str, parts: Mapping[str, torch.Tensor], settings: list[Any]
) -> torch.Tensor:
    """A state of few bits, of one of the classes that a file may name."""
    from importlib import import_module

    import torch

    kind: Any = getattr(import_module(_PACKED[name]), name)
    if set(parts) != set(kind.tensor_attrs):
        raise ValueError("parts of another state")
    made: torch.Tensor = kind.__tensor_unflatten__(
        dict(parts),
        [
            getattr(torch, setting)
            if isinstance(setting, str) and setting in TYPE_NAMES
            else torch.Size(setting)
            if isinstance(setting, list)
            else setting
            for setting in settings
        ],
    )
    return made


def _note_tensor(
    tensor: torch.Tensor, path: str, found: dict[str, torch.Tensor], seen: dict[Any, str] | None
) -> str:
    import torch

    name = str(tensor.dtype).removeprefix("torch.")
    if name not in TYPE_NAMES or tensor.layout != torch.strided:
        raise _not_plain(tensor)
    while path in found or path == "__metadata__":
        path += "_"
    if seen is None:
        found[path] = tensor
        return path
    # Tied weights are one tensor under several names.
    place = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), tensor.device)
    if tensor.numel() and place in seen:
        return seen[place]
    seen[place] = path
    found[path] = tensor
    return path


def _fill_outline(outline: Any, tensor: Callable[[str], torch.Tensor]) -> Any:
    if isinstance(outline, list):
        return [_fill_outline(part, tensor) for part in outline]
    if not isinstance(outline, dict):
        return outline
    ((kind, inner),) = outline.items()
    if kind == "tensor":
        return tensor(inner)
    if kind == "tuple":
        return tuple(_fill_outline(part, tensor) for part in inner)
    if kind == "packed":
        name, parts, settings = inner
        return _unpack_state(name, {part: tensor(path) for part, path in parts.items()}, settings)
    if kind == "dict":
        return {key: _fill_outline(part, tensor) for key, part in inner}
    raise ValueError("unknown kind of value")


def _is_key(key: object) -> bool:
    if type(key) not in (str, int):
        raise _not_plain(key)
    return True


def _exactly(file: RawIOBase, length: int) -> bytes:
    data = bytearray(length)
    _fill(file, memoryview(data))
    return bytes(data)


def _fill(file: RawIOBase, view: memoryview) -> None:
    done = 0
    while done < len(view):
        count = file.readinto(view[done:])
        if not count:
            raise ValueError("file ends too early")
        done += count


def _not_plain(value: object) -> CheckpointRefused:
    return CheckpointRefused(
        "the training state holds an object that is no plain data",
        check="checkpoint",
        got=type(value).__name__,
        expected="dicts, lists, numbers, strings and dense tensors",
    )
