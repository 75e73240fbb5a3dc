"""A document of the simulator's platform in an enclave: its ticket, its agent, and its evidence."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from enclave_world import CASES, DOCUMENT, Enclave, reached
from nitro_world import NOW, PKI

from sealtrain.attest.appraise import appraise
from sealtrain.attest.errors import GuestApiUnreachable
from sealtrain.attest.guest import Guest, open_guest
from sealtrain.attest.nitro.collect import describe_pcr
from sealtrain.attest.nitro.verify import compose_register
from sealtrain.attest.policy import AppraisalPolicy
from sealtrain.attest.presets import insecure_simulator_policy, preset
from sealtrain.attest.report_data import Binding
from sealtrain.attest.verify import verify
from sealtrain.base.digests import sha256_hex
from sealtrain.errors import EvidenceRefused
from sealtrain.guest.enclave.plan import TICKET_FILE, USER, EnclaveProgram
from sealtrain.guest.enclave.ports import TICKET_PORT
from sealtrain_rehearsal.simulator.nitro import SimulatedNitroPki

pytestmark = pytest.mark.claim("C756")

TEST_DOCUMENT = CASES["simulator, image"]["compose"].encode()
ASKED = Binding("release", {"challenge": "00" * 32})


@pytest.fixture
def enclave(tmp_path: Path) -> Iterator[Enclave]:
    made = Enclave(tmp_path)
    (tmp_path / "var/run").mkdir(parents=True)
    yield made
    made.init.close()


@pytest.fixture
def guest(enclave: Enclave) -> Iterator[Guest]:
    """What the document's program opens."""
    measured(enclave)
    with enclave.init.open_agent() as agent:
        agent.start()
        socket = str(enclave.files / "var/run/dstack.sock")
        yield open_guest("simulator", socket, collateral=None)
        agent.shutdown()


def measured(enclave: Enclave, document: bytes = TEST_DOCUMENT) -> EnclaveProgram:
    program = enclave.given(document)
    assert isinstance(program, EnclaveProgram), program
    return program


def policy(root: bytes = PKI.root_der) -> AppraisalPolicy:
    return insecure_simulator_policy(root, tee="test-nitro")


def test_only_a_document_of_the_simulators_platform_asks_an_agent(enclave: Enclave) -> None:
    assert measured(enclave).asks_agent
    assert describe_pcr(enclave.nsm, 16).value == compose_register(sha256_hex(TEST_DOCUMENT))


def test_a_document_of_hardware_asks_the_module_itself(enclave: Enclave) -> None:
    assert not measured(enclave, DOCUMENT).asks_agent


def test_its_ticket_lies_where_its_program_reads_it_and_comes_once(enclave: Enclave) -> None:
    measured(enclave)

    def give() -> None:
        with reached(enclave.sockets / f"enclave-{TICKET_PORT}") as connection:
            connection.sendall(b"a ticket")

    for number in range(2):
        thread = threading.Thread(target=give)
        thread.start()
        if number:
            with pytest.raises(FileExistsError):  # it has no code of ours
                enclave.init.take_ticket()
        else:
            enclave.init.take_ticket()
        thread.join()
    place = enclave.files / TICKET_FILE.lstrip("/")
    assert place.read_bytes() == b"a ticket"
    assert place.stat().st_mode & 0o777 == 0o600
    assert ("give", "ticket.json", USER) in enclave.kernel.done


def test_its_evidence_is_taken_under_the_test_root_alone(guest: Guest, enclave: Enclave) -> None:
    shown = guest.evidence(ASKED)
    assert ("give", "dstack.sock", USER) in enclave.kernel.done
    found = verify(shown, policy(), NOW, binding=ASKED)
    verdict = appraise(
        found,
        policy(),
        binding=ASKED,
        compose_hash=sha256_hex(TEST_DOCUMENT),
        app_id=None,
    )
    assert (verdict.simulated, shown.cpu.tee) == (True, "test-nitro")
    other = SimulatedNitroPki(b"another test root").root_der
    for refusing in (policy(other), preset("nitro")):
        with pytest.raises(EvidenceRefused):
            verify(shown, refusing, NOW, binding=ASKED)


def test_the_agent_has_no_key_and_signs_for_no_other_length(guest: Guest) -> None:
    for asked in (b"", bytes(63), bytes(65)):
        with pytest.raises(GuestApiUnreachable):
            guest.attest(asked)
