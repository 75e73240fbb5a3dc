"""Whoever runs the machine forges, replays or edits evidence: every attempt is a typed refusal.

The attacker holds a PKI of their own, every byte of genuine evidence and the whole host. They do
not hold the keys of the root that the policy trusts.
"""

from __future__ import annotations

import hashlib
import struct
from functools import partial
from typing import Any

import pytest
from carrying import carries
from exhibit_world import real_collateral, real_quote
from policies import changed, intel

from sealtrain.attest.appraise import appraise
from sealtrain.attest.dstack.parse import runtime_digest
from sealtrain.attest.errors import (
    CollateralExpired,
    CollateralMismatch,
    ComposeHashMismatch,
    DebugGuest,
    EventLogMismatch,
    MigratableGuest,
    PlatformMismatch,
    QuoteInvalid,
    QuoteRootUntrusted,
    ReportDataMismatch,
    SimulatedEvidence,
    TcbStatusRefused,
)
from sealtrain.attest.evidence import Collateral, Evidence, LogEntry
from sealtrain.attest.policy import AppraisalPolicy, policy_from_dict
from sealtrain.attest.presets import insecure_simulator_policy
from sealtrain.attest.report_data import Binding
from sealtrain.attest.tdx.parse import parse_quote
from sealtrain.attest.verify import Verified
from sealtrain.attest.verify import verify as verify_any
from sealtrain.base.encoding import to_base64
from sealtrain.base.secret import Secret
from sealtrain.errors import EvidenceRefused, KeyProviderMismatch
from sealtrain_rehearsal.simulator.guest import SimulatedGuest
from sealtrain_rehearsal.simulator.pki import SimulatedPki

pytestmark = pytest.mark.claim("C14")

NOW = 1_800_000_000
DAY = 24 * 3600
COMPOSE = b'{"name":"victim","key_provider":"kms"}\n'
ASKED = Binding("release", {"challenge": "fresh"})
verify = partial(verify_any, binding=ASKED)
HARDWARE = policy_from_dict(intel(advisories="any"))
TRUSTED_SEED = b"the trusted simulator, seed one"


@pytest.fixture(scope="module")
def pki() -> SimulatedPki:
    return SimulatedPki(TRUSTED_SEED)


@pytest.fixture(scope="module")
def foreign() -> SimulatedPki:
    return SimulatedPki(b"the attacker's own PKI, seed two")


@pytest.fixture(scope="module")
def policy(pki: SimulatedPki) -> AppraisalPolicy:
    return insecure_simulator_policy(pki.root_der)


@pytest.fixture(scope="module")
def collateral(pki: SimulatedPki) -> Collateral:
    return pki.collateral(NOW)


@pytest.fixture(scope="module")
def guest(pki: SimulatedPki) -> SimulatedGuest:
    return SimulatedGuest(pki, Secret(b"\x01" * 32), COMPOSE)


@pytest.fixture(scope="module")
def evidence(guest: SimulatedGuest, collateral: Collateral) -> Evidence:
    return guest.evidence(ASKED, collateral=collateral)


def with_quote(evidence: Evidence, quote: bytes) -> Evidence:
    return with_cpu(evidence, quote=to_base64(quote))


def with_cpu(evidence: Evidence, **fields: Any) -> Evidence:
    document = evidence.to_dict()
    return Evidence.from_dict({**document, "cpu": {**document["cpu"], **fields}})


def with_log(evidence: Evidence, log: list[LogEntry]) -> Evidence:
    return with_cpu(evidence, event_log=[entry.to_dict() for entry in log])


def runtime(name: str, payload: bytes = b"", **fields: Any) -> LogEntry:
    values = {
        "imr": 3,
        "event_type": 0x08000001,
        "digest": "",
        "event": name,
        "event_payload": payload.hex(),
        "version": 1,
    }
    return LogEntry(**{**values, **fields})


def extended(log: list[LogEntry]) -> bytes:
    """A register after these events, whatever a verifier thinks of them."""
    register = bytes(48)
    for entry in log:
        said = runtime_digest(entry.event, bytes.fromhex(entry.event_payload), entry.version)
        register = hashlib.sha384(register + (bytes.fromhex(entry.digest) or said)).digest()
    return register


def forge(evidence: Evidence, pki: SimulatedPki, log: list[LogEntry], **fields: Any) -> Evidence:
    """Evidence whose registers replay ``log``, signed by ``pki``: the log rules stand alone."""
    original = parse_quote(evidence.cpu.quote_bytes)
    registers = [extended([entry for entry in log if entry.imr == i]) for i in range(4)]
    if not any(entry.imr < 3 for entry in log):
        registers[:3] = [bytes.fromhex(value) for value in original.rtmr[:3]]
    rtmr = (registers[0], registers[1], registers[2], registers[3])
    quote = pki.quote(original.report_data, rtmr=rtmr, **fields)
    return with_log(with_quote(evidence, quote), log)


def genuine(evidence: Evidence, policy: AppraisalPolicy) -> Verified:
    return verify(evidence, policy, NOW)


def test_the_evidence_under_attack_is_accepted(
    evidence: Evidence, policy: AppraisalPolicy, guest: SimulatedGuest
) -> None:
    """Every refusal below is a refusal of this very document, changed."""
    facts = genuine(evidence, policy)
    appraise(
        facts,
        policy,
        binding=ASKED,
        compose_hash=guest.compose_hash.hex(),
        app_id=guest.app_id.hex(),
    )


def test_a_foreign_root_is_refused(
    foreign: SimulatedPki, policy: AppraisalPolicy, evidence: Evidence, collateral: Collateral
) -> None:
    other = SimulatedGuest(foreign, Secret(b"\x01" * 32), COMPOSE)
    for offered in (foreign.collateral(NOW), collateral):
        with pytest.raises(QuoteRootUntrusted):
            verify(other.evidence(ASKED, collateral=offered), policy, NOW)


@pytest.mark.parametrize("borrowed", [1, 2], ids=["root", "root and issuer"])
def test_a_forged_chain_that_ends_in_trusted_certificates_is_refused(
    foreign: SimulatedPki, policy: AppraisalPolicy, evidence: Evidence, borrowed: int
) -> None:
    """The trusted certificates are public: appending them to a forged chain must not help."""
    mark = b"-----BEGIN CERTIFICATE-----\n"
    raw = SimulatedGuest(foreign, Secret(b"\x01" * 32), COMPOSE).quote(ASKED.report_data())
    theirs, ours = raw.split(mark), evidence.cpu.quote_bytes.split(mark)
    spliced = bytearray(mark.join(theirs[:-borrowed] + ours[-borrowed:]))
    for at in (632, 766, 1254):
        size = struct.unpack_from("<I", spliced, at)[0]
        struct.pack_into("<I", spliced, at, size + len(spliced) - len(raw))
    trusted = parse_quote(evidence.cpu.quote_bytes).certificates
    assert parse_quote(bytes(spliced)).certificates[-borrowed:] == trusted[-borrowed:]
    with pytest.raises((QuoteRootUntrusted, CollateralMismatch)):
        verify(with_quote(evidence, bytes(spliced)), policy, NOW)


def test_no_altered_character_of_the_collateral_is_accepted(
    evidence: Evidence, policy: AppraisalPolicy, collateral: Collateral
) -> None:
    """Sampled; a signature of the collateral itself has two encodings, like any ECDSA signature."""
    for name, text in collateral.to_dict().items():
        for at in range(0, len(text), max(1, len(text) // 40)):
            altered = text[:at] + ("1" if text[at] == "0" else "0") + text[at + 1 :]
            with pytest.raises(EvidenceRefused):
                verify(
                    evidence,
                    policy,
                    NOW,
                    collateral=Collateral.from_dict({**collateral.to_dict(), name: altered}),
                )


@pytest.mark.claim("C16")
def test_collateral_signed_by_a_foreign_root_is_refused(
    foreign: SimulatedPki, policy: AppraisalPolicy, evidence: Evidence
) -> None:
    with pytest.raises(CollateralMismatch):
        verify(evidence, policy, NOW, collateral=foreign.collateral(NOW))


def test_no_flipped_byte_of_a_quote_is_accepted(
    evidence: Evidence, policy: AppraisalPolicy
) -> None:
    """Sampled over header, report, signature, key, QE report and chain."""
    raw = evidence.cpu.quote_bytes
    positions = {*range(0, 48, 3), *range(48, 632, 13), *range(632, len(raw), 29), len(raw) - 1}
    for at in sorted(positions):
        flipped = bytearray(raw)
        flipped[at] ^= 0x01
        with pytest.raises(EvidenceRefused):
            verify(with_quote(evidence, bytes(flipped)), policy, NOW)


def test_no_truncated_or_prolonged_quote_is_accepted(
    evidence: Evidence, policy: AppraisalPolicy
) -> None:
    raw = evidence.cpu.quote_bytes
    for cut in (*range(1, len(raw), 97), len(raw) - 1):
        with pytest.raises(EvidenceRefused):
            verify(with_quote(evidence, raw[:cut]), policy, NOW)
    for tail in (b"\0", b"\0" * 70, b"\n", raw):
        with pytest.raises(QuoteInvalid):
            verify(with_quote(evidence, raw + tail), policy, NOW)


@pytest.mark.parametrize("at", [632, 764, 766, 1252, 1254])
def test_lengths_and_types_the_library_ignores_are_checked_here(
    evidence: Evidence, policy: AppraisalPolicy, at: int
) -> None:
    for change in (1, 2, 0x80):
        altered = bytearray(evidence.cpu.quote_bytes)
        altered[at] ^= change
        with pytest.raises(QuoteInvalid):
            verify(with_quote(evidence, bytes(altered)), policy, NOW)


def test_two_encodings_of_one_signature_name_one_quote(
    evidence: Evidence, policy: AppraisalPolicy
) -> None:
    """ECDSA lets anyone turn s into n - s; the identity must not change with it."""
    order = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
    raw = bytearray(evidence.cpu.quote_bytes)
    s = int.from_bytes(raw[668:700], "big")
    raw[668:700] = (order - s).to_bytes(32, "big")
    other = verify(with_quote(evidence, bytes(raw)), policy, NOW)
    assert other.quote_identity == genuine(evidence, policy).quote_identity


@pytest.mark.claim("C18")
def test_a_quote_made_for_another_conversation_is_refused(
    guest: SimulatedGuest, policy: AppraisalPolicy, collateral: Collateral
) -> None:
    asked = [
        Binding("release", {"challenge": "an older one"}),
        Binding("renewal", {"challenge": "fresh"}),
        Binding("release", {"challenge": "fresh", "hpke_public_key": "attacker's"}),
        bytes(64),
    ]
    for value in asked:
        facts = verify(guest.evidence(value, collateral=collateral), policy, NOW)
        with pytest.raises(ReportDataMismatch):
            appraise(facts, policy, binding=ASKED, compose_hash=None, app_id=None)


def test_another_deployment_document_is_refused(
    evidence: Evidence, policy: AppraisalPolicy
) -> None:
    same_value = b'{"name": "victim", "key_provider": "kms"}\n'
    for document in (COMPOSE.strip(), same_value, COMPOSE + b" ", b"{}"):
        other = with_cpu(evidence, app_compose=document.decode())
        with pytest.raises(ComposeHashMismatch):
            verify(other, policy, NOW)


def test_an_edited_log_does_not_replay(evidence: Evidence, policy: AppraisalPolicy) -> None:
    log = list(evidence.cpu.event_log)
    edits: list[list[LogEntry]] = []
    for index in range(len(log)):
        edits.append(log[:index] + log[index + 1 :])
        edits.append(log[: index + 1] + log[index:])
        if index and log[index].imr == log[index - 1].imr:
            edits.append([*log[: index - 1], log[index], log[index - 1], *log[index + 1 :]])
    edits.append([*log, runtime("app-id", bytes(20))])
    edits.append([entry for entry in log if entry.imr != 1])
    edits.append([entry for entry in log if entry.imr != 3])
    for edited in edits:
        with pytest.raises(EventLogMismatch):
            verify(with_log(evidence, edited), policy, NOW)


def test_a_payload_that_lies_with_its_old_digest_is_refused(
    evidence: Evidence, policy: AppraisalPolicy
) -> None:
    """The digest still replays; it is never looked at, because the payload is what counts."""
    from sealtrain.attest.dstack.parse import runtime_digest

    log = list(evidence.cpu.event_log)
    for index, entry in enumerate(log):
        if entry.event not in ("app-id", "compose-hash", "key-provider", "instance-id"):
            continue
        digest = runtime_digest(entry.event, bytes.fromhex(entry.event_payload), 1).hex()
        lie = entry.model_copy(
            update={"digest": digest, "event_payload": "00" * (len(entry.event_payload) // 2)}
        )
        with pytest.raises(EventLogMismatch, match=entry.event):
            verify(with_log(evidence, [*log[:index], lie, *log[index + 1 :]]), policy, NOW)


def test_a_log_may_leave_out_firmware_events_only_as_a_whole(
    evidence: Evidence, policy: AppraisalPolicy
) -> None:
    """The quote carries registers 0 to 2 either way, and the policy compares those."""
    full, bare = genuine(evidence, policy), None
    bare = verify(
        with_log(evidence, [entry for entry in evidence.cpu.event_log if entry.imr == 3]),
        policy,
        NOW,
    )
    assert bare.signed.quote.rtmr == full.signed.quote.rtmr


def boot(evidence: Evidence) -> list[LogEntry]:
    return [entry for entry in evidence.cpu.event_log if entry.imr == 3]


@pytest.mark.parametrize("name", ["app-id", "compose-hash", "instance-id", "key-provider"])
def test_a_required_event_measured_twice_or_never_is_refused(
    evidence: Evidence, policy: AppraisalPolicy, pki: SimulatedPki, name: str
) -> None:
    log = boot(evidence)
    index = next(i for i, entry in enumerate(log) if entry.event == name)
    twice = [*log[:index], log[index], *log[index:]]
    never = log[:index] + log[index + 1 :]
    late = [*never, log[index]]
    for edited in (twice, never, late):
        with pytest.raises(EventLogMismatch):
            verify(forge(evidence, pki, edited), policy, NOW)


def test_what_an_app_measures_after_system_ready_counts_for_nothing(
    evidence: Evidence, policy: AppraisalPolicy, pki: SimulatedPki
) -> None:
    log = [
        *boot(evidence),
        runtime("app-id", bytes(20)),
        runtime("compose-hash", bytes(32)),
        runtime("key-provider", b"{}"),
        runtime("a:b"),
        runtime("system-ready"),
    ]
    facts = verify(forge(evidence, pki, log), policy, NOW)
    assert facts.app_id == genuine(evidence, policy).app_id
    assert facts.key_provider == genuine(evidence, policy).key_provider


def test_a_log_without_system_ready_is_refused(
    evidence: Evidence, policy: AppraisalPolicy, pki: SimulatedPki
) -> None:
    log = [entry for entry in boot(evidence) if entry.event != "system-ready"]
    with pytest.raises(EventLogMismatch, match="system-ready"):
        verify(forge(evidence, pki, log), policy, NOW)


@pytest.mark.parametrize(
    "stray",
    [
        {"event_type": 4, "digest": "ab" * 48, "event_payload": ""},
        {"event": "app-id:x"},
    ],
    ids=["foreign-type", "ambiguous-name"],
)
def test_a_foreign_or_ambiguous_event_before_system_ready_is_refused(
    evidence: Evidence, policy: AppraisalPolicy, pki: SimulatedPki, stray: dict[str, Any]
) -> None:
    log = [runtime(**{"name": "stray", **stray}) if "event" not in stray else runtime("app-id:x")]
    entry = log[0].model_copy(update={k: v for k, v in stray.items() if k != "event"})
    registers = [entry, *boot(evidence)]
    try:
        forged = forge(evidence, pki, registers)
    except EventLogMismatch:
        forged = with_log(evidence, registers)
    with pytest.raises(EventLogMismatch):
        verify(forged, policy, NOW)


@pytest.mark.parametrize(
    "unsigned",
    [{"event_type": 0x08000001}, {"event": "app-id"}, {"event_payload": "00"}, {"version": 2}],
)
def test_a_firmware_event_that_says_more_than_its_digest_is_refused(
    evidence: Evidence, policy: AppraisalPolicy, unsigned: dict[str, Any]
) -> None:
    log = list(evidence.cpu.event_log)
    log[0] = log[0].model_copy(update=unsigned)
    with pytest.raises(EventLogMismatch):
        verify(with_log(evidence, log), policy, NOW)


@pytest.mark.parametrize(
    "payload",
    [b"", b"[]", b"{}", b'{"name":"kms"}', b'{"name":1,"id":""}', b'{"name":"kms","id":"zz"}',
     b'{"name":"kms","id":"AB"}', b'{"name":"kms","name":"none","id":""}', b"\xff", b"9" * 5000],
)  # fmt: skip
def test_a_malformed_key_provider_is_refused(
    evidence: Evidence, policy: AppraisalPolicy, pki: SimulatedPki, payload: bytes
) -> None:
    log = [
        entry if entry.event != "key-provider" else runtime("key-provider", payload)
        for entry in boot(evidence)
    ]
    with pytest.raises(KeyProviderMismatch):
        verify(forge(evidence, pki, log), policy, NOW)


def test_a_host_with_its_own_key_provider_is_refused(
    pki: SimulatedPki, policy: AppraisalPolicy, collateral: Collateral, evidence: Evidence
) -> None:
    pinned = changed(policy, key_provider=genuine(evidence, policy).key_provider)
    host = SimulatedGuest(pki, Secret(b"\x02" * 32), COMPOSE)
    keyless = SimulatedGuest(pki, Secret(b"\x01" * 32), b'{"name":"victim"}')
    for guest in (host, keyless):
        facts = verify(guest.evidence(ASKED, collateral=collateral), pinned, NOW)
        with pytest.raises(KeyProviderMismatch):
            appraise(facts, pinned, binding=ASKED, compose_hash=None, app_id=None)


@pytest.mark.claim("C16")
@pytest.mark.parametrize(
    "fields",
    [
        {"td_attributes": bytes.fromhex("0100001000000000")},
        {"td_attributes": bytes.fromhex("0000000000000000")},
        {"service_td": b"\x01" * 48},
    ],
    ids=["debug", "page-tables-open", "migratable"],
)
def test_a_guest_whose_memory_others_can_reach_is_refused(
    evidence: Evidence, policy: AppraisalPolicy, pki: SimulatedPki, fields: dict[str, Any]
) -> None:
    error = MigratableGuest if "service_td" in fields else DebugGuest
    with pytest.raises(error):
        verify(forge(evidence, pki, boot(evidence), **fields), policy, NOW)


def test_a_guest_bound_to_no_service_guest_passes_in_the_newer_quote_form(
    evidence: Evidence, policy: AppraisalPolicy, pki: SimulatedPki
) -> None:
    """The three refusals above are not refusals of the form."""
    verify(forge(evidence, pki, boot(evidence), service_td=bytes(48)), policy, NOW)


@pytest.mark.claim("C16")
@pytest.mark.parametrize("offset", [-2 * DAY, 31 * DAY, 400 * DAY])
def test_collateral_outside_its_time_is_refused(
    evidence: Evidence, policy: AppraisalPolicy, offset: int
) -> None:
    with pytest.raises(CollateralExpired):
        verify(evidence, policy, NOW + offset)


@pytest.mark.claim("C16")
def test_each_expired_part_of_the_collateral_is_enough(
    evidence: Evidence, policy: AppraisalPolicy, pki: SimulatedPki
) -> None:
    fresh, stale = pki.collateral(NOW), pki.collateral(NOW - 60 * DAY)
    for part in ("tcb_info", "qe_identity"):
        mixed = fresh.model_copy(
            update={
                part: getattr(stale, part),
                f"{part}_signature": getattr(stale, f"{part}_signature"),
            }
        )
        with pytest.raises(CollateralExpired):
            verify(evidence, policy, NOW, collateral=mixed)


@pytest.mark.claim("C16")
def test_collateral_of_another_platform_family_is_refused(
    evidence: Evidence, policy: AppraisalPolicy
) -> None:
    other_family = SimulatedPki(TRUSTED_SEED, fmspc=b"\x01" * 6)
    with pytest.raises(CollateralMismatch):
        verify(evidence, policy, NOW, collateral=other_family.collateral(NOW))


@pytest.mark.claim("C16")
def test_collateral_edited_after_signing_is_refused(
    evidence: Evidence, policy: AppraisalPolicy, pki: SimulatedPki
) -> None:
    fresh = pki.collateral(NOW, tcb_status="OutOfDate")
    for field, old, new in (
        ("tcb_info", "OutOfDate", "UpToDate"),
        ("tcb_info", '"tcbEvaluationDataNumber":1', '"tcbEvaluationDataNumber":9'),
        ("qe_identity", "UpToDate", "OutOfDate"),
    ):
        edited = fresh.model_copy(update={field: getattr(fresh, field).replace(old, new)})
        with pytest.raises(CollateralMismatch):
            verify(evidence, policy, NOW, collateral=edited)


@pytest.mark.claim("C16")
@pytest.mark.parametrize("status", ["OutOfDate", "SWHardeningNeeded", "Revoked"])
def test_a_tcb_status_outside_the_policy_is_refused(
    evidence: Evidence, policy: AppraisalPolicy, pki: SimulatedPki, status: str
) -> None:
    with pytest.raises(TcbStatusRefused) as caught:
        verify(evidence, policy, NOW, collateral=pki.collateral(NOW, tcb_status=status))
    assert status in str(caught.value.got)


@pytest.mark.claim("C16")
def test_collateral_older_than_the_floor_is_refused(
    evidence: Evidence, policy: AppraisalPolicy, pki: SimulatedPki
) -> None:
    raised = changed(policy, min_tcb_evaluation_data_number=5)
    verify(evidence, raised, NOW, collateral=pki.collateral(NOW, tcb_evaluation_data_number=5))
    with pytest.raises(TcbStatusRefused):
        verify(evidence, raised, NOW, collateral=pki.collateral(NOW, tcb_evaluation_data_number=4))


def test_sgx_and_unknown_quotes_are_another_platform(
    evidence: Evidence, policy: AppraisalPolicy
) -> None:
    raw = evidence.cpu.quote_bytes
    sgx = bytes.fromhex("0300020000000000") + raw[8:]
    sgx_v4 = raw[:4] + bytes(4) + raw[8:]
    for quote in (sgx, sgx_v4, raw[:4] + b"\x82\0\0\0" + raw[8:]):
        with pytest.raises(PlatformMismatch):
            verify(with_quote(evidence, quote), policy, NOW)


@pytest.mark.claim("C15")
def test_simulated_evidence_never_passes_a_hardware_policy(
    evidence: Evidence, collateral: Collateral
) -> None:
    """Neither as what it is, nor relabelled, nor under a policy that accepts everything else."""
    relabelled = evidence.model_copy(update={"platform": "dstack"})
    for offered in (evidence, relabelled):
        with pytest.raises(SimulatedEvidence):
            verify(offered, HARDWARE, NOW, collateral=collateral)


@pytest.mark.claim("C15")
def test_a_simulators_policy_refuses_real_hardware(
    shared: Any, policy: AppraisalPolicy, evidence: Evidence
) -> None:
    """A demo's trust must not turn a real machine's quote into a simulated verdict."""
    quote = real_quote(shared, "tdx/tdx_quote")
    real = real_collateral(shared, "tdx/tdx_quote_collateral.json")
    with pytest.raises(QuoteRootUntrusted):
        verify(with_quote(evidence, quote), policy, 1750332747, collateral=real)
    relabelled = with_quote(evidence, quote).model_copy(update={"platform": "dstack"})
    with pytest.raises(PlatformMismatch):
        verify(relabelled, policy, 1750332747, collateral=real)


def test_evidence_of_one_guest_with_the_log_of_another_is_refused(
    pki: SimulatedPki, policy: AppraisalPolicy, evidence: Evidence, collateral: Collateral
) -> None:
    other = SimulatedGuest(pki, Secret(b"\x01" * 32), b'{"name":"malicious"}')
    theirs = other.evidence(ASKED, collateral=collateral)
    for spliced in (
        with_quote(evidence, theirs.cpu.quote_bytes),
        with_log(theirs, list(evidence.cpu.event_log)),
        with_cpu(theirs, app_compose=evidence.cpu.app_compose),
    ):
        with pytest.raises((EventLogMismatch, ComposeHashMismatch)):
            verify(spliced, policy, NOW)


@pytest.mark.parametrize("form", [1, 2, 3, 9])
def test_a_config_id_that_commits_to_other_values_is_refused(
    evidence: Evidence, policy: AppraisalPolicy, pki: SimulatedPki, form: int
) -> None:
    lie = bytes([form]) + b"\xab" * 32 + bytes(15)
    with pytest.raises(EventLogMismatch, check=carries(check="MRCONFIGID")):
        verify(forge(evidence, pki, boot(evidence), mr_config_id=lie), policy, NOW)


def test_config_ids_that_commit_to_the_same_values_pass(
    evidence: Evidence, policy: AppraisalPolicy, pki: SimulatedPki, guest: SimulatedGuest
) -> None:
    import hashlib

    from sealtrain.base.canonical import canonical_json

    keccak = pytest.importorskip("Crypto.Hash.keccak")
    facts = genuine(evidence, policy)
    provider = bytes.fromhex(facts.key_provider)
    second = keccak.new(
        digest_bits=256, data=guest.compose_hash + guest.app_id + b"\x02" + provider
    ).digest()
    document = {
        "app_id": facts.app_id,
        "compose_hash": facts.compose_hash,
        "gpu_policy_hash": hashlib.sha256(b"{}").hexdigest(),
        "instance_id": facts.instance_id,
        "key_provider": "kms",
        "key_provider_id": facts.key_provider,
        "version": 3,
    }
    third = hashlib.sha256(b"dstack-mr-config-v3:\0" + canonical_json(document)).digest()
    for form, value in ((1, guest.compose_hash), (2, second), (3, third)):
        config = bytes([form]) + value + bytes(15)
        verify(forge(evidence, pki, boot(evidence), mr_config_id=config), policy, NOW)
