"""Whole machines of Azure that others published: processor, paravisor and TPM verify together."""

from __future__ import annotations

import base64
import copy
import json
from dataclasses import replace
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from public_evidence import published

from sealtrain.attest.bundle import Attachments
from sealtrain.attest.claims import require_groups
from sealtrain.attest.cloudtpm.exhibit import AzureSnp, AzureTdx
from sealtrain.attest.engine import statement_part
from sealtrain.attest.errors import (
    CertificateChainInvalid,
    EvidenceMalformed,
    MeasurementMismatch,
    QuoteInvalid,
    ReportDataMismatch,
)
from sealtrain.attest.exhibits import recognise
from sealtrain.attest.facts import Situation
from sealtrain.attest.tpm.form import verify_boot
from sealtrain.attest.tpm.hcl import check_runtime
from sealtrain.errors import EvidenceRefused

pytestmark = pytest.mark.claim("C562")

NOW = 1_780_000_000
AT = Situation(policy=None, root=None, now=NOW)
SNP = {
    "an Azure machine with SEV-SNP, Genoa": "Genoa",
    "an Azure machine with SEV-SNP, Milan": "Milan",
    "an Azure machine with SEV-SNP, Milan, version 1": "Milan",
    "an Azure machine with SEV-SNP, Milan, version 2": "Milan",
}
TDX = ("an Azure machine with TDX", "an Azure machine with TDX, version 1")


def amd(product: str) -> Attachments:
    """ASK and ARK; the third of the file is for lent keys."""
    found = x509.load_pem_x509_certificates(published(f"AMD's authorities of {product}"))
    return Attachments(
        certificates=tuple(certificate.public_bytes(Encoding.DER) for certificate in found[:2])
    )


def machine(name: str) -> Any:
    return recognise(published(name))


@pytest.mark.parametrize("name", SNP)
def test_azure_with_sev_snp(name: str) -> None:
    """Its chip signed for the key that signed the quote of these registers."""
    shown, beside = machine(name), amd(SNP[name])
    assert isinstance(shown, AzureSnp)
    vouched = statement_part(shown, beside, AT).verify()
    assert not vouched.simulated
    claims = {claim.name: claim for claim in require_groups(vouched.groups)}
    assert claims["runtime data"].outcome == "equal"
    asked = bytes.fromhex(claims["report data"].got)
    again = statement_part(shown, beside, AT.with_(nonce=asked)).verify()
    assert {claim.name: claim.outcome for claim in require_groups(again.groups)}[
        "report data"
    ] == "equal"
    other = statement_part(shown, beside, AT.with_(nonce=asked[::-1])).verify()
    with pytest.raises(ReportDataMismatch):
        require_groups(other.groups)
    assert {field.name for field in shown.fields(beside)} >= {"virtual machine", "PCR 4", "VMPL"}


def test_azure_with_sev_snp_needs_amds_authorities() -> None:
    shown = machine("an Azure machine with SEV-SNP, Genoa")
    for beside in (Attachments(), amd("Milan")):
        with pytest.raises(CertificateChainInvalid):
            statement_part(shown, beside, AT).verify()


def test_parts_of_two_azure_machines_are_no_machine() -> None:
    """Quote, runtime data and report of machines that were all real."""
    first, second = (
        machine("an Azure machine with SEV-SNP, Genoa"),
        machine("an Azure machine with SEV-SNP, Milan"),
    )
    beside = amd("Genoa")
    for mixed, error in (
        (replace(first, tpm=second.tpm), QuoteInvalid),
        (replace(first, runtime=second.runtime), ReportDataMismatch),
        (replace(first, runtime=second.runtime, tpm=second.tpm), ReportDataMismatch),
    ):
        with pytest.raises(error):
            statement_part(mixed, beside, AT).verify()


@pytest.mark.parametrize("name", TDX)
def test_azure_with_tdx(name: str) -> None:
    """Intel's data of that day are not published with it; the rest holds."""
    shown = machine(name)
    assert isinstance(shown, AzureTdx)
    check_runtime(shown.runtime, shown.quote.report_data)
    boot = verify_boot(shown.tpm, shown.runtime.key)
    assert boot.quote.qualifying_data == b"challenge"
    with pytest.raises(EvidenceRefused):
        statement_part(shown, Attachments(), AT).verify()
    snp = machine("an Azure machine with SEV-SNP, Milan")
    with pytest.raises(ReportDataMismatch):
        check_runtime(shown.runtime, snp.report.report_data)
    with pytest.raises(QuoteInvalid):
        verify_boot(snp.tpm, shown.runtime.key)


def test_an_altered_file_of_azure_is_refused() -> None:
    name = "an Azure machine with SEV-SNP, Genoa"
    document: Any = json.loads(published(name))
    beside = amd("Genoa")

    def bit(value: list[int], at: int) -> list[int]:
        return [*value[:at], value[at] ^ 1, *value[at + 1 :]]

    quote = document["quote"]
    pcrs = copy.deepcopy(quote["pcrs"])
    pcrs[12] = bit(pcrs[12], 0)
    for change, error in (
        ({"quote": {**quote, "message": bit(quote["message"], 80)}}, QuoteInvalid),
        ({"quote": {**quote, "signature": bit(quote["signature"], 9)}}, QuoteInvalid),
        ({"quote": {**quote, "pcrs": pcrs}}, MeasurementMismatch),
        ({"quote": {**quote, "pcrs": quote["pcrs"][:23]}}, EvidenceMalformed),
        ({"quote": None}, EvidenceMalformed),
        ({"report": bit(document["report"], 32 + 0x90)}, QuoteInvalid),
        ({"report": document["report"][:2000]}, EvidenceMalformed),
        ({"report": [*document["report"][:-1], 256]}, EvidenceMalformed),
        ({"vcek": "-----BEGIN"}, EvidenceMalformed),
        ({"vcek": base64.b64encode(b"no certificate").decode()}, CertificateChainInvalid),
    ):
        with pytest.raises(error):
            statement_part(
                recognise(json.dumps({**document, **change}).encode()), beside, AT
            ).verify()
