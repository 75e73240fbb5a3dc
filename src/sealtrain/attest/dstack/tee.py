"""dstack on Intel TDX, for the rest of attest."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sealtrain.attest.dstack.evidence import DstackEvidence
from sealtrain.attest.dstack.policy import COMMENTS, LINES, PRESETS, SIMULATED, DstackPolicy
from sealtrain.attest.tdx.tee import pinned_roots
from sealtrain.attest.tee import Given, Shown, Tee

if TYPE_CHECKING:
    from sealtrain.attest.bundle import Beside
    from sealtrain.attest.claims import Claim
    from sealtrain.attest.dstack.client import DstackClient
    from sealtrain.attest.dstack.verify import VerifiedDstack
    from sealtrain.attest.field import Field
    from sealtrain.attest.forms import Statement
    from sealtrain.attest.part import Part, Situation

__all__ = ["TEE"]


def _verify(evidence: DstackEvidence, rules: DstackPolicy, given: Given) -> VerifiedDstack:
    from sealtrain.attest.dstack.verify import verify_dstack
    from sealtrain.attest.tdx.verify import needed

    return verify_dstack(
        evidence.quote_bytes,
        evidence.event_log,
        evidence.app_compose_bytes,
        needed(given.collateral),
        rules,
        simulator_root=given.simulator_root,
        now=given.now,
    )


def _claims(verified: VerifiedDstack, rules: DstackPolicy, now: int) -> tuple[Claim, ...]:
    from sealtrain.attest.dstack.appraise import claims_of

    return claims_of(verified, rules, now)


def _eat(verified: VerifiedDstack) -> dict[str, str]:
    from sealtrain.attest.dstack.appraise import eat

    return eat(verified)


def _part(evidence: DstackEvidence, beside: Beside, at: Situation) -> Part:
    from sealtrain.attest.dstack.exhibit import dstack_part

    return dstack_part(evidence.quote_bytes, evidence.event_log, beside.collateral, at)


def _fields(evidence: DstackEvidence) -> list[Field]:
    from sealtrain.attest.dstack.exhibit import host_fields, log_fields
    from sealtrain.attest.tdx.exhibit import quote_fields
    from sealtrain.attest.tdx.parse import parse_quote

    return [
        *quote_fields(parse_quote(evidence.quote_bytes)),
        *log_fields(evidence.event_log),
        *host_fields(evidence.vm_config),
    ]


def _show(place: Path, report_data: bytes) -> tuple[Statement, Beside]:
    from sealtrain.attest.bundle import Beside
    from sealtrain.attest.dstack.client import DstackClient
    from sealtrain.attest.dstack.exhibit import DstackQuote
    from sealtrain.attest.tdx.parse import canonical_quote, parse_quote

    answer = DstackClient(str(place)).get_quote(report_data)
    raw = canonical_quote(answer.quote)
    shown = DstackQuote(
        raw=raw, quote=parse_quote(raw), log=answer.event_log, vm_config=answer.vm_config
    )
    return shown, Beside()


def _ask_agent(client: DstackClient, report_data: bytes) -> Shown:
    from sealtrain.attest.dstack.collect import collect

    return collect(client, report_data)


TEE = Tee(
    name="dstack",
    vendor="intel",
    vendor_root="Intel's root",
    evidence=DstackEvidence,
    policy=DstackPolicy,
    verify=_verify,
    claims=_claims,
    eat=_eat,
    part=_part,
    fields=_fields,
    kinds=("dstack-quote",),
    show=_show,
    pinned_roots=pinned_roots,
    dcap=True,
    ask_agent=_ask_agent,
    lines=LINES,
    comments=COMMENTS,
    presets=PRESETS,
    simulated=SIMULATED,
)
