"""PCR 8 of a signed enclave image file, and signature sections of another form."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import cbor2
import pytest
from boot_files import enclave
from carrying import carries
from nitro_world import PKI
from typer.testing import CliRunner

from sealtrain.cli import app
from sealtrain.errors import ImageRefused
from sealtrain.image.machine.enclavefile import measure_enclave, measure_signer

pytestmark = pytest.mark.claim("C675")

PEM = (
    b"-----BEGIN CERTIFICATE-----\n"
    + base64.encodebytes(PKI.root_der)
    + b"-----END CERTIFICATE-----\n"
)
GOOD = {"signing_certificate": list(PEM), "signature": list(b"signature")}


def signed(value: Any) -> bytes:
    return enclave(b"init", b"root", signature=cbor2.dumps(value))


def test_pcr_8_is_of_the_certificate_and_changes_no_other() -> None:
    expected = hashlib.sha384(bytes(48) + hashlib.sha384(PKI.root_der).digest()).hexdigest()
    assert measure_signer(signed([GOOD])) == expected
    assert measure_enclave(signed([GOOD])) == measure_enclave(enclave(b"init", b"root"))
    assert measure_signer(enclave(b"init", b"root")) is None


def test_a_policy_names_the_signer(tmp_path: Path) -> None:
    (tmp_path / "image.eif").write_bytes(signed([GOOD]))
    words = ["image", "measure", "--eif", str(tmp_path / "image.eif"), "--json"]
    said = json.loads(CliRunner().invoke(app, words).stdout)
    assert said["policy"]["signers"] == [said["values"]["pcr8"]]
    assert said["policy"]["images"][0].keys() == {"pcr0", "pcr1", "pcr2"}
    assert said["not_computed"].keys() == {"pcr3", "pcr4"}


@pytest.mark.parametrize(
    "value",
    [
        [],
        [GOOD, GOOD],
        GOOD,
        [GOOD | {"signing_certificate": PEM}],
        [GOOD | {"signature": b"signature"}],
        [GOOD | {"signing_certificate": [256]}],
        [GOOD | {"signing_certificate": [-1]}],
        [GOOD | {"signing_certificate": [True]}],
        [GOOD | {"signing_certificate": []}],
        [GOOD | {"more": 1}],
        [{"signing_certificate": list(PEM)}],
        [GOOD | {"signing_certificate": list(PEM[:-40])}],
        [GOOD | {"signature": [0] * 70_000}],
    ],
)
def test_another_form_of_a_signature_is_refused(value: Any) -> None:
    with pytest.raises(ImageRefused, check=carries(check="EIF")):
        measure_signer(signed(value))


@pytest.mark.parametrize("data", [b"", b"\x9f", b"\xc0\x60", b"\x81" * 40])
def test_a_signature_that_is_no_cbor_is_refused(data: bytes) -> None:
    with pytest.raises(ImageRefused, check=carries(check="EIF")):
        measure_signer(enclave(b"init", b"root", signature=data))
