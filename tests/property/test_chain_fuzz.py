"""Whatever a node answers, a proof gives the proven value, nothing, or one kind of refusal."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from variants import examples

from sealtrain.signing.errors import ProofInvalid
from sealtrain_chain.proof import prove_account

VECTORS = json.loads(
    (Path(__file__).resolve().parents[2] / "vectors/chain/proofs.json").read_text("utf-8")
)
ROOT = bytes.fromhex(VECTORS["state_root"])
HONEST = next(case for case in VECTORS["cases"] if case["name"] == "a slot that is set")
SLOT = bytes.fromhex(HONEST["slot"])
VALUE = int(HONEST["outcome"]["value"])

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.just("0x80"),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=12,
)


def read(answer: Any) -> int | None:
    """Of the honest question; ``None`` where the answer is refused."""
    try:
        account = prove_account(answer, state_root=ROOT, address=HONEST["address"], slots=[SLOT])
    except ProofInvalid:
        return None
    assert account is not None, "a node cannot make the contract vanish"
    return account.values[0]


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_a_changed_proof_never_proves_something_else(data: st.DataObject) -> None:
    answer = copy.deepcopy(HONEST["answer"])
    nodes = data.draw(st.sampled_from([answer["accountProof"], answer["storageProof"][0]["proof"]]))
    for _ in range(data.draw(st.integers(1, 3))):
        index = data.draw(st.integers(0, len(nodes) - 1))
        text = bytearray.fromhex(nodes[index][2:])
        act = data.draw(st.sampled_from(["flip", "cut", "grow", "swap"]))
        if act == "flip" and text:
            text[data.draw(st.integers(0, len(text) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        elif act == "cut":
            del text[data.draw(st.integers(0, len(text))) :]
        elif act == "grow":
            text += data.draw(st.binary(min_size=1, max_size=40))
        else:
            text = bytearray.fromhex(nodes[data.draw(st.integers(0, len(nodes) - 1))][2:])
        nodes[index] = f"0x{text.hex()}"
    assert read(answer) in (None, VALUE)


@settings(max_examples=examples(60), deadline=None)
@given(JSON, st.sampled_from(["", "accountProof", "storageProof"]))
def test_an_answer_of_any_shape_is_refused(odd: Any, where: str) -> None:
    answer = odd if not where else {**HONEST["answer"], where: odd}
    assert read(answer) is None
