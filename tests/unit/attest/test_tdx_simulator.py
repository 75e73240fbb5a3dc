"""A simulated TDX guest behind its socket, and what its lies leave in the simulator's state.

``tests/attack/test_simulated_lies.py`` has the refusal of each lie.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from policies import changed

from sealtrain.attest.appraise import appraise
from sealtrain.attest.guest import open_guest
from sealtrain.attest.presets import insecure_simulator_policy
from sealtrain.attest.report_data import Binding
from sealtrain.attest.tdx.parse import parse_quote
from sealtrain.attest.verify import verify
from sealtrain.errors import DataInvalid, EvidenceRefused, UsageError
from sealtrain_rehearsal.simulator.faults import FAULT_MEANINGS, FAULTS, check_fault
from sealtrain_rehearsal.simulator.guest import SimulatedGuest
from sealtrain_rehearsal.simulator.machine import Machine
from sealtrain_rehearsal.simulator.pki import SimulatedPki
from sealtrain_rehearsal.simulator.server import running
from sealtrain_rehearsal.simulator.state import ensure

NOW = 1_800_000_000
COMPOSE = b'{"name":"liar"}'
ASKED = Binding("unit", {"challenge": 1})


def test_a_socket_shows_the_image_of_the_guest_behind_it(tmp_path: Path) -> None:
    document, state = tmp_path / "app-compose.json", tmp_path / "state"
    document.write_bytes(COMPOSE)
    seed = ensure(state, NOW).seed
    honest = SimulatedPki(seed.reveal())
    with running(tmp_path / "g.sock", document, state, clock=lambda: NOW) as path:
        guest = open_guest("simulator", str(path), collateral=f"file:{state}/collateral.json")
        evidence = guest.evidence(ASKED)
    truth = parse_quote(SimulatedGuest(honest, seed, COMPOSE).quote(bytes(64)))
    image = {"mrtd": truth.mrtd} | {f"rtmr{at}": truth.rtmr[at] for at in range(3)}
    policy = changed(insecure_simulator_policy(honest.root_der), measurements=[image])
    facts = verify(evidence, policy, NOW, binding=ASKED)
    assert appraise(facts, policy, binding=ASKED, compose_hash=None, app_id=None).simulated


@pytest.mark.parametrize("fault", FAULTS)
def test_no_lie_changes_the_root_that_is_trusted(tmp_path: Path, fault: str) -> None:
    state = ensure(tmp_path, NOW, machine=Machine(fault=fault))
    honest = SimulatedPki(state.seed.reveal())
    assert state.root_path.read_bytes() == honest.root_der


def test_every_lie_names_the_code_of_its_refusal() -> None:
    from sealtrain.errors import error_by_code

    assert tuple(FAULT_MEANINGS) == FAULTS
    for text in FAULT_MEANINGS.values():
        code = text.rpartition("(")[2].removesuffix(")")
        assert issubclass(error_by_code(code), EvidenceRefused)


def test_a_lie_that_nobody_knows_is_refused() -> None:
    check_fault(None)
    for name in ("", "debug", "debug-bit "):
        with pytest.raises(DataInvalid):
            check_fault(name)
        with pytest.raises(DataInvalid):
            SimulatedPki(b"s" * 16, fault=name)
        with pytest.raises(UsageError):
            Machine(fault=name)


def test_a_vendor_that_lied_tells_the_truth_after_the_next_start(tmp_path: Path) -> None:
    liar = ensure(tmp_path, NOW, machine=Machine(fault="revoked-tcb"))
    assert "Revoked" in liar.collateral_path.read_text()
    honest = ensure(tmp_path, NOW)
    assert "Revoked" not in honest.collateral_path.read_text()
    assert honest.pki.root_der == liar.pki.root_der
