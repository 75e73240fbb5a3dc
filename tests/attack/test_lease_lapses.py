"""Against the lease of a running guest: an owner who revokes, a host that cuts wires, sets clocks.

A real broker decides; its answers come over a wire that the host may cut or alter. The lease keeper
does what it does in a run, but time is the test's and its thread is stepped by hand.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from release_world import ReleaseWorld, document_of, release_world
from sealing_world import SealedFolder, json_lines, sealed_folder
from world import signed_dataset

from sealtrain.base.clock import to_rfc3339
from sealtrain.client.errors import BrokerUnreachable
from sealtrain.client.grant import renew
from sealtrain.consortium.errors import ApprovalExpired, ApprovalRevoked
from sealtrain.errors import LeaseStale, SealtrainError, SignatureInvalid
from sealtrain.guest.lease import RunLease
from sealtrain.guest.leasekeeper import LeaseKeeper
from sealtrain.sealing.opened_dataset import SealedDataset
from sealtrain.sealing.store import SealedStore
from sealtrain.signing.datause import DataUse
from sealtrain.signing.errors import ProofInvalid, RetentionEnded
from sealtrain.training.checkpoints.checkpoint import CheckpointRef

pytestmark = pytest.mark.claim("C64")
LEASE = 600


class Running:
    """A guest that trains: a lease, the lease keeper, opened data and a store for checkpoints."""

    def __init__(self, world: ReleaseWorld, sealed: SealedFolder, out: Path) -> None:
        self.world = world
        self.guest_clock_ahead = 0
        self.cut = False
        self.step = 0
        begun = world.clock()
        self.lease = RunLease(
            lambda: world.clock() + self.guest_clock_ahead,
            elapsed=lambda: float(world.clock() - begun),
        )
        self.collect = world.collect(world.guest())
        self.attested = world.attest()
        asked = self.lease.moment()
        self.grant = world.obtain(attested=self.attested, collect=self.collect)
        self.lease.extend(self.grant.lease_ends, self.grant.lease_seconds, asked)
        self.lease_keeper = LeaseKeeper(self.lease, self.renew)
        self.lease_keeper.begin()
        key = sealed.key.with_permit(self.lease.require)
        self.data = SealedDataset.open(sealed.folder, key, root=sealed.description.root)
        self.store = SealedStore(out, key.derive("checkpoints"), label="run")

    def renew(self, checkpoint: tuple[int, str] | None) -> None:
        if self.cut:
            raise BrokerUnreachable("no answer", check="broker", got="ConnectError")
        asked = self.lease.moment()
        self.grant = renew(
            self.world.wire, self.attested, self.collect, self.grant, checkpoint=checkpoint
        )
        self.lease.extend(self.grant.lease_ends, self.grant.lease_seconds, asked)

    def seal(self, counter: int) -> None:
        with self.store.write(f"checkpoint-{counter}", {"counter": counter}) as file:
            file.write(b"weights")
        digest = self.store.root(f"checkpoint-{counter}")
        self.lease_keeper.anchor_checkpoint(
            CheckpointRef(counter=counter, step=self.step, digest=digest)
        )

    def train(self, steps: int, each: int = 10) -> bool:
        """Steps of some seconds, each with a record batch; whether it is told to stop."""
        for _ in range(steps):
            self.data.batch(0)
            self.world.clock.advance(each)
            while self.lease_keeper.tend() <= 0:
                pass
            self.step += 1
            if self.lease_keeper.must_stop(self.step, ahead=0, span=1, sealing=5.0):
                return True
        return False

    def stopped(self, error: type[SealtrainError]) -> SealtrainError:
        with pytest.raises(error) as caught:
            self.lease_keeper.end_training()
        self.assert_no_key_is_used()
        return caught.value

    def assert_no_key_is_used(self) -> None:
        uses: list[Callable[[], Any]] = [
            lambda: self.data.batch(0),
            lambda: self.seal(99),
            lambda: self.store.read("checkpoint-1", {"counter": 1}),
        ]
        for use in uses:
            with pytest.raises(LeaseStale):
                use()
        assert self.lease_keeper.tend() > LEASE


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> SealedFolder:
    folder = tmp_path_factory.mktemp("sealed")
    (folder / "rows.jsonl").write_text(
        json_lines([{"text": f"row {number}"} for number in range(9)])
    )
    return sealed_folder(folder / "rows.jsonl", folder / "rows.sealed")


@pytest.fixture
def running(tmp_path: Path, sealed: SealedFolder) -> Iterator[Running]:
    (tmp_path / "broker").mkdir()
    with release_world(tmp_path / "broker", lease_seconds=LEASE) as world:
        yield Running(world, sealed, tmp_path / "checkpoints")


@pytest.mark.claim("C11")
def test_an_owner_who_revokes_stops_a_running_guest_before_its_lease_ends(
    running: Running,
) -> None:
    running.seal(1)
    assert not running.train(5)
    assert running.lease_keeper.anchored == 1
    running.world.revoke("hospital-c")
    assert running.train(60)
    assert running.lease.seconds_left() > LEASE / 3
    running.seal(2)
    error = running.stopped(ApprovalRevoked)
    assert error.exit_code == 3
    assert re.findall(r"\d+", error.message)[-2:] == [str(running.step), "2"]
    assert "resume" in str(error.hint)
    refusals = running.world.refusals()
    assert [(refusal["action"], refusal["code"]) for refusal in refusals] == [
        ("renewal", "approval-revoked")
    ]


def test_a_host_that_cuts_the_wire_gets_no_second_more(running: Running) -> None:
    running.seal(1)
    assert not running.train(3)
    granted = running.world.clock()
    running.cut = True
    assert running.train(200)
    assert running.lease.seconds_left() > 0
    running.seal(2)
    error = running.stopped(BrokerUnreachable)
    assert error.exit_code == 4
    assert "resume" in str(error.hint)
    assert running.world.clock() - granted < LEASE
    assert running.world.kinds().count("renewal") == 1


def test_a_broker_that_was_away_and_is_back_finds_the_run_going_on(running: Running) -> None:
    running.seal(1)
    assert not running.train(3)
    running.cut = True
    for counter in (2, 3, 4):
        assert not running.train(8)
        running.seal(counter)
    assert running.lease_keeper.anchored == 1
    running.cut = False
    assert not running.train(100)
    assert running.lease_keeper.anchored == 4
    anchored = [
        entry["body"] for entry in running.world.ledger.entries() if entry["kind"] == "renewal"
    ]
    assert len(anchored) >= 3
    running.lease_keeper.settle()


@pytest.mark.parametrize("way", ["on_request", "on_answer"])
def test_a_broker_killed_during_a_renewal_is_asked_again_for_the_same(
    running: Running, way: str
) -> None:
    """Killed before it decided, or after: the guest cannot tell, and asking twice does no harm."""
    running.seal(1)
    assert not running.train(2)

    def killed(document: Any) -> None:
        if "lease_id" in document or "receipt" in document:
            raise BrokerUnreachable("cut off", check="broker", got="RemoteProtocolError")

    setattr(running.world.wire, way, killed)
    running.seal(2)
    assert not running.train(3)
    assert running.lease_keeper.anchored == 1
    setattr(running.world.wire, way, lambda _document: None)
    assert not running.train(10)
    assert running.lease_keeper.anchored == 2
    entries = [
        entry["body"] for entry in running.world.ledger.entries() if entry["kind"] == "renewal"
    ]
    assert len(entries) >= (3 if way == "on_answer" else 2)
    running.seal(3)
    running.train(1)
    running.lease_keeper.settle()


def test_a_step_longer_than_the_lease_ends_with_the_keys_unusable(running: Running) -> None:
    running.seal(1)
    running.cut = True
    assert not running.train(1)
    running.world.clock.advance(LEASE)
    running.assert_no_key_is_used()
    with pytest.raises(LeaseStale):
        running.train(1)


@pytest.mark.parametrize("ahead", [-86_400, -590, 86_400])
def test_a_host_that_sets_the_guests_clock_makes_no_lease_longer(
    running: Running, ahead: int
) -> None:
    running.seal(1)
    assert not running.train(2)
    running.cut, running.guest_clock_ahead = True, ahead
    passed = running.world.clock()
    if ahead > 0:
        with pytest.raises(LeaseStale):
            running.train(1)
    else:
        assert running.train(200)
        assert running.world.clock() - passed < LEASE
        running.stopped(BrokerUnreachable)


@pytest.mark.claim("C18")
@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda answer: answer["receipt"].update(payload="e30="), SignatureInvalid),
        (lambda answer: answer["proof"].update(index=answer["proof"]["index"] + 1), ProofInvalid),
    ],
    ids=["receipt", "proof"],
)
def test_an_answer_altered_on_the_way_extends_nothing(
    running: Running, change: Callable[[Any], None], error: type[SealtrainError]
) -> None:
    running.seal(1)
    assert not running.train(2)
    ends = running.grant.lease_ends

    def altered(document: Any) -> None:
        if "receipt" in document:
            change(document)

    running.world.wire.on_answer = altered
    assert running.train(200)
    assert running.grant.lease_ends == ends
    running.seal(2)
    assert running.stopped(error).exit_code == 3


def test_what_an_owner_approved_ends_when_the_owner_said(
    tmp_path: Path, sealed: SealedFolder
) -> None:
    (tmp_path / "broker").mkdir()
    with release_world(
        tmp_path / "broker", lease_seconds=LEASE, approved_by=("hospital-a",)
    ) as world:
        ends = world.clock() + 900
        world.approve("hospital-b", not_after=ends)
        running = Running(world, sealed, tmp_path / "checkpoints")
        running.seal(1)
        assert running.train(200)
        assert world.clock() <= ends
        running.seal(2)
        running.stopped(LeaseStale)
        assert world.refusals() == []
        world.clock.advance(120)
        with pytest.raises(ApprovalExpired):
            world.obtain(run_id=running.grant.run_id, resume=True)


@pytest.mark.claim("C175")
def test_a_guest_seals_and_stops_before_the_retention_of_its_data_ends(
    tmp_path: Path, sealed: SealedFolder
) -> None:
    (tmp_path / "broker").mkdir()
    with release_world(tmp_path / "broker", lease_seconds=LEASE) as world:
        last = world.clock() + 900
        state_retention(world, last)
        running = Running(world, sealed, tmp_path / "checkpoints")
        running.seal(1)
        assert running.train(200)
        assert world.clock() <= last
        running.seal(2)
        running.stopped(LeaseStale)
        world.clock.advance(120)
        with pytest.raises(RetentionEnded):
            world.obtain(run_id=running.grant.run_id, resume=True)


@pytest.mark.claim("C175")
def test_a_retention_that_its_owner_ends_early_stops_a_running_guest(running: Running) -> None:
    running.seal(1)
    assert not running.train(5)
    state_retention(running.world, running.world.clock())
    assert running.train(60)
    assert running.lease.seconds_left() > LEASE / 3
    running.seal(2)
    error = running.stopped(RetentionEnded)
    assert (error.exit_code, error.owner) == (3, "hospital-c")
    refusals = running.world.refusals()
    assert [(refusal["action"], refusal["code"]) for refusal in refusals] == [
        ("renewal", "retention-ended")
    ]


def state_retention(world: ReleaseWorld, last: int) -> None:
    """An owner states anew until when its registered data may be used."""
    owner = "hospital-c"
    before = world.sealed[owner]
    envelope = signed_dataset(
        world.locked,
        owner,
        sealed_at=world.clock(),
        previous=before.envelope.digest,
        data_use=DataUse(retention_until=to_rfc3339(last)),
        dataset_id=before.dataset_id,
        root=before.root,
    )
    world.broker.registry.hand_in("dataset", document_of(envelope))


def test_what_a_lapsed_guest_sealed_last_is_what_the_next_one_goes_on_from(
    running: Running,
) -> None:
    running.seal(1)
    assert not running.train(2)
    running.cut = True
    assert running.train(200)
    running.seal(2)
    running.stopped(BrokerUnreachable)
    again = running.world.obtain(run_id=running.grant.run_id, resume=True)
    assert again.latest_checkpoint is not None
    assert again.latest_checkpoint.counter == 1
    assert running.store.root("checkpoint-2")
