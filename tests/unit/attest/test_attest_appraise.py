"""Appraisal: each claim alone decides, and the verdict says what it rests on."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any

import pytest
from policies import changed, intel

from sealtrain.attest.appraise import appraise
from sealtrain.attest.errors import (
    AppIdMismatch,
    CollateralMismatch,
    ComposeHashMismatch,
    MeasurementMismatch,
    PlatformMismatch,
    ReportDataMismatch,
    SimulatedEvidence,
    TcbStatusRefused,
)
from sealtrain.attest.policy import AppraisalPolicy, policy_from_dict
from sealtrain.attest.report_data import Binding
from sealtrain.attest.verify import Verified, verify
from sealtrain.errors import EvidenceRefused, KeyProviderMismatch
from sealtrain_rehearsal.simulator.guest import SimulatedGuest
from sealtrain_rehearsal.simulator.pki import SimulatedPki

NOW = 1_800_000_000
ASKED = Binding("unit", {"challenge": "c"})


@pytest.fixture
def verified(guest: SimulatedGuest, pki: SimulatedPki, policy: AppraisalPolicy) -> Verified:
    evidence = guest.evidence(ASKED, collateral=None)
    return verify(evidence, policy, NOW, binding=ASKED, collateral=pki.collateral(NOW))


def image_of(verified: Verified) -> dict[str, str]:
    quote = verified.signed.quote
    return dict(zip(("mrtd", "rtmr0", "rtmr1", "rtmr2"), (quote.mrtd, *quote.rtmr), strict=False))


def test_a_verdict_lists_every_claim_and_says_simulated(
    verified: Verified, policy: AppraisalPolicy, guest: SimulatedGuest
) -> None:
    verdict = appraise(
        verified,
        policy,
        binding=ASKED,
        compose_hash=guest.compose_hash.hex(),
        app_id=guest.app_id.hex(),
    )
    document = verdict.to_dict()
    assert document["simulated"] is True
    assert document["label"] == "SIMULATED — NOT ATTESTED"
    assert document["verified_at"] == "2027-01-15T08:00:00Z"
    assert document["eat_nonce"] == ASKED.report_data().hex()
    assert set(document["submods"]) == {"cpu0"}
    cpu = document["submods"]["cpu0"]
    assert cpu["ueid"] == verified.signed.ppid
    assert cpu["dbgstat"] == "disabled"
    assert all(claim["source"] for claim in cpu["claims"])
    assert [claim["name"] for claim in cpu["claims"]] == [
        "platform",
        "tier",
        "TCB status",
        "advisories",
        "collateral floor",
        "collateral age",
        "debug",
        "migration",
        "machine",
        "guest image",
        "key provider",
        "OS image",
        "compose hash",
        "app id",
        "report data",
    ]
    outcomes = {claim["name"]: claim["outcome"] for claim in cpu["claims"]}
    assert outcomes["compose hash"] == outcomes["report data"] == "equal"
    assert outcomes["guest image"] == "any"


def test_pinned_reference_values_hold(verified: Verified, policy: AppraisalPolicy) -> None:
    image = image_of(verified)
    pinned = changed(policy, measurements=[image], platform_ids=[verified.signed.ppid])
    verdict = appraise(verified, pinned, binding=ASKED, compose_hash=None, app_id=None)
    outcomes = {claim.name: claim.outcome for claim in verdict.claims}
    assert outcomes["guest image"] == "equal"
    assert outcomes["machine"] == "allowed"


@pytest.mark.parametrize("register", ["mrtd", "rtmr0", "rtmr1", "rtmr2"])
def test_one_register_off_is_another_image(
    verified: Verified, policy: AppraisalPolicy, register: str
) -> None:
    image = image_of(verified)
    image[register] = "00" * 48
    with pytest.raises(MeasurementMismatch):
        appraise(
            verified,
            changed(policy, measurements=[image]),
            binding=ASKED,
            compose_hash=None,
            app_id=None,
        )


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"platform_ids": ["00" * 16]}, PlatformMismatch),
        ({"key_provider": "30" * 91}, KeyProviderMismatch),
        ({"key_provider": "30" * 91, "os_image_hash": ["00" * 32]}, KeyProviderMismatch),
        ({"tcb_status": ["OutOfDate"]}, TcbStatusRefused),
        ({"min_tcb_evaluation_data_number": 2}, TcbStatusRefused),
    ],
)
def test_a_policy_that_asks_for_more_refuses(
    verified: Verified,
    policy: AppraisalPolicy,
    fields: dict[str, Any],
    error: type[EvidenceRefused],
) -> None:
    with pytest.raises(error) as caught:
        appraise(verified, changed(policy, **fields), binding=ASKED, compose_hash=None, app_id=None)
    assert caught.value.got
    assert caught.value.expected


def test_an_os_image_is_compared_once_its_provider_is_pinned(pki: SimulatedPki) -> None:
    from sealtrain.attest.presets import insecure_simulator_policy
    from sealtrain.base.secret import Secret

    guest = SimulatedGuest(pki, Secret(b"\x05" * 32), b'{"key_provider":"kms"}')
    policy = insecure_simulator_policy(pki.root_der)
    facts = verify(
        guest.evidence(ASKED, collateral=None),
        policy,
        NOW,
        binding=ASKED,
        collateral=pki.collateral(NOW),
    )
    assert facts.signed.measured.key_provider_name == "kms"
    for image, accepted in ((facts.signed.measured.os_image_hash, True), ("00" * 32, False)):
        pinned = changed(policy, key_provider=facts.key_provider, os_image_hash=[image])
        if accepted:
            appraise(facts, pinned, binding=ASKED, compose_hash=None, app_id=None)
        else:
            with pytest.raises(MeasurementMismatch):
                appraise(facts, pinned, binding=ASKED, compose_hash=None, app_id=None)


def test_another_document_app_or_conversation_is_refused(
    verified: Verified, policy: AppraisalPolicy
) -> None:
    with pytest.raises(ComposeHashMismatch):
        appraise(verified, policy, binding=ASKED, compose_hash="00" * 32, app_id=None)
    with pytest.raises(AppIdMismatch):
        appraise(verified, policy, binding=ASKED, compose_hash=None, app_id="00" * 20)
    for other in (Binding("unit", {}), Binding("units", ASKED.transcript)):
        with pytest.raises(ReportDataMismatch):
            appraise(verified, policy, binding=other, compose_hash=None, app_id=None)


@pytest.mark.negative(4)
@pytest.mark.negative(5)
@pytest.mark.parametrize("cut", [0, 32, 63])
def test_the_right_beginning_of_report_data_is_not_enough(
    guest: SimulatedGuest, pki: SimulatedPki, policy: AppraisalPolicy, cut: int
) -> None:
    """The agent pads what it is given with zeros."""
    asked = ASKED.report_data()
    evidence = guest.evidence(asked[:cut], collateral=pki.collateral(NOW))
    facts = verify(evidence, policy, NOW, binding=ASKED)
    with pytest.raises(ReportDataMismatch):
        appraise(facts, policy, binding=ASKED, compose_hash=None, app_id=None)


@pytest.mark.parametrize(
    ("advisories", "accepted"),
    [("any", True), ("none", False), (["INTEL-SA-1"], False), (["INTEL-SA-1", "INTEL-SA-2"], True)],
)
def test_open_advisories_are_the_policys_decision(
    verified: Verified, policy: AppraisalPolicy, advisories: object, accepted: bool
) -> None:
    signed = dataclasses.replace(verified.signed, advisories=("INTEL-SA-1", "INTEL-SA-2"))
    facts = dataclasses.replace(verified, signed=signed)
    relaxed = changed(policy, advisories=advisories)
    if accepted:
        appraise(facts, relaxed, binding=ASKED, compose_hash=None, app_id=None)
    else:
        with pytest.raises(TcbStatusRefused):
            appraise(facts, relaxed, binding=ASKED, compose_hash=None, app_id=None)


@pytest.mark.parametrize(
    "status",
    [
        "SWHardeningNeeded",
        "ConfigurationNeeded",
        "ConfigurationAndSWHardeningNeeded",
        "OutOfDate",
        "OutOfDateConfigurationNeeded",
    ],
)
def test_a_lower_tcb_status_passes_only_where_the_policy_lists_it(
    guest: SimulatedGuest, pki: SimulatedPki, policy: AppraisalPolicy, status: str
) -> None:
    evidence = guest.evidence(ASKED, collateral=pki.collateral(NOW, tcb_status=status))
    with pytest.raises(TcbStatusRefused):
        verify(evidence, policy, NOW, binding=ASKED)
    lenient = changed(policy, tcb_status=["UpToDate", status])
    facts = verify(evidence, lenient, NOW, binding=ASKED)
    assert facts.signed.tcb_status == status
    claims = appraise(facts, lenient, binding=ASKED, compose_hash=None, app_id=None).claims
    assert {claim.name: claim.got for claim in claims}["TCB status"] == status


def test_a_hardware_policy_never_appraises_simulated_facts(verified: Verified) -> None:
    production = policy_from_dict(intel())
    for facts in (verified, dataclasses.replace(verified, platform="dstack")):
        with pytest.raises(SimulatedEvidence):
            appraise(facts, production, binding=ASKED, compose_hash=None, app_id=None)


def test_a_simulator_policy_never_appraises_hardware_facts(
    verified: Verified, policy: AppraisalPolicy
) -> None:
    hardware = dataclasses.replace(verified.signed, simulated=False)
    with pytest.raises(PlatformMismatch):
        appraise(
            dataclasses.replace(verified, signed=hardware),
            policy,
            binding=ASKED,
            compose_hash=None,
            app_id=None,
        )


def test_evidence_without_any_collateral_is_refused(
    guest: SimulatedGuest, policy: AppraisalPolicy
) -> None:
    with pytest.raises(CollateralMismatch):
        verify(guest.evidence(ASKED, collateral=None), policy, NOW, binding=ASKED)


def test_rtmr0_may_be_what_the_log_replays_to(verified: Verified, policy: AppraisalPolicy) -> None:
    image = image_of(verified) | {"rtmr0": "log"}
    assert verified.signed.measured.firmware_logged
    pinned = changed(policy, measurements=[image])
    verdict = appraise(verified, pinned, binding=ASKED, compose_hash=None, app_id=None)
    (claim,) = [claim for claim in verdict.claims if claim.name == "guest image"]
    assert (claim.outcome, "rtmr0 log" in str(claim.expected)) == ("equal", True)


@pytest.mark.parametrize("register", ["mrtd", "rtmr1", "rtmr2"])
def test_beside_a_log_every_other_register_counts(
    verified: Verified, policy: AppraisalPolicy, register: str
) -> None:
    image = image_of(verified) | {"rtmr0": "log", register: "00" * 48}
    with pytest.raises(MeasurementMismatch):
        appraise(
            verified,
            changed(policy, measurements=[image]),
            binding=ASKED,
            compose_hash=None,
            app_id=None,
        )


def test_where_no_log_tells_the_firmwares_events_rtmr0_must_be_named(
    verified: Verified, policy: AppraisalPolicy
) -> None:
    """A guest that leaves these events out of its log does not get past ``log``."""
    silent = replace(verified.signed.measured, firmware_logged=False)
    withheld = replace(verified, signed=replace(verified.signed, measured=silent))
    image = image_of(verified)
    appraise(
        withheld,
        changed(policy, measurements=[image]),
        binding=ASKED,
        compose_hash=None,
        app_id=None,
    )
    with pytest.raises(MeasurementMismatch):
        appraise(
            withheld,
            changed(policy, measurements=[image | {"rtmr0": "log"}]),
            binding=ASKED,
            compose_hash=None,
            app_id=None,
        )
