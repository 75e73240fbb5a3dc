"""Vectors of decisions and proposals for a chain, and of storage proofs, made without sealtrain.

EIP-712 is written out here, RLP and the trie in ``chain_proofs.py``. Writes
``vectors/chain/{decisions,proposals,proofs}.json``; a second run writes the same bytes.
Run: ``python tools/vectorgen/chain.py [FOLDER]``.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from chain_proofs import keccak, proof_vectors
from chain_words import word_vectors
from eth_keys.datatypes import PrivateKey

Json = Any
OUT = Path(__file__).resolve().parents[2] / "vectors" / "chain"
ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
NAMES = ("hospital-a", "hospital-b", "hospital-c")
HASH, OTHER = "ab" * 32, "ac" * 32
SAFE = "0x" + "5a" * 20
SIGNED, ENDS = "2026-09-21T12:26:40Z", "2026-10-21T12:26:40Z"
ENDS_SECONDS, DEADLINE = 1_792_585_600, 1_791_203_200


def canonical(value: Json) -> bytes:
    """RFC 8785 for what stands here: ASCII names, small integers."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def private(name: str) -> PrivateKey:
    """An owner's key."""
    return PrivateKey(keccak(f"vectors: {name}".encode()))


def address(name: str) -> str:
    """Its address."""
    public: bytes = private(name).public_key.to_canonical_address()
    return f"0x{public.hex()}"


CHAIN: Json = {
    "version": 1,
    "chain_id": 8453,
    "rpc": ["https://one.example/", "https://two.example/"],
    "agree": 2,
    "block": "finalized",
    "max_age_seconds": 1800,
    "cache_seconds": 10,
    "timeout_seconds": 10,
    "contract": "0x" + "c0" * 20,
    "kind": "owners",
    "code_hash": "11" * 32,
    "implementation": "none",
    "app_id": "contract",
    "kms": "none",
    "owners": {name: address(name) for name in NAMES},
}


# --- EIP-712 --------------------------------------------------------------------------------------


def word(value: int | bytes | str | bool) -> bytes:
    """A static value in 32 bytes."""
    if isinstance(value, str):
        return bytes.fromhex(value.removeprefix("0x")).rjust(32, b"\x00")
    return int(value).to_bytes(32, "big") if isinstance(value, int) else value


def typed_digest(domain: bytes, kind: str, *values: int | bytes | str | bool) -> bytes:
    """What is signed of one struct."""
    content = keccak(kind.encode()) + b"".join(map(word, values))
    return keccak(b"\x19\x01" + domain + keccak(content))


def signature(name: str, digest: bytes, form: str = "low") -> str:
    """65 bytes in hex; ``form`` high is the same signature in its other form."""
    made = private(name).sign_msg_hash(digest)
    s, v = (made.s, made.v) if form == "low" else (ORDER - made.s, 1 - made.v)
    return f"{made.r:064x}{s:064x}{27 + v:02x}"


def decision_digest(document: Json) -> bytes:
    """Of a decision file."""
    domain = keccak(
        keccak(
            b"EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)"
        )
        + keccak(b"sealtrain OwnersAppAuth")
        + keccak(b"1")
        + word(document["chain_id"])
        + word(document["contract"])
    )
    inside = document["decision"]
    statement = bytes(32) if inside is None else hashlib.sha256(canonical(inside)).digest()
    deadline = document["deadline"]
    return typed_digest(
        domain,
        "Decision(uint8 kind,bytes32 subject,bool approve,uint256 nonce,"
        "uint64 notAfter,uint64 deadline,bytes32 statement)",
        {"compose": 0, "device": 1}[document["kind"]],
        document["subject"],
        document["verdict"] == "approve",
        document["nonce"],
        document["not_after"],
        2**64 - 1 if deadline is None else deadline,
        statement,
    )


def proposal_digest(document: Json) -> bytes:
    """Of a proposal file: the SafeTx."""
    domain = keccak(
        keccak(b"EIP712Domain(uint256 chainId,address verifyingContract)")
        + word(document["chain_id"])
        + word(document["safe"])
    )
    call = {"add": "addComposeHash(bytes32)", "remove": "removeComposeHash(bytes32)"}
    data = keccak(call[document["action"]].encode())[:4] + bytes.fromhex(document["compose_hash"])
    return typed_digest(
        domain,
        "SafeTx(address to,uint256 value,bytes data,uint8 operation,uint256 safeTxGas,"
        "uint256 baseGas,uint256 gasPrice,address gasToken,address refundReceiver,uint256 nonce)",
        document["contract"],
        0,
        keccak(data),
        0,
        0,
        0,
        0,
        "0x",
        "0x",
        document["nonce"],
    )


# --- Documents --------------------------------------------------------------------------------


def ledger_decision(verdict: str = "approve", **changed: Json) -> Json:
    """The owner's decision for the ledger."""
    approves = verdict == "approve"
    return {
        "version": 2,
        "consortium_id": "12" * 32,
        "brokers": ["b1" * 32],
        "app_id": "c0" * 20,
        "compose_hash": HASH,
        "recipe_hash": "ef" * 32,
        "datasets": [{"dataset_id": "01" * 16, "root": "02" * 32}] if approves else [],
        "needs": {"actions": ["approve"], "owners": list(NAMES)} if approves else None,
        "lifts": [],
        "decision": verdict,
        "nonce": "0f" * 16,
        "signed_at": SIGNED,
        "not_after": ENDS if approves else None,
    } | changed


def decision(verdict: str = "approve", by: str = NAMES[0], **changed: Json) -> Json:
    """A decision file, signed as it stands."""
    approves = verdict == "approve"
    document = {
        "version": 1,
        "chain_id": CHAIN["chain_id"],
        "contract": CHAIN["contract"],
        "kind": "compose",
        "subject": HASH,
        "verdict": verdict,
        "nonce": 3,
        "not_after": ENDS_SECONDS if approves else 0,
        "deadline": DEADLINE if approves else None,
        "decision": ledger_decision(verdict),
        "owner": address(by),
    } | changed
    return document | {"signature": signature(by, decision_digest(document))}


def decision_vectors() -> list[Json]:
    """Each with what a reader makes of it."""
    honest = decision()
    high = signature(NAMES[0], decision_digest(honest), "high")
    wrong_v = honest["signature"][:-2] + "01"
    device: Json = {"kind": "device", "subject": "55" * 32, "decision": None}
    made = [
        ("an approval", honest, "ok"),
        ("a revocation", decision("revoke"), "ok"),
        ("a device", decision(**device), "ok"),
        ("of another chain", decision(chain_id=1), "signature-invalid"),
        ("of another contract", decision(contract="0x" + "c1" * 20), "signature-invalid"),
        ("by nobody here", decision(by="stranger"), "signature-invalid"),
        ("by another owner", honest | {"owner": address(NAMES[1])}, "signature-invalid"),
        ("its other form", honest | {"signature": high}, "signature-invalid"),
        ("v of another kind", honest | {"signature": wrong_v}, "signature-invalid"),
        ("no point", honest | {"signature": "00" * 64 + "1b"}, "signature-invalid"),
        *(
            (f"{name} changed", honest | {name: value}, "signature-invalid")
            for name, value in {
                "nonce": 4,
                "deadline": DEADLINE + 1,
                "decision": ledger_decision(recipe_hash="ee" * 32),
            }.items()
        ),
        ("no ledger decision", decision(decision=None), "statement-invalid"),
        ("a device with one", decision(kind="device"), "statement-invalid"),
        ("two compose hashes", decision(subject=OTHER), "statement-invalid"),
        ("two verdicts", decision(decision=ledger_decision("revoke")), "statement-invalid"),
        ("two ends", decision(not_after=ENDS_SECONDS + 1), "statement-invalid"),
        (
            "another app",
            decision(decision=ledger_decision(app_id="c1" * 20)),
            "statement-invalid",
        ),
        ("a revocation that ends", decision("revoke", deadline=DEADLINE), "statement-invalid"),
        ("an approval without deadline", decision(deadline=None), "statement-invalid"),
        ("an unknown field", honest | {"more": 1}, "statement-invalid"),
        ("upper case", honest | {"subject": HASH.upper()}, "statement-invalid"),
    ]
    return [
        {"name": name, "file": canonical(document).decode(), "outcome": outcome}
        for name, document, outcome in made
    ]


def proposal(*signers: str, **changed: Json) -> Json:
    """A proposal file with signatures in the order of addresses."""
    document = {
        "version": 1,
        "chain_id": CHAIN["chain_id"],
        "safe": SAFE,
        "contract": CHAIN["contract"],
        "action": "add",
        "compose_hash": HASH,
        "nonce": 7,
    } | changed
    made = [
        {"owner": address(name), "signature": signature(name, proposal_digest(document))}
        for name in sorted(signers, key=address)
    ]
    return document | {"signatures": made}


def proposal_vectors() -> list[Json]:
    """Each with what a reader makes of it."""
    two = proposal(*NAMES[:2])
    made = [
        ("nobody signed", proposal(), "ok"),
        ("two signed", two, "ok"),
        ("a removal", proposal(NAMES[2], action="remove"), "ok"),
        ("signed for an addition", two | {"action": "remove"}, "signature-invalid"),
        ("signed for another hash", two | {"compose_hash": OTHER}, "signature-invalid"),
        ("signed for another turn", two | {"nonce": 8}, "signature-invalid"),
        ("signed for another Safe", two | {"safe": "0x" + "5b" * 20}, "signature-invalid"),
        ("signed by a stranger", proposal("stranger"), "signature-invalid"),
        ("of another contract", proposal(contract="0x" + "c1" * 20), "statement-invalid"),
        ("of another chain", proposal(chain_id=1), "statement-invalid"),
        ("out of order", two | {"signatures": two["signatures"][::-1]}, "statement-invalid"),
        ("twice", two | {"signatures": two["signatures"][:1] * 2}, "statement-invalid"),
        ("another action", two | {"action": "upgradeTo"}, "statement-invalid"),
        ("a field for money", two | {"value": 1}, "statement-invalid"),
    ]
    return [
        {"name": name, "file": canonical(document).decode(), "outcome": outcome}
        for name, document, outcome in made
    ]


def main(out: Path) -> None:
    """Write the four files."""
    out.mkdir(parents=True, exist_ok=True)
    for name, content in (
        ("decisions", {"chain": CHAIN, "cases": decision_vectors()}),
        ("proposals", {"chain": CHAIN, "cases": proposal_vectors()}),
        ("proofs", proof_vectors(CHAIN["contract"])),
        ("words", word_vectors(CHAIN["contract"])),
    ):
        text = json.dumps(content, indent=1, sort_keys=True)
        (out / f"{name}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else OUT)
