"""A Nitro document by itself: recognised, verified line by line, explained field by field."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sealtrain.attest.bundle import Attachments
from sealtrain.attest.certificates import certificate_fields
from sealtrain.attest.claims import Claim, Group, single, unlooked
from sealtrain.attest.dstack.client import DstackClient
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
    measured_document,
    verify_document,
)
from sealtrain.attest.part import (
    Part,
    Proven,
    Situation,
    bound_groups,
    committed,
    compose_groups,
    guest_part,
    root_name,
)
from sealtrain.attest.tee import Shown
from sealtrain.attest.verifier import Verifier
from sealtrain.base.encoding import to_base64
from sealtrain.errors import EvidenceMalformed, GuestApiUnreachable

__all__ = ["VERIFIER", "Nitro", "document_fields", "document_part"]

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

    def part(self, beside: Attachments, at: Situation) -> Part:
        """Its signature and chain, then its lines; its nonce is whatever its maker chose."""
        return document_part(self.raw, at)

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


Asked = Callable[[NitroDocument, Situation], Iterable[Group]]
"""What a document's user data and nonce are compared with."""


def _nonce(document: NitroDocument, at: Situation) -> Iterable[Group]:
    yield single(partial(committed, "nonce", at.nonce, document.nonce, SOURCE))
    data = "none" if document.user_data is None else document.user_data.hex()
    yield single(partial(unlooked, "user data", data, source=SOURCE))


def document_part(raw: bytes, at: Situation, *, asked: Asked = _nonce) -> Part:
    """A Nitro document; with a deployment document, its user data are report data.

    Args:
        raw: The document.
        at: Policy, time, conversation.
        asked: Comparisons with the conversation, of a document without a deployment document.
    """

    def prove() -> Proven:
        verified = verify_document(raw, simulator_root=at.root, now=at.now)
        document = verified.document
        rules = None if at.policy is None else at.policy.cpu
        lines: list[Group] = []
        if isinstance(rules, NitroPolicy):
            lines += map(single, nitro.checks_of(verified, rules, at.now))
        measured = measured_document(document)
        parent = partial(_parent_holds, document)
        bound = bound_groups(at, measured, SOURCE, _register)
        if bound:
            # Of a whole guest: it runs now, and in production.
            first, lines = lines[:2], lines[2:]
            bound = (*first[::-1], parent, *bound)
        else:
            lines.append(parent)
        lines += compose_groups(at, measured, SOURCE, _register)
        return Proven(
            signed=verified,
            root=root_name(verified.simulated, _AWS),
            eat=nitro.eat(verified),
            groups=lines,
            report_data=document.user_data,
            source=SOURCE,
            asked=None if bound else tuple(asked(document, at)),
            bound=bound,
            ids={"instance_id": document.enclave_id},
        )

    return guest_part(prove, at)


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
    checks=nitro.checks_of,
    eat=nitro.eat,
    part=lambda evidence, beside, at: document_part(evidence.document_bytes, at),
    fields=lambda evidence: document_fields(parse_document(evidence.document_bytes)),
    recognise=_recognise,
    show=_show,
    pinned_roots={AWS_NITRO_ROOT_SHA256: "AWS's pinned root of Nitro Enclaves"},
    collect=_collect,
    ask_agent=_ask_agent,
)
