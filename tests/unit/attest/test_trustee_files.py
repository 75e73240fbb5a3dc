"""Files of the attestation agent of Confidential Containers, made of a simulated machine of Azure.

``test_cloud_public`` reads the real ones where they are at hand.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable
from typing import Any

import pytest
from machines_world import MACHINES, NOW, MachinePark

from sealtrain.attest.bundle import Attachments
from sealtrain.attest.claims import require_groups
from sealtrain.attest.cloudtpm.exhibit import AzureSnp
from sealtrain.attest.engine import statement_part
from sealtrain.attest.errors import EvidenceMalformed
from sealtrain.attest.exhibits import recognise
from sealtrain.attest.facts import Situation
from sealtrain.errors import SealtrainError

Written = Callable[[bytes], object]


def url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


VERSIONS: dict[str, tuple[str, str, Written]] = {
    "0": ("report", "quote", list),
    "1": ("hcl_report", "tpm_quote", bytes.hex),
    "2": ("hcl_report", "tpm_quote", url),
}
"""Version → names of both statements, and how it writes bytes."""


@pytest.fixture(scope="module")
def cpu(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the machine shows a broker of ours."""
    park = MachinePark(tmp_path_factory.mktemp("azure"))
    evidence: Any = park.evidence(MACHINES["azure-snp"]).to_dict()
    policy = park.pin(MACHINES["azure-snp"])
    return {**evidence["cpu"], "policy": policy}


def file_of(cpu: dict[str, Any], version: str) -> dict[str, Any]:
    report_name, quote_name, written = VERSIONS[version]
    runtime = cpu["runtime"].encode("ascii")
    header = struct.pack("<4sIIII12x", b"HCLA", 1, 32 + 1184 + 20 + len(runtime), 2, 0)
    data = struct.pack("<IIIII", 20 + len(runtime), 1, 2, 1, len(runtime)) + runtime
    signature = base64.b64decode(cpu["tpm"]["signature"])[6:]
    return {
        report_name: written(header + base64.b64decode(cpu["report"]) + data),
        quote_name: {
            "message": written(base64.b64decode(cpu["tpm"]["message"])),
            "signature": written(signature),
            "pcrs": [
                written(bytes.fromhex(register["value"])) for register in cpu["tpm"]["registers"]
            ],
        },
        "vcek": written(base64.b64decode(cpu["certificates"][0])),
    }


def beside(cpu: dict[str, Any]) -> Attachments:
    authorities = tuple(base64.b64decode(text) for text in cpu["certificates"][1:])
    return Attachments(certificates=authorities, crl=base64.b64decode(cpu["crl"]))


@pytest.mark.parametrize("version", VERSIONS)
def test_each_version_is_the_machine_that_it_was_made_of(cpu: dict[str, Any], version: str) -> None:
    found = recognise(json.dumps(file_of(cpu, version)).encode())
    assert isinstance(found, AzureSnp)
    policy = cpu["policy"]
    at = Situation(policy=policy, root=policy.simulator_root, now=NOW)
    vouched = statement_part(found, beside(cpu), at).verify()
    require_groups(vouched.groups)
    assert vouched.simulated


@pytest.mark.parametrize(
    "change",
    [
        lambda text: f"{text[:4]}!{text[4:]}",
        lambda text: f"{text[:4]}\n{text[4:]}",
        lambda text: f"{text}===",
        lambda text: f"{text}=A",
        lambda text: f"{text[:-1]}\u00e9",
        lambda text: text.replace("-", "+").replace("_", "/") + "+/+/",
        lambda text: [1, 2, 256],
        lambda text: [True],
        lambda text: {"a": 1},
        lambda text: None,
        lambda text: 7,
    ],
)
def test_bytes_that_are_written_in_another_way_are_refused(
    cpu: dict[str, Any], change: Callable[[str], object]
) -> None:
    for place in ("message", "signature"):
        value = file_of(cpu, "2")
        value["tpm_quote"][place] = change(value["tpm_quote"][place])
        with pytest.raises(EvidenceMalformed):
            recognise(json.dumps(value).encode())


def test_registers_twice_or_too_few_and_parts_that_are_missing_are_refused(
    cpu: dict[str, Any],
) -> None:
    whole = file_of(cpu, "1")
    registers = whole["tpm_quote"]["pcrs"]
    for value in (
        {**whole, "tpm_quote": {**whole["tpm_quote"], "pcrs": registers[:-1]}},
        {**whole, "tpm_quote": {**whole["tpm_quote"], "pcrs": [*registers, registers[0]]}},
        {**whole, "tpm_quote": {**whole["tpm_quote"], "pcrs": dict(enumerate(registers))}},
        {**whole, "tpm_quote": []},
        {**whole, "hcl_report": whole["hcl_report"][:-2]},
        {**whole, "hcl_report": ""},
        {**whole, "vcek": "-----BEGIN CERTIFICATE-----\nAAAA\n"},
    ):
        with pytest.raises(SealtrainError):
            recognise(json.dumps(value).encode())
