"""Fingerprints of a model state under fresh keys, one for each boundary (spec/travelling.md §4).

A state is read in blocks of ``PIECE_BYTES``, and each block has a tag under the key of the last
measurement. Changed blocks are found by reading: a tensor that the program had no leave to change
is compared block by block under the old key, whatever any list of changes says. There is no such
list, so nothing can be left out of it.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, Protocol

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from sealtrain.base.canonical import parse_json
from sealtrain.base.fingerprint import PIECE_BYTES, pieces
from sealtrain.errors import TripBroken
from sealtrain.recipe.errors import ModelInvalid
from sealtrain_together.travelling.states import STATE_ENTRY

if TYPE_CHECKING:
    import torch

_NAMES: Final = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16",
    "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip
_MAX_HEADER_BYTES = 64 << 20
_WINDOW_BYTES: Final = 8 * PIECE_BYTES


class Measurable(Protocol):
    """A program with a state."""

    @property
    def steps(self) -> int:
        """Optimizer steps so far."""

    def tensors(self) -> list[tuple[str, torch.Tensor]]:
        """Of the state, by name: parameters and optimizer."""

    def list_fixed(self) -> list[tuple[str, torch.Tensor]]:
        """By name, those that training never changes, in the state or beside it."""


class StateMeter:
    """Measures the state of one program and remembers the tags of every block.

    Args:
        program: Whose state it is.
    """

    def __init__(self, program: Measurable) -> None:
        self._program = program
        self._key = b""
        self._tags: dict[str, list[bytes]] = {}
        self._fixed: set[str] = set()
        self._reader = _TensorReader()

    def take(self, key: bytes) -> str:
        """Measure at a boundary, after which other tensors than ``list_fixed`` may have changed.

        Args:
            key: 32 bytes that no other measurement used.

        Returns:
            The fingerprint of the state, hex.

        Raises:
            TripBroken: A tensor that training never changes has changed since the last measurement.
        """
        fixed = self._program.list_fixed()
        if self._tags:
            self._compare(fixed, self._fixed)
        tags: dict[str, list[bytes]] = {}
        digest = _begin(self._program.steps)
        mac, place = AESGCM(key), 0
        for name, tensor in self._program.tensors():
            tags[name] = _tags_of(mac, place, self._reader.windows(tensor))
            place += tensor.nbytes
            _take(digest, name, _name_of(tensor), tensor.shape, tags[name])
        for name, tensor in fixed:
            if name not in tags:
                tags[name] = _tags_of(mac, place, self._reader.windows(tensor))
                place += tensor.nbytes
        self._key, self._tags, self._fixed = key, tags, {name for name, _ in fixed}
        return str(digest.hexdigest())

    def check_unchanged(self) -> None:
        """Read everything again under the key of the last measurement.

        Raises:
            TripBroken: A block is not as it was then; the error names its tensor.
        """
        everything = dict(self._program.tensors()) | dict(self._program.list_fixed())
        self._compare(everything.items(), set(self._tags))

    def _compare(self, tensors: Iterable[tuple[str, torch.Tensor]], names: set[str]) -> None:
        found = dict(tensors)
        for name in sorted(found.keys() ^ names):
            raise _refuse_changed(name)
        mac, place = AESGCM(self._key), 0
        for name, tags in self._tags.items():  # in the order of their places
            if name in found and _tags_of(mac, place, self._reader.windows(found[name])) != tags:
                raise _refuse_changed(name)
            place += sum(int.from_bytes(tag[16:]) for tag in tags)


class _TensorReader:
    """Reads tensors' bytes where they lie, or out of a GPU.

    From a GPU they come through two halves of page-locked memory: one fills while the other is
    read, at the rate of the bus. Windows hold whole pieces, so tags do not depend on them.
    """

    def __init__(self) -> None:
        self._halves: list[_Half] = []

    def windows(self, tensor: torch.Tensor) -> Iterator[memoryview]:
        """The bytes in order; each window holds until the next is asked for."""
        import torch

        flat = tensor.detach().contiguous().view(-1).view(torch.uint8)
        if flat.device.type != "cuda":
            yield memoryview(flat.cpu().numpy().data)
            return
        if not self._halves:
            cuda: Any = torch.cuda
            stream = cuda.Stream(flat.device)
            self._halves = [_Half(stream), _Half(stream)]
        filling = None
        for part, half in zip(torch.split(flat, _WINDOW_BYTES), itertools.cycle(self._halves)):
            half.fill(part)
            if filling is not None:
                yield filling.read()
            filling = half
        if filling is not None:
            yield filling.read()


class _Half:
    """Page-locked memory that a GPU writes into while this process reads elsewhere.

    Args:
        stream: Of copies; it follows what the GPU computes when a copy is asked for.
    """

    def __init__(self, stream: torch.cuda.Stream) -> None:
        import torch

        cuda: Any = torch.cuda
        self._bytes = torch.empty(_WINDOW_BYTES, dtype=torch.uint8, pin_memory=True)
        self._stream = stream
        self._there = cuda.Event()
        self._size = 0

    def fill(self, part: torch.Tensor) -> None:
        import torch

        self._size = part.numel()
        self._stream.wait_stream(torch.cuda.current_stream(part.device))
        with torch.cuda.stream(self._stream):
            self._bytes[: self._size].copy_(part, non_blocking=True)
            self._there.record(self._stream)

    def read(self) -> memoryview:
        self._there.synchronize()
        return memoryview(self._bytes[: self._size].numpy().data)


def fingerprint_of_bytes(state: bytes | memoryview, key: bytes) -> str:
    """As ``StateMeter.take``, of a state as safetensors bytes.

    Raises:
        ModelInvalid: They are no model state.
    """
    view = memoryview(state)
    try:
        size = int.from_bytes(view[:8], "little")
        header: dict[str, Any] = json.loads(bytes(view[8 : 8 + min(size, _MAX_HEADER_BYTES)]))
        kept: Any = parse_json(header.pop("__metadata__")[STATE_ENTRY].encode())
        digest = _begin(int(kept["step"]))
        mac, place = AESGCM(key), 0
        for name, tensor in sorted(header.items()):
            begin, end = tensor["data_offsets"]
            data = view[8 + size + begin : 8 + size + end]
            if len(data) != end - begin:
                raise ModelInvalid("the model state is cut off", check="model")
            _take(digest, name, tensor["dtype"], tensor["shape"], _tags_of(mac, place, [data]))
            place += len(data)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ModelInvalid("the model state is not a safetensors file", check="model") from error
    return str(digest.hexdigest())


def _begin(steps: int) -> Any:
    return hashlib.sha256(f"step {steps}\n".encode())


def _take(digest: Any, name: str, dtype: str, shape: Iterable[int], tags: list[bytes]) -> None:
    digest.update(f"{name} {dtype} [{','.join(map(str, shape))}]\n".encode())
    for tag in tags:
        digest.update(tag[:16])


def _tags_of(mac: AESGCM, place: int, windows: Iterable[memoryview]) -> list[bytes]:
    """The tag of each block, and behind it its length (4 bytes)."""
    tags = []
    for data in windows:
        tags += [
            mac.encrypt((place + start).to_bytes(12, "big"), b"", data[start : start + length])
            + length.to_bytes(4)
            for start, length in pieces(len(data))
        ]
        place += len(data)
    return tags


def _name_of(tensor: torch.Tensor) -> str:
    """Of its type, as safetensors writes it."""
    return _NAMES[str(tensor.dtype).removeprefix("torch.")]


def _refuse_changed(name: str) -> TripBroken:
    return TripBroken(
        "the model state changed and nothing had leave to change it",
        check="model",
        got=name,
        hint="do not trust this accelerator; go on from the last sealed state",
    )
