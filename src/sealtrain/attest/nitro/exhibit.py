"""A Nitro document by itself: recognised, verified line by line, explained field by field."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sealtrain.attest.bundle import Attachments
from sealtrain.attest.certificates import certificate_fields
from sealtrain.attest.claims import Claim, claim_unchecked, compare_commitment, single
from sealtrain.attest.errors import EvidenceMalformed, GuestApiUnreachable
from sealtrain.attest.facts import MeasuredDocument, SignedFacts, Situation
from sealtrain.attest.field import CPU, Field, rows_of, time_of
from sealtrain.attest.foreign import NITRO_TPM
from sealtrain.attest.forms import StatementExhibit
from sealtrain.attest.nitro import appraise as nitro
from sealtrain.attest.nitro.chain import AWS_NITRO_ROOT_SHA256
from sealtrain.attest.nitro.collect import attestation, device_nsm
from sealtrain.attest.nitro.parse import NitroDocument, parse_document
from sealtrain.attest.nitro.policy import NitroPolicy
from sealtrain.attest.nitro.tee import NitroEvidence
from sealtrain.attest.nitro.verify import (
    SOURCE,
    VerifiedDocument,
    check_parent,
    compose_register,
    measure_document,
    verify_document,
)
from sealtrain.attest.roots import root_name
from sealtrain.attest.tee import Shown
from sealtrain.attest.verifier import Verifier
from sealtrain.base.encoding import to_base64

if TYPE_CHECKING:
    from sealtrain.attest.dstack.client import DstackClient

_AWS = "AWS Nitro Enclaves Root G1"
_OF_A_TPM = b"\x6dnitrotpm_pcrs"
"""The key under which a NitroTPM's document has its registers."""
# A tag of one or two bytes or none, an array of three to five or an open one, a byte string.
_COSE = re.compile(rb"(?:[\xc0-\xd7]|\xd8.)?[\x83-\x85\x9f][\x40-\x5f]", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Nitro(StatementExhibit):
    """A document of the Nitro Secure Module."""

    tee = "nitro"
    kind = "nitro-document"
    title = "AWS Nitro attestation document"
    document: NitroDocument

    def prove(self, beside: Attachments, at: Situation) -> SignedFacts[VerifiedDocument]:
        """Its signature and chain; its nonce is whatever its maker chose."""
        facts = document_facts(self.raw, at)
        document = facts.statement.document
        nonce = partial(compare_commitment, "nonce", at.nonce, document.nonce, SOURCE)
        data = "none" if document.user_data is None else document.user_data.hex()
        said = partial(claim_unchecked, "user data", data, source=SOURCE)
        return replace(facts, asked=(single(nonce), single(said)))

    def fields(self, beside: Attachments) -> list[Field]:
        """Every field but its signature."""
        return document_fields(self.document)

    def root(self, beside: Attachments) -> bytes:
        """As the document carries it."""
        return self.document.cabundle[0]


def _recognise(data: bytes) -> Nitro | None:
    """An array, perhaps under a tag, that begins with a byte string, whatever that string says."""
    if _COSE.match(data) is None:
        return None
    try:
        return Nitro(raw=data, document=parse_document(data))
    except EvidenceMalformed as error:
        if _OF_A_TPM in data:
            raise NITRO_TPM.refusal() from error
        raise


def document_facts(raw: bytes, at: Situation) -> SignedFacts[VerifiedDocument]:
    """A Nitro document; of a guest with a deployment document, its user data are report data.

    Args:
        raw: The document.
        at: Policy, time, conversation.
    """
    verified = verify_document(raw, simulator_root=at.root, now=at.now)
    document = verified.document
    return SignedFacts(
        statement=verified,
        root=root_name(verified.simulated, _AWS),
        report_data=document.user_data,
        source=SOURCE,
        document=MeasuredDocument(got=measure_document(document), source=SOURCE, of=_register),
        ties=(partial(_parent_holds, document),),
        instance_id=document.enclave_id,
    )


def _register(digest: str) -> str:
    return compose_register(digest).hex()


def _parent_holds(document: NitroDocument) -> tuple[Claim, ...]:
    """PCR4 agrees with the module's name where it says anything; that claim is the policy's."""
    check_parent(document)
    return ()


_PCRS = {
    0: "Measurement of the whole enclave image.",
    1: "Measurement of kernel and boot ramdisk.",
    2: "Measurement of the application.",
    3: "Hash of the parent's IAM role.",
    4: "Hash of the parent instance's id.",
    8: "Hash of the certificate that signed the image.",
    16: "sealtrain's enclaves: hash of the deployment document.",
}


def document_fields(document: NitroDocument) -> list[Field]:
    """Every field of a Nitro document but its signature."""
    rows = [
        ("module id", document.module_id, "Parent instance and enclave, as the module names them."),
        ("parent instance", document.parent_id, "The EC2 instance that the enclave runs beside."),
        ("enclave", document.enclave_id, "Which enclave of its parent."),
        ("made", time_of(document.timestamp_ms // 1000), "When the security module signed."),
        ("digest", "SHA384", "How registers are extended."),
    ]
    for index, value in document.pcrs.items():
        zero = not any(value)
        if zero and index not in (0, 1, 2):
            continue
        meaning = _PCRS.get(index, "A register that the enclave extended itself.")
        if zero:
            meaning = "Zeros: the enclave runs in debug mode and its parent reads its memory."
        rows.append((f"PCR{index}", value.hex(), meaning))
    unset = [str(index) for index, value in document.pcrs.items() if not any(value)]
    if unset:
        rows.append(("PCRs of zeros", ", ".join(unset), "Locked and never extended."))
    for name, data, meaning in (
        ("public key", document.public_key, "A key that the enclave wants answers encrypted to."),
        ("user data", document.user_data, "What the enclave wanted signed; report data in ours."),
        ("nonce", document.nonce, "Nonce chosen by the verifier."),
    ):
        rows.append((name, "none" if data is None else data.hex() or "(empty)", meaning))
    if document.unknown_fields:
        names = ", ".join(document.unknown_fields)
        rows.append(("unknown fields", names, "Signed, and not understood by this release."))
    rows.append(("identity", document.identity, "SHA-256 of what the signature covers."))
    chain = (document.certificate, *document.cabundle[::-1])
    return [*rows_of(rows), *certificate_fields(CPU, chain)]


def _show(place: Path, report_data: bytes) -> tuple[Nitro, Attachments]:
    raw = attestation(device_nsm(place), user_data=report_data)
    return Nitro(raw=raw, document=parse_document(raw)), Attachments()


def _collect(device: Path, report_data: bytes, options: Mapping[str, str]) -> Shown:
    document = attestation(device_nsm(device), user_data=report_data)
    return {"tee": "nitro", "document": to_base64(document)}


def _ask_agent(client: DstackClient, report_data: bytes) -> Shown:
    """A simulated security module, which answers on the guest's socket."""

    def nsm(request: bytes) -> bytes:
        answer = client.call("/simulator/Nsm", {"request": request.hex()}).get("response")
        try:
            return bytes.fromhex(answer)  # type: ignore[arg-type]  # anything else is refused
        except (TypeError, ValueError) as error:
            raise GuestApiUnreachable("simulated security module answers no hex") from error

    return {"tee": "nitro", "document": to_base64(attestation(nsm, user_data=report_data))}


VERIFIER: Verifier[NitroEvidence, NitroPolicy, VerifiedDocument] = Verifier(
    prove=lambda evidence, beside, at: document_facts(evidence.document_bytes, at),
    form=NitroPolicy,
    rules=nitro.RULES,
    early=("document age", "debug mode"),  # of a whole guest: it runs now, and in production
    eat=nitro.eat,
    fields=lambda evidence: document_fields(parse_document(evidence.document_bytes)),
    recognise=_recognise,
    show=_show,
    pinned_roots={AWS_NITRO_ROOT_SHA256: "AWS's pinned root of Nitro Enclaves"},
    collect=_collect,
    ask_agent=_ask_agent,
)
