"""A dstack guest on EC2 with a NitroTPM: verified line by line, explained field by field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from sealtrain.attest.bundle import Attachments
from sealtrain.attest.certificates import certificate_fields
from sealtrain.attest.claims import raising, single
from sealtrain.attest.dstack.exhibit import log_fields
from sealtrain.attest.dstack.parse import AgentStatement
from sealtrain.attest.dstack.verify import LOG, boot_measurements, describe_unmeasured
from sealtrain.attest.facts import MeasuredDocument, SignedFacts, Situation
from sealtrain.attest.field import CPU, Field, rows_of, time_of
from sealtrain.attest.forms import StatementExhibit
from sealtrain.attest.nitro.chain import AWS_NITRO_ROOT_SHA256
from sealtrain.attest.nitro.parse import NITRO_TPM, NitroDocument, parse_document
from sealtrain.attest.nitro.verify import verify_document
from sealtrain.attest.nitrotpm import appraise as nitrotpm
from sealtrain.attest.nitrotpm.appraise import DOCUMENT, NitroTpmGuest
from sealtrain.attest.nitrotpm.policy import NitroTpmPolicy
from sealtrain.attest.rented import NitroTpmEvidence
from sealtrain.attest.roots import root_name
from sealtrain.attest.statement import LogEntry
from sealtrain.attest.tee import Shown
from sealtrain.attest.verifier import Verifier
from sealtrain.base.encoding import to_base64
from sealtrain.errors import EvidenceRefused

_AWS = "AWS Nitro Enclaves Root G1"


@dataclass(frozen=True, slots=True, kw_only=True)
class NitroTpmStatement(StatementExhibit):
    """A NitroTPM's document with the event log of a dstack guest."""

    tee = "dstack-aws-nitro-tpm"
    kind = "nitro-tpm-document"
    title = "dstack guest on EC2: NitroTPM document and event log"
    document: NitroDocument
    log: tuple[LogEntry, ...]
    vm_config: str | None

    def prove(self, beside: Attachments, at: Situation) -> SignedFacts[NitroTpmGuest]:
        """Its signature and chain, and the log's replay."""
        return _verify_facts(self.document.raw, self.log, at)

    def fields(self, beside: Attachments) -> list[Field]:
        """Every field but its signature, and the log."""
        return _fields(self.document, self.log)

    def root(self, beside: Attachments) -> bytes:
        """As the document carries it."""
        return self.document.cabundle[0]


def _verify_facts(
    raw: bytes, log: tuple[LogEntry, ...], at: Situation
) -> SignedFacts[NitroTpmGuest]:
    verified = verify_document(raw, simulator_root=at.root, now=at.now, form=NITRO_TPM)
    events = single(partial(nitrotpm.check_events, verified, log))
    facts: SignedFacts[NitroTpmGuest] = SignedFacts(
        statement=NitroTpmGuest(document=verified, measured=describe_unmeasured(log)),
        root=root_name(verified.simulated, _AWS),
        report_data=verified.document.user_data,
        source=DOCUMENT,
        document=None,
    )
    try:
        measured = boot_measurements(log)
    except EvidenceRefused as error:
        return replace(facts, ties=(events, raising(error)))
    return replace(
        facts,
        statement=NitroTpmGuest(document=verified, measured=measured),
        document=MeasuredDocument(got=measured.compose_hash, source=LOG),
        ties=(events,),
        app_id=measured.app_id,
        instance_id=measured.instance_id,
        key_provider=measured.key_provider,
    )


_PCRS: Mapping[int, str] = {
    4: "What the firmware started: the image.",
    7: "State of Secure Boot.",
    8: "dstack's configuration id.",
    12: "Command lines from outside the image.",
    14: "The run-time events of the log.",
}


def _fields(document: NitroDocument, log: tuple[LogEntry, ...]) -> list[Field]:
    rows = [
        ("module id", document.module_id, "The instance and its NitroTPM."),
        ("instance", document.parent_id, "The EC2 instance; its memory is not said to be sealed."),
        ("made", time_of(document.timestamp_ms // 1000), "When the NitroTPM signed."),
        ("digest", "SHA384", "How registers are extended."),
    ]
    for index, value in document.pcrs.items():
        if any(value) or index in _PCRS:
            meaning = _PCRS.get(index, "A register of the NitroTPM.")
            rows.append((f"PCR {index}", value.hex(), meaning))
    for name, data, meaning in (
        ("public key", document.public_key, "A key that the guest wants answers encrypted to."),
        ("user data", document.user_data, "What the guest wanted signed; report data in ours."),
        ("nonce", document.nonce, "Nonce chosen by the verifier."),
    ):
        rows.append((name, "none" if data is None else data.hex() or "(empty)", meaning))
    if document.unknown_fields:
        unknown = ", ".join(document.unknown_fields)
        rows.append(("unknown fields", unknown, "Signed, and not understood by this release."))
    rows.append(("identity", document.identity, "SHA-256 of what the signature covers."))
    chain = (document.certificate, *document.cabundle[::-1])
    return [*rows_of(rows), *log_fields(log), *certificate_fields(CPU, chain)]


def _prove(
    evidence: NitroTpmEvidence, beside: Attachments, at: Situation
) -> SignedFacts[NitroTpmGuest]:
    return _verify_facts(evidence.document_bytes, evidence.event_log, at)


def _own_fields(evidence: NitroTpmEvidence) -> list[Field]:
    return _fields(parse_document(evidence.document_bytes, NITRO_TPM), evidence.event_log)


def _show(place: Path, report_data: bytes) -> tuple[NitroTpmStatement, Attachments]:
    from sealtrain.attest.dstack.client import DstackClient  # an HTTP client: a verifier loads none

    found = DstackClient(str(place)).statement_of("aws-nitro-tpm", report_data)
    document = parse_document(found.statement, NITRO_TPM)
    statement = NitroTpmStatement(
        raw=document.raw, document=document, log=found.log, vm_config=found.config
    )
    return statement, Attachments()


def _of_agent(found: AgentStatement) -> Shown:
    return {
        "tee": "dstack-aws-nitro-tpm",
        "document": to_base64(found.statement),
        "event_log": [entry.to_dict() for entry in found.log],
        "vm_config": found.config or None,
    }


VERIFIER: Verifier[NitroTpmEvidence, NitroTpmPolicy, NitroTpmGuest] = Verifier(
    prove=_prove,
    form=NitroTpmPolicy,
    rules=nitrotpm.RULES,
    eat=nitrotpm.eat,
    fields=_own_fields,
    show=_show,
    of_agent=_of_agent,
    pinned_roots={AWS_NITRO_ROOT_SHA256: "AWS's pinned root of Nitro Enclaves"},
)
