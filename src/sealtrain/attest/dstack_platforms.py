"""dstack's attestations of Nitro enclaves, and which file holds which kind of machine.

The wrapper proves nothing. The document is verified and appraised as that of a bare enclave
(``attest.nitro``), under a policy of that TEE. dstack signs report data as user data; its image
holds the deployment document, so that PCR0 to 2 stand for it and no register names it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from sealtrain.attest.bundle import Attachments
from sealtrain.attest.claims import claim_unchecked, compare_commitment, single
from sealtrain.attest.dstack.parse import AgentStatement
from sealtrain.attest.dstacksnp.exhibit import DstackSnp
from sealtrain.attest.facts import SignedFacts, Situation
from sealtrain.attest.field import Field, rows_of
from sealtrain.attest.forms import StatementExhibit
from sealtrain.attest.nitro.exhibit import document_facts, document_fields
from sealtrain.attest.nitro.parse import NitroDocument, parse_document
from sealtrain.attest.nitro.verify import SOURCE, VerifiedDocument
from sealtrain.attest.snp.parse import parse_report
from sealtrain.base.digests import sha256_hex


@dataclass(frozen=True, slots=True, kw_only=True)
class DstackEnclave(StatementExhibit):
    """A Nitro document in a dstack attestation."""

    tee = "nitro"
    kind = "nitro-document"
    title = "dstack guest: AWS Nitro attestation document"
    document: NitroDocument
    hosted: AgentStatement

    def prove(self, beside: Attachments, at: Situation) -> SignedFacts[VerifiedDocument]:
        """The document's signature; report data are its user data, and stand beside it, too."""
        facts = document_facts(self.hosted.statement, at)
        document, said = facts.statement.document, facts.report_data
        return replace(
            facts,
            asked=(
                single(partial(claim_unchecked, "OS image", image_hash(document), source=SOURCE)),
                single(
                    partial(
                        compare_commitment, "report data", self.hosted.report_data, said, SOURCE
                    )
                ),
                single(partial(compare_commitment, "report data", at.nonce, said, SOURCE)),
            ),
        )

    def fields(self, beside: Attachments) -> list[Field]:
        """Those of the document, and what stands beside it."""
        told = "What the host says of the machine; it is not signed."
        rows = [("host's statement", self.hosted.config, told)]
        return [*document_fields(self.document), *rows_of(rows)]

    def root(self, beside: Attachments) -> bytes:
        """As the document carries it."""
        return self.document.cabundle[0]


def find_hosted_exhibit(blob: bytes, found: AgentStatement) -> DstackSnp | DstackEnclave | None:
    """The file that holds a statement of these machines; ``None`` of another kind.

    Raises:
        EvidenceMalformed: The document is malformed.
        QuoteInvalid: The report is.
    """
    if found.kind == "amd-sev-snp":
        return DstackSnp(raw=blob, report=parse_report(found.statement), hosted=found)
    if found.kind == "nitro-enclave":
        return DstackEnclave(raw=blob, document=parse_document(found.statement), hosted=found)
    return None


def image_hash(document: NitroDocument) -> str:
    """An enclave's image as dstack names it: SHA-256 of PCR0 to PCR2, hex."""
    return sha256_hex(b"".join(document.pcrs[index] for index in (0, 1, 2)))
