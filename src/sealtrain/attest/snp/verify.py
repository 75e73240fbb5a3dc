"""Verification of a SEV-SNP report: structure, chain, what the chain says, signature.

1. The report parses strictly (``parse``).
2. Its chain ends in the root the policy trusts, and every link and date holds (``chain``).
3. The leaf is of the kind that the report says signed it, of the report's processor, of its
   reported TCB, and, for a VCEK, of its chip. A leaf of yesterday's TCB proves nothing about
   today's.
4. The leaf's key signed bytes 0 to 671.
5. The deployment document is the one that HOST_DATA names.

Whether what was so proved is acceptable is decided in ``appraise``.
"""

from __future__ import annotations

from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from sealtrain.attest.errors import CertificateChainInvalid, CollateralMismatch, QuoteInvalid
from sealtrain.attest.snp.chain import Endorsement, verify_chain
from sealtrain.attest.snp.parse import Product, SnpReport, Tcb, parse_report, tcb_of

REPORT = "SEV-SNP report"
_P384_BYTES = 48
_ECDSA = ec.ECDSA(hashes.SHA384())


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedReport:
    """A report that AMD's (or a simulator's) chain vouches for."""

    report: SnpReport
    certificates: tuple[bytes, ...]
    """DER: VCEK or VLEK, its issuer, the root."""
    simulated: bool
    product: Product
    csp_id: str | None
    reported_tcb: Tcb
    """What the signing key stands for."""
    committed_tcb: Tcb
    """What the platform can no longer go below."""
    current_tcb: Tcb
    launch_tcb: Tcb
    crl: bytes | None
    """A revocation list (DER) that came along or that the verifier holds; nothing of it is
    verified."""

    @property
    def quote_identity(self) -> str:
        """SHA-256 of what the signature covers, hex."""
        return self.report.identity


def verify_report(
    raw: bytes,
    certificates: tuple[bytes, ...],
    *,
    simulator_root: bytes | None,
    now: int,
    crl: bytes | None = None,
) -> VerifiedReport:
    """Verify a report at a moment.

    Args:
        raw: The report, 1184 bytes.
        certificates: DER: VCEK or VLEK, its issuer, the root.
        simulator_root: The only trusted root (DER), ``None`` for AMD's.
        now: Verification time, seconds since 1970.
        crl: AMD's revocation list (DER), where there is one; a policy may require it.

    Raises:
        QuoteInvalid: Structure or signature of the report does not hold.
        SimulatedEvidence: A simulator's report where hardware is asked for.
        QuoteRootUntrusted: The chain ends in another root.
        CertificateChainInvalid: The chain does not hold, or not at ``now``.
        CollateralMismatch: The leaf is of another chip, TCB or processor than the report.
    """
    report = parse_report(raw)
    endorsement = verify_chain(certificates, simulator_root=simulator_root, now=now)
    _check_binding(report, endorsement)
    _check_signature(report, endorsement.key)
    product = endorsement.product
    return VerifiedReport(
        report=report,
        certificates=tuple(bytes(der) for der in certificates),
        simulated=endorsement.simulated,
        product=product,
        csp_id=endorsement.csp_id,
        reported_tcb=tcb_of(report.reported_tcb, product),
        committed_tcb=tcb_of(report.committed_tcb, product),
        current_tcb=tcb_of(report.current_tcb, product),
        launch_tcb=tcb_of(report.launch_tcb, product),
        crl=crl,
    )


def _check_binding(report: SnpReport, endorsement: Endorsement) -> None:
    if report.signing_key != endorsement.signing_key:
        raise CertificateChainInvalid(
            "report was signed by another kind of key than the chain's",
            check="signing key",
            got=endorsement.signing_key,
            expected=report.signing_key,
        )
    # Version 2 does not say which processor it is of; later ones must agree.
    if report.cpuid is not None and report.product != endorsement.product:
        family, model, stepping = report.cpuid
        raise CollateralMismatch(
            "certificates are of another processor generation than the report",
            check="product",
            got=endorsement.product,
            expected=report.product or f"family {family:#x} model {model:#x} stepping {stepping}",
        )
    reported = tcb_of(report.reported_tcb, endorsement.product)
    if endorsement.tcb != reported:
        raise CollateralMismatch(
            "certificate is of another TCB than the report",
            check="TCB of the certificate",
            got=endorsement.tcb,
            expected=reported,
            hint="fetch the certificate for the TCB that the report names",
        )
    # A platform may hide its chip id from the report; the signature still is that chip's.
    hidden = report.chip_id_masked or endorsement.hardware_id is None
    if not hidden and report.chip_id != endorsement.hardware_id:
        raise CollateralMismatch(
            "certificate is of another chip than the report",
            check="chip id",
            got=endorsement.hardware_id,
            expected=report.chip_id,
        )


def _check_signature(report: SnpReport, key: ec.EllipticCurvePublicKey) -> None:
    # Larger numbers cannot be in the group; the library need not see 72 bytes to say so.
    if max(report.r, report.s) >> (8 * _P384_BYTES):
        raise _signature_error()
    try:
        key.verify(encode_dss_signature(report.r, report.s), report.signed, _ECDSA)
    except InvalidSignature as error:
        raise _signature_error() from error


def _signature_error() -> QuoteInvalid:
    return QuoteInvalid("signature of the report does not hold", check="report signature")
