"""The page of the second verifier says what each file is, and takes two of them at most."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from node_judges import judge

from sealtrain.attest.presets import PRESETS, preset_yaml
from sealtrain.base.encoding import to_base64
from sealtrain.base.yamltext import yaml_text

ROOT = Path(__file__).resolve().parents[2]
DRIVER = ROOT / "tests/support/second_files.mjs"
VECTORS = ROOT / "vectors"
pytestmark = pytest.mark.claim("C690")


def vector(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((VECTORS / f"{name}.json").read_text("utf-8"))
    return document


WHOLE = vector("manifest/whole")
MANIFEST: bytes = WHOLE["cases"][0]["manifest"].encode()
TRUST = yaml_text(WHOLE["trust"]).encode()
COMPOSED = vector("recipe/compose")["cases"][0]
IDENTITY = vector("keys/identity")["cases"][0]["file"]
CONSORTIUM = vector("approvals/decisions")["consortium"]
DECISION = vector("approvals/decisions")["cases"][0]["envelope"]
HASHES = ["ab" * 32, "cd" * 32]


def as_bytes(value: object) -> bytes:
    return value.encode() if isinstance(value, str) else json.dumps(value).encode()


KINDS = {
    "a manifest": (MANIFEST, "manifest"),
    "a manifest that was cut": (MANIFEST[:-9], "manifest"),
    "a manifest after a byte order mark": (b"\xef\xbb\xbf" + MANIFEST, "manifest"),
    "a trust file": (TRUST, "trust"),
    "a trust file in JSON": (as_bytes(WHOLE["trust"]), "trust"),
    "a trust file with a comment above": (b"# mine\n" + TRUST, "trust"),
    "a trust file with a line that is no YAML": (TRUST + b"\x5b{ : ]\n", "trust"),
    "a lock": (as_bytes(COMPOSED["lock"]), "lock"),
    "a deployment document": (as_bytes(COMPOSED["compose"]), "deployment"),
    "a recipe": ((ROOT / "examples/three_hospitals/recipe.yaml").read_bytes(), "recipe"),
    "an appraisal policy": (preset_yaml(next(iter(PRESETS))).encode(), "policy"),
    "an identity": (as_bytes(IDENTITY), "identity"),
    "a consortium": (as_bytes(CONSORTIUM), "consortium"),
    "a decision": (as_bytes(DECISION), "signed-document"),
    "a broker file": (
        b"version: 2\nurl: https://broker.example\nsigning_key: AA==\n",
        "broker-file",
    ),
    "a chain file": (b"version: 1\nchain_id: 8453\nrpc: [https://one.example/]\n", "chain-file"),
    "hashes of blocks": ("\n".join(HASHES).encode(), "hashes"),
    "hashes of blocks in JSON": (as_bytes([f"0x{digest}" for digest in HASHES]), "hashes"),
    "the error of a command": (b'{"error": {"code": "signature-invalid"}}', "error"),
    "a sealed file": (b"SEALTRN\x01" + bytes(80), "sealed-file"),
    "a ledger": (b"SQLite format 3\x00" + bytes(80), "database"),
    "a report": (b"<!doctype html>\n<title>a report</title>", "web-page"),
    "a print": (b"%PDF-1.7\n", "pdf"),
    "a ZIP archive": (b"PK\x03\x04" + bytes(80), "archive"),
    "a text in UTF-16": (TRUST.decode().encode("utf-16"), "utf-16"),
    "bytes": (bytes(range(256)), "binary"),
    "a picture": (b"\x89PNG\r\n\x1a\n", "picture"),
    "nothing": (b"", "empty"),
    "spaces": (b" \n", "text"),
    "a table": (b"name,age\nann,3\n", "text"),
    "another document": (b'{"a": 1}', "other"),
    "a list": (b"[1, 2]", "text"),
    "brackets without an end": (b"[" * 200_000, "text"),
    "a word": (b"null", "text"),
}


def asked(files: Sequence[bytes], sizes: Sequence[int] = ()) -> dict[str, Any]:
    """What the page says of files that come at once, which may be longer than what it read."""
    shown = [
        {"size": size, "base64": to_base64(data)}
        for data, size in zip(files, sizes or map(len, files), strict=True)
    ]
    [answer] = judge(DRIVER, [json.dumps(shown)])
    found: dict[str, Any] = answer
    return found


def test_each_kind_of_file_is_named_and_has_words() -> None:
    answer = asked([data for data, _ in KINDS.values()])
    named = dict(zip(KINDS, answer["kinds"], strict=True))
    assert named == {name: kind for name, (_, kind) in KINDS.items()}
    assert answer["said"]


def test_one_manifest_and_one_trust_file_are_taken_in_any_order() -> None:
    lock = as_bytes(COMPOSED["lock"])
    for files, taken in (
        ([MANIFEST, TRUST], {"manifest": 0, "trust": 1}),
        ([TRUST, lock, MANIFEST], {"manifest": 2, "trust": 0}),
        ([lock], {"manifest": None, "trust": None}),
        ([], {"manifest": None, "trust": None}),
    ):
        answer = asked(files)
        assert answer["taken"] == taken
        assert answer["used"] == [at in taken.values() for at in range(len(files))]


def test_of_two_manifests_or_trust_files_none_is_taken() -> None:
    answer = asked([MANIFEST, TRUST, MANIFEST])
    assert answer["taken"] == {"manifest": None, "trust": 1}
    assert answer["used"] == [False, True, False]
    assert answer["several"] == ["manifest"]
    assert answer["said"]
    answer = asked([TRUST, MANIFEST, TRUST])
    assert answer["taken"] == {"manifest": 1, "trust": None}
    assert answer["several"] == ["trust"]


def test_a_file_of_100_mb_is_named_by_its_beginning_alone() -> None:
    long = 100_000_000
    answer = asked([MANIFEST[:64], b"SEALTRN\x01"], [long, long])
    assert answer["kinds"] == ["too-long", "sealed-file"]
    assert answer["taken"] == {"manifest": None, "trust": None}


def test_a_thousand_files_are_counted_and_not_all_listed() -> None:
    answer = asked([b"x"] * 1000)
    assert len(answer["used"]) + answer["more"] == 1000
    assert len(answer["used"]) < 1000
