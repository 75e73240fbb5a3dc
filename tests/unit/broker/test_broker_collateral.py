"""Where a broker's collateral comes from, and who is to blame when there is none."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pccs import Pccs, serving
from policies import intel

from sealtrain.attest.errors import QuoteInvalid, QuoteRootUntrusted, SimulatedEvidence
from sealtrain.attest.evidence import Collateral, Evidence
from sealtrain.attest.guest import open_guest
from sealtrain.attest.policy import AppraisalPolicy, policy_from_dict
from sealtrain.attest.presets import insecure_simulator_policy
from sealtrain.attest.report_data import Binding
from sealtrain.attest.tdx.collect import CollateralSource
from sealtrain.attest.verify import verify
from sealtrain.base.secret import Secret
from sealtrain.broker.config import BrokerConfig
from sealtrain.broker.service.collateral import guests_collateral
from sealtrain.errors import Unreachable
from sealtrain_rehearsal.simulator.guest import SimulatedGuest
from sealtrain_rehearsal.simulator.pki import SimulatedPki
from sealtrain_rehearsal.simulator.server import running
from sealtrain_rehearsal.simulator.state import ensure

NOW = 1_800_000_000
DAY = 24 * 3600
ASKED = Binding("unit", {})
PKI = SimulatedPki(b"vendor of the broker's guests")
GUEST = SimulatedGuest(PKI, Secret(bytes(32)), b'{"name":"asker"}')
POLICY = insecure_simulator_policy(PKI.root_der)
EVIDENCE = GUEST.evidence(ASKED, collateral=None)


@pytest.fixture
def pccs() -> Iterator[Pccs]:
    with serving(Pccs(collateral=PKI.collateral(NOW), fmspc="00" * 6)) as server:
        yield server


def config(folder: Path, collateral: str | None) -> BrokerConfig:
    return BrokerConfig(
        consortium=folder / "consortium.json",
        policy=folder / "policy.yaml",
        root_secret=f"file:{folder}/root",
        state=folder,
        guest="guest.sock",
        collateral=collateral,
        platform="simulator",
    )


def asked(
    folder: Path,
    collateral: str | None,
    *,
    evidence: Evidence = EVIDENCE,
    policy: AppraisalPolicy = POLICY,
    now: int = NOW,
) -> Collateral | None:
    return guests_collateral(config(folder, collateral), policy, lambda: now, evidence)


def test_a_service_is_asked_once_a_day_for_a_platform(tmp_path: Path, pccs: Pccs) -> None:
    for now, requests in ((NOW, 4), (NOW + DAY - 1, 4), (NOW + DAY, 8)):
        found = asked(tmp_path, pccs.url, now=now)
        assert found == pccs.collateral
        assert len(pccs.asked) == requests
    assert verify(EVIDENCE, POLICY, NOW, binding=ASKED, collateral=found).simulated
    assert (tmp_path / "collateral").is_dir()


def test_a_file_is_read_anew_for_each_decision(tmp_path: Path) -> None:
    path = tmp_path / "collateral.json"
    for number in (1, 2):
        kept = PKI.collateral(NOW, tcb_evaluation_data_number=number)
        path.write_text(json.dumps(kept.to_dict()))
        assert asked(tmp_path, f"file:{path}") == kept


def test_a_service_that_is_gone_or_goes_back_is_the_brokers_failure(
    tmp_path: Path, pccs: Pccs
) -> None:
    """Exit 4, not a refusal: nobody was judged."""
    pccs.collateral = PKI.collateral(NOW, tcb_evaluation_data_number=5)
    asked(tmp_path, pccs.url)
    pccs.collateral = PKI.collateral(NOW, tcb_evaluation_data_number=4)
    with pytest.raises(Unreachable):
        asked(tmp_path, pccs.url, now=NOW + DAY)
    pccs.change = lambda _path, _answer: (404, {}, b"")
    with pytest.raises(Unreachable):
        asked(tmp_path, pccs.url, now=NOW + DAY)
    for source in ("file:" + str(tmp_path / "none.json"), "http://127.0.0.1:1"):
        with pytest.raises(Unreachable) as caught:
            asked(tmp_path / "other", source)
        assert caught.value.exit_code == 4
        assert str(tmp_path) not in str(caught.value)


@pytest.mark.negative(20)
def test_a_guest_of_no_trusted_root_is_refused_before_anything_is_asked(
    tmp_path: Path, pccs: Pccs
) -> None:
    stranger = SimulatedGuest(SimulatedPki(b"a stranger's vendor"), Secret(bytes(32)), b"{}")
    foreign = stranger.evidence(ASKED, collateral=None)
    with pytest.raises(QuoteRootUntrusted):
        asked(tmp_path, pccs.url, evidence=foreign)
    hardware = policy_from_dict(intel())
    relabelled = EVIDENCE.model_copy(update={"platform": "dstack"})
    with pytest.raises(SimulatedEvidence):
        asked(tmp_path, pccs.url, evidence=relabelled, policy=hardware)
    cut = EVIDENCE.cpu.model_copy(update={"quote": EVIDENCE.cpu.quote[:400]})
    with pytest.raises(QuoteInvalid):
        asked(tmp_path, pccs.url, evidence=EVIDENCE.model_copy(update={"cpu": cut}))
    assert pccs.asked == []
    assert not (tmp_path / "collateral").exists()


def test_nothing_is_asked_for_evidence_that_the_policy_refuses_as_it_stands(
    tmp_path: Path, pccs: Pccs
) -> None:
    nitro = insecure_simulator_policy(PKI.root_der, tee="nitro")
    assert asked(tmp_path, pccs.url, policy=nitro) is None
    assert asked(tmp_path, pccs.url, policy=policy_from_dict(intel())) is None
    assert asked(tmp_path, None) is None
    assert pccs.asked == []


# --- The guest's side --------------------------------------------------------------------------


def test_a_guest_carries_along_what_a_service_says(tmp_path: Path) -> None:
    document = tmp_path / "app-compose.json"
    document.write_bytes(b'{"name":"guest"}')
    with running(tmp_path / "g.sock", document, tmp_path / "state", clock=lambda: NOW) as path:
        state = ensure(tmp_path / "state", NOW)
        with serving(Pccs(collateral=state.pki.collateral(NOW), fmspc="00" * 6)) as server:
            guest = open_guest("simulator", str(path), collateral=server.url)
            assert guest.services == (server.url,)
            for _ in range(2):
                evidence = guest.evidence(ASKED)
                assert evidence.collateral == server.collateral
            assert len(server.asked) == 4
    policy = insecure_simulator_policy(state.root_path.read_bytes())
    verify(evidence, policy, NOW, binding=ASKED)


def test_what_a_service_said_is_carried_for_a_day(pccs: Pccs) -> None:
    moment = [0.0]
    source = CollateralSource(pccs.url, timer=lambda: moment[0])
    quote = GUEST.quote(bytes(64))
    for now, requests in ((0.0, 4), (DAY - 1.0, 4), (float(DAY), 8)):
        moment[0] = now
        assert source.of(quote) == pccs.collateral
        assert len(pccs.asked) == requests


def test_intels_service_needs_two_hosts_and_a_file_none() -> None:
    intels = CollateralSource("https://api.trustedservices.intel.com").services
    assert [url.split("/")[2] for url in intels] == [
        "api.trustedservices.intel.com",
        "certificates.trustedservices.intel.com",
    ]
    assert CollateralSource("https://pccs.example:8081").services == ("https://pccs.example:8081",)
    assert CollateralSource("file:/collateral.json").services == ()
