"""Our own vectors of consortia, decisions, tallies, ledgers and run logs.

Their generators share no code with sealtrain; a test runs them again and compares the bytes.
"""

from __future__ import annotations

import ast
import base64
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sealtrain.base.canonical import canonical_json
from sealtrain.base.clock import from_rfc3339
from sealtrain.base.models import load_model
from sealtrain.consortium.approvals import require, tally
from sealtrain.consortium.decisions import verify_decision
from sealtrain.consortium.members import Consortium
from sealtrain.consortium.owner_document import verify_owned
from sealtrain.consortium.policies import OwnerPolicy
from sealtrain.consortium.succession import verify_succession
from sealtrain.consortium.withdrawals import Withdrawal
from sealtrain.errors import DataInvalid, SealtrainError
from sealtrain.ledger.proofs import LedgerProof, verify_extension, verify_proof
from sealtrain.signing import merkle, runlog
from sealtrain.signing.dsse import Envelope
from sealtrain.signing.needs import Needs
from sealtrain.signing.target import Target
from sealtrain.signing.tree_head import verify_tree_head

REPOSITORY = Path(__file__).resolve().parents[2]
Case = dict[str, Any]


def load(name: str) -> Case:
    found: Case = json.loads((REPOSITORY / "vectors" / f"{name}.json").read_text())
    return found


def cases(name: str) -> list[Any]:
    return [pytest.param(case, id=case["name"]) for case in load(name)["cases"]]


def outcome(call: Callable[[], Any]) -> tuple[str, Any]:
    try:
        return "ok", call()
    except SealtrainError as error:
        return error.code, error


@pytest.mark.parametrize("case", cases("approvals/consortium"))
def test_a_consortium_is_accepted_or_refused_by_its_rule(case: Case) -> None:
    code, result = outcome(lambda: Consortium.from_bytes(canonical_json(case["document"])))
    assert code == case["outcome"], result
    if code == "ok":
        assert result.consortium_id == case["consortium_id"]
        assert result.to_bytes() == canonical_json(case["document"])


def test_owners_have_the_ids_of_the_specification() -> None:
    consortium = Consortium.from_dict(load("approvals/decisions")["consortium"])
    for expected in load("approvals/consortium")["owners"]:
        owner = consortium.owner(expected["name"])
        assert (owner.owner_id, owner.key_id) == (expected["owner_id"], expected["key_id"])


@pytest.mark.parametrize("case", cases("approvals/decisions"))
def test_a_decision_is_accepted_or_refused_by_its_check(case: Case) -> None:
    made = load("approvals/decisions")
    consortium, now = Consortium.from_dict(made["consortium"]), from_rfc3339(made["now"])

    def read() -> Any:
        envelope = Envelope.from_bytes(case["envelope"].encode())
        return verify_decision(envelope, consortium, now=now, broker_ids=case.get("reader"))

    code, result = outcome(read)
    assert code == case["outcome"], result
    if code == "ok":
        assert result.owner.name == case["owner"]
        assert result.digest == case.get("digest", result.digest)


@pytest.mark.parametrize("case", cases("approvals/withdrawals"))
def test_a_withdrawal_is_accepted_or_refused_by_its_check(case: Case) -> None:
    consortium = Consortium.from_dict(load("approvals/withdrawals")["consortium"])

    def read() -> Any:
        return verify_owned(Withdrawal, Envelope.from_bytes(case["envelope"].encode()), consortium)

    code, result = outcome(read)
    assert code == case["outcome"], result
    if code == "ok":
        assert result.digest == case["digest"]


@pytest.mark.parametrize("case", cases("approvals/policies"))
def test_an_owners_policy_is_accepted_or_refused_by_its_check(case: Case) -> None:
    consortium = Consortium.from_dict(load("approvals/policies")["consortium"])

    def read() -> Any:
        return verify_owned(OwnerPolicy, Envelope.from_bytes(case["envelope"].encode()), consortium)

    code, result = outcome(read)
    assert code == case["outcome"], result
    if code == "ok":
        assert result.digest == case["digest"]


@pytest.mark.parametrize("case", cases("approvals/successions"))
def test_a_succession_is_accepted_or_refused_by_its_check(case: Case) -> None:
    predecessor = Consortium.from_dict(load("approvals/successions")["predecessor"])

    def read() -> Any:
        return verify_succession(Envelope.from_bytes(case["envelope"].encode()), predecessor)

    code, result = outcome(read)
    assert code == case["outcome"], result
    if code == "ok":
        assert list(result.signed_by) == case["signed_by"]


@pytest.mark.parametrize("case", cases("approvals/tallies"))
def test_decisions_count_to_what_the_specification_says(case: Case) -> None:
    consortium = Consortium.from_dict(load("approvals/tallies")["consortia"][case["consortium"]])
    decisions = [
        verify_decision(Envelope.from_bytes(text.encode()), consortium)
        for text in case["decisions"]
    ]
    counted = tally(
        decisions,
        consortium,
        Target(**case["target"]),
        from_rfc3339(case["now"]),
        needs=load_model(Needs, case["needs"], DataInvalid, "needs"),
    )
    code, result = outcome(lambda: require(counted))
    assert code == case["outcome"], result
    got = counted.to_dict()
    assert {key: got[key] for key in case["expect"]} == case["expect"]


def test_the_tree_is_the_rfcs() -> None:
    tree = load("ledger/tree")
    leaves = [merkle.leaf_hash(canonical_json(entry)) for entry in tree["entries"]]
    assert [leaf.hex() for leaf in leaves] == tree["leaf_hashes"]
    roots = [bytes.fromhex(root) for root in tree["roots"]]
    assert [merkle.root_of(leaves[:size]) for size in range(len(leaves) + 1)] == roots
    for item in tree["cases"]["inclusion"]:
        path = [bytes.fromhex(part) for part in item["path"]]
        index, size = item["index"], item["size"]
        assert merkle.inclusion_proof(leaves[:size], index) == path
        merkle.verify_inclusion(leaves[index], index, size, path, roots[size])
    for digest in tree["cases"]["consistency"]:
        path = [bytes.fromhex(part) for part in digest["path"]]
        first, second = digest["first"], digest["second"]
        assert merkle.consistency_proof(leaves[:second], first) == path
        merkle.verify_consistency(first, second, path, roots[first], roots[second])


@pytest.mark.parametrize("case", cases("ledger/checkpoints"))
def test_a_checkpoint_is_accepted_or_refused_by_its_rule(case: Case) -> None:
    made = load("ledger/checkpoints")
    key, origin = base64.b64decode(made["public_key"]), made["origin"]
    code, result = outcome(lambda: verify_tree_head(case["checkpoint"], key, origin=origin))
    assert code == case["outcome"], result
    if code == "ok":
        assert result.size == case["size"]
        assert result.root == case.get("root", result.root)


@pytest.mark.parametrize("case", cases("ledger/proofs"))
def test_an_inclusion_proof_is_accepted_or_refused_by_its_check(case: Case) -> None:
    made = load("ledger/proofs")
    key, origin = base64.b64decode(made["public_key"]), made["origin"]

    def read() -> Any:
        return verify_proof(LedgerProof.from_dict(case["proof"]), key, origin=origin)

    code, result = outcome(read)
    assert code == case["outcome"], result
    if code == "ok":
        assert result == case["proof"]["entry"]
        assert LedgerProof.from_dict(case["proof"]).to_dict() == case["proof"]


@pytest.mark.parametrize("case", cases("ledger/extensions"))
def test_an_extension_is_accepted_or_refused_by_its_check(case: Case) -> None:
    made = load("ledger/extensions")
    key, origin = base64.b64decode(made["public_key"]), made["origin"]
    code, result = outcome(
        lambda: verify_extension(case["older"], case["newer"], case["path"], key, origin=origin)
    )
    assert code == case["outcome"], result


@pytest.mark.parametrize("case", cases("ledger/run-log"))
def test_a_run_log_is_accepted_or_refused_by_its_rule(case: Case) -> None:
    code, result = outcome(
        lambda: runlog.verify(case["run_id"], case["entries"], head=case["head"])
    )
    assert code == case["outcome"], result


@pytest.mark.parametrize("family", ["approvals", "ledger"])
def test_the_generator_is_independent_and_writes_the_same_bytes(
    family: str, tmp_path: Path
) -> None:
    generator = REPOSITORY / "tools" / "vectorgen" / f"{family}.py"
    imported = {
        name
        for node in ast.walk(ast.parse(generator.read_text()))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert not any(name.startswith("sealtrain") for name in imported)
    subprocess.run([sys.executable, str(generator), str(tmp_path)], check=True, capture_output=True)
    committed = REPOSITORY / "vectors" / family
    for path in sorted(tmp_path.iterdir()):
        assert path.read_bytes() == (committed / path.name).read_bytes(), path.name
    assert {path.name for path in tmp_path.iterdir()} <= {path.name for path in committed.iterdir()}
