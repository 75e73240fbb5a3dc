"""Thousands of changed manifests of one world, each signed again by an attacker with a guest."""

from __future__ import annotations

import copy
import itertools
import json
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, ClassVar

from manifest_world import FINISHED, NOW, START, World
from second_verifier import Question
from world import identity

from sealtrain.attest.report_data import Binding
from sealtrain.base.canonical import canonical_json
from sealtrain.base.clock import to_rfc3339
from sealtrain.consortium import datasets
from sealtrain.errors import SealtrainError
from sealtrain.manifest import form
from sealtrain.manifest.trust import Trust, parse_trust
from sealtrain.signing import dsse, statement

Steps = tuple[Any, ...]
OTHERS: tuple[Any, ...] = (
    None,
    True,
    0,
    1.5,
    -1,
    2**53 - 1,
    "",
    "x",
    "0" * 64,
    to_rfc3339(START - 400),
    to_rfc3339(FINISHED + 400),
    "2026-02-30T00:00:00Z",
    [],
    {},
    [1],
    {"a": 1},
)


def places(value: Any, *path: Any) -> Iterator[Steps]:
    """Every object, array and leaf in a JSON value, by path."""
    if path:
        yield path
    if isinstance(value, dict):
        for key, item in value.items():
            yield from places(item, *path, key)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from places(item, *path, index)


def at(value: Any, path: Steps) -> Any:
    """The value at a path."""
    for step in path:
        value = value[step]
    return value


def near(value: Any) -> Any:
    """A value of the same form; of a text one digit is another."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, list):
        return [*value, *value[:1]]
    if not isinstance(value, str) or not value:
        return "00"
    middle = len(value) // 2
    other = {"0": "1", "A": "B", "a": "b"}.get(value[middle], "0")
    return value[:middle] + other + value[middle + 1 :]


def variants(document: Any, path: Steps) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The document with one place removed, doubled, emptied, retyped, accompanied or near.

    Each has a label, and is copied when it is called: of thousands a test may ask for a sample.
    """

    def changed(change: Callable[[Any, Any], None]) -> Callable[[], Any]:
        def make() -> Any:
            copied = copy.deepcopy(document)
            change(at(copied, path[:-1]), path[-1])
            return copied

        return make

    name = "/".join(map(str, path))
    yield f"{name} removed", changed(lambda parent, last: parent.pop(last))
    own = at(document, path)
    yield f"{name} near", changed(lambda parent, last: parent.__setitem__(last, near(own)))
    if isinstance(own, list) and len(own) > 1:
        yield f"{name} reversed", changed(lambda parent, last: parent[last].reverse())
    for other in OTHERS:
        yield (
            f"{name} = {other!r}",
            changed(lambda parent, last, other=other: parent.__setitem__(last, other)),
        )
    if isinstance(path[-1], str):
        yield (
            f"{name}_ too",
            changed(lambda parent, last: parent.__setitem__(last + "_", parent[last])),
        )


class Mutants:
    """Changed manifests of a world and its honest one, as questions."""

    def __init__(self, world: World, honest: bytes) -> None:
        """Take the honest manifest apart."""
        self.world, self.honest = world, honest
        self.trust = world.trust()
        self.read = form.read(honest)
        self.statement = json.loads(self.read.signed_statement.payload)
        self.evidence = json.loads(self.read.signed_evidence.payload)

    def question(self, label: str, manifest: bytes, trust: Trust | None = None) -> Question:
        """A question without the output files."""
        return Question(
            label=label, manifest=manifest, trust=trust or self.trust, artefacts=None, now=NOW
        )

    def requoted(self, document: Any, spell: Callable[[Any], bytes] = canonical_json) -> bytes:
        """Another statement, signed by the guest's key and quoted by the guest."""
        payload = spell(document)
        try:
            head = document["predicate"]["run_log"]["head"]
        except (KeyError, TypeError, IndexError):
            head = None
        committed = head if isinstance(head, str) else "00" * 32
        binding = Binding(
            "manifest", form.commitment(payload, self.world.guest_key.public, committed)
        )
        return self.signed(payload, self.world.evidence(binding).to_bytes())

    def signed(self, payload: bytes, evidence: bytes) -> bytes:
        key = self.world.guest_key
        return form.write(
            dsse.sign(payload, statement.PAYLOAD_TYPE, key),
            dsse.sign(evidence, form.EVIDENCE_PAYLOAD_TYPE, key),
            key.public,
        )

    def of_bytes(self, step: int) -> Iterator[Callable[[], Question]]:
        """Every so manieth byte of the file changed, dropped and doubled."""
        for place in range(0, len(self.honest), step):
            for kind in ("^1", "dropped", "twice"):
                yield partial(self._of_byte, place, kind)

    def _of_byte(self, place: int, kind: str) -> Question:
        before, byte, after = (
            self.honest[:place],
            self.honest[place : place + 1],
            self.honest[place + 1 :],
        )
        instead = {"^1": bytes([byte[0] ^ 1]), "dropped": b"", "twice": byte * 2}[kind]
        return self.question(f"byte {place} {kind}", before + instead + after)

    def of_file(self) -> Iterator[Callable[[], Question]]:
        """Every field of the file in every variant."""
        document = json.loads(self.honest)
        for path in places(document):
            for label, make in variants(document, path):
                yield lambda label=label, make=make: self.question(
                    f"file {label}", canonical_json(make())
                )

    def of_statement(self) -> Iterator[Callable[[], Question]]:
        """Every field of the statement in every variant, signed and quoted again."""
        for path in places(self.statement):
            for label, make in variants(self.statement, path):
                yield lambda label=label, make=make: self.question(
                    f"statement {label}", self.requoted(make())
                )

    def of_evidence(self) -> Iterator[Callable[[], Question]]:
        """Every field of the evidence in every variant, signed again by the guest's key."""
        for path in places(self.evidence):
            for label, make in variants(self.evidence, path):
                yield lambda label=label, make=make: self.question(
                    f"evidence {label}",
                    self.signed(self.read.signed_statement.payload, canonical_json(make())),
                )

    def of_trust(self) -> Iterator[Callable[[], Question | None]]:
        """Every field of the trust file in every variant; ``None`` for what is no trust file."""
        document = self.trust.to_dict()
        for path in places(document):
            for label, make in variants(document, path):
                yield partial(self._under, f"trust {label}", make)

    def _under(self, label: str, make: Callable[[], Any]) -> Question | None:
        try:
            trust = parse_trust(make())
        except SealtrainError:
            return None
        return self.question(label, self.honest, trust)

    def all(self) -> list[Callable[[], Question]]:
        """Each makes one question when it is called."""
        trusts = [make for make in self.of_trust() if make() is not None]
        return [*self._of_manifest(), *trusts]

    def sample(self, chosen: random.Random, count: int) -> list[Question]:
        """Some questions of all, in any order."""
        makers = [*self._of_manifest(), *self.of_trust()]
        made = (make() for make in chosen.sample(makers, len(makers)))
        return list(itertools.islice((question for question in made if question), count))

    def _of_manifest(self) -> Iterator[Callable[[], Question]]:
        yield from self.of_bytes(251)
        yield from self.of_file()
        yield from self.of_statement()
        yield from self.of_evidence()


class DataUses:
    """Manifests of a world in which an owner states how its data may be used, as questions."""

    WHOLE: ClassVar[dict[str, Any]] = {
        "purposes": ["care", "research"],
        "purposes_bind": True,
        "legal_basis": "consent",
        "legal_basis_note": "Art. 9(2)(a) GDPR",
        "categories": ["health data", "age"],
        "phi": "limited",
        "retention_until": to_rfc3339(NOW),
    }
    TOO_MUCH: ClassVar[tuple[dict[str, Any], ...]] = (
        {"purposes": ["x" * 200], "categories": ["x" * 100], "legal_basis_note": "x" * 500},
        {"purposes": ["\u6f22" * 200]},
        {"purposes": ["x" * 201]},
        {"purposes": ["\u6f22" * 201]},
        {"purposes": [str(number) for number in range(16)]},
        {"purposes": [str(number) for number in range(17)]},
        {"categories": ["x" * 101]},
        {"categories": [str(number) for number in range(64)]},
        {"categories": [str(number) for number in range(65)]},
        {"legal_basis_note": "x" * 501},
        {"legal_basis": "other"},
        {"legal_basis": "legitimate-interests"},
        {"phi": "de-identified"},
        *(
            {"purposes": [f"care{char}"]}
            for char in "\x00\n\x7f\xa0\xad\u200b\u2028\u202e\u3000\ue000"
        ),
        {"retention_until": "0000-01-01T00:00:00Z"},
        {"retention_until": "9999-12-31T23:59:59Z"},
        {"retention_until": "9999-12-31T23:59:60Z"},
        {"retention_until": "2100-02-29T00:00:00Z"},
        {"retention_until": "2100-03-01T24:00:00Z"},
        {"retention_until": "\u0662100-03-01T00:00:00Z"},
    )
    """At its bounds, beyond them, and text that cannot be seen."""

    def __init__(self, world: World, owner: str) -> None:
        """The owner states it of each of its datasets."""
        self.world, self.owner = world, owner
        self.trust = world.trust()

    def question(self, data_use: Any, label: str = "", **facts: Any) -> Question:
        """The statement as it is, whatever its form; ``facts`` stand in place of the world's."""

        def state(document: dict[str, Any]) -> None:
            document["datasets"] = [
                self._stated(envelope, data_use).to_dict()
                if key.startswith(f"{self.owner}/")
                else envelope.to_dict()
                for key, envelope in self.world.datasets.items()
            ]
            document.update(facts)

        return Question(
            label=f"data use {label or data_use}",
            manifest=self.world.manifest(state),
            trust=self.trust,
            artefacts=None,
            now=NOW,
        )

    def _stated(self, envelope: dsse.Envelope, data_use: Any) -> dsse.Envelope:
        document = json.loads(envelope.payload) | {"data_use": data_use}
        payload = canonical_json(document)
        return dsse.sign(payload, datasets.PAYLOAD_TYPE, identity(self.owner).signer)

    def malformed(self) -> list[Callable[[], Question]]:
        """Every place of a whole statement in every variant, and statements at the bounds."""
        whole = {"data_use": self.WHOLE}
        stated = [
            (label, changed["data_use"])
            for path in places(whole)
            for label, make in variants(whole, path)
            if set(changed := make()) == {"data_use"}
        ]
        stated += [("", self.WHOLE | changed) for changed in self.TOO_MUCH]
        return [partial(self.question, use, label) for label, use in stated]
