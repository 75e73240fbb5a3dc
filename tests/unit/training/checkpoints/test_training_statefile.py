from __future__ import annotations

import io
import json
import math
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from carrying import carries
from collecting import COLLECTING

from sealtrain.sealing.errors import CheckpointRefused
from sealtrain.training.checkpoints.statefile import bytes_of, lay_out, read_state

if not COLLECTING:
    import torch
    from safetensors.torch import load as safetensors_load

    STATE: dict[str, Any] = {
        "model": {"weight": torch.arange(6.0).reshape(2, 3), "none": torch.empty(0, 4)},
        "optimizer": {
            "state": {0: {"step": torch.tensor(3.0)}, 1: {}},
            "param_groups": [{"betas": (0.9, 0.999), "lr": 1e-3, "params": [0, 1]}],
        },
        "flags": [True, None, "text", 1 << 70, -0.1, math.inf],
    }


def file_of(state: dict[str, Any]) -> io.BytesIO:
    layout = lay_out(state)
    parts = [bytes_of(tensor.contiguous()) for _, tensor in layout.tensors]
    return io.BytesIO(b"".join([layout.header, *parts]))


def same(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        return left.dtype == right.dtype and torch.equal(left, right)
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return type(left) is type(right) and len(left) == len(right) and all(map(same, left, right))
    return bool(left == right) and type(left) is type(right)


def test_a_state_comes_back_in_its_types() -> None:
    assert same(read_state(file_of(STATE)), STATE)


@pytest.mark.parametrize(
    "name",
    [
        "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "complex64",
        "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool",
    ],
)  # fmt: skip
def test_every_kind_of_tensor_keeps_its_bits(name: str) -> None:
    kind = getattr(torch, name)
    bits = torch.randint(0, 2 if kind is torch.bool else 256, (5 * kind.itemsize,))
    tensor = bits.to(torch.uint8).view(kind)
    back = read_state(file_of({"x": {"odd": torch.ones(3, dtype=torch.uint8), "y": tensor}}))
    assert back["x"]["y"].dtype == kind
    assert bytes(bytes_of(back["x"]["y"])) == bytes(bytes_of(tensor))


def test_any_reader_of_safetensors_finds_the_tensors() -> None:
    found = safetensors_load(file_of(STATE).getvalue())
    assert torch.equal(found["model.weight"], STATE["model"]["weight"])
    assert found["optimizer.state.0.step"] == 3


def test_views_and_tied_weights_lie_there_once() -> None:
    base = torch.arange(12.0).reshape(3, 4)
    layout = lay_out({"a": base, "b": base, "turned": base.T})
    assert len(layout.tensors) == 2
    back = read_state(file_of({"a": base, "b": base, "turned": base.T}))
    assert back["a"] is back["b"]
    assert torch.equal(back["turned"], base.T)


def test_plain_values_of_other_kinds_become_plain() -> None:
    state = {"learned": np.float64(0.1), "ordered": OrderedDict(a=1)}
    back = read_state(file_of(state))
    assert back == {"learned": 0.1, "ordered": {"a": 1}}
    assert type(back["learned"]) is float


STRANGE: dict[str, Callable[[], object]] = {
    "PosixPath": lambda: Path("x"),
    "set": lambda: {1, 2},
    "bytes": lambda: b"bytes",
    "object": object,
    "dict": lambda: {(1, 2): 3},
    "Tensor": lambda: torch.eye(3).to_sparse(),
    "function": lambda: lambda: 0,
}


@pytest.mark.parametrize("kind", STRANGE)
def test_what_is_no_plain_data_is_refused(kind: str) -> None:
    with pytest.raises(CheckpointRefused, check=carries(check="checkpoint")):
        lay_out({"model": {"thing": STRANGE[kind]()}})


def packed(*inner: Any) -> io.BytesIO:
    """A state of few bits, as a file says it."""
    entry = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    told = {"dict": [["a", {"packed": list(inner)}]]}
    table = {"__metadata__": {"state": json.dumps(told)}, "t": entry}
    text = json.dumps(table).encode()
    return io.BytesIO(len(text).to_bytes(8, "little") + text + bytes(4))


@pytest.mark.parametrize(
    "inner",
    [
        ("Popen", {"args": "t"}, []),
        ("OptimState8bit", {"codes": "t"}, [True, "float32"]),
        ("OptimState8bit", {"codes": "t", "scale": "t", "qmap": "gone"}, [True, "float32"]),
        ("OptimState8bit", {"codes": "t", "scale": "t", "qmap": "t"}, []),
        ("OptimState8bit", {"codes": "t", "scale": "t", "qmap": "t"}, [True, "float32"]),
        ("OptimState8bit",),
        (["OptimState8bit"], {}, []),
    ],
)
def test_a_state_of_few_bits_names_no_code_and_no_other_parts(inner: tuple[Any, ...]) -> None:
    pytest.importorskip("torchao")
    with pytest.raises(CheckpointRefused, check=carries(check="checkpoint")):
        read_state(packed(*inner))


def forged(**changed: Any) -> io.BytesIO:
    """A header that lies, before the bytes of one float."""
    entry = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]} | changed
    table = {"__metadata__": {"state": json.dumps({"dict": [["a", {"tensor": "t"}]]})}, "t": entry}
    text = json.dumps(table).encode()
    return io.BytesIO(len(text).to_bytes(8, "little") + text + bytes(4))


@pytest.mark.parametrize(
    "file",
    [
        forged(dtype="PICKLE"),
        forged(shape=[2]),
        forged(shape=[-1]),
        forged(data_offsets=[0, 400]),
        forged(data_offsets=[-400, -396]),
        forged(data_offsets=[2, 6]),
        io.BytesIO(b""),
        io.BytesIO(bytes(7)),
        io.BytesIO(b"\xff" * 64),
        io.BytesIO((2).to_bytes(8, "little") + b"[]"),
        io.BytesIO((2).to_bytes(8, "little") + b"{}"),
    ],
)
def test_a_malformed_file_is_refused(file: io.BytesIO) -> None:
    with pytest.raises(CheckpointRefused, check=carries(check="checkpoint")):
        read_state(file)
