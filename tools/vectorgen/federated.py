"""Vectors of federated merging, made without sealtrain and without torch, in numpy.

Writes ``merging.json`` and ``strategies.json`` to ``vectors/federated``. The ``exact`` rule is
computed the long way, by the SVD of the whole product, so it also tries the short one. Strategies
are computed from their papers, in float64 and without Flower. Everything follows from the labels
below, so a second run writes the same bytes. Run: ``python tools/vectorgen/federated.py [FOLDER]``.
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


def draw(label: str) -> State:
    """Numbers in [-1, 1) with 16 bits, exact in float32, that follow from the label."""
    state = {}
    for name, shape in SHAPES.items():
        count = shape[0] * shape[1]
        data = hashlib.shake_256(f"sealtrain federated {label} {name}".encode()).digest(2 * count)
        whole = np.array(struct.unpack(f">{count}h", data), dtype=np.float64)
        state[name] = (whole / 2**15).reshape(shape)
    return state


def average(states: list[State], shares: list[float]) -> State:
    """Weighted mean of every tensor."""
    return {
        name: np.tensordot(shares, [state[name] for state in states], axes=1) for name in SHAPES
    }


def trim_mean(states: list[State], trim: int) -> State:
    """Mean of every number without the largest and smallest."""
    merged = {}
    for name in SHAPES:
        ordered = np.sort(np.stack([state[name] for state in states]), axis=0)
        merged[name] = ordered[trim : len(states) - trim].mean(axis=0)
    return merged


def exact(states: list[State], shares: list[float], previous: State) -> State:
    """Best approximation of the mean product, by the SVD of the whole of it."""
    rank = SHAPES[A][0]
    product = np.tensordot(shares, [state[B] @ state[A] for state in states], axes=1)
    left, sizes, right = np.linalg.svd(product, full_matrices=False)
    length = float(np.sqrt(np.mean(np.sum(previous[A] ** 2, axis=1))))
    rows = right[:rank]
    signs = np.sign(rows[np.arange(rank), np.abs(rows).argmax(axis=1)])
    factors = {
        A: length * signs[:, None] * rows,
        B: left[:, :rank] * sizes[:rank] * signs / length,
    }
    return average(states, shares) | factors


def bound(state: State, previous: State, most: float) -> State:
    """The change cut to an L2 norm."""
    change = {name: state[name] - previous[name] for name in SHAPES}
    norm = float(np.sqrt(sum(np.sum(value**2) for value in change.values())))
    factor = min(1.0, most / norm)
    return {name: previous[name] + factor * change[name] for name in SHAPES}


def to_lists(state: State) -> dict[str, list[list[float]]]:
    """As JSON."""
    return {name: array.tolist() for name, array in state.items()}


def round_state(state: State) -> dict[str, list[list[float]]]:
    """As JSON, without the last bits, which of an SVD are each machine's own."""
    return to_lists({name: np.round(array, 9) for name, array in state.items()})


ETA, BETA_1, BETA_2, TAU = 0.1, 0.9, 0.99, 0.001
MOMENTUM, RATE = 0.9, 0.5
ROUNDS = 4


def updates_of(number: int, state: State) -> list[State]:
    """What each party makes of the merged state in a round: it adds what follows from labels."""
    steps = [draw(f"{party} round {number}") for party in WEIGHTS]
    return [{name: state[name] + step[name] / 8 for name in SHAPES} for step in steps]


def strategy_rounds(strategy: str) -> tuple[list[State], dict[str, State]]:
    """States after each round by a strategy's published rule, and its memory after the second.

    FedAvgM: Hsu et al. 2019; FedAdam, FedYogi and FedAdagrad: Reddi et al. 2021, algorithm 2, Adam
    with the step corrected for round + 1 as Flower does.
    """
    shares = [weight / sum(WEIGHTS.values()) for weight in WEIGHTS.values()]
    zeros = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    first, second, state = dict(zeros), dict(zeros), draw("previous")
    states, kept = [], {}
    for number in range(1, ROUNDS + 1):
        mean = average(updates_of(number, state), shares)
        change = {name: mean[name] - state[name] for name in SHAPES}
        if strategy == "FedAvgM":
            first = {name: MOMENTUM * first[name] - change[name] for name in SHAPES}
            state = {name: state[name] - RATE * first[name] for name in SHAPES}
        elif strategy == "FedAvg":
            state = mean
        else:
            decay = 0.0 if strategy == "FedAdagrad" else BETA_1
            first = {name: decay * first[name] + (1 - decay) * change[name] for name in SHAPES}
            squares = {name: change[name] ** 2 for name in SHAPES}
            for name in SHAPES:
                before, square = second[name], squares[name]
                second[name] = {
                    "FedAdam": BETA_2 * before + (1 - BETA_2) * square,
                    "FedYogi": before - (1 - BETA_2) * square * np.sign(before - square),
                    "FedAdagrad": before + square,
                }[strategy]
            step = ETA
            if strategy == "FedAdam":
                step *= np.sqrt(1 - BETA_2 ** (number + 1)) / (1 - BETA_1 ** (number + 1))
            state = {
                name: state[name] + step * first[name] / (np.sqrt(second[name]) + TAU)
                for name in SHAPES
            }
        states.append(state)
        if number == 2:
            kept = {
                "FedAvg": {},
                "FedAvgM": {"momentum_vector": first},
            }.get(strategy, {"arrays": state, "m_t": first, "v_t": second})
            kept = {attribute: dict(named) for attribute, named in kept.items()}
    return states, kept


def safetensors(memory: dict[str, State]) -> bytes:
    """The encoding of a memory: length, JSON header, numbers; float64, names in order."""
    header, data = {}, b""
    for attribute, state in sorted(memory.items()):
        for name, array in sorted(state.items()):
            part = array.astype("<f8").tobytes()
            header[f"{attribute}/{name}"] = {
                "dtype": "F64",
                "shape": list(array.shape),
                "data_offsets": [len(data), len(data) + len(part)],
            }
            data += part
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data if memory else b""


def strategies() -> dict[str, Any]:
    """Rounds of every strategy with a step at the lead."""
    arguments: dict[str, dict[str, Any]] = {
        "FedAvg": {},
        "FedAvgM": {"server_momentum": MOMENTUM, "server_learning_rate": RATE},
        "FedAdagrad": {"eta": ETA, "tau": TAU},
        "FedAdam": {"eta": ETA, "beta_1": BETA_1, "beta_2": BETA_2, "tau": TAU},
        "FedYogi": {"eta": ETA, "beta_1": BETA_1, "beta_2": BETA_2, "tau": TAU},
    }
    cases = []
    for name, given in arguments.items():
        states, memory = strategy_rounds(name)
        cases.append({
            "strategy": {"name": name} | given,
            "merged": [round_state(state) for state in states],
            "memory_after_2": {name: round_state(state) for name, state in sorted(memory.items())},
            "memory_after_2_encoded": safetensors(memory).hex(),
        })  # fmt: skip
    return {
        "previous": to_lists(draw("previous")),
        "weights": WEIGHTS,
        "steps": [
            {party: to_lists(draw(f"{party} round {number}")) for party in WEIGHTS}
            for number in range(1, ROUNDS + 1)
        ],
        "step_share": 0.125,
        "tolerance": 1e-4,
        "cases": cases,
    }


def main() -> None:
    """Write the file."""
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else OUT
    previous = draw("previous")
    states = {party: draw(party) for party in WEIGHTS}
    shares = [weight / sum(WEIGHTS.values()) for weight in WEIGHTS.values()]
    every = list(states.values())
    cut = [bound(value, previous, 0.75) for value in every]
    cases: list[dict[str, Any]] = [
        {"rule": "fedavg", "merged": round_state(average(every, shares))},
        {"rule": "ffa", "merged": round_state(average(every, shares))},
        {"rule": "median", "merged": round_state(trim_mean(every, 1))},
        {"rule": "trimmed-mean", "trim": 1, "merged": round_state(trim_mean(every, 1))},
        {"rule": "exact", "rank": 2, "merged": round_state(exact(every, shares, previous))},
        {"rule": "fedavg", "max_norm": 0.75, "merged": round_state(average(cut, shares))},
    ]
    document = {
        "previous": to_lists(previous),
        "updates": [
            {"party": party, "weight": WEIGHTS[party], "state": to_lists(state)}
            for party, state in states.items()
        ],
        "tolerance": 1e-6,
        "cases": cases,
    }
    out.mkdir(parents=True, exist_ok=True)
    for name, content in (("merging", document), ("strategies", strategies())):
        (out / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
