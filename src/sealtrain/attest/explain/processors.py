"""Parts that processors sign: TDX quotes, dstack guests, Nitro documents, SEV-SNP reports."""

from __future__ import annotations

from functools import partial
from typing import get_args

from sealtrain.attest.claims import Claim, Group, single, unlooked
from sealtrain.attest.dstack import appraise as dstack
from sealtrain.attest.dstack.policy import DstackPolicy
from sealtrain.attest.dstack.verify import MeasuredGuest, replay_log
from sealtrain.attest.evidence import Collateral, LogEntry
from sealtrain.attest.explain.part import (
    Part,
    Situation,
    Vouched,
    committed,
    compose_groups,
    other_tee,
    raising,
    root_name,
)
from sealtrain.attest.nitro import appraise as nitro
from sealtrain.attest.nitro.parse import NitroDocument
from sealtrain.attest.nitro.policy import NitroPolicy
from sealtrain.attest.nitro.verify import (
    COMPOSE_PCR,
    check_parent,
    compose_register,
    verify_document,
)
from sealtrain.attest.snp import appraise as snp
from sealtrain.attest.snp.policy import SnpPolicy
from sealtrain.attest.snp.verify import verify_report
from sealtrain.attest.tdx import appraise as tdx
from sealtrain.attest.tdx.policy import QuotePolicy, TcbStatus, TdxPolicy
from sealtrain.attest.tdx.verify import VerifiedQuote, verify_quote
from sealtrain.errors import CertificateChainInvalid, CollateralMismatch, EvidenceRefused

__all__ = ["dstack_part", "nitro_part", "quote_part", "snp_part"]

_INTEL, _AWS, _AMD = "Intel SGX Root CA", "AWS Nitro Enclaves Root G1", "AMD root key (ARK)"
_QUOTE, _LOG, _DOCUMENT, _REPORT = "TDX quote", "event log", "NSM document", "SEV-SNP report"
_REPORT_DATA = "report data"
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


def quote_part(raw: bytes, collateral: Collateral | None, at: Situation) -> Part:
    """A TDX quote whose MRCONFIGID names the deployment document."""

    def verify() -> Vouched:
        rules = None if at.policy is None else at.policy.cpu
        signed = _signed(raw, collateral, rules if isinstance(rules, TdxPolicy) else None, at)
        groups: list[Group] = []
        if isinstance(rules, TdxPolicy):
            groups += map(single, tdx.checks_of(signed, rules, at.now))
        elif rules is not None:
            groups.append(other_tee("tdx", rules.tee))
        groups += compose_groups(at, signed.quote.mr_config_id.hex(), _QUOTE, _config_id)
        groups.append(_data(at, signed.report_data, _QUOTE))
        return _vouched_quote(signed, tdx.quote_eat(signed), groups)

    return Part(name="cpu0", verify=verify)


def dstack_part(
    raw: bytes, log: tuple[LogEntry, ...], collateral: Collateral | None, at: Situation
) -> Part:
    """A TDX quote and the event log that replays to its registers."""

    def verify() -> Vouched:
        rules = None if at.policy is None else at.policy.cpu
        own = rules if isinstance(rules, DstackPolicy) else None
        signed = _signed(raw, collateral, own, at)
        names = tdx.quote_eat(signed)
        groups: list[Group] = []
        if own is not None:
            groups += map(single, tdx.checks_of(signed, own, at.now))
        elif rules is not None:
            groups.append(other_tee("dstack", rules.tee))
        try:
            measured = replay_log(log, signed.quote.rtmr, signed.quote.mr_config_id)
        except EvidenceRefused as error:
            groups.append(raising(error))
        else:
            groups += _measured(measured, own, at)
            image = measured.os_image_hash
            names |= {} if image is None else {"swversion": image}
        groups.append(_data(at, signed.report_data, _QUOTE))
        return _vouched_quote(signed, names, groups)

    return Part(name="cpu0", verify=verify)


def nitro_part(raw: bytes, at: Situation, *, own: bool) -> Part:
    """A Nitro document; ``own`` says that its user data are report data."""

    def verify() -> Vouched:
        verified = verify_document(raw, simulator_root=at.root, now=at.now)
        document = verified.document
        rules = None if at.policy is None else at.policy.cpu
        groups: list[Group] = []
        if isinstance(rules, NitroPolicy):
            groups += map(single, nitro.checks_of(verified, rules, at.now))
        elif rules is not None:
            groups.append(other_tee("nitro", rules.tee))
        groups.append(partial(_parent_holds, document))
        groups += compose_groups(
            at,
            document.pcr(COMPOSE_PCR) or "PCR16 is not locked",
            _DOCUMENT,
            lambda digest: compose_register(bytes.fromhex(digest)).hex(),
        )
        if own:
            groups.append(_data(at, document.user_data, _DOCUMENT))
        else:
            nonce = partial(committed, "nonce", at.nonce, document.nonce, _DOCUMENT)
            groups.append(single(nonce))
            data = "none" if document.user_data is None else document.user_data.hex()
            groups.append(single(partial(unlooked, "user data", data, source=_DOCUMENT)))
        return Vouched(
            root=root_name(verified.simulated, _AWS),
            simulated=verified.simulated,
            identity=document.identity,
            eat=nitro.eat(verified),
            groups=tuple(groups),
        )

    return Part(name="cpu0", verify=verify)


def snp_part(raw: bytes, certificates: tuple[bytes, ...], crl: bytes | None, at: Situation) -> Part:
    """A SEV-SNP report whose HOST_DATA names the deployment document."""

    def verify() -> Vouched:
        if not certificates:
            raise CertificateChainInvalid(
                "no certificates to verify the report with",
                check="certificate chain",
                got="none",
                expected="the chip's, its issuer, the root",
                hint="name them in this order with --certificate",
            )
        verified = verify_report(raw, certificates, simulator_root=at.root, now=at.now)
        report = verified.report
        rules = None if at.policy is None else at.policy.cpu
        groups: list[Group] = []
        if isinstance(rules, SnpPolicy):
            groups += map(single, snp.checks_of(verified, rules, crl=crl, now=at.now))
        elif rules is not None:
            groups.append(other_tee("snp", rules.tee))
        groups += compose_groups(at, report.host_data.hex(), _REPORT, lambda digest: digest)
        groups.append(_data(at, report.report_data, _REPORT))
        return Vouched(
            root=root_name(verified.simulated, f"{_AMD} of {verified.product}"),
            simulated=verified.simulated,
            identity=report.identity,
            eat=snp.eat(verified),
            groups=tuple(groups),
        )

    return Part(name="cpu0", verify=verify)


def _signed(
    raw: bytes, collateral: Collateral | None, rules: QuotePolicy | None, at: Situation
) -> VerifiedQuote:
    if collateral is None:
        raise CollateralMismatch(
            "no collateral to verify the quote with",
            check="collateral",
            hint="name it with --collateral; sealtrain attest fetch asks a service for it",
        )
    if rules is None or at.every_line:
        rules = _ANY_QUOTE
    return verify_quote(raw, collateral, rules, simulator_root=at.root, now=at.now)


def _vouched_quote(signed: VerifiedQuote, names: dict[str, str], groups: list[Group]) -> Vouched:
    return Vouched(
        root=root_name(signed.simulated, _INTEL),
        simulated=signed.simulated,
        identity=signed.quote_identity,
        eat=names,
        groups=tuple(groups),
    )


def _measured(measured: MeasuredGuest, rules: DstackPolicy | None, at: Situation) -> list[Group]:
    replays = "replays to the quote's registers"
    log = Claim(name=_LOG, got=replays, expected=replays, source=_QUOTE, outcome="equal")
    groups: list[Group] = [lambda: (log,)]
    if rules is not None:
        groups += map(single, dstack.checks_of(measured, rules))
    groups += compose_groups(at, measured.compose_hash, _LOG, lambda digest: digest)
    groups.append(single(partial(unlooked, "app id", measured.app_id, source=_LOG)))
    return groups


def _parent_holds(document: NitroDocument) -> tuple[Claim, ...]:
    """PCR4 agrees with the module's name where it says anything; that claim is the policy's."""
    check_parent(document)
    return ()


def _data(at: Situation, got: bytes | None, source: str) -> Group:
    return single(partial(committed, _REPORT_DATA, at.nonce, got, source))


def _config_id(digest: str) -> str:
    """MRCONFIGID of a bare TDX guest."""
    return f"01{digest}{'00' * 15}"
