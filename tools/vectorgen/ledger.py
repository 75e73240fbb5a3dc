"""Vectors of ledgers, checkpoints, proofs and run logs, made without sealtrain.

Writes ``vectors/ledger/{tree,checkpoints,proofs,extensions,run-log}.json``. Trees are computed by
the definitions of RFC 6962 §2.1, hash by hash, with no stored node. Everything follows from fixed
seeds, so a second run writes the same bytes. Run: ``python tools/vectorgen/ledger.py [FOLDER]``.
"""

from __future__ import annotations

import base64
import copy
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

Json = Any
OUT = Path(__file__).resolve().parents[2] / "vectors" / "ledger"
ORIGIN = "sealtrain/ledger/" + "5e" * 32
KEY = Ed25519PrivateKey.from_private_bytes(hashlib.sha256(b"sealtrain ledger vectors").digest())
OTHER_KEY = Ed25519PrivateKey.from_private_bytes(hashlib.sha256(b"another ledger").digest())
RUN = "4a" * 16


def canonical(value: Json) -> bytes:
    """RFC 8785 for what occurs here: texts, small integers, null, arrays and objects."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def sha(*parts: bytes) -> bytes:
    """SHA-256 of the parts, one after the other."""
    return hashlib.sha256(b"".join(parts)).digest()


def mth(entries: list[bytes]) -> bytes:
    """Merkle tree hash, RFC 6962 §2.1."""
    if not entries:
        return sha()
    if len(entries) == 1:
        return sha(b"\x00", entries[0])
    k = half(len(entries))
    return sha(b"\x01", mth(entries[:k]), mth(entries[k:]))


def half(size: int) -> int:
    """Largest power of two smaller than ``size``."""
    k = 1
    while k * 2 < size:
        k *= 2
    return k


def audit_path(m: int, entries: list[bytes]) -> list[bytes]:
    """Merkle audit path, RFC 6962 §2.1.1."""
    if len(entries) == 1:
        return []
    k = half(len(entries))
    if m < k:
        return [*audit_path(m, entries[:k]), mth(entries[k:])]
    return [*audit_path(m - k, entries[k:]), mth(entries[:k])]


def consistency(m: int, entries: list[bytes], whole: bool = True) -> list[bytes]:
    """Merkle consistency proof, RFC 6962 §2.1.2."""
    if m == len(entries):
        return [] if whole else [mth(entries)]
    k = half(len(entries))
    if m <= k:
        return [*consistency(m, entries[:k], whole), mth(entries[k:])]
    return [*consistency(m - k, entries[k:], False), mth(entries[:k])]


def line(name: str, key: Ed25519PrivateKey, signed: str, kind: int = 1) -> str:
    """Signature line of a note."""
    key_id = sha(name.encode(), b"\n", bytes([kind]), key.public_key().public_bytes_raw())[:4]
    return f"\u2014 {name} {base64.b64encode(key_id + key.sign(signed.encode())).decode()}\n"


def body(size: int | str, root: bytes | str, origin: str = ORIGIN) -> str:
    """Three lines of a checkpoint."""
    shown = root if isinstance(root, str) else base64.b64encode(root).decode()
    return f"{origin}\n{size}\n{shown}\n"


def note(signed: str, *lines: str) -> str:
    """A note from its text and its signature lines; by ``KEY`` when none is given."""
    return signed + "\n" + "".join(lines or (line(ORIGIN, KEY, signed),))


def entry(number: int) -> Json:
    """Entry of the example log."""
    return {
        "kind": ("approval", "release", "refusal", "manifest")[number % 4],
        "at": f"2026-03-01T12:00:{number:02d}Z",
        "body": {"number": number, "owner": "hôpital-β" if number % 2 else "bank-a"},
    }


ENTRIES = [entry(number) for number in range(11)]
LEAVES = [canonical(entry) for entry in ENTRIES]
PUBLIC = base64.b64encode(KEY.public_key().public_bytes_raw()).decode()


def tree_vectors() -> Json:
    """Roots and proofs of every size and index."""
    sizes = range(1, len(LEAVES) + 1)
    return {
        "entries": ENTRIES,
        "leaf_hashes": [sha(b"\x00", leaf).hex() for leaf in LEAVES],
        "roots": [mth(LEAVES[:size]).hex() for size in range(len(LEAVES) + 1)],
        "cases": {
            "inclusion": [
                {
                    "index": index,
                    "size": size,
                    "path": [digest.hex() for digest in audit_path(index, LEAVES[:size])],
                }
                for size in sizes
                for index in range(size)
            ],
            "consistency": [
                {
                    "first": first,
                    "second": second,
                    "path": [digest.hex() for digest in consistency(first, LEAVES[:second])],
                }
                for second in sizes
                for first in range(1, second + 1)
            ],
        },
    }


def checkpoint_vectors() -> Json:
    """Checkpoints that are accepted, and one for each rule."""
    cases: list[Json] = []

    def case(name: str, text: str, outcome: str, **more: Json) -> None:
        cases.append({"name": name, "checkpoint": text, "outcome": outcome, **more})

    root = mth(LEAVES)
    size = len(LEAVES)
    text = body(size, root)
    good = note(text)
    mine = line(ORIGIN, KEY, text)
    witness = line("witness.example/w1", OTHER_KEY, text, kind=4)
    case("signed", good, "ok", size=size, root=root.hex())
    case("empty log", note(body(0, sha())), "ok", size=0, root=sha().hex())
    case("cosigned", note(text, mine, witness), "ok", size=size, root=root.hex())
    case("cosignature first", note(text, witness, mine), "ok", size=size, root=root.hex())
    same_name = line(ORIGIN, OTHER_KEY, text)
    case("a stranger uses the origin's name", note(text, same_name, mine), "ok", size=size)
    case("only a stranger under that name", note(text, same_name), "signature-invalid")
    case("only a cosignature", note(text, witness), "signature-invalid")
    case("the key under another name", note(text, line("other", KEY, text)), "signature-invalid")
    case("the key as a witness only", note(text, line(ORIGIN, KEY, text, 4)), "signature-invalid")
    case("the key twice", note(text, mine, mine), "signature-invalid")
    case("no signature", text + "\n", "signature-invalid")
    case("no blank line", text + mine, "signature-invalid")
    case("another size", note(body(size - 1, root), mine), "signature-invalid")
    case("another root", note(body(size, mth(LEAVES[:-1])), mine), "signature-invalid")
    moved = body(size, root, ORIGIN + "0")
    case("another origin, the line moved", note(moved, mine), "signature-invalid")
    case("another origin, signed", note(moved, line(ORIGIN, KEY, moved)), "signature-invalid")
    for name, signed in (
        ("leading zero", body(f"0{size}", root)),
        ("negative size", body("-1", root)),
        ("size in hex", body("0xb", root)),
        ("size beyond 2**53", body(2**53, root)),
        ("root too short", body(size, root[:31])),
        ("root not base64", body(size, "?" * 44)),
        ("empty log with a root", body(0, root)),
        ("an extension line", text + "extension\n"),
        ("a line missing", f"{ORIGIN}\n{size}\n"),
    ):
        case(name, note(signed), "signature-invalid")
    case("carriage returns", good.replace("\n", "\r\n"), "signature-invalid")
    case("something behind", good + "more\n", "signature-invalid")
    case("last newline missing", good[:-1], "signature-invalid")
    case("hyphen for the dash", good.replace("\u2014", "-"), "signature-invalid")
    return {"public_key": PUBLIC, "origin": ORIGIN, "cases": cases}


def proof_vectors() -> Json:
    """Inclusion proofs with their checkpoints: accepted, and one for each way to be wrong."""
    cases: list[Json] = []

    def case(name: str, proof: Json, outcome: str) -> None:
        cases.append({"name": name, "proof": proof, "outcome": outcome})

    def proof(index: int, size: int) -> Json:
        return {
            "entry": ENTRIES[index],
            "index": index,
            "size": size,
            "path": [digest.hex() for digest in audit_path(index, LEAVES[:size])],
            "checkpoint": note(body(size, mth(LEAVES[:size]))),
        }

    for index, size in ((0, 1), (0, 11), (5, 8), (6, 7), (10, 11)):
        case(f"entry {index} of {size}", proof(index, size), "ok")
    good = proof(6, 11)
    case("another entry", {**good, "entry": ENTRIES[5]}, "proof-invalid")
    changed = copy.deepcopy(good)
    changed["entry"]["body"]["number"] = 7
    case("a changed entry", changed, "proof-invalid")
    case(
        "a later time",
        {**good, "entry": {**good["entry"], "at": "2026-03-02T00:00:00Z"}},
        "proof-invalid",
    )
    case("a field more", {**good, "entry": {**good["entry"], "note": ""}}, "proof-invalid")
    case("another index", {**good, "index": 7}, "proof-invalid")
    case("index outside", {**good, "index": 11}, "proof-invalid")
    case("another size", {**good, "size": 10}, "proof-invalid")
    case("path too short", {**good, "path": good["path"][:-1]}, "proof-invalid")
    case("path too long", {**good, "path": [*good["path"], "00" * 32]}, "proof-invalid")
    case("path reversed", {**good, "path": good["path"][::-1]}, "proof-invalid")
    case("no path", {**good, "path": []}, "proof-invalid")
    case(
        "hash in capitals",
        {**good, "path": [folder.upper() for folder in good["path"]]},
        "proof-invalid",
    )
    older = proof(6, 8)["checkpoint"]
    case("an older checkpoint", {**good, "checkpoint": older}, "proof-invalid")
    case(
        "an older checkpoint and its size",
        {**good, "checkpoint": older, "size": 8},
        "proof-invalid",
    )
    text = body(11, mth(LEAVES))
    forged = note(text, line(ORIGIN, OTHER_KEY, text))
    case("a checkpoint by another key", {**good, "checkpoint": forged}, "signature-invalid")
    moved = body(11, mth(LEAVES), "sealtrain/ledger/other")
    elsewhere = note(moved, line("sealtrain/ledger/other", KEY, moved))
    case("a checkpoint of another origin", {**good, "checkpoint": elsewhere}, "signature-invalid")
    case("an unknown field", {**good, "version": 1}, "proof-invalid")
    return {"public_key": PUBLIC, "origin": ORIGIN, "cases": cases}


def extension_vectors() -> Json:
    """Pairs of checkpoints with the proof between them."""
    cases: list[Json] = []

    def head(leaves: list[bytes]) -> str:
        return note(body(len(leaves), mth(leaves)))

    def case(name: str, older: str, newer: str, path: list[bytes], outcome: str) -> None:
        shown = [folder.hex() for folder in path]
        cases.append(
            {"name": name, "older": older, "newer": newer, "path": shown, "outcome": outcome}
        )

    forked = [*LEAVES[:5], b"{}", *LEAVES[6:]]
    wrong = "ledger-inconsistent"
    for first in (1, 4, 7, 10):
        case(
            f"from {first} to 11",
            head(LEAVES[:first]),
            head(LEAVES),
            consistency(first, LEAVES),
            "ok",
        )
    case("nothing new", head(LEAVES), head(LEAVES), [], "ok")
    case("from the empty log", head([]), head(LEAVES), [], "ok")
    case("from the empty log with a proof", head([]), head(LEAVES), [sha()], wrong)
    case("no proof", head(LEAVES[:7]), head(LEAVES), [], wrong)
    case(
        "a proof between other sizes", head(LEAVES[:7]), head(LEAVES), consistency(6, LEAVES), wrong
    )
    case(
        "a proof too long", head(LEAVES[:7]), head(LEAVES), [*consistency(7, LEAVES), sha()], wrong
    )
    case("truncated", head(LEAVES), head(LEAVES[:7]), consistency(7, LEAVES), wrong)
    case("truncated to nothing", head(LEAVES), head([]), [], wrong)
    case("rewritten at the same size", head(LEAVES), head(forked), [], wrong)
    case(
        "forked before the older head",
        head(LEAVES[:7]),
        head(forked),
        consistency(7, forked),
        wrong,
    )
    case("forked behind it", head(LEAVES[:5]), head(forked), consistency(5, forked), "ok")
    text = body(11, mth(LEAVES))
    stranger = note(text, line(ORIGIN, OTHER_KEY, text))
    case(
        "newer by another key",
        head(LEAVES[:7]),
        stranger,
        consistency(7, LEAVES),
        "signature-invalid",
    )
    text = body(7, mth(LEAVES[:7]))
    stranger = note(text, line(ORIGIN, OTHER_KEY, text))
    case(
        "older by another key", stranger, head(LEAVES), consistency(7, LEAVES), "signature-invalid"
    )
    return {"public_key": PUBLIC, "origin": ORIGIN, "cases": cases}


def run_log_vectors() -> Json:
    """Hash chains, whole and broken."""
    cases: list[Json] = []

    def event(seq: int, name: str, **fields: Json) -> Json:
        return {"seq": seq, "at": f"2026-03-01T13:00:{seq:02d}Z", "event": name, "fields": fields}

    def head(entries: list[Json], run: str = RUN) -> str:
        current = sha(b"sealtrain/run-log/v1:", run.encode())
        for entry in entries:
            current = sha(current, canonical(entry))
        return current.hex()

    def case(
        name: str, entries: list[Json], expected: str, ok: bool = False, run: str = RUN
    ) -> None:
        outcome = "ok" if ok else "run-log-broken"
        cases.append(
            {"name": name, "run_id": run, "entries": entries, "head": expected, "outcome": outcome}
        )

    log = [
        event(1, "run.started", platform="simulator", phase="sft"),
        event(2, "keys.released", lease_id="ab" * 32, not_after="2026-03-02T13:00:00Z"),
        event(3, "checkpoint.sealed", counter=1, step=50, digest="cd" * 32),
        event(4, "training.finished", steps=100, samples=1600),
    ]
    case("four events", log, head(log), ok=True)
    case("no event", [], head([]), ok=True)
    case("the last dropped", log[:-1], head(log))
    case("the first dropped", log[1:], head(log[1:]))
    swapped = [log[0], log[2], log[1], log[3]]
    case("two swapped", swapped, head(swapped))
    changed = [log[0], log[1], {**log[2], "fields": {**log[2]["fields"], "step": 60}}, log[3]]
    case("one changed", changed, head(log))
    case("of another run", log, head(log), run="4b" * 16)
    for name, last in (
        ("a field missing", {key: log[3][key] for key in ("seq", "at", "event")}),
        ("a field more", {**log[3], "extra": 1}),
        ("a number repeated", {**log[3], "seq": 3}),
        ("a number left out", {**log[3], "seq": 5}),
        ("a number as text", {**log[3], "seq": "4"}),
        ("a time that does not exist", {**log[3], "at": "2026-13-01T00:00:00Z"}),
        ("an event with capitals", {**log[3], "event": "Finished"}),
        ("words in the form of an event", {**log[3], "event": "patient.4711-was-positive"}),
        ("fields as an array", {**log[3], "fields": []}),
        ("fields of another event", {**log[3], "fields": log[2]["fields"]}),
        ("an event's field missing", {**log[3], "fields": {"steps": 100}}),
        ("an event's field more", {**log[3], "fields": {**log[3]["fields"], "note": "fin"}}),
        ("a count as text", {**log[3], "fields": {"steps": "100", "samples": 1600}}),
        ("a count below zero", {**log[3], "fields": {"steps": 100, "samples": -1}}),
        ("a count that is no integer", {**log[3], "fields": {"steps": 0.5, "samples": 1600}}),
        ("a count as a word of truth", {**log[3], "fields": {"steps": True, "samples": 1600}}),
    ):
        entries = [*log[:3], last]
        case(name, entries, head(entries))
    return {"cases": cases}


def main(folder: Path) -> None:
    """Write the five files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, made in (
        ("tree", tree_vectors()),
        ("checkpoints", checkpoint_vectors()),
        ("proofs", proof_vectors()),
        ("extensions", extension_vectors()),
        ("run-log", run_log_vectors()),
    ):
        path = folder / f"{name}.json"
        path.write_text(json.dumps(made, indent=1) + "\n")
        print(f"{path}: {len(made.get('cases', made.get('inclusion', [])))} cases")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else OUT)
