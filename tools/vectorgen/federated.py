"""Vectors of federated merging, made without sealtrain and without torch, in numpy.

Writes ``vectors/federated/merging.json``. The ``exact`` rule is computed the long way, by the SVD
of the whole product, so it also tries the short one. Everything follows from the labels below, so a
second run writes the same bytes. Run: ``python tools/vectorgen/federated.py [FOLDER]``.
"""

from __future__ import annotations

import hashlib
import json
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

OUT = Path(__file__).resolve().parents[2] / "vectors" / "federated"
A, B, HEAD = "layer.lora_A.default.weight", "layer.lora_B.default.weight", "head.weight"
SHAPES = {A: (2, 5), B: (4, 2), HEAD: (2, 3)}
WEIGHTS = {"clinic-a": 120, "clinic-b": 60, "clinic-c": 20, "clinic-d": 40}
Array = NDArray[np.float64]
State = dict[str, Array]


def drawn(label: str) -> State:
    """Numbers in [-1, 1) with 16 bits, exact in float32, that follow from the label."""
    state = {}
    for name, shape in SHAPES.items():
        count = shape[0] * shape[1]
        data = hashlib.shake_256(f"sealtrain federated {label} {name}".encode()).digest(2 * count)
        whole = np.array(struct.unpack(f">{count}h", data), dtype=np.float64)
        state[name] = (whole / 2**15).reshape(shape)
    return state


def averaged(states: list[State], shares: list[float]) -> State:
    """Weighted mean of every tensor."""
    return {name: np.tensordot(shares, [one[name] for one in states], axes=1) for name in SHAPES}


def trimmed(states: list[State], trim: int) -> State:
    """Mean of every number without the largest and smallest."""
    merged = {}
    for name in SHAPES:
        ordered = np.sort(np.stack([one[name] for one in states]), axis=0)
        merged[name] = ordered[trim : len(states) - trim].mean(axis=0)
    return merged


def exact(states: list[State], shares: list[float], previous: State) -> State:
    """Best approximation of the mean product, by the SVD of the whole of it."""
    rank = SHAPES[A][0]
    product = np.tensordot(shares, [one[B] @ one[A] for one in states], axes=1)
    left, sizes, right = np.linalg.svd(product, full_matrices=False)
    length = float(np.sqrt(np.mean(np.sum(previous[A] ** 2, axis=1))))
    rows = right[:rank]
    signs = np.sign(rows[np.arange(rank), np.abs(rows).argmax(axis=1)])
    factors = {
        A: length * signs[:, None] * rows,
        B: left[:, :rank] * sizes[:rank] * signs / length,
    }
    return averaged(states, shares) | factors


def bounded(state: State, previous: State, most: float) -> State:
    """The change cut to an L2 norm."""
    change = {name: state[name] - previous[name] for name in SHAPES}
    norm = float(np.sqrt(sum(np.sum(one**2) for one in change.values())))
    factor = min(1.0, most / norm)
    return {name: previous[name] + factor * change[name] for name in SHAPES}


def listed(state: State) -> dict[str, list[list[float]]]:
    """As JSON."""
    return {name: array.tolist() for name, array in state.items()}


def rounded(state: State) -> dict[str, list[list[float]]]:
    """As JSON, without the last bits, which of an SVD are each machine's own."""
    return listed({name: np.round(array, 9) for name, array in state.items()})


def main() -> None:
    """Write the file."""
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else OUT
    previous = drawn("previous")
    states = {party: drawn(party) for party in WEIGHTS}
    shares = [weight / sum(WEIGHTS.values()) for weight in WEIGHTS.values()]
    every = list(states.values())
    cut = [bounded(one, previous, 0.75) for one in every]
    cases: list[dict[str, Any]] = [
        {"rule": "fedavg", "merged": rounded(averaged(every, shares))},
        {"rule": "ffa", "merged": rounded(averaged(every, shares))},
        {"rule": "median", "merged": rounded(trimmed(every, 1))},
        {"rule": "trimmed-mean", "trim": 1, "merged": rounded(trimmed(every, 1))},
        {"rule": "exact", "rank": 2, "merged": rounded(exact(every, shares, previous))},
        {"rule": "fedavg", "max_norm": 0.75, "merged": rounded(averaged(cut, shares))},
    ]
    document = {
        "previous": listed(previous),
        "updates": [
            {"party": party, "weight": WEIGHTS[party], "state": listed(state)}
            for party, state in states.items()
        ],
        "tolerance": 1e-6,
        "cases": cases,
    }
    out.mkdir(parents=True, exist_ok=True)
    (out / "merging.json").write_text(json.dumps(document, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
