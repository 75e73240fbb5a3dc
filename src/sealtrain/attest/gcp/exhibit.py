"""A dstack guest on Google's TDX machines: verified line by line, explained field by field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sealtrain.attest.bundle import Attachments
from sealtrain.attest.claims import single
from sealtrain.attest.dstack import appraise as dstack
from sealtrain.attest.dstack.exhibit import agent_facts, agent_fields, agent_quote
from sealtrain.attest.facts import SignedFacts, Situation
from sealtrain.attest.field import Field
from sealtrain.attest.forms import StatementExhibit
from sealtrain.attest.gcp import appraise as gcp
from sealtrain.attest.gcp.appraise import GcpQuote
from sealtrain.attest.gcp.collect import collect_gcp, gcp_tpm, with_issuers
from sealtrain.attest.gcp.policy import GcpPolicy
from sealtrain.attest.rented import GcpEvidence
from sealtrain.attest.roots import GOOGLE_EKAK_ROOT_SHA256
from sealtrain.attest.statement import Collateral, LogEntry
from sealtrain.attest.tdx.exhibit import PINNED_ROOTS
from sealtrain.attest.tdx.parse import TdxQuote, canonical_quote, parse_quote
from sealtrain.attest.tpm.fields import tpm_fields
from sealtrain.attest.tpm.form import TpmShown, verify_tpm
from sealtrain.attest.verifier import Verifier


@dataclass(frozen=True, slots=True, kw_only=True)
class GcpStatement(StatementExhibit):
    """A TDX quote with the event log of a dstack guest, and its vTPM's quote.

    dstack's agent shows the attestation key's certificate alone: its issuers lie beside it.
    """

    tee = "dstack-gcp-tdx"
    kind = "dstack-gcp-quote"
    title = "dstack guest on Google Cloud: TDX quote, event log, vTPM quote"
    quote: TdxQuote
    log: tuple[LogEntry, ...]
    vm_config: str | None
    tpm: TpmShown

    def prove(self, beside: Attachments, at: Situation) -> SignedFacts[GcpQuote]:
        """Both signatures, and the log's replays."""
        shown = with_issuers(self.tpm, beside.certificates)
        return _verify_facts(self.quote.raw, self.log, shown, beside.collateral, at)

    def fields(self, beside: Attachments) -> list[Field]:
        """Of quote, log, the host's statement and the vTPM's quote."""
        return _fields(self.quote, self.log, self.vm_config, self.tpm)

    def root(self, beside: Attachments) -> bytes:
        """As the quote carries it."""
        return self.quote.root_der


def _verify_facts(
    raw: bytes,
    log: tuple[LogEntry, ...],
    shown: TpmShown,
    collateral: Collateral | None,
    at: Situation,
) -> SignedFacts[GcpQuote]:
    signed = agent_quote(raw, collateral, at, GcpPolicy)
    tpm = verify_tpm(shown, simulator_root=at.root, now=at.now)
    ties = (
        single(partial(gcp.check_quoted, tpm, raw)),
        single(partial(gcp.check_events, tpm, log)),
    )
    return agent_facts(signed, log, partial(GcpQuote.of, tpm=tpm), ties)


_PCRS: Mapping[int, str] = {
    0: "Google's firmware, and which processor protects the memory.",
    2: "What the firmware started: the guest's image.",
    14: "The same run-time events as RTMR3.",
}


def _fields(
    quote: TdxQuote, log: tuple[LogEntry, ...], config: str | None, shown: TpmShown
) -> list[Field]:
    return [*agent_fields(quote, log, config), *tpm_fields(shown, _PCRS, shown.certificates_der)]


def _prove(evidence: GcpEvidence, beside: Attachments, at: Situation) -> SignedFacts[GcpQuote]:
    raw, log = evidence.quote_bytes, evidence.event_log
    return _verify_facts(raw, log, evidence.tpm, beside.collateral, at)


def _own_fields(evidence: GcpEvidence) -> list[Field]:
    quote = parse_quote(evidence.quote_bytes)
    return _fields(quote, evidence.event_log, evidence.vm_config, evidence.tpm)


def _show(place: Path, report_data: bytes) -> tuple[GcpStatement, Attachments]:
    from sealtrain.attest.dstack.client import DstackClient  # an HTTP client: a verifier loads none

    found = DstackClient(str(place)).statement_of("gcp-tdx", report_data)
    quote = parse_quote(canonical_quote(found.statement))
    shown = gcp_tpm(found)
    statement = GcpStatement(
        raw=quote.raw, quote=quote, log=found.log, vm_config=found.config, tpm=shown
    )
    return statement, Attachments(certificates=shown.certificates_der[1:])


VERIFIER: Verifier[GcpEvidence, GcpPolicy, GcpQuote] = Verifier(
    prove=_prove,
    form=GcpPolicy,
    rules=gcp.RULES,
    eat=dstack.eat,
    fields=_own_fields,
    show=_show,
    of_agent=collect_gcp,
    pinned_roots={
        **PINNED_ROOTS,
        GOOGLE_EKAK_ROOT_SHA256: "Google's pinned root of vTPM keys",
    },
)
