"""Manifest files and receipts against an independent generator (tools/vectorgen/manifest.py)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sealtrain.attest.report_data import report_data
from sealtrain.base.digests import sha256_hex
from sealtrain.consortium.receipts import receipt_digest, verify_receipt
from sealtrain.errors import Refused
from sealtrain.manifest import form
from sealtrain.signing import dsse, runlog, statement

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDER = REPOSITORY / "vectors" / "manifest"
FORM: dict[str, Any] = json.loads((FOLDER / "form.json").read_text("utf-8"))
RECEIPTS: list[dict[str, Any]] = json.loads((FOLDER / "receipt.json").read_text("utf-8"))["cases"]


def test_a_well_formed_file_is_read_as_its_generator_wrote_it() -> None:
    (vector,) = (case for case in FORM["cases"] if case["outcome"] == "ok")
    data = vector["file"].encode()
    manifest = form.read(data)
    assert manifest.guest_key.hex() == vector["guest_key"]
    assert manifest.digest == vector["file_digest"]
    assert form.key_hint(manifest.guest_key) == vector["hint"]
    payload = dsse.verify(
        manifest.signed_statement, [manifest.guest_key], payload_type=statement.PAYLOAD_TYPE
    )
    assert sha256_hex(payload) == vector["statement_digest"]
    log = manifest.predicate.run_log
    runlog.verify(manifest.predicate.run.run_id, log.entries, head=log.head)
    committed = form.commitment(payload, manifest.guest_key, log.head)
    assert report_data("manifest", committed).hex() == vector["report_data"]
    written = form.write(manifest.signed_statement, manifest.signed_evidence, manifest.guest_key)
    assert written == data


@pytest.mark.parametrize(
    "vector",
    [case for case in FORM["cases"] if case["outcome"] != "ok"],
    ids=lambda vector: vector["name"],
)
def test_a_malformed_file_is_refused(vector: dict[str, Any]) -> None:
    with pytest.raises(Refused) as caught:
        form.read(vector["file"].encode())
    assert caught.value.code == vector["outcome"]


@pytest.mark.parametrize("vector", RECEIPTS, ids=lambda vector: vector["name"])
def test_a_receipt_is_accepted_or_refused_as_its_vector_says(vector: dict[str, Any]) -> None:
    envelope = dsse.Envelope.from_dict(vector["envelope"])
    assert receipt_digest(envelope) == vector["receipt_digest"]
    key = bytes.fromhex(vector["broker_key"])
    if vector["outcome"] == "ok":
        assert verify_receipt(envelope, key).run_id == "ab" * 16
        return
    with pytest.raises(Refused) as caught:
        verify_receipt(envelope, key)
    assert caught.value.code == vector["outcome"]


def test_the_generator_writes_the_files_that_are_kept(tmp_path: Path) -> None:
    script = REPOSITORY / "tools/vectorgen/manifest.py"
    assert "sealtrain." not in "\n".join(
        line for line in script.read_text().splitlines() if line.startswith(("import", "from"))
    )
    subprocess.run([sys.executable, str(script), str(tmp_path)], check=True)
    for name in ("form.json", "receipt.json"):
        assert (tmp_path / name).read_bytes() == (FOLDER / name).read_bytes()
