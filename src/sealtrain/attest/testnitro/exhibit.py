"""An enclave under a test root: its document is verified as AWS's are, and never as AWS's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final, NoReturn

from sealtrain.attest.bundle import Attachments
from sealtrain.attest.errors import GuestApiUnreachable, SimulatedEvidence
from sealtrain.attest.facts import SignedFacts, Situation
from sealtrain.attest.nitro.appraise import ENCLAVE_RULES, eat
from sealtrain.attest.nitro.exhibit import document_facts, document_fields
from sealtrain.attest.nitro.parse import parse_document
from sealtrain.attest.nitro.verify import VerifiedDocument
from sealtrain.attest.rented import EnclaveTestEvidence
from sealtrain.attest.roots import root_name
from sealtrain.attest.testnitro.policy import EnclaveTestPolicy
from sealtrain.attest.verifier import Verifier

_TEST: Final = "a test root"


def _prove(
    evidence: EnclaveTestEvidence, beside: Attachments, at: Situation
) -> SignedFacts[VerifiedDocument]:
    if at.root is None:
        raise SimulatedEvidence(
            "evidence under a test root, where hardware is asked for",
            check="trust root",
            got=evidence.tee,
            expected="evidence of hardware",
        )
    return replace(document_facts(evidence.document_bytes, at), root=root_name(True, _TEST))


def _show(place: Path, report_data: bytes) -> NoReturn:
    raise GuestApiUnreachable(
        "an enclave under a test root shows its evidence through its own agent", check="guest API"
    )


VERIFIER: Verifier[EnclaveTestEvidence, EnclaveTestPolicy, VerifiedDocument] = Verifier(
    prove=_prove,
    form=EnclaveTestPolicy,
    rules=ENCLAVE_RULES,
    early=("document age", "debug mode"),
    eat=lambda verified: {**eat(verified), "hwmodel": "Nitro document under a test root"},
    fields=lambda evidence: document_fields(parse_document(evidence.document_bytes)),
    show=_show,
    pinned_roots={},
)
