"""A simulated PKI, made once."""

from __future__ import annotations

import pytest

from sealtrain_rehearsal.simulator.pki import SimulatedPki


@pytest.fixture(scope="session")
def pki() -> SimulatedPki:
    return SimulatedPki(b"unit-test seed of a simulated PKI")
