"""TDX, case by case: what must end in refusal does, with its own code, and nothing comes back.

The numbers are those of the list that ``pytest -m negative`` shows. The policy pins everything it
can; the honest guest passes it, so each refusal below is for the one thing that was changed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from carrying import carries
from cryptography import x509
from exhibit_world import REAL, real_collateral, real_quote
from guests import verified_guest
from policies import changed, intel

from sealtrain.attest.appraise import Verdict, appraise
from sealtrain.attest.errors import (
    CertificateRevoked,
    CollateralExpired,
    CollateralMismatch,
    ComposeHashMismatch,
    DebugGuest,
    EventLogMismatch,
    MeasurementMismatch,
    MigratableGuest,
    PlatformMismatch,
    QuoteInvalid,
    QuoteRootUntrusted,
    ReportDataMismatch,
    SimulatedEvidence,
    TcbStatusRefused,
)
from sealtrain.attest.evidence import Collateral, Evidence
from sealtrain.attest.policy import AppraisalPolicy, policy_from_dict
from sealtrain.attest.presets import insecure_simulator_policy
from sealtrain.attest.report_data import Binding
from sealtrain.attest.tdx.parse import canonical_quote, parse_quote
from sealtrain.attest.tdx.policy import QuotePolicy, TdxPolicy
from sealtrain.attest.tdx.verify import VerifiedQuote, verify_quote
from sealtrain.attest.tee import VerifiedGuest
from sealtrain.attest.verify import verify
from sealtrain.base.encoding import to_base64
from sealtrain.base.secret import Secret
from sealtrain.errors import EvidenceRefused
from sealtrain_rehearsal.simulator.faults import FAULTS
from sealtrain_rehearsal.simulator.guest import SimulatedGuest
from sealtrain_rehearsal.simulator.pki import SimulatedPki

pytestmark = pytest.mark.claim("C16")

NOW = 1_800_000_000
DAY = 24 * 3600
COMPOSE = b'{"name":"victim","key_provider":"kms"}\n'
ASKED = Binding("release", {"challenge": "fresh"})
ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
PKI = SimulatedPki(b"the vendor that the policy trusts")
OTHER_FAMILY = SimulatedPki(b"the vendor that the policy trusts", fmspc=b"\x01" * 6)
HONEST = SimulatedGuest(PKI, Secret(b"\x01" * 32), COMPOSE)
COLLATERAL = PKI.collateral(NOW)
ANY = insecure_simulator_policy(PKI.root_der)


def judged(
    guest: SimulatedGuest, policy: AppraisalPolicy, collateral: Collateral, now: int = NOW
) -> Verdict:
    """What a verifier does with a guest's evidence, from end to end."""
    return decided(guest.evidence(ASKED, collateral=None), policy, collateral, now)


def decided(
    evidence: Evidence, policy: AppraisalPolicy, collateral: Collateral, now: int = NOW
) -> Verdict:
    facts = verify(evidence, policy, now, binding=ASKED, collateral=collateral)
    return appraise(
        facts,
        policy,
        binding=ASKED,
        compose_hash=HONEST.compose_hash.hex(),
        app_id=HONEST.app_id.hex(),
    )


def with_quote(raw: bytes) -> Evidence:
    evidence = HONEST.evidence(ASKED, collateral=None)
    return evidence.model_copy(
        update={"cpu": evidence.cpu.model_copy(update={"quote": to_base64(raw)})}
    )


@pytest.fixture(scope="module")
def strict() -> AppraisalPolicy:
    """Everything pinned to what the honest guest shows."""
    facts = verify(HONEST.evidence(ASKED, collateral=COLLATERAL), ANY, NOW, binding=ASKED)
    quote = parse_quote(HONEST.quote(bytes(64)))
    return changed(
        ANY,
        measurements=[
            {
                "mrtd": quote.mrtd,
                "rtmr0": quote.rtmr[0],
                "rtmr1": quote.rtmr[1],
                "rtmr2": quote.rtmr[2],
            }
        ],
        key_provider=facts.key_provider,
        platform_ids=[facts.signed.ppid],
        max_collateral_age_s=DAY,
    )


def test_the_honest_guest_passes_the_strict_policy(strict: AppraisalPolicy) -> None:
    verdict = judged(HONEST, strict, COLLATERAL)
    assert verdict.simulated


# --- Every lie the simulator knows ---------------------------------------------------------------

REFUSALS: dict[str, type[EvidenceRefused]] = {
    "debug-bit": DebugGuest,
    "no-sept-ve-disable": DebugGuest,
    "migratable": MigratableGuest,
    "out-of-date-tcb": TcbStatusRefused,
    "revoked-tcb": TcbStatusRefused,
    "stale-collateral": CollateralExpired,
    "future-collateral": CollateralExpired,
    "low-evaluation-number": TcbStatusRefused,
    "foreign-root": QuoteRootUntrusted,
    "other-image": MeasurementMismatch,
    "replayed-log": EventLogMismatch,
    "wrong-report-data": ReportDataMismatch,
    "bad-signature": QuoteInvalid,
    "other-compose": ComposeHashMismatch,
}
NUMBERS = {
    "debug-bit": 11,
    "no-sept-ve-disable": 12,
    "migratable": 13,
    "out-of-date-tcb": 14,
    "revoked-tcb": 14,
    "stale-collateral": 16,
    "future-collateral": 17,
    "low-evaluation-number": 19,
    "foreign-root": 20,
    "other-image": 23,
    "replayed-log": 23,
    "wrong-report-data": 8,
    "bad-signature": 6,
    "other-compose": 23,
}


@pytest.mark.parametrize(
    "fault",
    [pytest.param(name, marks=pytest.mark.negative(number)) for name, number in NUMBERS.items()],
)
def test_a_simulated_lie_ends_in_its_own_refusal(strict: AppraisalPolicy, fault: str) -> None:
    guest = SimulatedGuest(PKI, Secret(b"\x01" * 32), COMPOSE, fault=fault)
    # What the vendor publishes is true, but for the vendor's own lies.
    vendor = PKI if fault == "foreign-root" else PKI.lying(fault)
    with pytest.raises(EvidenceRefused) as caught:
        judged(guest, strict, vendor.collateral(NOW))
    assert type(caught.value) is REFUSALS[fault]


def test_every_lie_is_tried() -> None:
    assert set(REFUSALS) == set(NUMBERS) == set(FAULTS)


# --- 11 to 13: a guest whose memory others can reach ---------------------------------------------


@pytest.mark.negative(11)
@pytest.mark.parametrize("attributes", ["0100001000000000", "ff00001000000000"])
def test_a_debug_guest_is_refused_bare_and_under_every_status(attributes: str) -> None:
    raw = bare_quote(td_attributes=bytes.fromhex(attributes))
    lenient = changed(ANY, tcb_status=["UpToDate", "OutOfDate", "SWHardeningNeeded"]).cpu
    with pytest.raises(DebugGuest):
        verified_bare(raw, COMPOSE, lenient)


@pytest.mark.negative(12)
def test_a_guest_with_open_page_tables_is_refused_bare() -> None:
    raw = bare_quote(td_attributes=bytes(8))
    with pytest.raises(DebugGuest):
        verified_bare(raw)


@pytest.mark.negative(13)
@pytest.mark.parametrize("byte", [0, 23, 47])
def test_one_byte_of_a_service_guest_is_enough(byte: int) -> None:
    service = bytearray(48)
    service[byte] = 1
    raw = bare_quote(service_td=bytes(service))
    with pytest.raises(MigratableGuest):
        verified_bare(raw)


def verified_bare(
    raw: bytes, document: bytes = COMPOSE, rules: QuotePolicy | None = None
) -> VerifiedGuest[Any]:
    """Facts about a guest without dstack, under the rules for quotes."""
    given = ANY.cpu if rules is None else rules
    fields = {name: getattr(given, name, "any") for name in TdxPolicy.model_fields}
    return verified_guest(
        "tdx",
        {"quote_bytes": raw, "boot_events": ()},
        document,
        TdxPolicy(**fields | {"tee": "tdx"}),
        collateral=COLLATERAL,
        simulator_root=PKI.root_der,
        now=NOW,
    )


def bare_quote(**fields: Any) -> bytes:
    """Of a guest without dstack, started with the deployment document's hash."""
    config = b"\x01" + HONEST.compose_hash + bytes(15)
    return PKI.quote(ASKED.report_data(), mr_config_id=config, **fields)


def test_an_honest_bare_guest_is_verified() -> None:
    """In both forms of a quote; the refusals above and below are not refusals of the form."""
    for fields in ({}, {"service_td": bytes(48)}):
        found = verified_bare(bare_quote(**fields))
        assert found.compose_hash == HONEST.compose_hash.hex()
        assert found.report_data == ASKED.report_data()


@pytest.mark.negative(23)
@pytest.mark.parametrize(
    "config",
    [
        bytes(48),
        b"\x01" + bytes(47),
        b"\x02" + HONEST.compose_hash + bytes(15),
        b"\x01" + HONEST.compose_hash + bytes(14) + b"\x01",
        HONEST.compose_hash + bytes(16),
    ],
    ids=["none", "zeros", "other form", "trailing", "unframed"],
)
def test_a_bare_guest_of_another_document_is_refused(config: bytes) -> None:
    raw = PKI.quote(ASKED.report_data(), mr_config_id=config)
    with pytest.raises(ComposeHashMismatch):
        verified_bare(raw)
    for document in (COMPOSE[:-1], COMPOSE + b" ", b""):
        with pytest.raises(ComposeHashMismatch):
            verified_bare(bare_quote(), document)


# --- 14, 15, 19: TCB -----------------------------------------------------------------------------

STATUSES = (
    "SWHardeningNeeded",
    "ConfigurationNeeded",
    "ConfigurationAndSWHardeningNeeded",
    "OutOfDate",
    "OutOfDateConfigurationNeeded",
)


@pytest.mark.negative(14)
@pytest.mark.parametrize("status", [*STATUSES, "Revoked"])
def test_a_status_that_the_policy_does_not_list_is_refused(status: str) -> None:
    collateral = PKI.collateral(NOW, tcb_status=status)
    everything_else = [other for other in ("UpToDate", *STATUSES) if other != status]
    for listed in (["UpToDate"], everything_else):
        with pytest.raises(TcbStatusRefused):
            judged(HONEST, changed(ANY, tcb_status=listed), collateral)
    if status != "Revoked":
        judged(HONEST, changed(ANY, tcb_status=[status]), collateral)


@pytest.mark.negative(14)
@pytest.mark.parametrize("status", ["", "uptodate", "UpToDate ", "Unknown"])
def test_a_status_that_nobody_knows_is_refused(status: str) -> None:
    everything = changed(ANY, tcb_status=["UpToDate", *STATUSES])
    with pytest.raises(EvidenceRefused):
        judged(HONEST, everything, PKI.collateral(NOW, tcb_status=status))


@pytest.mark.negative(14)
def test_an_advisory_that_the_policy_does_not_accept_is_refused() -> None:
    collateral = PKI.collateral(NOW, advisories=("INTEL-SA-00001", "INTEL-SA-00002"))
    for accepted in ("none", [], ["INTEL-SA-00001"]):
        with pytest.raises(TcbStatusRefused):
            judged(HONEST, changed(ANY, advisories=accepted), collateral)
    both = ["INTEL-SA-00002", "INTEL-SA-00001"]
    judged(HONEST, changed(ANY, advisories=both), collateral)


@pytest.mark.negative(14)
@pytest.mark.negative(21)
def test_the_real_sgx_quote_with_open_advisories_is_no_guest(shared: Path) -> None:
    folder = shared / "vectors/tdx"
    collateral = real_collateral(shared, "tdx/sgx_quote_collateral.json")
    with pytest.raises(PlatformMismatch):
        verify_quote(
            (folder / "sgx_quote").read_bytes(),
            collateral,
            rules(tcb_status=["ConfigurationAndSWHardeningNeeded"], advisories="any"),
            simulator_root=None,
            now=1750332747,
        )


@pytest.mark.negative(15)
def test_a_real_platform_below_every_level_is_refused(shared: Path) -> None:
    raw = real_quote(shared, "tdx/tdx_quote_outdated")
    everything = rules(tcb_status=["UpToDate", *STATUSES], advisories="any")
    with pytest.raises(TcbStatusRefused):
        verify_quote(
            raw,
            real_collateral(shared, "tdx/tdx_quote_outdated_collateral.json"),
            everything,
            simulator_root=None,
            now=1772708331,
        )


@pytest.mark.negative(19)
def test_real_collateral_below_the_floor_is_refused(shared: Path) -> None:
    raw, collateral, now = real(shared, "tdx")
    verify_quote(
        raw, collateral, rules(min_tcb_evaluation_data_number=17), simulator_root=None, now=now
    )
    for floor in (18, 1 << 31):
        with pytest.raises(TcbStatusRefused, check=carries(check="collateral floor")):
            verify_quote(
                raw,
                collateral,
                rules(min_tcb_evaluation_data_number=floor),
                simulator_root=None,
                now=now,
            )


# --- 10, 16 to 18, 20: collateral ----------------------------------------------------------------


@pytest.mark.negative(16)
@pytest.mark.parametrize("part", ["tcb_info", "qe_identity"])
def test_each_document_past_its_end_is_enough(part: str) -> None:
    stale = PKI.collateral(NOW - 60 * DAY)
    with pytest.raises(CollateralExpired):
        judged(HONEST, ANY, mixed(COLLATERAL, stale, part))


@pytest.mark.negative(16)
@pytest.mark.parametrize("name", ["root_ca_crl", "pck_crl"])
def test_each_revocation_list_past_its_end_is_enough(name: str) -> None:
    for until in (NOW, NOW - 1, NOW - 400 * DAY):
        past = PKI.collateral(NOW, crl_until=until)
        with pytest.raises(CollateralExpired):
            judged(HONEST, ANY, COLLATERAL.model_copy(update={name: getattr(past, name)}))
    near = PKI.collateral(NOW, crl_until=NOW + 1)
    judged(HONEST, ANY, COLLATERAL.model_copy(update={name: getattr(near, name)}))


@pytest.mark.negative(17)
@pytest.mark.parametrize("part", ["tcb_info", "qe_identity"])
def test_each_document_from_the_future_is_enough(part: str) -> None:
    future = PKI.collateral(NOW + DAY)
    with pytest.raises(CollateralExpired):
        judged(HONEST, ANY, mixed(COLLATERAL, future, part))


@pytest.mark.negative(10)
@pytest.mark.negative(16)
@pytest.mark.negative(17)
@pytest.mark.parametrize("name", ["tdx", "gpu-guest", "near"])
def test_real_collateral_is_refused_a_second_outside_its_window(shared: Path, name: str) -> None:
    first, last = REAL[name].first, REAL[name].last
    raw, collateral, _ = real(shared, name)
    for now in (first, last):
        verify_quote(raw, collateral, rules(), simulator_root=None, now=now)
    for now in (first - 1, last + 1, 0, -1, 1 << 40):
        with pytest.raises(CollateralExpired):
            verify_quote(raw, collateral, rules(), simulator_root=None, now=now)


@pytest.mark.negative(10)
def test_a_verifier_without_a_clock_does_not_verify() -> None:
    """No default, no "now" by accident: the argument is missing, so the call is wrong."""
    with pytest.raises(TypeError):
        verify_quote(HONEST.quote(bytes(64)), COLLATERAL, ANY.cpu, simulator_root=PKI.root_der)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        verify(HONEST.evidence(ASKED, collateral=COLLATERAL), ANY, binding=ASKED)  # type: ignore[call-arg]


@pytest.mark.negative(16)
def test_collateral_older_than_the_policys_own_limit_is_refused() -> None:
    policy = changed(ANY, max_collateral_age_s=DAY)
    judged(HONEST, policy, PKI.collateral(NOW - DAY + 301))
    with pytest.raises(CollateralExpired):
        judged(HONEST, policy, PKI.collateral(NOW - DAY - 1))


@pytest.mark.negative(18)
def test_real_collateral_of_another_family_is_refused(shared: Path) -> None:
    raw, _, _ = real(shared, "tdx")
    _, other, now = real(shared, "gpu-guest")
    with pytest.raises(CollateralMismatch):
        verify_quote(raw, other, rules(), simulator_root=None, now=now)


@pytest.mark.negative(18)
def test_simulated_collateral_of_another_family_is_refused() -> None:
    with pytest.raises(CollateralMismatch):
        judged(HONEST, ANY, OTHER_FAMILY.collateral(NOW))


@pytest.mark.negative(20)
def test_the_shared_mock_is_refused_under_intels_root(shared: Path) -> None:
    folder = shared / "vectors/tdx/own-mock"
    mock = real_collateral(shared, "tdx/own-mock/collateral.json")
    raw, now = (folder / "quote.bin").read_bytes(), 1750000001
    root = (folder / "root.der").read_bytes()
    assert verify_quote(
        raw, mock, rules(min_tcb_evaluation_data_number=1), simulator_root=root, now=now
    ).simulated
    with pytest.raises(SimulatedEvidence):
        verify_quote(raw, mock, rules(), simulator_root=None, now=now)
    with pytest.raises(QuoteRootUntrusted):
        verify_quote(raw, mock, rules(), simulator_root=PKI.root_der, now=now)


@pytest.mark.negative(20)
def test_a_real_quote_with_collateral_of_a_foreign_root_is_refused(shared: Path) -> None:
    raw, collateral, now = real(shared, "tdx")
    foreign = SimulatedPki(b"a stranger's vendor", fmspc=bytes.fromhex("b0c06f000000"))
    lies = foreign.collateral(now)
    for part in ("tcb_info", "qe_identity", "pck_crl"):
        with pytest.raises(CollateralMismatch):
            verify_quote(raw, mixed(collateral, lies, part), rules(), simulator_root=None, now=now)


@pytest.mark.negative(20)
def test_a_foreign_vendor_under_intels_names_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A consistent PKI, every certificate named as Intel's; only the keys are the attacker's."""
    plain = x509.NameAttribute

    def named(kind: x509.ObjectIdentifier, name: str) -> x509.NameAttribute[str]:
        return plain(kind, name.replace("SIMULATED", "Intel"))

    monkeypatch.setattr(x509, "NameAttribute", named)
    impostor = SimulatedPki(b"the attacker's own keys")
    collateral = impostor.collateral(NOW)
    guest = SimulatedGuest(impostor, Secret(b"\x01" * 32), COMPOSE)
    with pytest.raises(QuoteRootUntrusted):
        judged(guest, ANY, collateral)
    with pytest.raises(QuoteRootUntrusted):
        verify_quote(guest.quote(bytes(64)), collateral, rules(), simulator_root=None, now=NOW)


def test_a_platform_whose_certificate_was_revoked_is_refused() -> None:
    with pytest.raises(CertificateRevoked):
        judged(HONEST, ANY, PKI.collateral(NOW, revoked=True))


# --- 21, 22, 24: form ----------------------------------------------------------------------------


@pytest.mark.negative(21)
def test_an_sgx_quote_is_not_a_guest_whatever_else_it_says() -> None:
    raw = HONEST.quote(ASKED.report_data())
    for header in (
        struct.pack("<HHI", 3, 2, 0),
        struct.pack("<HHI", 4, 2, 0),
        struct.pack("<HHI", 3, 2, 0x81),
        struct.pack("<HHI", 4, 2, 0x82),
    ):
        with pytest.raises(PlatformMismatch):
            decided(with_quote(header + raw[8:]), ANY, COLLATERAL)


@pytest.mark.negative(22)
def test_padding_makes_no_second_quote() -> None:
    """A verifier refuses padding, a collector cuts it; either way there is one identity."""
    raw = HONEST.quote(ASKED.report_data())
    for tail in (b"\0", b"\0" * 3000, b"\n", b"\xff", raw):
        with pytest.raises(QuoteInvalid):
            decided(with_quote(raw + tail), ANY, COLLATERAL)
    assert canonical_quote(raw.ljust(8000, b"\0")) == raw
    with pytest.raises(QuoteInvalid):
        canonical_quote(raw + b"\0\0\x01")


@pytest.mark.negative(22)
def test_two_encodings_of_a_signature_are_one_quote() -> None:
    """Its signatures can be turned from s into n - s by anybody."""
    raw = HONEST.quote(ASKED.report_data())
    expected = decided(with_quote(raw), ANY, COLLATERAL).quote_identity
    for start in (636, 1154):
        twisted = bytearray(raw)
        s = int.from_bytes(raw[start + 32 : start + 64], "big")
        twisted[start + 32 : start + 64] = (ORDER - s).to_bytes(32, "big")
        assert bytes(twisted) != raw
        assert decided(with_quote(bytes(twisted)), ANY, COLLATERAL).quote_identity == expected


@pytest.mark.negative(24)
@pytest.mark.parametrize("version", [0, 1, 2, 6, 0x104, 0xFFFF])
def test_an_unknown_version_is_refused(version: int) -> None:
    raw = HONEST.quote(ASKED.report_data())
    with pytest.raises(QuoteInvalid):
        decided(with_quote(struct.pack("<H", version) + raw[2:]), ANY, COLLATERAL)


@pytest.mark.negative(24)
def test_a_quote_cut_anywhere_is_refused() -> None:
    for raw in (HONEST.quote(bytes(64)), bare_quote(service_td=bytes(48))):
        for cut in (*range(1, 700, 9), *range(700, len(raw), 53), len(raw) - 1):
            with pytest.raises(QuoteInvalid):
                parse_quote(raw[:cut])


@pytest.mark.negative(24)
@pytest.mark.parametrize("at", [632, 766, 1218, 1254])
def test_a_length_that_overflows_is_refused(at: int) -> None:
    raw = HONEST.quote(ASKED.report_data())
    form, most = ("<H", 0xFFFF) if at == 1218 else ("<I", 0xFFFFFFFF)
    (right,) = struct.unpack_from(form, raw, at)
    for length in (0, right - 1, right + 1, most, most - 635, most // 2 + 1):
        altered = bytearray(raw)
        struct.pack_into(form, altered, at, length)
        with pytest.raises(QuoteInvalid):
            decided(with_quote(bytes(altered)), ANY, COLLATERAL)


# --- 23, 25: what booted, and where --------------------------------------------------------------


@pytest.mark.negative(23)
@pytest.mark.parametrize("register", ["mrtd", "rtmr0", "rtmr1", "rtmr2"])
def test_one_register_outside_the_policy_is_enough(strict: AppraisalPolicy, register: str) -> None:
    (one,) = strict.to_dict()["cpu"]["measurements"]
    for value in ("00" * 48, one[register][:-1] + ("0" if one[register][-1] != "0" else "1")):
        policy = changed(strict, measurements=[{**one, register: value}])
        with pytest.raises(MeasurementMismatch):
            judged(HONEST, policy, COLLATERAL)


@pytest.mark.negative(23)
def test_registers_of_two_accepted_images_do_not_mix(strict: AppraisalPolicy) -> None:
    (one,) = strict.to_dict()["cpu"]["measurements"]
    other = dict.fromkeys(one, "ab" * 48)
    halves = [{**one, "rtmr2": other["rtmr2"]}, {**other, "rtmr2": one["rtmr2"]}]
    with pytest.raises(MeasurementMismatch):
        judged(HONEST, changed(strict, measurements=halves), COLLATERAL)


@pytest.mark.negative(23)
def test_no_byte_of_a_log_can_be_changed(strict: AppraisalPolicy) -> None:
    """Names, payloads, versions, order: run-time register 3 covers them."""
    document = HONEST.evidence(ASKED, collateral=None).to_dict()
    log = document["cpu"]["event_log"]
    tried = 0
    for index, entry in enumerate(log):
        if entry["imr"] != 3:
            continue
        changes: list[dict[str, Any]] = [{"event": entry["event"] + "x"}, {"version": 2}]
        if entry["event_payload"]:
            last = entry["event_payload"][-1]
            flipped = entry["event_payload"][:-1] + ("0" if last != "0" else "1")
            changes += [{"event_payload": flipped}, {"event_payload": ""}]
        for change in changes:
            altered = [*log[:index], {**entry, **change}, *log[index + 1 :]]
            evidence = Evidence.from_dict(
                {**document, "cpu": {**document["cpu"], "event_log": altered}}
            )
            with pytest.raises(EventLogMismatch):
                decided(evidence, ANY, COLLATERAL)
            tried += 1
    assert tried > 20


@pytest.mark.negative(25)
def test_a_machine_that_is_not_listed_is_refused(strict: AppraisalPolicy) -> None:
    """The same vendor, the same image, another machine: where physical access is the worry."""
    elsewhere = SimulatedPki(b"the vendor that the policy trusts", ppid=b"\x0b" * 16)
    assert elsewhere.root_der == PKI.root_der
    guest = SimulatedGuest(elsewhere, Secret(b"\x01" * 32), COMPOSE)
    judged(guest, changed(strict, platform_ids="any"), COLLATERAL)
    for listed in (strict.cpu.platform_ids, ["0a" * 16, "0c" * 16], []):
        with pytest.raises(PlatformMismatch):
            judged(guest, changed(strict, platform_ids=listed), COLLATERAL)


# --- Real quotes: nothing signed can be changed --------------------------------------------------


def rules(**changes: Any) -> QuotePolicy:
    """Rules for real machines; ``changes`` replaces some."""
    return policy_from_dict(intel(**changes)).cpu  # type: ignore[return-value]  # dstack's


def real(shared: Path, name: str) -> tuple[bytes, Collateral, int]:
    """Quote, collateral and a moment at which they hold."""
    one = REAL[name]
    return real_quote(shared, one.quote), real_collateral(shared, one.collateral), one.first + 3600


def checked(raw: bytes, collateral: Collateral, now: int) -> VerifiedQuote:
    return verify_quote(raw, collateral, rules(), simulator_root=None, now=now)


def refuse_flips(raw: bytes, collateral: Collateral, now: int, places: Iterable[int]) -> None:
    """Each place in turn with one of its bits flipped."""
    for at in places:
        flipped = bytearray(raw)
        flipped[at] ^= 1 << at % 8
        with pytest.raises(EvidenceRefused):
            checked(bytes(flipped), collateral, now)


@pytest.mark.negative(6)
@pytest.mark.parametrize(("name", "step"), [("near", 1), ("tdx", 5), ("gpu-guest", 5)])
def test_no_flipped_byte_of_what_a_real_quote_signs_is_accepted(
    shared: Path, name: str, step: int
) -> None:
    raw, collateral, now = real(shared, name)
    assert checked(raw, collateral, now).tcb_status == "UpToDate"
    signed = 632
    refuse_flips(raw, collateral, now, range(0, signed, step))


@pytest.mark.negative(6)
def test_no_flipped_byte_behind_what_a_real_quote_signs_is_accepted(shared: Path) -> None:
    """Signatures, keys, certification data, chain: sampled. No byte is outside of all checks."""
    raw, collateral, now = real(shared, "tdx")
    refuse_flips(
        raw, collateral, now, (*range(632, 1258, 11), *range(1258, len(raw), 61), len(raw) - 1)
    )


@pytest.mark.negative(6)
def test_no_flipped_character_of_real_collateral_is_accepted(shared: Path) -> None:
    """Sampled, in every field. Hex digits are flipped to others, so that the form still holds."""
    raw, collateral, now = real(shared, "near")
    for name, text in collateral.to_dict().items():
        for at in range(3, len(text), max(1, len(text) // 12)):
            other = "1" if text[at] == "0" else "0"
            altered = collateral.model_copy(update={name: text[:at] + other + text[at + 1 :]})
            with pytest.raises(EvidenceRefused):
                checked(raw, altered, now)


def mixed(base: Collateral, other: Collateral, part: str) -> Collateral:
    """One signed part, with what belongs to it, from another collateral."""
    names = {
        "pck_crl": ("pck_crl", "pck_crl_issuer_chain"),
        "tcb_info": ("tcb_info", "tcb_info_signature", "tcb_info_issuer_chain"),
        "qe_identity": ("qe_identity", "qe_identity_signature", "qe_identity_issuer_chain"),
    }
    return base.model_copy(update={name: getattr(other, name) for name in names[part]})
