"""Storage proofs of a chain for ``chain.py``: RLP and the Merkle-Patricia trie, written out."""

from __future__ import annotations

from typing import Any

from Crypto.Hash import keccak as pycryptodome_keccak

Json = Any


def keccak(data: bytes) -> bytes:
    """Keccak-256."""
    return pycryptodome_keccak.new(digest_bits=256, data=data).digest()


def rlp(item: Json) -> bytes:
    """Recursive length prefix."""
    if isinstance(item, bytes):
        if len(item) == 1 and item[0] < 0x80:
            return item
        return _prefix(0x80, len(item)) + item
    content = b"".join(map(rlp, item))
    return _prefix(0xC0, len(content)) + content


def _prefix(base: int, length: int) -> bytes:
    if length < 56:
        return bytes([base + length])
    size = length.to_bytes((length.bit_length() + 7) // 8, "big")
    return bytes([base + 55 + len(size)]) + size


def pack(nibbles: str, leaf: bool) -> bytes:
    """A path inside a node."""
    flag = 2 * leaf + len(nibbles) % 2
    return bytes.fromhex(f"{flag}{'' if len(nibbles) % 2 else '0'}{nibbles}")


def node_of(entries: dict[str, bytes], found: dict[bytes, bytes]) -> Json:
    """The node over these paths (hex digits) and values; what is hashed goes to ``found``."""
    if len(entries) == 1:
        [(path, value)] = entries.items()
        return [pack(path, True), value]
    shared = 0
    while len({path[: shared + 1] for path in entries}) == 1:
        shared += 1
    if shared:
        [stem] = {path[:shared] for path in entries}
        below = {path[shared:]: value for path, value in entries.items()}
        return [pack(stem, False), reference(node_of(below, found), found)]
    branch: list[Json] = [b""] * 17
    for digit in range(16):
        below = {path[1:]: value for path, value in entries.items() if path[0] == f"{digit:x}"}
        if below:
            branch[digit] = reference(node_of(below, found), found)
    return branch


def reference(node: Json, found: dict[bytes, bytes]) -> Json:
    """A node inside another one: itself when it is short, else its hash."""
    raw = rlp(node)
    if len(raw) < 32:
        return node
    found[keccak(raw)] = raw
    return keccak(raw)


def trie(entries: dict[bytes, bytes]) -> tuple[bytes, dict[bytes, bytes]]:
    """Root and nodes over Keccak-256 of the keys."""
    found: dict[bytes, bytes] = {}
    if not entries:
        return keccak(rlp(b"")), found
    raw = rlp(node_of({keccak(key).hex(): value for key, value in entries.items()}, found))
    found[keccak(raw)] = raw
    return keccak(raw), found


def to_hex(nodes: dict[bytes, bytes]) -> list[str]:
    """As a node of the chain writes them; all of the trie, which proves anything in it."""
    return [f"0x{raw.hex()}" for raw in nodes.values()]


def proof_vectors(where: str) -> Json:
    """One state, and what answers about it prove."""
    contract = bytes.fromhex(where[2:])
    slots = {n.to_bytes(32, "big"): n for n in range(1, 20)} | {bytes.fromhex("77" * 32): 2**64 - 1}
    storage_root, storage = trie(
        {slot: rlp(v.to_bytes((v.bit_length() + 7) // 8, "big")) for slot, v in slots.items()}
    )
    empty_root, _ = trie({})
    code_hash = keccak(b"code")
    account = rlp([b"\x01", b"", storage_root, code_hash])
    others = {bytes([n]) * 20: rlp([b"", b"\x05", empty_root, keccak(b"")]) for n in range(1, 13)}
    root, accounts = trie({contract: account, **others})

    def answer(slot: bytes, value: int, **changed: Json) -> Json:
        one = {"key": f"0x{slot.hex()}", "value": hex(value), "proof": to_hex(storage)}
        return {"accountProof": to_hex(accounts), "storageProof": [one], "more": "x"} | changed

    present, absent = bytes.fromhex("77" * 32), bytes.fromhex("78" * 32)
    honest = answer(present, slots[present])
    gone = {**honest, "accountProof": to_hex(accounts)[:-1]}
    lying = answer(present, 1)
    cut = {**honest, "storageProof": [{**honest["storageProof"][0], "proof": []}]}
    made = [
        ("a slot that is set", where, present, honest, {"value": str(slots[present])}),
        ("a slot that is not", where, absent, answer(absent, 0), {"value": "0"}),
        ("an account without storage", "0x" + "01" * 20, absent,
         answer(absent, 0, storageProof=[{"key": "0x0", "value": "0x0", "proof": []}]),
         {"value": "0"}),
        ("no such account", "0x" + "99" * 20, absent, answer(absent, 0), {"absent": True}),
        ("another value is stated", where, present, lying, {"refused": "proof-invalid"}),
        ("the root is missing", where, present, gone, {"refused": "proof-invalid"}),
        ("no proof of the slot", where, present, cut, {"refused": "proof-invalid"}),
        ("no slot", where, present, {**honest, "storageProof": []},
         {"refused": "proof-invalid"}),
    ]  # fmt: skip
    return {
        "state_root": root.hex(),
        "cases": [
            {"name": name, "address": at, "slot": slot.hex(), "answer": told, "outcome": outcome}
            for name, at, slot, told, outcome in made
        ],
    }
