"""The chain's word in receipts for ``chain.py``: a header, and proofs of exactly their path."""

from __future__ import annotations

from typing import Any

from chain_proofs import keccak, node_of, rlp, trie

Json = Any
APPROVED = "5e" * 32
REMOVED = "5f" * 32
UNTIL = 1_800_000_000
CODE = keccak(b"code of the owners' contract")
IMPLEMENTATION = bytes.fromhex("1234" * 10)
PROXY = (int.from_bytes(keccak(b"eip1967.proxy.implementation"), "big") - 1).to_bytes(32, "big")


def path_to(entries: dict[str, bytes], target: str, *, top: bool = True) -> list[bytes]:
    """Nodes from the root to a value: each that its parent names by a hash."""
    raw = rlp(node_of(entries, {}))
    here = [raw] if top or len(raw) >= 32 else []
    if len(entries) == 1:
        return here
    shared = 0
    while len({path[: shared + 1] for path in entries}) == 1:
        shared += 1
    if shared:
        below = {path[shared:]: value for path, value in entries.items()}
        return here + path_to(below, target[shared:], top=False)
    below = {path[1:]: value for path, value in entries.items() if path[0] == target[0]}
    return here + path_to(below, target[1:], top=False)


def proof(entries: dict[bytes, bytes], key: bytes) -> list[str]:
    """The proof of one key, in hex."""
    named = {keccak(name).hex(): value for name, value in entries.items()}
    return [node.hex() for node in path_to(named, keccak(key).hex())]


def number(value: int) -> bytes:
    """An integer as RLP has it."""
    return value.to_bytes((value.bit_length() + 7) // 8, "big")


def slot_of(kind: str, compose_hash: str) -> bytes:
    """Where a contract says whether a compose hash counts."""
    subject = bytes.fromhex(compose_hash)
    return keccak(subject + (bytes(32) if kind == "dstack-app" else keccak(bytes(64))))


def header_fields(state_root: bytes, height: int, time: int, later: int) -> list[bytes]:
    """A header with so many of the fields that later rules added."""
    first = [
        keccak(b"parent"), keccak(rlp([])), bytes(20), state_root, keccak(b"t"), keccak(b"r"),
        bytes(256), b"", number(height), number(30_000_000), b"", number(time), b"extra",
        keccak(b"mix"), bytes(8),
    ]  # fmt: skip
    added = [number(7), keccak(b"w"), number(131_072), b"", keccak(b"beacon"), keccak(b"requests")]
    return first + added[:later]


class State:
    """One state of a chain with one contract of a kind."""

    def __init__(
        self,
        contract: str,
        kind: str,
        time: int,
        *,
        later: int = 6,
        approved: str = APPROVED,
        until: int = UNTIL,
    ) -> None:
        value = rlp(number(until)) if kind == "owners" else b"\x01"
        filling = {n.to_bytes(32, "big"): rlp(number(n)) for n in range(1, 40)}
        self.contract, self.kind, self.time, self.later = contract, kind, time, later
        self.approved = approved
        self.storage = filling | {slot_of(kind, approved): value}
        if kind == "dstack-app":
            self.storage[PROXY] = rlp(IMPLEMENTATION)
            self.storage[slot_of(kind, REMOVED)] = rlp(b"\x02")
        else:
            self.storage[slot_of(kind, REMOVED)] = rlp(b"\x01")
        root, _ = trie(self.storage)
        account = rlp([b"\x01", b"", root, CODE])
        empty, _ = trie({})
        others = {bytes([n]) * 20: rlp([b"", b"\x05", empty, CODE]) for n in range(1, 40)}
        self.accounts = {bytes.fromhex(contract[2:]): account, **others}
        self.root, _ = trie(self.accounts)
        self.fields = header_fields(self.root, 4_000_000 + later, time, later)

    def word(self, compose_hash: str | None = None, **changed: Json) -> Json:
        """The honest word of a compose hash, the approved one by default, with changes."""
        return {
            "chain_id": 8453,
            "contract": self.contract,
            "kind": self.kind,
            "header": rlp(self.fields).hex(),
            "account": proof(self.accounts, bytes.fromhex(self.contract[2:])),
            "slot": proof(self.storage, slot_of(self.kind, compose_hash or self.approved)),
            "implementation": proof(self.storage, PROXY) if self.kind == "dstack-app" else None,
        } | changed

    @property
    def block(self) -> str:
        """Hash of the block."""
        return keccak(rlp(self.fields)).hex()

    def proves(self, until: int) -> Json:
        """What the word proves."""
        implementation = f"0x{IMPLEMENTATION.hex()}" if self.kind == "dstack-app" else "none"
        return {
            "block": self.block,
            "number": str(4_000_000 + self.later),
            "time": str(self.time),
            "code_hash": CODE.hex(),
            "until": str(until),
            "implementation": implementation,
        }


def flip(text: str, at: int) -> str:
    """Hex with another digit."""
    return text[:at] + f"{int(text[at], 16) ^ 1:x}" + text[at + 1 :]


def word_vectors(contract: str) -> Json:
    """Words, and what a reader makes of each."""
    owners = State(contract, "owners", 1_790_000_000)
    app = State(contract, "dstack-app", 1_790_000_000)
    older = [State(contract, "owners", 1_790_000_000, later=later) for later in (0, 1, 5)]
    word, proxied = owners.word(), app.word()
    other = "0x" + "01" * 20
    lists = {name: word[name] for name in ("account", "slot")}
    fields = list(owners.fields)

    def header(at: int, value: bytes) -> Json:
        return word | {"header": rlp([*fields[:at], value, *fields[at + 1 :]]).hex()}

    bad: list[tuple[str, Json, str]] = []
    for name, nodes in lists.items():
        bad += [
            (f"{name}: a digit of node {at}", word | {name: [*nodes[:at], flip(node, 9),
             *nodes[at + 1 :]]}, APPROVED)
            for at, node in enumerate(nodes)
        ]  # fmt: skip
        bad += [
            (f"{name}: a node too few", word | {name: nodes[:-1]}, APPROVED),
            (f"{name}: a node too many", word | {name: [*nodes, nodes[-1]]}, APPROVED),
            (f"{name}: in another order", word | {name: nodes[::-1]}, APPROVED),
            (f"{name}: bytes behind the last", word | {name: [*nodes[:-1], nodes[-1] + "00"]},
             APPROVED),
        ]  # fmt: skip
    bad += [
        ("the proof of another account", owners.word(account=proof(owners.accounts,
         bytes.fromhex(other[2:]))), APPROVED),
        ("another contract", word | {"contract": other}, APPROVED),
        ("the slot of another hash", owners.word(REMOVED), APPROVED),
        ("a hash without a slot", word, "77" * 32),
        ("proofs of the other kind", word | {"kind": "dstack-app"}, APPROVED),
        ("another kind with an implementation", proxied | {"kind": "owners"}, APPROVED),
        ("no implementation", proxied | {"implementation": None}, APPROVED),
        ("the implementation's proof is the slot's", proxied | {"implementation":
         proxied["slot"]}, APPROVED),
        ("another state root", header(3, keccak(b"another")), APPROVED),
        ("a state root of 31 bytes", header(3, bytes(31)), APPROVED),
        ("a height with a zero in front", header(8, b"\0\x01"), APPROVED),
        ("a time of eight bytes", header(11, bytes([1] * 8)), APPROVED),
        ("a header of 14 fields", word | {"header": rlp(fields[:14]).hex()}, APPROVED),
        ("a header of 33 fields", word | {"header": rlp([*fields, *[b""] * 12]).hex()}, APPROVED),
        ("a field that is a list", word | {"header": rlp([*fields[:8], [fields[8]],
         *fields[9:]]).hex()}, APPROVED),
        ("a header that is text", word | {"header": rlp(b"header").hex()}, APPROVED),
        ("bytes behind the header", word | {"header": rlp(fields).hex() + "00"}, APPROVED),
        ("a header in another form", word | {"header": "fa00" + rlp(fields).hex()[2:]}, APPROVED),
    ]  # fmt: skip
    good = [
        ("owners", word, APPROVED, owners.proves(UNTIL)),
        ("owners, a vote that ended", owners.word(REMOVED), REMOVED, owners.proves(1)),
        ("dstack-app", proxied, APPROVED, app.proves(2**63)),
        ("dstack-app, removed", app.word(REMOVED), REMOVED, app.proves(0)),
        *[
            (f"a header of {15 + item.later} fields", item.word(), APPROVED, item.proves(UNTIL))
            for item in older
        ],
    ]
    cases = [
        {"name": name, "word": value, "compose_hash": subject, "outcome": outcome}
        for name, value, subject, outcome in good
    ]
    refused = {"refused": "proof-invalid"}
    cases += [
        {"name": name, "word": value, "compose_hash": subject, "outcome": refused}
        for name, value, subject in bad
    ]
    return {"cases": cases}
