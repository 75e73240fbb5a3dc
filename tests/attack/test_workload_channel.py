"""A hostile workload speaks to its keeper: whatever it says, the keeper gives and does no more."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pyarrow as pa
import pytest
from opener_here import OpenerHere
from polling import wait_until
from training_world import KEY, RUN_ID, PlainDataset, checkpoint_store

from sealtrain.base.canonical import canonical_json
from sealtrain.base.models import load_model
from sealtrain.errors import DataInvalid, LeaseStale, SealtrainError
from sealtrain.guest.keeper import Keeper
from sealtrain.guest.sandbox.events import Restated
from sealtrain.guest.sandbox.landlock import KernelBorder
from sealtrain.guest.sandbox.output import OutputTally
from sealtrain.guest.workload.channel import (
    AskingEnd,
    Reply,
    connections,
)
from sealtrain.guest.workload.memory import SharedMemory
from sealtrain.guest.workload.messages import (
    MAX_QUESTION_BYTES,
    ConnectHelper,
    Ended,
    Failed,
    FileDelivered,
    LayBatch,
    MakeRoom,
    MakeShardRoom,
    Names,
    OfferMetrics,
    Open,
    RankReady,
    ReadShard,
    Seal,
    SealShard,
    Sign,
    Slots,
    Step,
    WorkloadQuestion,
)
from sealtrain.guest.workload.stubs import KeptLease, KeptMetrics, KeptRecords, KeptStore, Slotted
from sealtrain.recipe.privacy import NoPrivacy
from sealtrain.recipe.terms import ReleasePolicy
from sealtrain.sealing.checkpointstore import CheckpointStore
from sealtrain.sealing.errors import CheckpointRefused, SealRefused
from sealtrain.sealing.file import read_header
from sealtrain.training.checkpoints import checkpoint
from sealtrain.training.checkpoints.checkpoint import CheckpointRef
from sealtrain.training.checkpoints.shardnames import ShardRef
from sealtrain.training.checkpoints.shards import SealedShard, open_shard, write_shard
from sealtrain.training.data.sources import Source
from sealtrain.training.errors import DecryptionLost, RankLost

pytestmark = pytest.mark.claim("C541")
SCRIPT = """import sealtrain
NAMES = "a.safetensors", "name.safetensors", "NAME.safetensors", "con", "model.bin", "code.py"
"""
READY = RankReady(landlock=6, seccomp=True, unbound=0, memory="private")
FAILED: dict[str, Any] = {
    "code": "usage",
    "message": "a record: secret-4be1a7",
    "hint": "secret-4be1a7",
    "kind": "secret",
    "script": "/etc/secret",
    "line": 3,
    "program": "/nowhere/secret-4be1a7",
    "counts": {},
}
ROWS = [
    {"prompt": f"p{number}", "answer": " a", "ssn": f"078-05-{number:04}"} for number in range(8)
]


def framed(body: bytes) -> bytes:
    return struct.pack("!I", len(body)) + body


class FakeLease:
    def __init__(self) -> None:
        self.seconds = 60.0

    def seconds_left(self) -> float:
        return self.seconds

    def require(self) -> None:
        if self.seconds <= 0:
            raise LeaseStale("over", check="lease")


class FakeLeaseKeeper:
    anchored = 0

    def must_stop(self, step: int, **_: Any) -> bool:
        return step > 5

    def end_training(self) -> NoReturn:
        raise LeaseStale("over", check="lease")

    def explain_end(self, error: SealtrainError) -> SealtrainError:
        return LeaseStale("over", check="lease")


class World:
    """A keeper without brokers, and the ends of its workload."""

    def __init__(self, folder: Path, ranks: int = 1) -> None:
        self.folder = folder / "run"
        self.released: list[Any] = []
        self.steps: list[int] = []
        self.closed: list[KernelBorder] = []
        self.recorded: list[Any] = []
        pairs = [connections() for _ in range(ranks)]
        self.ours, self.theirs = pairs[0]
        self.ends = tuple(own for own, _ in pairs)
        self.others = [other for _, other in pairs[1:]]
        self.ended = False
        self.status: int | None = None
        dataset = PlainDataset([pa.RecordBatch.from_pylist(ROWS)])
        source = Source(role="train", owner="clinic-a", name="notes", weight=1.0, dataset=dataset)
        policy = load_model(
            ReleasePolicy,
            {"metrics": ["loss"], "round_to": 2, "model": {"recipients": ["clinic-a"]}},
            DataInvalid,
            "policy",
        )
        self.lease = FakeLease()
        self.run = SimpleNamespace(
            run_id=RUN_ID,
            sources=[source],
            sealed_datasets=[
                SimpleNamespace(
                    role="train",
                    folder=folder / "notes.sealed",
                    manifest=SimpleNamespace(dataset_id=dataset.dataset_id, records=len(ROWS)),
                )
            ],
            recipe=SimpleNamespace(
                columns=SimpleNamespace(names=["prompt", "answer"]),
                release_policy=policy,
                privacy=NoPrivacy(dp="none"),
                collaboration=None,
                scripts=["train.py"],
                model=SimpleNamespace(kind="config"),
            ),
            lock=SimpleNamespace(scripts={"train.py": SCRIPT}),
            base=folder,
            settings=SimpleNamespace(out=folder),
            model=None,
            opener=OpenerHere([source], ["prompt", "answer"]),
            store=checkpoint_store(folder / "checkpoints"),
            lease_keeper=FakeLeaseKeeper(),
            lease=self.lease,
            tally=OutputTally(),
            journal=SimpleNamespace(served={}, history=[]),
            record=lambda event, fields: self.recorded.append((event, fields)),
            keep_metrics=lambda step, values: self.released.append((step, values)),
            anchor_checkpoint=lambda ref: self.released.append(ref.counter),
            record_sandbox=self.closed.append,
            close=lambda: None,
        )
        self.workload = SimpleNamespace(ends=self.ends, status=None, end=self.end, close=self.close)
        self.keeper = Keeper(
            cast("Any", self.run),
            cast("Any", self.workload),
            cast(
                "Any", SimpleNamespace(take_metrics=self.noted, measure=dict_of, step=self.stepped)
            ),
            held=KernelBorder(landlock=7, seccomp=True, unbound=0, memory="private"),
            resume=None,
        )
        self.outcome: Any = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._keep)
        self._thread.start()

    def stepped(self, step: int, _values: object) -> None:
        self.steps.append(step)

    def noted(self, *_: object) -> None:
        """A monitor that shows nothing."""

    def end(self) -> None:
        self.ended = True
        for end in self.ends:
            for each in end.all:
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for end in self.ends:
            for each in end.all:
                each.close()

    def _keep(self) -> None:
        try:
            self.outcome = self.keeper.outcome()
        except BaseException as error:
            self.error = error

    def over(self) -> BaseException | None:
        """What the run ended with, once it did."""
        self._thread.join(30)
        assert not self._thread.is_alive()
        assert self.ended
        return self.error

    def ready(self) -> dict[str, Any]:
        for other in self.others:
            AskingEnd(other.control).ask(READY)
        return AskingEnd(self.theirs.control).ask(READY)[0]


def dict_of(*_: object) -> dict[str, float]:
    return {}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    yield from living(World(tmp_path))


@pytest.fixture
def two_ranks(tmp_path: Path) -> Iterator[World]:
    yield from living(World(tmp_path, ranks=2))


def living(made: World) -> Iterator[World]:
    yield made
    for end in (made.theirs, *made.others):
        for each in end.all:
            each.close()
    made.keeper.fail(RankLost("the test is over"))
    made.over()


def ended_by(world: World) -> tuple[str, str | None]:
    """Code and check of the error that ended the run."""
    error = world.over()
    assert isinstance(error, Restated)
    return error.error.code, error.error.check


HOSTILE: dict[str, bytes] = {
    "unknown kind": framed(canonical_json({"ask": "exec"})),
    "no kind": framed(b"{}"),
    "no object": framed(b"[1]"),
    "a kind of another connection": framed(Slots().to_bytes()),
    "a field too many": framed(canonical_json({"ask": "ended", "then": 1})),
    "a field of another type": framed(canonical_json({"ask": "step", "step": "1"})),
    "a count below none": framed(canonical_json({"ask": "step", "step": -1})),
    "another spelling": framed(b'{ "ask": "ended" }'),
    "a key twice": framed(b'{"ask":"ended","ask":"ended"}'),
    "a pickle": framed(b"\x80\x04\x95\x0b\x00\x00\x00"),
    "a number that is none": framed(b'{"ask":"metrics","step":1,"values":{"loss":NaN}}'),
    "nested too deep": framed(b"[" * 5000),
    "too long": struct.pack("!I", MAX_QUESTION_BYTES + 1),
    "longest length": b"\xff\xff\xff\xff",
    "an unknown code": framed(canonical_json({"ask": "failed", **FAILED, "code": "secret-4be1a7"})),
    "an unknown count": framed(
        canonical_json({"ask": "failed", **FAILED, "counts": {"secret": 1}})
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("begun", [False, True])
def test_what_is_no_question_ends_the_run(world: World, name: str, begun: bool) -> None:
    if begun:
        world.ready()
    world.theirs.control.sendall(HOSTILE[name])
    assert ended_by(world) == ("script-failed", "channel")


def test_a_question_cut_off_ends_the_run(world: World) -> None:
    world.theirs.rows.sendall(framed(Slots().to_bytes())[:-1])
    world.theirs.rows.close()
    assert ended_by(world) == ("script-failed", "channel")


EARLY: dict[str, tuple[str, WorkloadQuestion]] = {
    "a step": ("control", Step(step=1)),
    "its end": ("control", Ended()),
    "slots": ("rows", Slots()),
    "memory": ("store", MakeRoom(size=10)),
}


@pytest.mark.parametrize("name", EARLY)
def test_nothing_is_given_before_a_rank_is_ready(world: World, name: str) -> None:
    connection, question = EARLY[name]
    getattr(world.theirs, connection).sendall(framed(question.to_bytes()))
    assert ended_by(world) == ("script-failed", "channel")
    assert world.outcome is None


LATE: dict[str, tuple[str, WorkloadQuestion]] = {
    "ready twice": ("control", READY),
    "a manifest over no file": (
        "control",
        Sign(steps=1, samples=1, tokens=None, metrics={}, counts={}),
    ),
    "a measurement that nobody named": ("control", OfferMetrics(step=1, values={"ssn": 1.0})),
    "no such dataset": ("rows", LayBatch(dataset=1, batch=0, slot=0)),
    "no such batch": ("rows", LayBatch(dataset=0, batch=1, slot=0)),
    "no such slot": ("rows", LayBatch(dataset=0, batch=0, slot=64)),
    "slots twice": ("rows", Slots()),
    "more than the memory has": ("store", Seal(counter=1, step=1, previous="", size=8193)),
    "another counter": ("store", Seal(counter=2, step=1, previous="", size=10)),
    "another predecessor": ("store", Seal(counter=1, step=1, previous="00" * 32, size=10)),
    "a step that no training has got to": ("control", Step(step=1000)),
    "a checkpoint of such a step": ("store", Seal(counter=1, step=1000, previous="", size=10)),
    "a file beyond the memory": (
        "store",
        FileDelivered(name="a.safetensors", size=8193, offset=0, length=8193),
    ),
}


@pytest.mark.parametrize("name", LATE)
def test_what_is_out_of_order_ends_the_run(world: World, name: str) -> None:
    world.ready()
    rows, store = AskingEnd(world.theirs.rows), AskingEnd(world.theirs.store)
    rows.ask(Slots())
    store.ask(MakeRoom(size=8192))
    connection, question = LATE[name]
    getattr(world.theirs, connection).sendall(framed(question.to_bytes()))
    assert ended_by(world) == ("script-failed", "channel")
    assert world.run.store.names() == ()
    assert world.released == []


@pytest.mark.claim("C599")
@pytest.mark.parametrize(
    ("told", "wrong"),
    [((1, 2), 1), ((1, 5, 261), 518), ((256, 512, 768), 2000), ((0,), 257)],
)
def test_steps_rise_a_little_at_a_time(world: World, told: tuple[int, ...], wrong: int) -> None:
    world.ready()
    control = AskingEnd(world.theirs.control)
    for step in told:
        control.ask(Step(step=step))
    world.theirs.control.sendall(framed(Step(step=wrong).to_bytes()))
    assert ended_by(world) == ("script-failed", "channel")
    assert world.steps == list(told)


@pytest.mark.claim("C599")
def test_a_checkpoint_behind_training_has_a_step_that_was_told(world: World) -> None:
    world.ready()
    control, store = AskingEnd(world.theirs.control), AskingEnd(world.theirs.store)
    store.ask(MakeRoom(size=16))
    for step in range(1, 6):
        control.ask(Step(step=step))
    first, _ = store.ask(Seal(counter=1, step=3, previous="", size=16))
    earlier = Seal(counter=2, step=2, previous=first["digest"], size=16)
    world.theirs.store.sendall(framed(earlier.to_bytes()))
    assert ended_by(world) == ("script-failed", "channel")
    assert world.run.store.names() == ("checkpoint-00000001-0000000003",)


@pytest.mark.claim("C122")
def test_a_batch_has_the_columns_that_the_recipe_names(world: World) -> None:
    stated = world.ready()["datasets"][0]
    records = KeptRecords(0, stated, Slotted(AskingEnd(world.theirs.rows)))
    batch = records.batch(0)
    assert batch.to_pylist() == [{name: row[name] for name in ("prompt", "answer")} for row in ROWS]
    assert records.batch_rows == (8,)
    assert records.schema == batch.schema


def test_a_flood_waits_in_the_workloads_own_buffers(world: World) -> None:
    world.ready()
    control = world.theirs.control
    control.setblocking(False)
    frame, sent = framed(Step(step=1).to_bytes()), 0
    until = time.monotonic() + 20
    quiet = 0
    while quiet < 20 and time.monotonic() < until:
        try:
            sent += control.send(frame * 64)
            quiet = 0
        except BlockingIOError:
            quiet += 1
            time.sleep(0.01)
    assert quiet == 20  # the keeper takes no more while its answers are not read
    assert sent < 16 << 20
    world.keeper.fail(RankLost("enough"))
    assert isinstance(world.over(), RankLost)


def test_descriptors_that_come_along_are_not_received(world: World) -> None:
    world.ready()
    before = len(list(Path("/proc/self/fd").iterdir()))
    read, write = os.pipe()
    for _ in range(20):
        frame = framed(Step(step=1).to_bytes())
        socket.send_fds(world.theirs.control, [frame], [read, write])
        assert world.theirs.control.recv(1 << 16)
    os.close(write)
    assert os.read(read, 1) == b""  # no other end of it is open
    os.close(read)
    assert len(list(Path("/proc/self/fd").iterdir())) <= before


def test_the_memory_neither_shrinks_nor_grows_nor_is_unsealed() -> None:
    memory, descriptor = SharedMemory.create(4096)
    try:
        for size in (0, 4095, 4097):
            with pytest.raises(PermissionError):
                os.ftruncate(descriptor, size)
        assert SharedMemory.receive(os.dup(descriptor)).size == memory.size
    finally:
        os.close(descriptor)


def test_a_checkpoint_goes_through_the_memory_and_back(world: World) -> None:
    import torch

    world.ready()
    store = KeptStore(AskingEnd(world.theirs.store))
    state = {"model": {"weight": torch.arange(5000.0)}, "step": 3}
    first = checkpoint.save(store, RUN_ID, 1, 3, state)
    second = checkpoint.save(store, RUN_ID, 2, 4, state, previous=first.digest)
    assert world.released == [1, 2]
    assert len(store.names()) == 2
    again = checkpoint.load(store, RUN_ID, second)
    assert torch.equal(again["model"]["weight"], state["model"]["weight"])  # type: ignore[index]
    # Sealed under the run's key, as the keeper reads it too.
    own = checkpoint.load(world.run.store, RUN_ID, first)
    assert own["step"] == 3


def shard_of(number: int, **other: Any) -> dict[str, Any]:
    named = {"counter": 1, "step": 3, "previous": "", "number": number, "count": 2}
    return named | other


@pytest.mark.claim("C735")
def test_each_rank_seals_its_shards_and_any_reads_them_back(two_ranks: World) -> None:
    two_ranks.run.store = CheckpointStore(two_ranks.folder, KEY, label=RUN_ID)
    two_ranks.ready()
    stores = [KeptStore(AskingEnd(end.store)) for end in (two_ranks.theirs, *two_ranks.others)]
    # What other ranks would have replaced by it stays as it is.
    contents = [bytes(range(256)) * 300, b"other" * 9000]
    shards = []
    for number, (store, content) in enumerate(zip(stores, contents, strict=True)):
        store.shard_memory(80_000)
        ref = ShardRef(counter=1, step=3, number=number, count=2)
        digest = write_shard(store, RUN_ID, ref, "", [memoryview(content)])
        shards.append((ref, SealedShard(digest=digest, size=len(content))))
    lengths = {length_behind_header(two_ranks.run.store.path(ref.name)) for ref, _ in shards}
    assert len(lengths) == 1
    first = checkpoint.save(stores[0], RUN_ID, 1, 3, {"step": 3})
    for store in stores:
        for content, (ref, shard) in zip(contents, shards, strict=True):
            with open_shard(store, RUN_ID, first, ref, shard.digest) as file:
                file.seek(100)
                part = bytearray(1000)
                assert file.readinto(part) == 1000
                assert part == content[100:1100]
    ref, shard = shards[1]
    with (
        open_shard(stores[0], RUN_ID, first, ref, "00" * 32) as file,
        pytest.raises(SealRefused),
    ):
        file.readinto(bytearray(10))
    with open_shard(stores[0], RUN_ID, first, ref, shard.digest) as file:
        file.seek(shard.size - 5)
        with pytest.raises(CheckpointRefused):
            file.readinto(bytearray(10))
    missing, later = replace(ref, counter=2, step=4), replace(first, counter=2, step=4)
    with (
        open_shard(stores[0], RUN_ID, later, missing, shard.digest) as file,
        pytest.raises(CheckpointRefused),
    ):
        file.readinto(bytearray(10))
    assert two_ranks.released == [1]


FOREIGN: dict[str, WorkloadQuestion] = {
    "a number of another rank": SealShard(**shard_of(0), size=8),
    "more shards than ranks": SealShard(**shard_of(1, count=3), size=8),
    "a number above the count": SealShard(**shard_of(1, count=1), size=8),
    "another counter": SealShard(**shard_of(1, counter=2), size=8),
    "another predecessor": SealShard(**shard_of(1, previous="00" * 32), size=8),
    "a step that no training has got to": SealShard(**shard_of(1, step=1000), size=8),
    "more than the memory has": SealShard(**shard_of(1), size=8193),
    "a part beyond the memory": ReadShard(**shard_of(1), digest="00" * 32, offset=0, size=8193),
    "a checkpoint": Seal(counter=1, step=3, previous="", size=8),
    "memory for a checkpoint": MakeRoom(size=8),
}


@pytest.mark.claim("C735")
@pytest.mark.parametrize("name", FOREIGN)
def test_a_rank_seals_no_shard_but_its_own(two_ranks: World, name: str) -> None:
    two_ranks.ready()
    (other,) = two_ranks.others
    AskingEnd(other.store).ask(MakeShardRoom(size=8192))
    other.store.sendall(framed(FOREIGN[name].to_bytes()))
    assert ended_by(two_ranks) == ("script-failed", "channel")
    assert two_ranks.run.store.names() == ()


@pytest.mark.claim("C735")
def test_no_shard_is_sealed_without_memory(two_ranks: World) -> None:
    two_ranks.ready()
    two_ranks.others[0].store.sendall(framed(SealShard(**shard_of(1), size=8).to_bytes()))
    assert ended_by(two_ranks) == ("script-failed", "channel")


def length_behind_header(path: Path) -> int:
    """A header names counter, step and predecessor, as the file's name and the log do."""
    return path.stat().st_size - read_header(path).size


@pytest.mark.claim("C558")
def test_the_death_of_the_opener_ends_the_run(world: World) -> None:
    world.ready()
    world.run.opener.status = -9
    assert isinstance(world.over(), DecryptionLost)


@pytest.mark.claim("C557")
def test_the_keeper_counts_the_rows_that_it_gave(world: World) -> None:
    world.ready()
    asking = AskingEnd(world.theirs.rows)
    asking.ask(Slots())
    for _ in range(3):
        asking.ask(LayBatch(dataset=0, batch=0, slot=0))
    (dataset,) = world.run.sources
    assert world.run.journal.served == {dataset.dataset.dataset_id: 3 * len(ROWS)}


@pytest.mark.claim("C556")
def test_no_checkpoint_tells_by_its_length_what_a_script_put_in_it(world: World) -> None:
    world.run.store = sealed = CheckpointStore(world.folder, KEY, label=RUN_ID)
    world.ready()
    store = KeptStore(AskingEnd(world.theirs.store))
    previous, lengths = "", set()
    for counter, size in enumerate((300_000, 2, 1, 299_999, 310_000), start=1):
        memory = store.memory(size)
        memory[:size] = bytes(size)
        ref = CheckpointRef(counter=counter, step=counter, previous=previous)
        previous = store.seal(ref, size)
        lengths.add(length_behind_header(sealed.path(ref.name)))
    assert len(lengths) == 1
    # What does not fit is refused, and leaves nothing; asking for more room helps nothing.
    store.memory(10_000_000)
    with pytest.raises(CheckpointRefused):
        store.seal(CheckpointRef(counter=6, step=6, previous=previous), 10_000_000)
    assert len(sealed.names()) == 5
    assert {length_behind_header(path) for path in world.folder.iterdir()} == lengths


def test_a_checkpoint_that_is_needed_stays(world: World) -> None:
    world.ready()
    store = KeptStore(AskingEnd(world.theirs.store))
    ref = checkpoint.save(store, RUN_ID, 1, 1, {"a": 1})
    later = checkpoint.save(store, RUN_ID, 2, 2, {"a": 2}, previous=ref.digest)
    for kept in (ref, later):
        with pytest.raises(CheckpointRefused):
            store.retire(kept.name)
    world.run.lease_keeper.anchored = 2
    with pytest.raises(CheckpointRefused):
        store.retire(later.name)
    store.retire(ref.name)
    assert world.run.store.names() == (later.name,)


def test_a_checkpoint_of_another_digest_does_not_open(world: World) -> None:
    world.ready()
    store = KeptStore(AskingEnd(world.theirs.store))
    checkpoint.save(store, RUN_ID, 1, 1, {"a": 1})
    question = Open(counter=1, step=1, digest="00" * 32, previous="")
    with pytest.raises(SealtrainError):
        AskingEnd(world.theirs.store).ask(question)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("../run.json", b"x"),
        ("/etc/passwd", b"x"),
        ("model.bin", b"x"),
        ("code.py", b"x"),
        ("config.json", b'{"auto_map": {"AutoModel": "code.Model"}}'),
        ("config.json", b"no settings"),
        ("con", b"x"),
        ("NAME.safetensors", b"x"),
    ],
)
def test_a_file_that_recipients_would_not_open_is_not_taken(
    world: World, name: str, content: bytes
) -> None:
    world.ready()
    store = KeptStore(AskingEnd(world.theirs.store))
    store.deliver("name.safetensors", len(b"weights"), (b"weights",))
    with pytest.raises(SealtrainError) as refused:
        store.deliver(name, len(content), (content,))
    assert refused.value.code == "model-not-reloaded"


@pytest.mark.claim("C596")
@pytest.mark.parametrize(
    "name",
    [
        "patient-4711.json", "model-patient-4711.safetensors", "patient-4711/config.json",
        "6a616e65.txt", "Config.json", "model.patient.safetensors", "NAMES.json",
        "name.safetensors/config.json", "LICENSE-jane", "events.out.tfevents.jane",
    ],
)  # fmt: skip
def test_a_name_that_a_script_makes_up_is_in_no_manifest(world: World, name: str) -> None:
    world.ready()
    store = KeptStore(AskingEnd(world.theirs.store))
    for known in ("config.json", "1_Pooling/config.json", "name.safetensors"):
        store.deliver(known, len(b"{}"), (b"{}",))
    with pytest.raises(SealtrainError) as refused:
        store.deliver(name, len(b"{}"), (b"{}",))
    assert refused.value.code == "model-not-reloaded"
    failed = Failed(**FAILED | {"code": "model-not-reloaded"})
    world.theirs.control.sendall(framed(failed.to_bytes()))
    error = world.over()
    assert isinstance(error, SealtrainError)
    assert (error.code, error.check) == ("model-not-reloaded", "file name")
    assert "4711" not in str(error.to_dict())
    assert "jane" not in str(error.to_dict())


@pytest.mark.claim("C596")
@pytest.mark.parametrize("parts", [("00001-of-00003", "00002-of-00003"), ("47110-of-47110",)])
def test_numbers_of_parts_say_how_many_there_are(world: World, parts: tuple[str, ...]) -> None:
    world.ready()
    store = KeptStore(AskingEnd(world.theirs.store))
    for part in parts:
        store.deliver(f"model-{part}.safetensors", len(b"x"), (b"x",))
    sign = Sign(steps=1, samples=1, tokens=None, metrics={}, counts={})
    world.theirs.control.sendall(framed(sign.to_bytes()))
    assert ended_by(world) == ("script-failed", "channel")


@pytest.mark.claim("C769")
@pytest.mark.parametrize("left", ["nothing but a part", "a part beside a whole file"])
def test_no_manifest_is_over_a_file_of_which_a_part_is_missing(world: World, left: str) -> None:
    """As where a rank died or withheld its shard, and the recipe's code goes on nevertheless."""
    world.ready()
    store = AskingEnd(world.theirs.store)
    store.ask(MakeRoom(size=16))
    if left != "nothing but a part":
        KeptStore(AskingEnd(world.theirs.store)).deliver("config.json", 2, (b"{}",))
        store.ask(MakeRoom(size=16))
    store.ask(FileDelivered(name="model.safetensors", size=32, offset=0, length=16))
    sign = Sign(steps=1, samples=1, tokens=None, metrics={}, counts={})
    world.theirs.control.sendall(framed(sign.to_bytes()))
    assert ended_by(world) == ("script-failed", "channel")
    assert world.outcome is None


def test_measurements_pass_the_policy_where_the_keeper_is(world: World) -> None:
    world.ready()
    control = AskingEnd(world.theirs.control)
    control.ask(OfferMetrics(step=1, values={"loss": 1.23456, "num_tokens": 7.0}))
    control.ask(OfferMetrics(step=1, values={"loss": 2.0}))
    control.ask(OfferMetrics(step=2, values={"loss": None}))
    assert world.released == [(1, {"loss": 1.23}), (2, {"loss": None})]


@pytest.mark.claim("C108")
@pytest.mark.parametrize("code", ["usage", "lease-stale", "broker-unreachable", "run-stopped"])
@pytest.mark.parametrize("logs", ["none", "structured"])
def test_a_failure_leaves_as_a_code_and_no_word_of_it(world: World, code: str, logs: str) -> None:
    world.run.recipe.release_policy = world.run.recipe.release_policy.model_copy(
        update={"logs": logs}
    )
    said = Failed(**FAILED | {"code": code})
    world.theirs.control.sendall(framed(said.to_bytes()))
    error = world.over()
    assert isinstance(error, Restated)
    # What a runner waits for is not the workload's to say.
    assert error.error.code == (code if code == "usage" else "script-failed")
    assert "secret" not in str(error.error.to_dict())


def test_the_line_of_a_script_is_one_that_it_has(world: World) -> None:
    world.run.recipe.release_policy = world.run.recipe.release_policy.model_copy(
        update={"logs": "structured"}
    )
    said = Failed(**FAILED | {"kind": "KeyError", "script": "train.py", "line": 1, "code": "usage"})
    world.theirs.control.sendall(framed(said.to_bytes()))
    error = world.over()
    assert isinstance(error, Restated)
    assert error.error.check == "KeyError, train.py line 1"


@pytest.mark.claim("C542")
def test_the_end_of_the_lease_ends_the_workload(world: World) -> None:
    world.ready()
    world.lease.seconds = 0.0
    assert isinstance(world.over(), LeaseStale)


@pytest.mark.claim("C542")
@pytest.mark.parametrize("gone", ["the workload", "the lease"])
def test_a_machine_that_says_nothing_keeps_no_keeper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: str
) -> None:
    asked, answers = threading.Event(), threading.Event()
    reader, writer = os.pipe()

    def answer(_question: WorkloadQuestion) -> Reply:
        asked.set()
        answers.wait(60)
        return Reply({}, writer)

    silent = SimpleNamespace(answer=answer, waits=())
    monkeypatch.setattr("sealtrain.guest.keeper.helper_desk", lambda _run: silent)
    world = World(tmp_path)
    world.ready()
    world.theirs.control.sendall(framed(ConnectHelper(name="dealer").to_bytes()))
    assert asked.wait(20)
    if gone == "the lease":
        world.lease.seconds = 0
    else:
        world.workload.status = -9
    assert isinstance(world.over(), LeaseStale if gone == "the lease" else RankLost)
    answers.set()
    assert os.read(reader, 1) == b""  # the connection that came too late is closed
    os.close(reader)
    for each in world.theirs.all:
        each.close()


def test_a_step_is_told_once(world: World) -> None:
    world.ready()
    control = AskingEnd(world.theirs.control)
    lease = KeptLease(control, KeptStore(AskingEnd(world.theirs.store)))
    metrics = KeptMetrics(world.run.recipe.release_policy, control, lease)
    assert not lease.must_stop(5, ahead=0, span=1, sealing=None)
    metrics.step(5, {})
    assert lease.must_stop(6, ahead=0, span=1, sealing=0.5)
    metrics.step(6, {})
    metrics.step(7, {})
    assert world.steps == [5, 6, 7]


def test_a_training_that_stopped_for_its_lease_ends_with_the_reason(world: World) -> None:
    world.ready()
    world.theirs.control.sendall(framed(canonical_json({"ask": "stopped"})))
    assert isinstance(world.over(), LeaseStale)


def test_what_the_data_refused_is_told_as_the_keeper_knows_it(world: World) -> None:
    def broken(_number: int) -> NoReturn:
        raise DataInvalid("damaged", owner="clinic-a", dataset="notes")

    world.run.sources[0].dataset.batch = broken
    stated = world.ready()["datasets"][0]
    records = KeptRecords(0, stated, Slotted(AskingEnd(world.theirs.rows)))
    with pytest.raises(DataInvalid) as refused:
        records.batch(0)
    assert refused.value.owner is None
    said = Failed(**FAILED | {"code": "data-invalid"})
    world.theirs.control.sendall(framed(said.to_bytes()))
    error = world.over()
    assert isinstance(error, DataInvalid)
    assert error.dataset == "notes"


def test_a_forked_process_does_not_ask_in_the_place_of_another() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        end = AskingEnd(theirs)
        child = os.fork()
        if child == 0:
            try:
                end.ask(Step(step=1))
            except SealtrainError as error:
                os._exit(0 if error.code == "fork-refused" else 1)
            os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        ours.setblocking(False)
        with pytest.raises(BlockingIOError):
            ours.recv(1)


@pytest.mark.claim("C594")
@pytest.mark.parametrize("late", ["a file", "a checkpoint"])
@pytest.mark.parametrize("when", ["while it is signed", "afterwards"])
def test_nothing_is_stored_once_the_manifest_is_signed(
    world: World, monkeypatch: pytest.MonkeyPatch, late: str, when: str
) -> None:
    entered, go = threading.Event(), threading.Event()
    signed: list[list[str]] = []

    def close_run(_run: object, trained: Any) -> Any:
        entered.set()
        assert go.wait(20)
        signed.append([*trained.files, *trained.delivered])
        return SimpleNamespace(manifest="/out/manifest.json")

    monkeypatch.setattr("sealtrain.guest.keeper.close_run", close_run)
    world.ready()
    store, control = AskingEnd(world.theirs.store), AskingEnd(world.theirs.control)
    store.ask(MakeRoom(size=16))
    store.ask(FileDelivered(name="model.safetensors", size=16, offset=0, length=16))
    sign = Sign(steps=1, samples=1, tokens=None, metrics={}, counts={})

    def ask_to_sign() -> None:
        with suppress(OSError, EOFError):  # the run ends meanwhile
            control.ask(sign)

    signing = threading.Thread(target=ask_to_sign, daemon=True)
    signing.start()
    assert entered.wait(20)
    if when == "afterwards":
        go.set()
        signing.join(20)
    question: WorkloadQuestion = FileDelivered(name="NAME.json", size=2, offset=0, length=2)
    if late == "a checkpoint":
        question = Seal(counter=1, step=1, previous="", size=16)
    world.theirs.store.sendall(framed(question.to_bytes()))
    with pytest.raises((EOFError, OSError)):
        store.ask(Names())
    go.set()
    signing.join(20)
    assert ended_by(world) == ("script-failed", "channel")
    assert signed == [["model.safetensors"]]
    assert world.run.store.names() == ()


@pytest.mark.claim("C542")
def test_a_workload_ends_with_its_lease_while_the_manifest_waits(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()

    def close_run(_run: object, _trained: object) -> Any:
        assert go.wait(20)
        return SimpleNamespace(manifest="/out/manifest.json")

    monkeypatch.setattr("sealtrain.guest.keeper.close_run", close_run)
    world.ready()
    store = AskingEnd(world.theirs.store)
    store.ask(MakeRoom(size=16))
    store.ask(FileDelivered(name="model.safetensors", size=16, offset=0, length=16))
    sign = Sign(steps=1, samples=1, tokens=None, metrics={}, counts={})
    world.theirs.control.sendall(framed(sign.to_bytes()))
    wait_until(lambda: "rows.served" in dict(world.recorded), 20)
    world.lease.seconds = 0
    wait_until(lambda: world.ended, 20)
    go.set()
    assert world.over() is None
    assert world.outcome.manifest == "/out/manifest.json"


def test_a_lease_that_ends_as_the_run_closes_ends_no_workload(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a slow machine a run takes longer to close than the keeper takes to look again."""
    ended_meanwhile = []

    def close() -> None:
        world.lease.seconds = 0
        time.sleep(1)
        ended_meanwhile.append(world.ended)

    signed = SimpleNamespace(manifest="/out/manifest.json")
    monkeypatch.setattr("sealtrain.guest.keeper.close_run", lambda *_: signed)
    world.run.close = close
    world.ready()
    store, control = AskingEnd(world.theirs.store), AskingEnd(world.theirs.control)
    store.ask(MakeRoom(size=16))
    store.ask(FileDelivered(name="model.safetensors", size=16, offset=0, length=16))
    control.ask(Sign(steps=1, samples=1, tokens=None, metrics={}, counts={}))
    world.theirs.control.sendall(framed(Ended().to_bytes()))
    assert world.over() is None
    assert world.outcome.manifest == "/out/manifest.json"
    assert ended_meanwhile == [False]


@pytest.mark.claim("C605")
def test_a_signed_run_needs_its_opener_no_longer(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def close_run(_run: object, _trained: object) -> Any:
        world.run.opener.status = -9
        time.sleep(0.6)  # the keeper looks meanwhile
        return SimpleNamespace(manifest="/out/manifest.json")

    monkeypatch.setattr("sealtrain.guest.keeper.close_run", close_run)
    world.ready()
    store, control = AskingEnd(world.theirs.store), AskingEnd(world.theirs.control)
    store.ask(MakeRoom(size=16))
    store.ask(FileDelivered(name="model.safetensors", size=16, offset=0, length=16))
    control.ask(Sign(steps=1, samples=1, tokens=None, metrics={}, counts={}))
    world.theirs.control.sendall(framed(Ended().to_bytes()))
    assert world.over() is None
    assert world.outcome.manifest == "/out/manifest.json"
