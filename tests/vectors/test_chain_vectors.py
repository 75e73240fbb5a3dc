"""Chain documents and proofs against vectors of an independent generator (vectorgen/chain.py)."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sealtrain.base.models import load_model
from sealtrain.errors import SealtrainError, TrustInvalid
from sealtrain_chain.chainfile import ChainFile
from sealtrain_chain.decision import ChainDecision, verify_chain_decision
from sealtrain_chain.proof import proven
from sealtrain_chain.safe import SafeProposal, verify_proposal

REPOSITORY = Path(__file__).resolve().parents[2]
GENERATOR = REPOSITORY / "tools/vectorgen/chain.py"
Case = dict[str, Any]


def load(name: str) -> Case:
    found: Case = json.loads((REPOSITORY / "vectors/chain" / f"{name}.json").read_text())
    return found


def named(cases: list[Case]) -> Any:
    return pytest.mark.parametrize("case", cases, ids=lambda case: case["name"])


def chain() -> ChainFile:
    return load_model(ChainFile, load("decisions")["chain"], TrustInvalid, "chain file")


@named(load("decisions")["cases"])
def test_decisions(case: Case) -> None:
    data = case["file"].encode()
    if case["outcome"] == "ok":
        read = verify_chain_decision(ChainDecision.from_bytes(data), chain())
        assert read.owner == "hospital-a"
        assert read.vote.to_bytes() == data
        return
    with pytest.raises(SealtrainError) as caught:
        verify_chain_decision(ChainDecision.from_bytes(data), chain())
    assert caught.value.code == case["outcome"]


@named(load("proposals")["cases"])
def test_proposals(case: Case) -> None:
    data = case["file"].encode()
    if case["outcome"] == "ok":
        assert verify_proposal(SafeProposal.from_bytes(data), chain()).to_bytes() == data
        return
    with pytest.raises(SealtrainError) as caught:
        verify_proposal(SafeProposal.from_bytes(data), chain())
    assert caught.value.code == case["outcome"]


@named(load("proofs")["cases"])
def test_proofs(case: Case) -> None:
    def read() -> Any:
        return proven(
            case["answer"],
            state_root=bytes.fromhex(load("proofs")["state_root"]),
            address=case["address"],
            slots=[bytes.fromhex(case["slot"])],
        )

    outcome = case["outcome"]
    if "refused" in outcome:
        with pytest.raises(SealtrainError) as caught:
            read()
        assert caught.value.code == outcome["refused"]
    elif "absent" in outcome:
        assert read() is None
    else:
        assert read().values == (int(outcome["value"]),)


def test_the_generator_is_independent_and_writes_these_vectors(tmp_path: Path) -> None:
    imported = {
        name.split(".")[0]
        for part in ("chain.py", "chain_proofs.py")
        for node in ast.walk(ast.parse(GENERATOR.with_name(part).read_text("utf-8")))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert not imported & {"sealtrain", "eth_account", "web3", "trie", "rlp"}
    subprocess.run([sys.executable, str(GENERATOR), str(tmp_path)], check=True, timeout=60)
    for name in ("decisions", "proposals", "proofs"):
        fresh = (tmp_path / f"{name}.json").read_bytes()
        assert fresh == (REPOSITORY / "vectors/chain" / f"{name}.json").read_bytes()
