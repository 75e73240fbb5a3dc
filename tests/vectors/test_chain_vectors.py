"""Chain documents and proofs against vectors of an independent generator (vectorgen/chain.py)."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from node_judges import node

from sealtrain.attest.dstack.keccak import keccak256
from sealtrain.base.models import load_model
from sealtrain.consortium.chainfile import ChainFile
from sealtrain.consortium.chainword import ChainWord, compose_slot, counts_until, read_word
from sealtrain.consortium.patricia import value_at
from sealtrain.errors import SealtrainError, TrustInvalid
from sealtrain.signing.errors import StatementInvalid
from sealtrain_chain.decision import ChainDecision, verify_chain_decision
from sealtrain_chain.proof import prove_account
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
        return prove_account(
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


@pytest.mark.claim("C581")
@named(load("words")["cases"])
def test_words(case: Case) -> None:
    word = load_model(ChainWord, case["word"], StatementInvalid, "chain's word")
    if "refused" in case["outcome"]:
        with pytest.raises(SealtrainError) as caught:
            read_word(word, case["compose_hash"])
        assert caught.value.code == case["outcome"]["refused"]
        return
    prove_account = read_word(word, case["compose_hash"])
    assert {name: str(getattr(prove_account, name)) for name in case["outcome"]} == case["outcome"]


READ_WORDS = """
import { readFileSync } from "node:fs";
import { Refusal } from "./verify/bytes.js";
import { isChainWord, readWord } from "./verify/chainword.js";
const { cases } = JSON.parse(readFileSync("vectors/chain/words.json", "utf8"));
const answers = cases.map(({ word, compose_hash }) => {
  if (!isChainWord(word)) return { refused: "form" };
  try {
    const read = Object.entries(readWord(word, compose_hash));
    return Object.fromEntries(read.map(([key, value]) => [key, String(value)]));
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    return { refused: error.code };
  }
});
console.log(JSON.stringify(answers));
"""


@pytest.mark.needs("node")
@pytest.mark.claim("C581")
def test_the_second_verifier_reads_the_same_words() -> None:
    done = subprocess.run(
        [node(), "--no-warnings", "--input-type=module", "-e", READ_WORDS],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    cases = load("words")["cases"]
    for case, answer in zip(cases, json.loads(done.stdout), strict=True):
        assert answer == case["outcome"], case["name"]


@pytest.mark.claim("C581")
def test_the_libraries_of_the_chain_read_the_same_headers_and_paths() -> None:
    """The words' proofs, by the libraries that brokers hold answers of nodes against."""
    import rlp
    from eth_utils.crypto import keccak
    from trie.hexary import HexaryTrie

    for case in load("words")["cases"]:
        if "refused" in case["outcome"]:
            continue
        word = case["word"]
        header = bytes.fromhex(word["header"])
        assert keccak(header).hex() == case["outcome"]["block"]
        nodes = {keccak(node): node for node in map(bytes.fromhex, word["account"])}
        at = keccak(bytes.fromhex(word["contract"][2:]))
        account = rlp.decode(HexaryTrie(nodes, rlp.decode(header)[3]).get(at))
        assert account[3].hex() == case["outcome"]["code_hash"]
        slots = {keccak(node): node for node in map(bytes.fromhex, word["slot"])}
        slot = compose_slot(word["kind"], case["compose_hash"])
        value = int.from_bytes(rlp.decode(HexaryTrie(slots, account[2]).get(keccak(slot))), "big")
        assert str(counts_until(word["kind"], value)) == case["outcome"]["until"]


@pytest.mark.claim("C581")
def test_nodes_inside_nodes_are_read() -> None:
    """Too short to be hashed: a branch with its leaf, inside the path above them."""
    digits = keccak256(b"key").hex()
    leaf = [bytes.fromhex("3" + digits[61:]), b"v"]
    branch: list[Any] = [b""] * 17
    branch[int(digits[60], 16)] = leaf
    root = rlp_of([bytes.fromhex("00" + digits[:60]), branch])
    assert value_at(keccak256(root), b"key", [root]) == b"v"
    with pytest.raises(SealtrainError) as caught:
        value_at(keccak256(root), b"key", [root, rlp_of(branch)])
    assert caught.value.code == "proof-invalid"


def rlp_of(item: Any) -> bytes:
    import rlp

    encoded: bytes = rlp.encode(item)
    return encoded


def test_the_generator_is_independent_and_writes_these_vectors(tmp_path: Path) -> None:
    imported = {
        name.split(".")[0]
        for part in ("chain.py", "chain_proofs.py", "chain_words.py")
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
    for name in ("decisions", "proposals", "proofs", "words"):
        fresh = (tmp_path / f"{name}.json").read_bytes()
        assert fresh == (REPOSITORY / "vectors/chain" / f"{name}.json").read_bytes()
