"""One simulated guest, made once, without a server."""

from __future__ import annotations

import pytest

from sealtrain.attest.policy import AppraisalPolicy
from sealtrain.attest.presets import insecure_simulator_policy
from sealtrain.base.secret import Secret
from sealtrain_rehearsal.simulator.guest import SimulatedGuest
from sealtrain_rehearsal.simulator.pki import SimulatedPki

COMPOSE = b'{"name":"unit","runner":"docker-compose"}\n'


@pytest.fixture(scope="session")
def pki() -> SimulatedPki:
    return SimulatedPki(b"unit-test seed of a simulated PKI")


@pytest.fixture(scope="session")
def guest(pki: SimulatedPki) -> SimulatedGuest:
    return SimulatedGuest(pki, Secret(b"\x05" * 32), COMPOSE, random=lambda count: b"\x07" * count)


@pytest.fixture(scope="session")
def policy(pki: SimulatedPki) -> AppraisalPolicy:
    return insecure_simulator_policy(pki.root_der)
