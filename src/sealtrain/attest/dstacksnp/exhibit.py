"""A dstack guest on SEV-SNP: verified line by line, explained field by field."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from sealtrain.attest.bundle import Attachments
from sealtrain.attest.claims import compare_commitment, raising, single
from sealtrain.attest.dstack.parse import AgentStatement
from sealtrain.attest.dstacksnp.launch import RULES, ConfiguredReport, launch_config
from sealtrain.attest.errors import GuestApiUnreachable
from sealtrain.attest.facts import MeasuredDocument, SignedFacts, Situation
from sealtrain.attest.field import Field, rows_of
from sealtrain.attest.forms import StatementExhibit
from sealtrain.attest.rented import DstackSnpEvidence
from sealtrain.attest.snp import appraise as snp
from sealtrain.attest.snp.collect import order_chain, parse_table
from sealtrain.attest.snp.exhibit import (
    AMD_ROOTS,
    report_chain,
    report_fields,
    report_root,
    verify_signed_report,
)
from sealtrain.attest.snp.parse import SnpReport, parse_report
from sealtrain.attest.snp.policy import SnpRules
from sealtrain.attest.snp.verify import REPORT, VerifiedReport
from sealtrain.attest.tee import Shown
from sealtrain.attest.verifier import Verifier
from sealtrain.base.encoding import to_base64
from sealtrain.errors import EvidenceRefused


@dataclass(frozen=True, slots=True, kw_only=True)
class DstackSnp(StatementExhibit):
    """A SEV-SNP report in an attestation of dstack's agent."""

    tee = "dstack-amd-sev-snp"
    kind = "dstack-snp-report"
    title = "dstack guest: AMD SEV-SNP report and launch configuration"
    report: SnpReport
    hosted: AgentStatement

    def prove(self, beside: Attachments, at: Situation) -> SignedFacts[VerifiedReport]:
        """The report's signature and its launch; report data stand beside it, too."""
        crl = _table(self.hosted).get("crl") if beside.crl is None else beside.crl
        chain = _chain(self.report, self.hosted, beside)
        facts = _verify_launch(
            verify_signed_report(self.report.raw, chain, crl, at), self.hosted.mr_config
        )
        signed = facts.report_data
        stated = partial(compare_commitment, "report data", self.hosted.report_data, signed, REPORT)
        asked = partial(compare_commitment, "report data", at.nonce, signed, REPORT)
        return replace(facts, asked=(single(stated), single(asked)))

    def fields(self, beside: Attachments) -> list[Field]:
        """Those of the report, and what stands beside it."""
        try:
            chain = _chain(self.report, self.hosted, beside)
        except EvidenceRefused:
            chain = ()
        told = "What the host says of the machine; it is not signed."
        rows = [("host's statement", self.hosted.config, told)]
        return [*_fields(self.report, chain, self.hosted.mr_config), *rows_of(rows)]

    def root(self, beside: Attachments) -> bytes:
        """The last certificate of its chain."""
        return _chain(self.report, self.hosted, beside)[-1]


def _fields(report: SnpReport, chain: tuple[bytes, ...], mr_config: str) -> list[Field]:
    told = "What the host set at launch; HOST_DATA commits to it."
    rows = [("launch configuration", mr_config, told)]
    return [*report_fields(report, chain), *rows_of(rows)]


def _table(hosted: AgentStatement) -> dict[str, bytes]:
    """The kernel's table of certificates, where that is what came along."""
    return parse_table(hosted.certificates[0]) if len(hosted.certificates) == 1 else {}


def _chain(report: SnpReport, hosted: AgentStatement, beside: Attachments) -> tuple[bytes, ...]:
    """Of the attestation, one table or single certificates, and those beside it."""
    inside = hosted.certificates if len(hosted.certificates) > 1 else ()
    return report_chain(report, _table(hosted), inside, beside.certificates)


def _verify_launch(verified: VerifiedReport, mr_config: str) -> SignedFacts[VerifiedReport]:
    """HOST_DATA through the text that it commits to."""
    report = verified.report
    facts: SignedFacts[VerifiedReport] = SignedFacts(
        statement=verified,
        root=report_root(verified),
        report_data=report.report_data,
        source=REPORT,
        document=None,
    )
    try:
        claim, config = launch_config(report.host_data, mr_config)
    except EvidenceRefused as error:
        return replace(facts, ties=(raising(error),))
    return replace(
        facts,
        statement=ConfiguredReport.of(verified, config),
        document=MeasuredDocument(got=config.compose_hash, source=REPORT),
        ties=(lambda: (claim,),),
        app_id=config.app_id or config.compose_hash[:40],
        instance_id=config.instance_id or report.report_id,
        key_provider=config.key_provider_id or "",
    )


def _prove(
    evidence: DstackSnpEvidence, beside: Attachments, at: Situation
) -> SignedFacts[VerifiedReport]:
    crl = evidence.crl_der if beside.crl is None else beside.crl
    raw, chain = evidence.report_bytes, evidence.certificates_der
    return _verify_launch(verify_signed_report(raw, chain, crl, at), evidence.mr_config)


def _own_fields(evidence: DstackSnpEvidence) -> list[Field]:
    report = parse_report(evidence.report_bytes)
    return _fields(report, evidence.certificates_der, evidence.mr_config)


def _show(place: Path, report_data: bytes) -> tuple[DstackSnp, Attachments]:
    raise GuestApiUnreachable(
        "a dstack guest on SEV-SNP is asked through dstack's agent", check="guest API"
    )


def _of_agent(found: AgentStatement) -> Shown:
    report, table = parse_report(found.statement), _table(found)
    inside = found.certificates if len(found.certificates) > 1 else ()
    crl = table.get("crl")
    return {
        "tee": "dstack-amd-sev-snp",
        "report": to_base64(report.raw),
        "certificates": [to_base64(der) for der in order_chain(report, table, inside)],
        "crl": None if crl is None else to_base64(crl),
        "mr_config": found.mr_config,
    }


VERIFIER: Verifier[DstackSnpEvidence, SnpRules, VerifiedReport] = Verifier(
    prove=_prove,
    form=SnpRules,
    rules=RULES,
    eat=snp.eat,
    fields=_own_fields,
    show=_show,
    of_agent=_of_agent,
    pinned_roots=AMD_ROOTS,
)
