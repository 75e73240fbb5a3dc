"""Verification of a TDX quote: signatures, certificates, revocation, collateral, TCB.

The cryptography is ``dcap_qvl``'s, always through its policy path; the decision what is acceptable
is the appraisal policy's.

1. The quote parses strictly (``parse``).
2. Its chain ends in the root the policy trusts. Under ``root: intel`` a SIMULATED root is named as
   such; under a simulator's root a hardware quote is refused.
3. The collateral's chains end in the same root; ``now`` lies inside the validity of collateral,
   revocation lists and certificates (``window``).
4. Signatures, chains, revocation and collateral hold; the TCB status is one the policy lists; the
   collateral is not older than the policy's floor. Of a machine that passed at this second, the
   signature over what its guest measured is all that is left to verify (``known``).
5. What the library verified is what we parsed, field by field.
6. The guest is not in debug mode and no service guest can migrate it.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import dcap_qvl
from cryptography import x509

from sealtrain.attest.errors import (
    CertificateRevoked,
    CollateralExpired,
    CollateralMismatch,
    DebugGuest,
    MigratableGuest,
    QuoteInvalid,
    QuoteRootUntrusted,
    TcbStatusRefused,
)
from sealtrain.attest.roots import (
    INTEL_ROOT_SHA256,
    VendorRoot,
    certificates_of_pem,
    is_simulated_certificate,
)
from sealtrain.attest.statement import Collateral
from sealtrain.attest.tdx.parse import TdxQuote, parse_quote
from sealtrain.attest.tdx.policy import QuotePolicy
from sealtrain.attest.tdx.quote_cache import KNOWN, JudgedMachine, machine_key, signs_quote
from sealtrain.attest.tdx.security_versions import Levels, name_shortfalls
from sealtrain.attest.tdx.window import check_window, collateral_window
from sealtrain.base.canonical import canonical_json
from sealtrain.errors import DataInvalid, EvidenceRefused

QUOTE = "TDX quote"
_INTEL = VendorRoot(
    pins=(INTEL_ROOT_SHA256,),
    subject="quote",
    name="Intel SGX Root CA",
    foreign="Intel SGX Root CA",
    is_simulated=is_simulated_certificate,
    simulator_hint="use the root.der of the simulator's own state folder",
)
_UNLIMITED = 1 << 40  # seconds: how long an allowed old TCB may last is not the library's decision


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedQuote:
    """A quote whose signature holds, with what its collateral says of the platform."""

    quote: TdxQuote
    simulated: bool
    tcb_status: str
    advisories: tuple[str, ...]
    tcb_evaluation_data_number: int
    collateral_issued: int
    ppid: str
    fmspc: str
    levels: Levels | None = None
    """Where its security versions can be looked up, once one is not acceptable."""

    @property
    def quote_identity(self) -> str:
        """SHA-256 of the signed part of the quote: the only name that cannot be re-encoded."""
        return self.quote.identity

    @property
    def firmware_logged(self) -> bool:
        """Whether an event log with the firmware's events replays to the quote's registers."""
        return False

    @property
    def report_data(self) -> bytes:
        """64 bytes that mean nothing until they are compared."""
        return self.quote.report_data


def config_id(compose_hash: str) -> str:
    """MRCONFIGID of a bare TDX guest, hex."""
    return f"01{compose_hash}{'00' * 15}"


def verify_quote(
    raw: bytes,
    collateral: Collateral | None,
    policy: QuotePolicy,
    *,
    simulator_root: bytes | None,
    now: int,
) -> VerifiedQuote:
    """Verify a quote at a moment.

    Args:
        raw: The quote in its one encoding.
        collateral: Collateral of the platform's FMSPC.
        policy: Which TCB statuses and which collateral floor are acceptable.
        simulator_root: Trusted software root (DER), ``None`` for Intel's.
        now: Verification time, seconds since 1970.

    Raises:
        PlatformMismatch: Not a TDX quote.
        QuoteInvalid: Structure or signature does not hold.
        SimulatedEvidence: A simulator's quote under a policy that asks for hardware.
        QuoteRootUntrusted: The chain leads to another root.
        CertificateRevoked: The vendor revoked the platform's certificate.
        CollateralExpired: Collateral or a certificate is not valid at ``now``.
        CollateralMismatch: No collateral, or of another platform, or not authentic.
        TcbStatusRefused: Status or collateral age outside the policy.
        DebugGuest: The guest runs in debug mode or without protection of its page tables.
        MigratableGuest: A service guest can move it to another machine.
    """
    if collateral is None:
        raise CollateralMismatch(
            "no collateral to verify the quote with",
            check="collateral",
            hint="name it with --collateral; sealtrain attest fetch asks a service for it",
        )
    quote = parse_quote(raw)
    simulated = check_root(quote, simulator_root)
    certificates = (*quote.certificates, *_check_chains(quote, collateral))
    window = collateral_window(collateral, certificates)
    check_window(window, now)
    key = machine_key(quote, _digest(collateral), policy, simulator_root, now)
    judged = KNOWN.find(key)
    if judged is None or not signs_quote(quote):
        judged = _judge(quote, collateral, policy, simulator_root, now)
        KNOWN.keep(key, judged)
    if quote.debug:
        raise DebugGuest("guest runs in debug mode", check="debug")
    if any(quote.service_td):
        raise MigratableGuest("guest can be migrated by a service guest", check="service guest")
    return VerifiedQuote(
        quote=quote,
        simulated=simulated,
        tcb_status=judged.tcb_status,
        advisories=judged.advisories,
        tcb_evaluation_data_number=judged.tcb_evaluation_data_number,
        collateral_issued=window.issued,
        ppid=judged.ppid,
        fmspc=judged.fmspc,
        levels=Levels(quote=quote, collateral=collateral),
    )


def _judge(
    quote: TdxQuote,
    collateral: Collateral,
    policy: QuotePolicy,
    simulator_root: bytes | None,
    now: int,
) -> JudgedMachine:
    """(4, 5) What the library says of a quote; raises as ``verify_quote``."""
    verifier = dcap_qvl.QuoteVerifier(simulator_root)
    document = _document(collateral)
    try:
        claims = json.loads(
            verifier.verify_with_policy(
                quote.raw, document, now, _library_policy(policy, now)
            ).to_json()
        )
    except ValueError as error:
        _check_revocation(quote, collateral)  # the library calls it a chain that does not hold
        raise _classify(str(error), policy, Levels(quote=quote, collateral=collateral)) from error
    _check_agreement(quote, claims)
    return JudgedMachine(
        tcb_status=str(claims["tcb"]["status"]),
        advisories=tuple(sorted(str(item) for item in claims["tcb"]["advisory_ids"])),
        tcb_evaluation_data_number=int(claims["tcb"]["eval_data_number"]),
        ppid=bytes(claims["platform"]["pck"]["ppid"]).hex(),
        fmspc=bytes(claims["platform"]["pck"]["fmspc"]).hex(),
    )


def check_root(quote: TdxQuote, simulator_root: bytes | None) -> bool:
    """Whether a simulator made the quote, going by its root; the chain to it is checked later.

    The library, too, only ever sees a trusted root that a quote carried byte for byte; it aborts
    the program on a root it cannot parse.

    Raises:
        SimulatedEvidence: A simulator's root where Intel's is trusted.
        QuoteRootUntrusted: Any other root than the trusted one.
    """
    return _INTEL.admit(quote.root_der, simulator_root)


def _check_chains(quote: TdxQuote, collateral: Collateral) -> tuple[bytes, ...]:
    """Collateral of the same root, its PCK revocation list of the quote's own issuer."""
    _, issuer, root = quote.certificates
    chains = _chains(collateral)
    for name, chain in chains.items():
        known = name != "pck_crl_issuer_chain" or chain[0] == issuer
        if len(chain) != 2 or chain[1] != root or not known:
            raise CollateralMismatch(
                f"{name} is of another platform or root than the quote",
                check="collateral",
                hint="fetch collateral for this quote's FMSPC and CA",
            )
    return tuple(der for chain in chains.values() for der in chain)


# Of what is published, many quotes are judged by the same: equal texts are taken apart once.


@lru_cache(maxsize=8)
def _chains(collateral: Collateral) -> dict[str, tuple[bytes, ...]]:
    found: dict[str, tuple[bytes, ...]] = {}
    for name in ("pck_crl_issuer_chain", "tcb_info_issuer_chain", "qe_identity_issuer_chain"):
        try:
            found[name] = certificates_of_pem(getattr(collateral, name).encode("ascii"))
        except (DataInvalid, UnicodeEncodeError) as error:
            raise CollateralMismatch(f"{name} is malformed", check="collateral") from error
    return found


@lru_cache(maxsize=8)
def _digest(collateral: Collateral) -> bytes:
    return hashlib.sha256(canonical_json(collateral.to_dict())).digest()


@lru_cache(maxsize=8)
def _document(collateral: Collateral) -> Any:
    """The library's own form."""
    try:
        return dcap_qvl.QuoteCollateralV3.from_json(json.dumps(collateral.to_dict()))
    except ValueError as error:
        raise CollateralMismatch("collateral cannot be parsed", check="collateral") from error


def _check_revocation(quote: TdxQuote, collateral: Collateral) -> None:
    leaf, issuer, _ = (x509.load_der_x509_certificate(der) for der in quote.certificates)
    for certificate, name in ((leaf, "pck_crl"), (issuer, "root_ca_crl")):
        listed = x509.load_der_x509_crl(bytes.fromhex(getattr(collateral, name)))
        if listed.get_revoked_certificate_by_serial_number(certificate.serial_number) is not None:
            raise CertificateRevoked(
                "the vendor revoked a certificate of this platform",
                check="revocation",
                got=f"serial number {certificate.serial_number:x}",
                expected=f"none that {name} lists",
                hint="move the guest to another machine; this one's keys may be known",
            )


def _library_policy(policy: QuotePolicy, now: int) -> Any:
    """The library's strict policy, relaxed to exactly what the appraisal policy lists.

    Multi-socket servers are ``dynamic``, keep ``cached`` platform keys and run with SMT: these are
    facts of the machines on offer, not choices of a guest, so they are not refused.
    """
    library = (
        dcap_qvl.QuotePolicy.strict(now)
        .allow_dynamic_platform(True)
        .allow_cached_keys(True)
        .allow_smt(True)
        .min_tcb_eval_data_number(policy.min_tcb_evaluation_data_number)
    )
    for status in policy.tcb_status:
        library = library.allow_status(status)
    if any(status.startswith("OutOfDate") for status in policy.tcb_status):
        library = library.platform_grace_period(_UNLIMITED).qe_grace_period(_UNLIMITED)
    return library


def _check_agreement(quote: TdxQuote, claims: dict[str, Any]) -> None:
    """Two parsers must read the same registers, or one of them reads something unsigned."""
    report = claims["report"].get("TD10") or claims["report"].get("TD15", {}).get("base")
    ours = {
        "td_attributes": quote.td_attributes.hex(),
        "mr_td": quote.mrtd,
        "mr_config_id": quote.mr_config_id.hex(),
        "rt_mr0": quote.rtmr[0],
        "rt_mr1": quote.rtmr[1],
        "rt_mr2": quote.rtmr[2],
        "rt_mr3": quote.rtmr[3],
        "report_data": quote.report_data.hex(),
    }
    if report is None or any(report[name] != value for name, value in ours.items()):
        raise QuoteInvalid("quote reads differently after verification", check="quote structure")


_REASONS: tuple[tuple[str, type[EvidenceRefused], str, str], ...] = (
    # Order matters: the first pattern that occurs in the library's message decides.
    (r"Debug mode", DebugGuest, "debug", "guest runs in debug mode"),
    (
        r"service ?td|SERVICETD",
        MigratableGuest,
        "service guest",
        "guest can be migrated by a service guest",
    ),
    (r"SEPT_VE_DISABLE", DebugGuest, "debug", "guest leaves its page tables open to the host"),
    (
        r"expired|NotValidYet|in the future|not yet valid",
        CollateralExpired,
        "collateral time",
        "collateral is not valid at the verification time",
    ),
    (
        r"eval data number",
        TcbStatusRefused,
        "collateral floor",
        "collateral is older than the policy's floor",
    ),
    (
        r"TCB status|TCB level|too old|Revoked",
        TcbStatusRefused,
        "TCB status",
        "platform's TCB status is not acceptable",
    ),
    (
        r"Fmspc|PCE ?ID|QE[ _]?Identity|tcb_?info|CRL|tee type mismatch",
        CollateralMismatch,
        "collateral",
        "collateral is not authentic or of another platform",
    ),
    (
        r"certificate chain|UnknownIssuer|InvalidSignatureForPublicKey",
        QuoteRootUntrusted,
        "root",
        "certificate chain does not lead to the trusted root",
    ),
)


_STATUS = re.compile(r"TCB status (?:is invalid: )?(\w+)")
_NUMBER = re.compile(r"eval data number (\d+)")


def _classify(message: str, policy: QuotePolicy, levels: Levels) -> EvidenceRefused:
    detail = " ".join(message.removeprefix("Verification failed: ").split())[:200]
    for pattern, error, check, text in _REASONS:
        if not re.search(pattern, detail, re.IGNORECASE):
            continue
        if check == "collateral floor":
            number = _NUMBER.search(detail)
            return error(
                text,
                check=check,
                got=number[1] if number else detail,
                expected=f"at least {policy.min_tcb_evaluation_data_number}",
                hint="fetch collateral anew; a service that is behind gives older collateral",
            )
        if error is TcbStatusRefused:
            found = _STATUS.search(detail)
            status = found[1] if found else "no TCB level"
            got, expected, hint = name_shortfalls(status, levels, policy.tcb_status)
            return error(text, check=check, got=got, expected=expected, hint=hint)
        return error(text, check=check, got=detail)
    return QuoteInvalid("quote does not verify", check="quote signature", got=detail)
