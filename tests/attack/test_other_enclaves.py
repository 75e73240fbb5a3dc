"""Enclaves of another image file than the policy's: one byte anywhere shows, in both verifiers."""

from __future__ import annotations

import base64
import io
from typing import Any

import pytest
from machines_world import ASKED, COMPOSE, NOW
from second_evidence import EvidenceQuestion, compare_codes, own_code

from sealtrain.attest.nitro.collect import attestation, measure_compose
from sealtrain.attest.presets import insecure_simulator_policy
from sealtrain.errors import ImageRefused
from sealtrain.image.machine.enclavefile import measure_enclave, write_enclave
from sealtrain_rehearsal.simulator.nitro import SimulatedNitroPki, SimulatedNsm

pytestmark = pytest.mark.claim("C723")

PKI = SimulatedNitroPki(b"enclaves of other files" * 2)
PARTS = {1: b"kernel", 2: b"quiet", 3: b"init", 30: b"root"}
"""Kernel, command line, boot ramdisk, application ramdisk."""


def eif(**changed: bytes) -> bytes:
    """An image file with other content of a part."""
    names = {"kernel": 1, "command_line": 2, "boot": 3, "application": 30}
    parts = PARTS | {names[name]: data for name, data in changed.items()}
    sections = [(1, parts[1]), (2, parts[2]), (5, b"{}"), (3, parts[3]), (3, parts[30])]
    into = io.BytesIO()
    found = [(kind, io.BytesIO(data)) for kind, data in sections]
    write_enclave(into, found, processors=2, memory=64 << 20)
    return into.getvalue()


OTHERS = {
    "kernel": eif(kernel=b"kernel, another"),
    "command line": eif(command_line=b"quiet init=/bin/sh"),
    "boot ramdisk": eif(boot=b"init that measures nothing"),
    "application": eif(application=b"another root"),
    # The bytes of both ramdisks together are the same, and so is what Linux unpacks.
    "a byte moved between ramdisks": eif(boot=b"initr", application=b"oot"),
}


def shown(file: bytes) -> dict[str, Any]:
    """Evidence of an enclave that booted a file, and measured the document as ours do."""
    measured = measure_enclave(file)
    first, second, third = (bytes.fromhex(measured[number]) for number in (0, 1, 2))
    nsm = SimulatedNsm(PKI, clock=lambda: NOW, measured=(first, second, third))
    measure_compose(nsm, COMPOSE)
    raw = attestation(nsm, user_data=ASKED.report_data())
    cpu = {
        "tee": "nitro",
        "document": base64.b64encode(raw).decode(),
        "app_compose": COMPOSE.decode(),
    }
    rest = dict.fromkeys(("gpu", "collateral", "gpu_collateral"))
    return {"version": 2, "platform": "simulator", "cpu": cpu, **rest}


def policy() -> dict[str, Any]:
    """Of the honest file alone."""
    rules: dict[str, Any] = insecure_simulator_policy(PKI.root_der, tee="nitro").to_dict()
    image = {f"pcr{number}": value for number, value in measure_enclave(eif()).items()}
    return {**rules, "cpu": {**rules["cpu"], "images": [image]}}


def question(name: str, file: bytes) -> EvidenceQuestion:
    return EvidenceQuestion(label=name, document=shown(file), policy=policy())


def test_the_policys_file_is_accepted() -> None:
    assert own_code(question("honest", eif())) == "accepted"


@pytest.mark.negative(121)
@pytest.mark.parametrize("name", OTHERS)
def test_another_file_is_refused(name: str) -> None:
    assert own_code(question(name, OTHERS[name])) == "measurement-mismatch"


def test_both_verifiers_agree(capsys: pytest.CaptureFixture[str]) -> None:
    asked = [question(name, file) for name, file in {"honest": eif(), **OTHERS}.items()]
    counted = compare_codes(asked, capsys)
    assert counted == {"accepted": 1, "measurement-mismatch": len(OTHERS)}


@pytest.mark.parametrize("spoil", [lambda raw: raw + b"\0", lambda raw: raw[:-1]])
def test_a_trailer_or_a_cut_is_no_image_file(spoil: Any) -> None:
    with pytest.raises(ImageRefused):
        measure_enclave(spoil(eif()))
