"""Revocation: archived OCSP answers for the certificates of a device's chain.

NVIDIA's device certificates end in the year 9999, so revocation lives in OCSP alone. A device's own
boot code issues its first certificate and no authority answers for that one; the second one names
the single device and is the one that gets revoked or held. Every certificate from there up to, but
not including, the root needs an answer:

1. about it: hashes of its issuer's name and key, and its serial number;
2. signed by its issuer, or by a responder whom that issuer certified for it;
3. current at ``now``: made no later, not past its next update, not older than ``max_age``;
4. ``good``. Revoked is revoked, and so is a certificate on hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from itertools import pairwise

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import ocsp
from cryptography.x509.oid import ExtendedKeyUsageOID, SignatureAlgorithmOID

from sealtrain.attest.claims import Claim, claim_unchecked
from sealtrain.attest.errors import CertificateRevoked, RevocationUnknown
from sealtrain.attest.nvidia.collateral import MAX_OCSP_BYTES, GpuCollateral
from sealtrain.attest.nvidia.device import VerifiedDevice
from sealtrain.attest.nvidia.policy import NvidiaPolicy
from sealtrain.attest.roots import X509_ERRORS
from sealtrain.base.clock import to_rfc3339

CLOCK_SKEW = 300
"""Seconds by which a responder's clock may be ahead."""

_ALGORITHMS = {
    SignatureAlgorithmOID.ECDSA_WITH_SHA256: hashes.SHA256(),
    SignatureAlgorithmOID.ECDSA_WITH_SHA384: hashes.SHA384(),
    SignatureAlgorithmOID.ECDSA_WITH_SHA512: hashes.SHA512(),
}
_CHECK = "revocation"
_HINT = "fetch collateral anew: sealtrain attest fetch"
_MAX_RESPONDERS = 4
_ANSWER_ERRORS = (
    *X509_ERRORS,
    InvalidSignature,
    x509.ExtensionNotFound,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)


class _Unusable(Exception):
    """The reason why one answer says nothing about one certificate."""


def check_revocation(
    device: VerifiedDevice,
    collateral: GpuCollateral | None,
    policy: NvidiaPolicy,
    *,
    now: int,
) -> tuple[Claim, ...]:
    """Require a good answer for every certificate of a device that can have one.

    Args:
        device: Verified, so that its chain holds.
        collateral: Where the answers are.
        policy: Whether answers are asked for, and how old they may be.
        now: Verification time, seconds since 1970.

    Raises:
        CertificateRevoked: An authentic answer says revoked or on hold.
        RevocationUnknown: No usable answer for a certificate.
    """
    if policy.revocation == "any":
        return (claim_unchecked("revocation", "not looked up", source="OCSP"),)
    answers = () if collateral is None else collateral.ocsp_answers
    return (check_answers(device.certificates, answers, now=now, max_age=policy.max_ocsp_age_s),)


def check_answers(
    certificates: Sequence[bytes], answers: Sequence[bytes], *, now: int, max_age: int
) -> Claim:
    """As ``check_revocation``, for a chain.

    Args:
        certificates: The chain as DER, leaf first, root last, already verified.
        answers: DER of archived OCSP answers of any order; those about others are passed over.
        now: Verification time, seconds since 1970.
        max_age: Seconds an answer may be old.
    """
    parsed = [(answer, _parse(answer)) for answer in answers]
    asked = list_asked(certificates)
    if not asked:
        raise _unknown("no authority answers for a chain of this length")
    made = [
        _good(certificate, issuer, parsed, now=now, max_age=max_age)
        for certificate, issuer in asked
    ]
    return Claim(
        name="revocation",
        got=f"{len(asked)} certificates good, oldest answer of {to_rfc3339(min(made))}",
        expected=f"good, at most {max_age} seconds old",
        source="OCSP",
        outcome="allowed",
    )


def list_asked(
    certificates: Sequence[bytes],
) -> tuple[tuple[x509.Certificate, x509.Certificate], ...]:
    """Certificates that an authority answers for, each with its issuer.

    Args:
        certificates: A verified chain as DER, leaf first, root last.
    """
    chain = [x509.load_der_x509_certificate(certificate) for certificate in certificates]
    return tuple(pairwise(chain[1:]))


def ocsp_request(certificate: x509.Certificate, issuer: x509.Certificate) -> bytes:
    """DER of the question NVIDIA's responder answers."""
    builder = ocsp.OCSPRequestBuilder().add_certificate(certificate, issuer, hashes.SHA384())
    return builder.build().public_bytes(Encoding.DER)


def answers_until(answers: Iterable[bytes]) -> tuple[int, int] | None:
    """When the oldest answer was made, and when the first ends; no signature is looked at.

    Args:
        answers: DER.

    Returns:
        Two times, seconds since 1970; ``None`` without answers.

    Raises:
        RevocationUnknown: Not an answer about certificates, or one without an end.
    """
    times: list[tuple[int, int]] = []
    for answer in answers:
        try:
            for single in _parse(answer).responses:
                end = single.next_update_utc
                if end is None:
                    raise _unknown("an answer does not say until when it holds")
                times.append((_seconds(single.this_update_utc), _seconds(end)))
        except (_Unusable, *_ANSWER_ERRORS) as error:
            raise _unknown("an answer cannot be parsed") from error
    if not times:
        return None
    return min(made for made, _ in times), min(until for _, until in times)


def _parse(answer: bytes) -> ocsp.OCSPResponse:
    if len(answer) > MAX_OCSP_BYTES:
        raise _unknown(f"an answer is too long: {len(answer)} bytes")
    try:
        return ocsp.load_der_ocsp_response(answer)
    except X509_ERRORS as error:
        raise _unknown("an answer is not an OCSP response") from error


def _good(
    certificate: x509.Certificate,
    issuer: x509.Certificate,
    answers: Sequence[tuple[bytes, ocsp.OCSPResponse]],
    *,
    now: int,
    max_age: int,
) -> int:
    """Time of the newest usable good answer. A revocation among them outweighs any good one."""
    made: list[int] = []
    reason = "no answer is about it"
    issuer_der = issuer.public_bytes(Encoding.DER)
    for der, answer in answers:
        try:
            single = _about(answer, certificate, issuer)
            if single is None:
                continue
            _check_responder(der, issuer_der, now)
            if single.certificate_status == ocsp.OCSPCertStatus.REVOKED:
                _refuse_revoked(certificate, single, now)
            made.append(_check_current(single, now=now, max_age=max_age))
        except _Unusable as problem:
            reason = str(problem)
        except _ANSWER_ERRORS:
            reason = "answer cannot be read"
    if not made:
        raise _unknown(f"{reason} ({_subject(certificate)})")
    return max(made)


def _about(
    answer: ocsp.OCSPResponse, certificate: x509.Certificate, issuer: x509.Certificate
) -> ocsp.OCSPSingleResponse | None:
    if answer.response_status != ocsp.OCSPResponseStatus.SUCCESSFUL:
        return None
    for single in answer.responses:
        if single.serial_number != certificate.serial_number:
            continue
        if not isinstance(single.hash_algorithm, hashes.SHA1 | hashes.SHA256 | hashes.SHA384):
            continue
        builder = ocsp.OCSPRequestBuilder()
        wanted = builder.add_certificate(certificate, issuer, single.hash_algorithm).build()
        if (single.issuer_name_hash, single.issuer_key_hash) == (
            wanted.issuer_name_hash,
            wanted.issuer_key_hash,
        ):
            return single
    return None


def _check_responder(answer_der: bytes, issuer_der: bytes, now: int) -> None:
    start, end = _responder_window(answer_der, issuer_der)
    if not start <= now <= end:
        raise _Unusable("responder's certificate is not valid at this time")


@lru_cache(maxsize=256)
def _responder_window(answer_der: bytes, issuer_der: bytes) -> tuple[int, int]:
    """Seconds within which the signer of an authentic answer may sign for this issuer.

    Kept: the GPUs of one machine share most of their issuers.
    """
    answer = ocsp.load_der_ocsp_response(answer_der)
    issuer = x509.load_der_x509_certificate(issuer_der)
    # The name stands outside of what is signed: one of RSA with the same hash is another algorithm.
    digest = _ALGORITHMS.get(answer.signature_algorithm_oid)
    if digest is None:
        raise _Unusable("answer is signed with an unknown algorithm")
    if len(answer.certificates) > _MAX_RESPONDERS:
        raise _Unusable("answer carries too many certificates")
    signer = next(
        (
            candidate
            for candidate in (issuer, *answer.certificates)
            if _is_responder(answer, candidate)
        ),
        None,
    )
    if signer is None:
        raise _Unusable("answer does not carry its responder's certificate")
    if signer is not issuer:
        _check_delegated(signer, issuer)
    key = signer.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise _Unusable("responder's key is of another kind")
    try:
        key.verify(answer.signature, answer.tbs_response_bytes, ec.ECDSA(digest))
    except InvalidSignature:
        raise _Unusable("answer's signature does not hold") from None
    return _seconds(signer.not_valid_before_utc), _seconds(signer.not_valid_after_utc)


def _is_responder(answer: ocsp.OCSPResponse, certificate: x509.Certificate) -> bool:
    if answer.responder_name is not None:
        return certificate.subject == answer.responder_name
    key = certificate.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey):
        return False
    identity = x509.SubjectKeyIdentifier.from_public_key(key)
    return identity.digest == answer.responder_key_hash


def _check_delegated(responder: x509.Certificate, issuer: x509.Certificate) -> None:
    try:
        responder.verify_directly_issued_by(issuer)
        usages = responder.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except _ANSWER_ERRORS:
        raise _Unusable("responder was not certified by the issuer") from None
    if ExtendedKeyUsageOID.OCSP_SIGNING not in usages:
        raise _Unusable("responder was not certified to sign answers")


def _refuse_revoked(
    certificate: x509.Certificate, single: ocsp.OCSPSingleResponse, now: int
) -> None:
    # An answer from after the recorded time of a verification says nothing about that time.
    if _seconds(single.this_update_utc) > now + CLOCK_SKEW:
        raise _Unusable("answer was made later")
    reason = single.revocation_reason
    raise CertificateRevoked(
        "a device's certificate is revoked or on hold",
        check=_CHECK,
        got=f"{'unspecified' if reason is None else reason.value}, {_subject(certificate)}",
        expected="good",
        hint="take the device out of service and ask its vendor",
    )


def _check_current(single: ocsp.OCSPSingleResponse, *, now: int, max_age: int) -> int:
    if single.certificate_status != ocsp.OCSPCertStatus.GOOD:
        raise _Unusable("responder does not know it")
    made, until = _seconds(single.this_update_utc), single.next_update_utc
    if made > now + CLOCK_SKEW:
        raise _Unusable("answer was made later")
    if until is None or now > _seconds(until):
        raise _Unusable("answer is past its next update")
    if now - made > max_age:
        raise _Unusable(f"answer is {now - made} seconds old")
    return made


def _seconds(moment: datetime) -> int:
    return int(moment.astimezone(UTC).timestamp())


def _subject(certificate: x509.Certificate) -> str:
    return f"certificate {certificate.serial_number:x}"


def _unknown(reason: str) -> RevocationUnknown:
    return RevocationUnknown(
        "nothing valid says whether a device's certificate was revoked",
        check=_CHECK,
        got=reason,
        expected="a current, signed answer: good",
        hint=_HINT,
    )
