"""Quotes and logs of real machines: accepted at their times, refused outside, replayed exactly."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from carrying import carries
from exhibit_world import REAL, real_collateral, real_quote
from guests import verify_log
from policies import changed, intel

from sealtrain.attest.dstack.parse import parse_event_log
from sealtrain.attest.errors import (
    CollateralExpired,
    CollateralMismatch,
    ComposeHashMismatch,
    EventLogMismatch,
    PlatformMismatch,
    QuoteInvalid,
    TcbStatusRefused,
)
from sealtrain.attest.evidence import Evidence
from sealtrain.attest.policy import policy_from_dict
from sealtrain.attest.report_data import Binding
from sealtrain.attest.tdx.parse import canonical_quote, parse_quote
from sealtrain.attest.tdx.verify import verify_quote as verify_any_quote
from sealtrain.attest.verify import verify
from sealtrain.base.encoding import to_base64
from sealtrain.errors import EvidenceRefused

pytestmark = pytest.mark.claim("C16")

INTEL = intel(min_tcb_evaluation_data_number=17)
POLICY = policy_from_dict(INTEL)
RULES = POLICY.cpu
verify_quote = partial(verify_any_quote, simulator_root=None)
real = pytest.mark.parametrize(
    ("quote", "collateral", "first", "last", "number"),
    [*REAL.values()],
    ids=[*REAL],
)


@real
def test_a_real_quote_verifies_inside_its_window(
    shared: Path, quote: str, collateral: str, first: int, last: int, number: int
) -> None:
    for now in (first, last):
        verified = verify_quote(
            real_quote(shared, quote), real_collateral(shared, collateral), RULES, now=now
        )
        assert verified.tcb_status == "UpToDate"
        assert not verified.simulated
        assert verified.tcb_evaluation_data_number == number


@real
def test_a_real_quote_is_refused_one_second_outside_its_window(
    shared: Path, quote: str, collateral: str, first: int, last: int, number: int
) -> None:
    for now in (0, first - 1, last + 1, last + 10**9):
        with pytest.raises(CollateralExpired):
            verify_quote(
                real_quote(shared, quote), real_collateral(shared, collateral), RULES, now=now
            )


@real
def test_a_floor_above_the_collaterals_number_refuses_it(
    shared: Path, quote: str, collateral: str, first: int, last: int, number: int
) -> None:
    policy = changed(POLICY, min_tcb_evaluation_data_number=number + 1)
    with pytest.raises(TcbStatusRefused, check=carries(check="collateral floor")):
        verify_quote(
            real_quote(shared, quote), real_collateral(shared, collateral), policy.cpu, now=first
        )


def test_the_same_verifier_accepts_the_shared_mock_only_under_its_own_root(shared: Path) -> None:
    from sealtrain.attest.presets import insecure_simulator_policy

    folder = shared / "vectors/tdx/own-mock"
    collateral = real_collateral(shared, "tdx/own-mock/collateral.json")
    raw = (folder / "quote.bin").read_bytes()
    policy = insecure_simulator_policy((folder / "root.der").read_bytes())
    root = policy.simulator_root
    checked = verify_any_quote(raw, collateral, policy.cpu, simulator_root=root, now=1750000001)
    assert checked.simulated
    with pytest.raises(EvidenceRefused):
        verify_quote(raw, collateral, RULES, now=1750000001)


def test_collateral_of_another_platform_family_is_refused(shared: Path) -> None:
    with pytest.raises(CollateralMismatch):
        verify_quote(
            real_quote(shared, "tdx/tdx_quote"),
            real_collateral(shared, "tdx/tdx_quote_outdated_collateral.json"),
            RULES,
            now=1772708331,
        )


def test_a_platform_below_every_tcb_level_is_refused(shared: Path) -> None:
    with pytest.raises(TcbStatusRefused):
        verify_quote(
            real_quote(shared, "tdx/tdx_quote_outdated"),
            real_collateral(shared, "tdx/tdx_quote_outdated_collateral.json"),
            RULES,
            now=1772708331,
        )


def test_an_sgx_quote_is_another_platform(shared: Path) -> None:
    with pytest.raises(PlatformMismatch):
        verify_quote(
            (shared / "vectors/tdx/sgx_quote").read_bytes(),
            real_collateral(shared, "tdx/sgx_quote_collateral.json"),
            RULES,
            now=1750332747,
        )


def test_platform_padding_is_cut_by_collectors_and_refused_by_the_parser(shared: Path) -> None:
    raw = (shared / "vectors/tdx/tdx_quote").read_bytes()
    with pytest.raises(QuoteInvalid):
        parse_quote(raw)
    assert len(canonical_quote(raw)) == 4936 < len(raw) == 5006
    with pytest.raises(QuoteInvalid):
        canonical_quote(raw[:-1] + b"\x01")


def test_an_example_guest_closes_from_compose_bytes_to_register(shared: Path) -> None:
    folder = shared / "vectors/dstack/rtmr3-based"
    report = json.loads((folder / "report.json").read_text())
    quote = parse_quote(canonical_quote(bytes.fromhex(report["quote"])))
    compose = (folder / "app-compose.json").read_bytes()
    log = parse_event_log(report["event_log"])
    measured = verify_log(log, quote.rtmr, quote.mr_config_id, compose)
    expected = "06768e6df639ce3be65e9e5321f8b2d82dbffb01c74323462d34c2feb9653aff"
    assert measured.compose_hash == expected
    assert measured.app_id == expected[:40]
    assert measured.key_provider_name == "kms"
    with pytest.raises(ComposeHashMismatch):
        verify_log(log, quote.rtmr, quote.mr_config_id, compose + b"\n")


@pytest.mark.parametrize(
    "name", ["quote-report.json", "tdx-lite-getquote.json"], ids=["digests-given", "digests-gone"]
)
def test_real_logs_replay_to_all_registers(shared: Path, name: str) -> None:
    """Replay passes before the compose check, so that check is the one that answers."""
    report = json.loads((shared / "vectors/dstack/verifier-fixtures" / name).read_text())
    quote = parse_quote(canonical_quote(bytes.fromhex(report["quote"])))
    log = parse_event_log(report["event_log"])
    with pytest.raises(ComposeHashMismatch):
        verify_log(log, quote.rtmr, quote.mr_config_id, b"{}")
    for index in range(len(log)):
        with pytest.raises(EventLogMismatch):
            verify_log(log[:index] + log[index + 1 :], quote.rtmr, quote.mr_config_id, b"{}")


def test_the_v054_simulator_log_replays_to_its_quote(shared: Path) -> None:
    folder = shared / "vectors/dstack/simulator-v0.5.4"
    quote = parse_quote(canonical_quote(bytes.fromhex((folder / "quote.hex").read_text().strip())))
    with pytest.raises(ComposeHashMismatch):
        verify_log(
            parse_event_log((folder / "eventlog.json").read_text()),
            quote.rtmr,
            quote.mr_config_id,
            (folder / "app-compose.json").read_bytes(),
        )


def test_a_whole_real_gpu_guest_verifies_up_to_the_document_we_do_not_have(shared: Path) -> None:
    report = json.loads((shared / "vectors/dstack/verifier-fixtures/quote-report.json").read_text())
    evidence = Evidence.build(
        "dstack",
        app_compose=b"{}",
        collateral=real_collateral(shared, "tdx/tdx_quote_outdated_collateral.json"),
        tee="dstack",
        quote=to_base64(canonical_quote(bytes.fromhex(report["quote"]))),
        event_log=[entry.to_dict() for entry in parse_event_log(report["event_log"])],
        vm_config=report["vm_config"],
    )
    evidence = Evidence.from_bytes(evidence.to_bytes())
    with pytest.raises(ComposeHashMismatch):
        verify(evidence, POLICY, 1772708331, binding=Binding("unit", {}))
