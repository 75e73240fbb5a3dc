"""A TDX quote by itself: recognised, verified line by line, explained field by field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import get_args

from sealtrain.attest.bundle import Attachments
from sealtrain.attest.certificates import certificate_fields
from sealtrain.attest.claims import Claim, claim_unchecked
from sealtrain.attest.errors import EventLogMismatch
from sealtrain.attest.facts import MeasuredDocument, SignedFacts, Situation
from sealtrain.attest.field import CPU, Field, on_off, rows_of
from sealtrain.attest.forms import Exhibit, SgxQuote, StatementExhibit
from sealtrain.attest.roots import INTEL_ROOT_SHA256, root_name
from sealtrain.attest.rules import Rule
from sealtrain.attest.statement import Collateral
from sealtrain.attest.tdx import appraise as tdx
from sealtrain.attest.tdx.bootlog import BOOT_LOG, check_events, read_events, replay_events
from sealtrain.attest.tdx.parse import TdxQuote, canonical_quote, parse_quote
from sealtrain.attest.tdx.policy import QuotePolicy, TcbStatus, TdxPolicy
from sealtrain.attest.tdx.tee import FirmwareEvent, TdxEvidence
from sealtrain.attest.tdx.verify import QUOTE, VerifiedQuote, config_id, verify_quote
from sealtrain.attest.tee import Shown
from sealtrain.attest.verifier import Verifier
from sealtrain.base.encoding import to_base64

_INTEL = "Intel SGX Root CA"
_QE_VENDOR = bytes.fromhex("939a7233f79c4ca9940a0db3957f0607")  # Intel's, bytes 12 to 27 of a quote
_QUOTE_BYTES = 632
_ANY_QUOTE = QuotePolicy(
    tee="tdx",
    tcb_status=get_args(TcbStatus),
    advisories="any",
    debug="refuse",
    migration="refuse",
    measurements="any",
    platform_ids="any",
    min_tcb_evaluation_data_number=0,
    max_collateral_age_s="any",
)
"""Leaves what a policy says to comparisons that can be shown; cryptography and time remain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote(StatementExhibit):
    """A TDX quote by itself."""

    tee = "tdx"
    kind = "tdx-quote"
    title = "Intel TDX quote"
    quote: TdxQuote

    def prove(self, beside: Attachments, at: Situation) -> SignedFacts[BareQuote]:
        """Its signature under collateral."""
        return _verify_facts(self.quote.raw, beside.collateral, at)

    def fields(self, beside: Attachments) -> list[Field]:
        """Every field but its signature."""
        return quote_fields(self.quote)

    def root(self, beside: Attachments) -> bytes:
        """As the quote carries it."""
        return self.quote.root_der


def _recognise(data: bytes) -> Exhibit | None:
    """A quote by its kind of guest or its maker, whatever its version and kind of key say."""
    head = len(data) >= _QUOTE_BYTES and 0 < data[0] < 0x10 and data[1] == 0
    if not head or (data[4:8] != b"\x81\0\0\0" and data[12:28] != _QE_VENDOR):
        return None
    if data[0] == 3 or not any(data[4:8]):
        return SgxQuote(raw=data)
    raw = canonical_quote(data)
    return Quote(raw=raw, quote=parse_quote(raw))


@dataclass(frozen=True, slots=True, kw_only=True)
class BareQuote(VerifiedQuote):
    """A quote, and the firmware's events that replay to its registers."""

    events: tuple[FirmwareEvent, ...]

    @property
    def firmware_logged(self) -> bool:
        """Whether there are any."""
        return bool(self.events)


def _verify_facts(
    raw: bytes,
    collateral: Collateral | None,
    at: Situation,
    events: tuple[FirmwareEvent, ...] = (),
) -> SignedFacts[BareQuote]:
    """A TDX quote whose MRCONFIGID names the deployment document."""
    rules = None if at.policy is None else at.policy.cpu
    found = verify_signed_quote(
        raw, collateral, rules if isinstance(rules, TdxPolicy) else None, at
    )
    if events:
        check_events(events, found.quote.rtmr)
    signed = BareQuote(
        events=events, **{each.name: getattr(found, each.name) for each in fields(found)}
    )
    return SignedFacts(
        statement=signed,
        root=quote_root(signed),
        report_data=signed.report_data,
        source=QUOTE,
        document=MeasuredDocument(got=signed.quote.mr_config_id.hex(), source=QUOTE, of=config_id),
    )


def verify_signed_quote(
    raw: bytes, collateral: Collateral | None, rules: QuotePolicy | None, at: Situation
) -> VerifiedQuote:
    """A quote whose signature holds; raises as ``verify_quote``."""
    if rules is None or at.every_line:
        rules = _ANY_QUOTE
    return verify_quote(raw, collateral, rules, simulator_root=at.root, now=at.now)


def quote_root(signed: VerifiedQuote) -> str:
    """The root that vouches for a quote, in words."""
    return root_name(signed.simulated, _INTEL)


_TD_REPORT = (
    # name, first byte, last byte, meaning
    ("TEE TCB SVN", 0, 16, "Security versions of the TDX module and its loader."),
    ("MRSEAM", 16, 64, "Measurement of the TDX module that runs below the guest."),
    ("MRSIGNERSEAM", 64, 112, "Who signed the TDX module; zeros are Intel."),
    ("SEAM attributes", 112, 120, "Properties of the TDX module; zeros in production."),
    ("TD attributes", 120, 128, "Properties of the guest; the lowest bit would be debug mode."),
    ("XFAM", 128, 136, "Processor features that the guest may use."),
    ("MRTD", 136, 184, "Measurement of the guest's firmware as it was loaded."),
    ("MRCONFIGID", 184, 232, "What the host configured: may name the deployment document."),
    ("MROWNER", 232, 280, "An owner's identity set by the host; no signature covers its choice."),
    ("MROWNERCONFIG", 280, 328, "An owner's configuration set by the host."),
    ("RTMR0", 328, 376, "Hash of what the firmware measured: machine shape and configuration."),
    ("RTMR1", 376, 424, "Hash of the measured kernel."),
    ("RTMR2", 424, 472, "Hash of the measured command line and initial file system."),
    ("RTMR3", 472, 520, "Hash of what the running system measured; dstack's event log."),
    ("REPORTDATA", 520, 584, "What the guest wanted quoted: its side of the conversation."),
    ("TEE TCB SVN 2", 584, 600, "Security versions of a TDX module updated while running."),
    ("MRSERVICETD", 600, 648, "Service guest that could migrate this one; zeros are none."),
)


def quote_fields(quote: TdxQuote) -> list[Field]:
    """Every field of a TDX quote but its signature."""
    version = int.from_bytes(quote.raw[:2], "little")
    start = 48 if version == 4 else 54
    size = 584 if version == 4 else int.from_bytes(quote.raw[50:54], "little")
    report = quote.raw[start : start + size]
    rows = [
        ("version", str(version), "Format of the quote."),
        ("attestation key", "ECDSA P-256", "Kind of key that signed the quote."),
        ("QE vendor", quote.raw[12:28].hex(), "Who made the quoting enclave; 939a… is Intel."),
        ("QE user data", quote.raw[28:48].hex(), "Data of the quoting enclave."),
        ("debug", on_off(quote.debug), "On means that the host can read the guest's memory."),
    ]
    rows += [
        (name, report[first:last].hex(), meaning)
        for name, first, last, meaning in _TD_REPORT
        if last <= size
    ]
    rows.append(("identity", quote.identity, "SHA-256 of what the signature covers."))
    return [*rows_of(rows), *certificate_fields(CPU, quote.certificates)]


def _show(place: Path, report_data: bytes) -> tuple[Quote, Attachments]:
    raw = _quote(place, report_data)
    return Quote(raw=raw, quote=parse_quote(raw)), Attachments()


def _quote(place: Path, report_data: bytes) -> bytes:
    from sealtrain.attest.tdx.collect import collect_quote  # an HTTP client: a verifier loads none

    return collect_quote(report_data, base=place)


def _boot_log(signed: BareQuote, policy: TdxPolicy, now: int) -> Claim:
    got = f"{len(signed.events)} events" if signed.events else "not shown"
    if policy.boot_log == "any":
        return claim_unchecked("boot log", got, source=QUOTE)
    if not signed.events:
        raise EventLogMismatch(
            "guest shows no log of what its firmware measured",
            check=BOOT_LOG,
            got=got,
            expected="events that replay to RTMR0 to RTMR2",
            hint="let the guest's agent read /sys/firmware/acpi/tables/data/CCEL, which is root's",
        )
    return Claim(
        name="boot log", got=got, expected="replays to the quote", source=QUOTE, outcome="equal"
    )


def _collect(device: Path, report_data: bytes, options: Mapping[str, str]) -> Shown:
    quote = _quote(device, report_data)
    events = read_events(parse_quote(quote).rtmr)
    shown: Shown = {"tee": "tdx", "quote": to_base64(quote)}
    return {**shown, "boot_events": [event.to_dict() for event in events]} if events else shown


def _evidence_fields(evidence: TdxEvidence) -> list[Field]:
    rows = [
        (
            f"RTMR{index} by the log",
            replay_events(evidence.boot_events, index).hex(),
            "What the firmware's events lead to; it must be the quote's register.",
        )
        for index in (0, 1, 2)
    ]
    own = quote_fields(parse_quote(evidence.quote_bytes))
    return [*own, *rows_of(rows)] if evidence.boot_events else own


PINNED_ROOTS = {INTEL_ROOT_SHA256: "Intel's pinned root"}
VERIFIER: Verifier[TdxEvidence, TdxPolicy, BareQuote] = Verifier(
    prove=lambda evidence, beside, at: _verify_facts(
        evidence.quote_bytes, beside.collateral, at, evidence.boot_events
    ),
    form=TdxPolicy,
    rules=(*tdx.RULES, Rule(name="boot log", compare=_boot_log)),
    eat=tdx.eat,
    fields=_evidence_fields,
    recognise=_recognise,
    show=_show,
    pinned_roots=PINNED_ROOTS,
    collect=_collect,
)
