"""Every lie of every simulated machine ends in the refusal that it names.

The table of lies is ``machines_world.LIES``. Each lying machine is booted once; then a decision, an
explanation and, where Node is installed, the JavaScript verifier judge the same evidence.
"""

from __future__ import annotations

import pytest
from machines_world import ASKED, BARE, COMPOSE_HASH, LIES, MACHINES, NOW, Lie, MachinePark, refusal
from node_judges import node
from second_evidence import EvidenceQuestion, compare_codes, own_code
from variants import variants

from sealtrain.attest.bundle import Attachments
from sealtrain.attest.evidence import Evidence
from sealtrain_rehearsal.simulator.machine import fault_meanings

pytestmark = pytest.mark.long

OF_SWITCHES = {"gpu-mixed-modes", "gpu-switch-missing", "gpu-other-switch", "gpu-other-gpu"}
"""Lies that switches make another matter."""


def smaller_machine_tells(lie: Lie) -> bool:
    """Whether a machine with fewer devices tells the same lie, which costs less to boot."""
    machine = MACHINES[lie.name]
    if machine.switches:
        return lie.fault not in OF_SWITCHES
    return bool(machine.gpus) and not lie.fault.startswith("gpu-")


def other_machine_tells(lie: Lie) -> bool:
    """Whether an earlier machine without accelerators tells a lie by this name, refused alike."""
    earlier = LIES[: LIES.index(lie)]
    same = (lie.fault, lie.code)
    return any((other.fault, other.code) == same for other in earlier if other.name in BARE)


def first_of_its_machine(lie: Lie) -> bool:
    """Whether no lie of the same machine comes before it."""
    return lie.name not in [other.name for other in LIES[: LIES.index(lie)]]


EACH_TIME = [
    lie
    for lie in LIES
    if not smaller_machine_tells(lie)
    and (not other_machine_tells(lie) or first_of_its_machine(lie))
]
"""Each lie once for each refusal that it ends in, and one of each bare machine at least."""


@pytest.fixture(scope="module")
def park(tmp_path_factory: pytest.TempPathFactory) -> MachinePark:
    return MachinePark(tmp_path_factory.mktemp("park"))


def test_the_table_has_every_lie_of_every_machine() -> None:
    """Each row has the refusal that the simulator's own list promises."""
    promised = {
        (name, fault, meaning.rpartition("(")[2].removesuffix(")"))
        for name, machine in MACHINES.items()
        for fault, meaning in fault_meanings(
            machine.tee, gpus=machine.gpus, switches=machine.switches
        ).items()
    }
    assert {(lie.name, lie.fault, lie.code) for lie in LIES} == promised
    assert len(LIES) == len(promised)


@pytest.mark.claim("C14")
@pytest.mark.parametrize("lie", variants(LIES, each_time=EACH_TIME), ids=str)
def test_a_lie_ends_in_the_refusal_it_names(park: MachinePark, lie: Lie) -> None:
    """As a broker judges it: the bytes that were sent, and the document that it expects."""
    sent = Evidence.from_bytes(park.evidence(lie.machine).to_bytes())
    beside = Attachments(binding=ASKED, compose_hash=COMPOSE_HASH)
    assert refusal(sent, park.pin(MACHINES[lie.name]), NOW, beside) == lie.code


@pytest.mark.claim("C14")
@pytest.mark.parametrize(
    "lie", variants(LIES, each_time=[lie for lie in EACH_TIME if lie.name in BARE]), ids=str
)
def test_a_lie_is_explained_as_it_is_decided_where_any_image_is_accepted(
    park: MachinePark, lie: Lie
) -> None:
    """Not every lie is one there: what matters is one ending."""
    refusal(
        park.evidence(lie.machine), park.trust(MACHINES[lie.name]), NOW, Attachments(binding=ASKED)
    )


@pytest.mark.claim("C170")
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("policy", "told"),
    variants(
        [("pinned", "once"), ("pinned", "by all"), ("any image", "by all")],
        each_time=[("pinned", "once")],
    ),
)
def test_the_second_verifier_ends_every_lie_of_a_bare_machine_alike(
    park: MachinePark, policy: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    node()  # on a machine without Node nothing is booted for this test
    rules = park.pin if policy == "pinned" else park.trust
    lies = [lie for lie in (EACH_TIME if told == "once" else LIES) if lie.name in BARE]
    questions = [
        EvidenceQuestion(
            label=str(lie),
            document=park.evidence(lie.machine).to_dict(),
            policy=rules(MACHINES[lie.name]).to_dict(),
        )
        for lie in lies
    ]
    counted = compare_codes(questions, capsys)
    assert len(counted) > 10
    if policy == "pinned":
        assert [own_code(question) for question in questions] == [lie.code for lie in lies]
