"""Revocation of devices: who may answer, for what, and how long an answer is worth something."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from carrying import carries
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import ocsp
from cryptography.x509.oid import ExtendedKeyUsageOID
from nvidia_world import HOUR, NOW, PKI, answer, authority, responder

from sealtrain.attest.errors import CertificateRevoked, RevocationUnknown
from sealtrain.attest.nvidia.ocsp import check_answers, list_asked, ocsp_request
from sealtrain.attest.nvidia.parse import from_nvat
from sealtrain.attest.roots import certificates_of_pem
from sealtrain_rehearsal.simulator.gpu_pki import Signed

DEVICE = PKI.device("GH100", 0)
CHAIN = tuple(certificate.der for certificate in DEVICE.chain)
DAY = 24 * HOUR
ASKED = range(1, 4)


def good(place: int, **changes: Any) -> bytes:
    return answer(DEVICE.chain[place].certificate, DEVICE.chain[place + 1], **changes)


def all_good(**changes: Any) -> list[bytes]:
    return [good(place, **changes) for place in ASKED]


def check(answers: list[bytes], *, now: int = NOW, max_age: int = DAY) -> str:
    return check_answers(CHAIN, answers, now=now, max_age=max_age).got


def test_every_certificate_that_an_authority_issued_is_asked_about() -> None:
    asked = [certificate.subject for certificate, _ in list_asked(CHAIN)]
    assert asked == [DEVICE.chain[place].certificate.subject for place in ASKED]
    question = ocsp.load_der_ocsp_request(ocsp_request(*list_asked(CHAIN)[0]))
    assert question.serial_number == DEVICE.chain[1].certificate.serial_number
    assert isinstance(question.hash_algorithm, hashes.SHA384)


def test_answers_of_the_issuers_hold_and_name_the_oldest() -> None:
    answers = [good(1), good(2, made=NOW - 2 * HOUR), good(3)]
    assert check(answers) == "3 certificates good, oldest answer of 2027-01-15T06:00:00Z"


@pytest.mark.parametrize(
    "algorithm",
    [hashes.SHA1(), hashes.SHA256(), hashes.SHA384()],  # noqa: S303  # names an issuer, no more
)
@pytest.mark.parametrize("by_name", [True, False])
def test_a_delegated_responder_answers_in_every_usual_spelling(
    algorithm: hashes.HashAlgorithm, by_name: bool
) -> None:
    answers = [
        good(
            place,
            signer=responder(DEVICE.chain[place + 1]),
            algorithm=algorithm,
            by_name=by_name,
        )
        for place in ASKED
    ]
    assert check(answers).startswith("3 certificates good")


def test_order_and_answers_about_others_do_not_matter() -> None:
    other = PKI.device("GH100", 1)
    unrelated = answer(other.chain[1].certificate, other.chain[2])
    assert check([unrelated, *reversed(all_good())]).startswith("3 certificates good")


@pytest.mark.parametrize("now", [NOW - HOUR, NOW, NOW + 23 * HOUR])
def test_an_answer_holds_within_its_window(now: int) -> None:
    assert check(all_good(), now=now).startswith("3 certificates good")


@pytest.mark.negative(52)
@pytest.mark.parametrize("place", ASKED)
@pytest.mark.parametrize(
    "reason", [None, x509.ReasonFlags.key_compromise, x509.ReasonFlags.certificate_hold]
)
def test_revoked_and_held_certificates_are_refused(
    place: int, reason: x509.ReasonFlags | None
) -> None:
    answers = all_good()
    answers[place - 1] = good(place, status=ocsp.OCSPCertStatus.REVOKED, reason=reason)
    with pytest.raises(CertificateRevoked) as caught:
        check(answers)
    assert (reason.value if reason else "unspecified") in str(caught.value.got)


@pytest.mark.negative(52)
@pytest.mark.parametrize("first", [True, False])
def test_a_revocation_outweighs_good_answers_however_old_it_is(first: bool) -> None:
    revoked = good(1, status=ocsp.OCSPCertStatus.REVOKED, made=NOW - 90 * DAY, until=NOW - 89 * DAY)
    answers = [revoked, *all_good()] if first else [*all_good(), revoked]
    with pytest.raises(CertificateRevoked):
        check(answers)


def test_a_later_revocation_says_nothing_about_a_recorded_time() -> None:
    later = good(1, status=ocsp.OCSPCertStatus.REVOKED, made=NOW + DAY, until=NOW + 2 * DAY)
    assert check([*all_good(), later]).startswith("3 certificates good")


def test_an_unsigned_revocation_is_no_weapon() -> None:
    foreign = authority("Nobody", None)
    forged = good(1, status=ocsp.OCSPCertStatus.REVOKED, signer=foreign)
    assert check([forged, *all_good()]).startswith("3 certificates good")


UNUSABLE: dict[str, Callable[[], list[bytes]]] = {
    "missing": list,
    "stale": lambda: [good(1, made=NOW - 3 * HOUR, until=NOW - 1)],
    "old": lambda: [good(1, made=NOW - DAY - 1, until=NOW + DAY)],
    "future": lambda: [good(1, made=NOW + 301)],
    "without next update": lambda: [good(1, until=None)],
    "unknown to the responder": lambda: [good(1, status=ocsp.OCSPCertStatus.UNKNOWN)],
    "other serial": lambda: [answer(PKI.device("GH100", 1).chain[1].certificate, DEVICE.chain[2])],
    "other issuer": lambda: [answer(DEVICE.chain[1].certificate, DEVICE.chain[3])],
    "signed by nobody": lambda: [good(1, signer=authority("Nobody", None))],
    "signed by the device": lambda: [good(1, signer=DEVICE.chain[1])],
    "signed by its leaf": lambda: [good(1, signer=DEVICE.chain[0])],
    "responder of another issuer": lambda: [good(1, signer=responder(DEVICE.chain[3]))],
    "responder without the purpose": lambda: [
        good(1, signer=responder(DEVICE.chain[2], usages=()))
    ],
    "responder for something else": lambda: [
        good(1, signer=responder(DEVICE.chain[2], usages=[ExtendedKeyUsageOID.SERVER_AUTH]))
    ],
    "responder expired": lambda: [good(1, signer=responder(DEVICE.chain[2], end=NOW - 1))],
    "responder not yet": lambda: [good(1, signer=responder(DEVICE.chain[2], start=NOW + 1))],
    "responder not shown": lambda: [good(1, signer=responder(DEVICE.chain[2]), carried=False)],
    "no answer, try later": lambda: [
        ocsp.OCSPResponseBuilder.build_unsuccessful(ocsp.OCSPResponseStatus.TRY_LATER).public_bytes(
            Encoding.DER
        )
    ],
}


@pytest.mark.negative(52)
@pytest.mark.parametrize("name", UNUSABLE)
def test_an_answer_that_proves_nothing_is_no_answer(name: str) -> None:
    with pytest.raises(RevocationUnknown):
        check([*UNUSABLE[name](), good(2), good(3)])


@pytest.mark.negative(52)
@pytest.mark.parametrize("place", ASKED)
def test_each_certificate_needs_its_own_answer(place: int) -> None:
    with pytest.raises(RevocationUnknown):
        check([good(other) for other in ASKED if other != place])


@pytest.mark.negative(52)
def test_a_chain_that_nobody_answers_for_is_not_clear() -> None:
    with pytest.raises(RevocationUnknown, check=carries(check="revocation")):
        check_answers(CHAIN[:2], all_good(), now=NOW, max_age=DAY)


@pytest.mark.negative(52)
def test_no_flipped_byte_of_the_signed_part_passes() -> None:
    whole = good(1, signer=responder(DEVICE.chain[2]))
    signed = ocsp.load_der_ocsp_response(whole).tbs_response_bytes
    start = whole.index(signed)
    for at in range(start, start + len(signed)):
        altered = bytearray(whole)
        altered[at] ^= 0x01
        with pytest.raises((RevocationUnknown, CertificateRevoked)):
            check([bytes(altered), good(2), good(3)])


RSA_WITH_SHA384 = bytes.fromhex("06092a864886f70d01010c")
DSA_WITH_SHA384 = bytes.fromhex("0609608648016503040303")


def renamed(answer: bytes, algorithm: bytes) -> bytes:
    """The same answer and signature, which is said to be of another algorithm."""

    def wrapped(tag: int, content: bytes) -> bytes:
        size = len(content)
        length = bytes([size]) if size < 128 else b"\x82" + size.to_bytes(2, "big")
        return bytes([tag]) + length + content

    read = ocsp.load_der_ocsp_response(answer)
    signed, signature = read.tbs_response_bytes, read.signature
    basic = wrapped(0x30, signed + wrapped(0x30, algorithm) + wrapped(0x03, b"\x00" + signature))
    kind = bytes.fromhex("06092b0601050507300101")
    return wrapped(
        0x30, b"\x0a\x01\x00" + wrapped(0xA0, wrapped(0x30, kind + wrapped(0x04, basic)))
    )


@pytest.mark.negative(52)
@pytest.mark.parametrize("algorithm", [RSA_WITH_SHA384, DSA_WITH_SHA384])
def test_a_signature_that_is_said_to_be_of_another_algorithm_does_not_hold(
    algorithm: bytes,
) -> None:
    """The name lies outside of what is signed: anyone can write another one with the same hash."""
    ecdsa = bytes.fromhex("06082a8648ce3d040303")
    assert check([renamed(good(1), ecdsa), good(2), good(3)]).startswith("3 certificates good")
    with pytest.raises(RevocationUnknown):
        check([renamed(good(1), algorithm), good(2), good(3)])


@pytest.mark.negative(52)
@pytest.mark.parametrize(
    "garbage", [b"", b"\x30", b"\x00" * 64, b"0" * (17 << 10), b"\x30\x80\x00\x00"]
)
def test_what_is_no_answer_is_named(garbage: bytes) -> None:
    with pytest.raises(RevocationUnknown):
        check([garbage, *all_good()])


@pytest.mark.negative(52)
def test_answers_under_another_vendor_do_not_clear_a_held_gpu(shared: Path) -> None:
    data = (shared / "vectors/nvidia/hopper_cert_hold.json").read_bytes()
    [device] = from_nvat(data)
    chain = certificates_of_pem(device.certificate_chain.encode(), limit=5)
    for answers in ([], all_good(), [good(1, signer=responder(DEVICE.chain[2]))]):
        with pytest.raises(RevocationUnknown):
            check_answers(chain, answers, now=NOW, max_age=DAY)
    # Somebody who answers for the held certificate itself, and is not its issuer.
    certificate, issuer = list_asked(chain)[0]
    forger = authority("Nobody", None)
    for status in (ocsp.OCSPCertStatus.GOOD, ocsp.OCSPCertStatus.REVOKED):
        forged = answer(certificate, Signed(issuer, forger.key), signer=forger, status=status)
        with pytest.raises(RevocationUnknown):
            check_answers(chain, [forged], now=NOW, max_age=DAY)
