"""What a hostile party can do with its update: little, or nothing."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest
from collecting import COLLECTING

from sealtrain_together.errors import UpdateRefused
from sealtrain_together.federated.merging import merge
from sealtrain_together.federated.update import (
    MAX_WEIGHT,
    Update,
    change_norm,
    decode_state,
    encode_state,
)

if not COLLECTING:
    import torch
    from safetensors.torch import save

pytestmark = pytest.mark.claim("C77")

SHAPES = {"q.lora_A.w": (4, 16), "q.lora_B.w": (16, 4), "head": (3, 16)}
HONEST = 0.05


def before() -> dict[str, torch.Tensor]:
    chance = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=chance) for name, shape in SHAPES.items()}


def honest(number: int) -> Update:
    """A small step in one direction, a little different for each party."""
    chance = torch.Generator().manual_seed(number)
    changed = {
        name: tensor + HONEST * (1 + 0.2 * torch.randn(tensor.shape, generator=chance))
        for name, tensor in before().items()
    }
    return Update(party=f"honest-{number}", weight=100, state=changed)


def poisoned(size: float, weight: int = 100) -> Update:
    """The honest direction turned round, and much longer."""
    changed = {name: tensor - size for name, tensor in before().items()}
    return Update(party="poisoner", weight=weight, state=changed)


def shift(rule: str, attacker: Update, **settings: Any) -> float:
    """How far one poisoned party of four moves the merged head from what three honest ones make."""
    three = [honest(number) for number in (1, 2, 3)]
    without = merge("fedavg", three, before())
    merged = merge(rule, [*three, attacker], before(), **settings)
    return float((merged["head"] - without["head"]).abs().max())


def test_one_poisoned_party_of_four_takes_the_plain_mean_with_it() -> None:
    assert shift("fedavg", poisoned(100.0)) > 20
    assert shift("fedavg", poisoned(100.0, weight=10**9)) > 99


@pytest.mark.parametrize(
    ("rule", "settings"), [("median", {}), ("trimmed-mean", {"trim": 1})], ids=["median", "trimmed"]
)
@pytest.mark.parametrize("weight", [100, 10**9], ids=["its share", "records it never had"])
@pytest.mark.parametrize("size", [1.0, 100.0, 1e30])
def test_robust_rules_stay_among_the_honest(
    rule: str, settings: dict[str, int], weight: int, size: float
) -> None:
    three = torch.stack([honest(number).state["head"] for number in (1, 2, 3)])
    widest = float((three.amax(dim=0) - three.amin(dim=0)).max())
    assert shift(rule, poisoned(size, weight), **settings) <= widest


@pytest.mark.parametrize("size", [100.0, 1e30])
def test_a_bound_holds_what_one_update_moves(size: float) -> None:
    bound = 1.5 * change_norm(honest(1).state, before())
    moved = merge("fedavg", [poisoned(size)], before(), max_norm=bound)
    assert change_norm(moved, before()) <= bound * 1.001
    unbounded = shift("fedavg", poisoned(size))
    assert shift("fedavg", poisoned(size), max_norm=bound) < unbounded / 50


def test_nobody_votes_twice() -> None:
    one = poisoned(1.0)
    with pytest.raises(UpdateRefused):
        merge("median", [honest(1), one, one], before())


@pytest.mark.parametrize("weight", [0, -5, MAX_WEIGHT + 1])
def test_a_weight_that_no_number_of_records_has_is_refused(weight: int) -> None:
    with pytest.raises(UpdateRefused):
        poisoned(1.0, weight)


def _changed(**changed: Any) -> bytes:
    state: dict[str, Any] = before() | changed
    return save({name: tensor for name, tensor in state.items() if tensor is not None})


def _claims(length: int) -> bytes:
    """A header that claims to be ``length`` bytes long, padded to a fitting file."""
    good = encode_state(before())
    return struct.pack("<Q", length) + good[8:]


FORGED: dict[str, Callable[[], bytes]] = {
    "a tensor more": lambda: _changed(extra=torch.zeros(1)),
    "a tensor less": lambda: _changed(head=None),
    "another shape": lambda: _changed(head=torch.zeros(16, 3)),
    "another type": lambda: _changed(head=torch.zeros(3, 16, dtype=torch.float64)),
    "half precision": lambda: _changed(head=torch.zeros(3, 16, dtype=torch.float16)),
    "not a number": lambda: _changed(head=torch.full((3, 16), float("nan"))),
    "infinite": lambda: _changed(head=torch.full((3, 16), float("-inf"))),
    "empty": lambda: b"",
    "cut short": lambda: encode_state(before())[:-4],
    "with a tail": lambda: encode_state(before()) + bytes(4),
    "no header": lambda: bytes(len(encode_state(before()))),
    "a header beyond the file": lambda: _claims(1 << 60),
    "a header of gigabytes": lambda: encode_state(before()) + bytes(8 << 20),
    "a pickle": lambda: b"\x80\x04cos\nsystem\n" + bytes(len(encode_state(before()))),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_adapter_is_refused(name: str) -> None:
    with pytest.raises(UpdateRefused) as refused:
        decode_state(FORGED[name](), before(), party="poisoner")
    assert refused.value.owner == "poisoner"
