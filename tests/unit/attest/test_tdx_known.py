"""What is remembered of a TDX machine spares the library's work, and never its verdict."""

from __future__ import annotations

from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from sealtrain.attest.errors import (
    CollateralExpired,
    DebugGuest,
    MigratableGuest,
    QuoteInvalid,
    QuoteRootUntrusted,
    TcbStatusRefused,
)
from sealtrain.attest.presets import insecure_simulator_policy
from sealtrain.attest.statement import Collateral
from sealtrain.attest.tdx.policy import QuotePolicy
from sealtrain.attest.tdx.quote_cache import KNOWN, JudgedMachine, KnownMachines
from sealtrain.attest.tdx.verify import VerifiedQuote, verify_quote
from sealtrain.errors import EvidenceRefused
from sealtrain_rehearsal.simulator.pki import SimulatedPki

pytestmark = pytest.mark.claim("C563")

NOW = 1_800_000_000
PKI = SimulatedPki(b"a machine that is known")
COLLATERAL = PKI.collateral(NOW)
RULES: Any = insecure_simulator_policy(PKI.root_der, tee="tdx").cpu
SIGNATURE = 632 + 4
KEY = SIGNATURE + 64


def judge(
    raw: bytes,
    *,
    collateral: Collateral = COLLATERAL,
    rules: QuotePolicy = RULES,
    root: bytes = PKI.root_der,
    now: int = NOW,
) -> VerifiedQuote:
    return verify_quote(raw, collateral, rules, simulator_root=root, now=now)


def code(raw: bytes) -> str:
    try:
        judge(raw)
    except EvidenceRefused as error:
        return error.code
    return "accepted"


def quote(data: int = 0, **measured: Any) -> bytes:
    return PKI.quote(data.to_bytes(64, "big"), **measured)


@pytest.fixture(autouse=True)
def known() -> bytes:
    """A quote of the machine that was judged at this second."""
    KNOWN.cache_clear()
    raw = quote(1)
    judge(raw)
    assert len(KNOWN) == 1
    return raw


def test_a_later_quote_says_its_own_registers_and_data() -> None:
    rtmr: Any = tuple(bytes([number]) * 48 for number in (1, 2, 3, 4))
    later = judge(quote(2, rtmr=rtmr))
    assert later.quote.rtmr == tuple(item.hex() for item in rtmr)
    assert later.report_data == (2).to_bytes(64, "big")
    assert len(KNOWN) == 1
    KNOWN.cache_clear()
    assert judge(quote(2, rtmr=rtmr)) == later


def test_every_altered_byte_ends_as_if_nothing_were_known(known: bytes) -> None:
    places = {*range(0, len(known), 61), 0, 47, 48, 375, 376, 567, 568, 631, *range(632, 640)}
    for at in sorted(places):
        altered = known[:at] + bytes([known[at] ^ 1]) + known[at + 1 :]
        warm = code(altered)
        KNOWN.cache_clear()
        assert code(altered) == warm != "accepted", at
        judge(known)


def test_registers_of_another_quote_are_refused(known: bytes) -> None:
    """Spliced: the registers and data of one quote under the signature of another."""
    other = quote(3, rtmr=(b"\1" * 48,) * 4)
    for first, last in ((48 + 328, 632), (48 + 520, 632), (SIGNATURE, KEY)):
        with pytest.raises(QuoteInvalid):
            judge(known[:first] + other[first:last] + known[last:])
    assert len(KNOWN) == 1


def test_another_attestation_key_is_not_the_known_one(known: bytes) -> None:
    """An attacker's key signs; the enclave's report vouches for the machine's own."""
    key = ec.generate_private_key(ec.SECP256R1())
    numbers = key.public_key().public_numbers()
    point = numbers.x.to_bytes(32, "big") + numbers.y.to_bytes(32, "big")
    halves = decode_dss_signature(key.sign(known[:632], ec.ECDSA(hashes.SHA256())))
    signature = b"".join(half.to_bytes(32, "big") for half in halves)
    for forged in (signature + point, signature + known[KEY : KEY + 64]):
        with pytest.raises(EvidenceRefused):
            judge(known[:SIGNATURE] + forged + known[KEY + 64 :])
    for point in (bytes(64), b"\xff" * 64):
        with pytest.raises(EvidenceRefused):
            judge(known[:KEY] + point + known[KEY + 64 :])
    assert len(KNOWN) == 1


def test_numbers_that_no_signature_has_are_refused(known: bytes) -> None:
    order = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
    r, s = (int.from_bytes(known[at : at + 32], "big") for at in (SIGNATURE, SIGNATURE + 32))
    for numbers, expected in (
        ((r, order - s), "accepted"),
        ((0, s), "quote-invalid"),
        ((r, 0), "quote-invalid"),
        ((order, s), "quote-invalid"),
        ((r, order), "quote-invalid"),
        ((s, r), "quote-invalid"),
    ):
        pair = b"".join(number.to_bytes(32, "big") for number in numbers)
        assert code(known[:SIGNATURE] + pair + known[KEY:]) == expected


def test_what_is_known_holds_for_its_collateral_rules_root_and_second(known: bytes) -> None:
    stale = RULES.model_copy(update={"min_tcb_evaluation_data_number": 1 << 30})
    revoked = PKI.lying("revoked-tcb").collateral(NOW)
    with pytest.raises(TcbStatusRefused):
        judge(known, collateral=revoked)
    with pytest.raises(TcbStatusRefused):
        judge(known, rules=stale)
    with pytest.raises(QuoteRootUntrusted):
        judge(known, root=SimulatedPki(b"another machine's vendor").root_der)
    for now in (NOW - 400 * 86400, NOW + 31 * 86400):
        with pytest.raises(CollateralExpired):
            judge(known, now=now)
    assert len(KNOWN) == 1
    judge(known, now=NOW + 1)
    assert len(KNOWN) == 2


def test_what_a_guest_may_not_be_is_looked_at_each_time() -> None:
    with pytest.raises(DebugGuest):
        judge(quote(4, td_attributes=bytes.fromhex("0100001000000000")))
    with pytest.raises(MigratableGuest):
        judge(quote(4, service_td=b"\1" * 48))
    assert len(KNOWN) == 1


def test_a_refused_quote_is_not_remembered() -> None:
    other = SimulatedPki(b"a vendor of its own").quote(bytes(64))
    for _ in range(2):
        with pytest.raises(EvidenceRefused):
            judge(other)
    assert len(KNOWN) == 1


def test_so_many_are_remembered_and_the_rest_is_forgotten() -> None:
    judged = JudgedMachine(
        tcb_status="UpToDate",
        advisories=(),
        tcb_evaluation_data_number=1,
        ppid="00",
        fmspc="00",
    )
    some = KnownMachines(2)
    for key in (b"a", b"b"):
        some.keep(key, judged)
    assert some.find(b"a") == judged
    some.keep(b"c", judged)
    assert [some.find(key) is None for key in (b"a", b"b", b"c")] == [False, True, False]
    assert len(some) == 2
