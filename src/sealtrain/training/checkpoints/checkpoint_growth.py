"""How much longer than the first a later checkpoint of the same run may be.

All checkpoints of a run have the length that the first one leaves room for (spec/checkpoint.md
§2.1), and a later one that does not fit ends the run. What is added after the first:

1. entries of the trainer's log, whose number follows from the recipe;
2. the optimizer's state of parameters that had no gradient yet, such as an expert's that no token
   was routed to, and the steps that LBFGS remembers;
3. random states of further ranks, where a run may continue on more, and their pieces in the index
   of shards.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

_ENTRY_BYTES: Final = 512
_RANK_BYTES: Final = 32 << 10
_SPARE_PART: Final = 4
_PIECE_BYTES: Final = 96
_TENSORS_OF_A_PARAMETER: Final = 4
"""Itself, two moments and a count of steps."""


def growth_of_log(
    history: Sequence[Mapping[str, Any]], *, steps: int, periods: Iterable[float]
) -> int:
    """Bytes of the entries that are still to come.

    Args:
        history: The entries so far.
        steps: Steps that are left.
        periods: Steps between two entries, for each reason to make one; 0 for none.
    """
    longest = max((_length(entry) for entry in history), default=0)
    entry_bytes = max(_ENTRY_BYTES, longest + longest // _SPARE_PART)
    entries = sum(int(steps // max(1.0, period)) + 1 for period in periods if period)
    return entries * entry_bytes


def growth_of_optimizers(*optimizers: Any) -> int:
    """Bytes of the state that optimizers do not have yet.

    Args:
        optimizers: As PyTorch's, with ``param_groups`` and ``state``; of others nothing is known.
    """
    return sum(_growth(optimizer) for optimizer in optimizers)


def growth_of_index(optimizer: Any, numbers: Collection[int], now: int) -> int:
    """Bytes of the entries of tensors and pieces that an index of shards does not have yet.

    Args:
        optimizer: As ``growth_of_optimizers``.
        numbers: As ``growth_of_ranks``.
        now: The present number.
    """
    parameters = [
        parameter
        for group in getattr(optimizer, "param_groups", None) or ()
        for parameter in group["params"]
        if parameter.requires_grad
    ]
    state: Mapping[Any, Any] = getattr(optimizer, "state", None) or {}
    without = sum(not state.get(parameter) for parameter in parameters)
    further = max(0, max(numbers, default=now) - now)
    pieces = without * max(now, 1) + len(parameters) * further
    return (pieces * _PIECE_BYTES + without * _ENTRY_BYTES) * _TENSORS_OF_A_PARAMETER


def growth_of_ranks(numbers: Collection[int], now: int) -> int:
    """Bytes of the random states of ranks that may join.

    Args:
        numbers: Numbers of ranks on which the run may continue.
        now: The present number.
    """
    return max(0, max(numbers, default=now) - now) * _RANK_BYTES


def _length(entry: Mapping[str, Any]) -> int:
    """Of an entry in a state file, where JSON stands inside JSON."""
    text = json.dumps({"dict": [[key, str(value)] for key, value in entry.items()]})
    return len(json.dumps(text))


def _growth(optimizer: Any) -> int:
    groups = getattr(optimizer, "param_groups", None) or ()
    state: Mapping[Any, Any] = getattr(optimizer, "state", None) or {}
    missing, share, remembered = 0, 0.0, 0
    for group in groups:
        learning = [parameter for parameter in group["params"] if parameter.requires_grad]
        sizes = {
            id(parameter): parameter.numel() * parameter.element_size() for parameter in learning
        }
        for parameter in learning:
            held = _bytes(state.get(parameter))
            if held:
                share = max(share, held / max(1, sizes[id(parameter)]))
            else:
                missing += sizes[id(parameter)]
        remembered += 2 * int(group.get("history_size", 0)) * sum(sizes.values())
    return int(missing * share) + remembered


def _bytes(state: Any) -> int:
    if not isinstance(state, Mapping):
        return 0
    tensors = (value for value in state.values() if hasattr(value, "element_size"))
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
