"""What a phase's workload says of records and privacy counts as far as its keeper can judge it."""

from __future__ import annotations

import io
import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from opener_here import OpenerHere
from training_world import RUN_ID, SECRET, PlainDataset, checkpoint_store, private_sft, sft

from sealtrain.base.encoding import from_base64
from sealtrain.base.hostport import write_host_and_port
from sealtrain.errors import DataInvalid
from sealtrain.guest.keeper import Keeper
from sealtrain.guest.phase_messages import digests_tokens, draws, in_memory, write_privacy
from sealtrain.guest.sandbox.landlock import KernelBorder
from sealtrain.guest.sandbox.output import OutputTally as Noted
from sealtrain.guest.workload.channel import Misused, Refusal, Reply
from sealtrain.guest.workload.memory import SharedMemory
from sealtrain.guest.workload.messages import (
    ConnectHelper,
    FileDelivered,
    LayBatch,
    OfferMetrics,
    Open,
    OpenModel,
    ProductsBegun,
    ProductsMade,
    RankReady,
    RecordParts,
    Seal,
    Sign,
    Spent,
    Step,
    Stop,
    TallyRecords,
)
from sealtrain.recipe.epochs import with_steps
from sealtrain.sealing.errors import SealRefused
from sealtrain.training.checkpoints.checkpoint import CheckpointRef
from sealtrain.training.data.sources import Source

pytestmark = pytest.mark.claim("C543")
READY = RankReady.model_construct(landlock=6, seccomp=True, unbound=0, memory="private")
ROWS = 8
SIGN: dict[str, Any] = {"steps": 3, "samples": 12, "tokens": None, "metrics": {}, "counts": {}}


class Folder:
    """A sealed model that opens."""

    def __init__(self, **files: bytes) -> None:
        self.files = files
        self.file_names = tuple(files)

    def open_file(self, name: str) -> Any:
        return io.BytesIO(self.files[name])


def of_owners(*owners: str) -> list[Source]:
    row = {"prompt": "p", "completion": " a"}
    return [
        Source(
            role="train",
            owner=owner,
            name="notes",
            weight=1.0,
            dataset=PlainDataset([pa.RecordBatch.from_pylist([row] * ROWS)]),
        )
        for owner in owners
    ]


class Run:
    """A run of a phase whose workload is played here."""

    def __init__(
        self,
        folder: Path,
        recipe: Any,
        *,
        resume: CheckpointRef | None = None,
        history: Sequence[dict[str, Any]] = (),
        sources: Sequence[Source] = (),
        **given: Any,
    ) -> None:
        self.recipe = recipe
        self.recorded: list[Any] = []
        self.closed: list[KernelBorder] = []
        self.released: list[tuple[int, Any]] = []
        self.said: list[str] = []
        self.stepped: list[int] = []
        self.opened = opened = list(sources) or of_owners("clinic-a", "clinic-b")
        self.served: dict[str, int] = {}
        run = SimpleNamespace(
            run_id=RUN_ID,
            sources=opened,
            sealed_datasets=[
                SimpleNamespace(
                    role="train",
                    folder=folder / source.owner,
                    manifest=SimpleNamespace(dataset_id=source.dataset.dataset_id, records=ROWS),
                )
                for source in opened
            ],
            recipe=recipe,
            lock=SimpleNamespace(scripts={}),
            opener=OpenerHere(opened, ["prompt", "completion"]),
            journal=SimpleNamespace(served=self.served, history=history),
            base=folder,
            store=checkpoint_store(folder / "checkpoints"),
            lease_keeper=SimpleNamespace(anchored=0, must_stop=lambda *_, **__: False),
            tally=Noted(),
            anchor_checkpoint=lambda _ref: None,
            record_sandbox=self.closed.append,
            close=lambda: None,
            lease=SimpleNamespace(require=lambda: None, seconds_left=lambda: 60.0),
            keep_metrics=lambda step, values: self.released.append((step, values)),
            record=lambda event, fields: self.recorded.append((event, fields)),
            **{"model": None, "secret": SECRET, "settings": SimpleNamespace(out=folder), **given},
        )
        self.keeper = Keeper(
            cast("Any", run),
            cast("Any", SimpleNamespace(ends=())),
            cast(
                "Any",
                SimpleNamespace(
                    take_metrics=lambda *_: None,
                    measure=lambda *_: {},
                    step=lambda step, _values: self.stepped.append(step),
                ),
            ),
            held=KernelBorder(landlock=7, seccomp=True, unbound=0, memory="private"),
            resume=resume,
            say=self.said.append,
        )

    def ready(self) -> dict[str, Any]:
        return self.keeper.begin(0, READY).fields


def tally(*counts: tuple[int, int, int, int]) -> TallyRecords:
    names = ("whole", "truncated", "filtered", "empty")
    return TallyRecords(
        datasets=tuple(RecordParts(**dict(zip(names, count, strict=True))) for count in counts)
    )


GOOD = tally((ROWS, 0, 0, 0), (1, 2, 3, 2))
FALSE_COUNTS = {
    "of a dataset too many": tally(*[(ROWS, 0, 0, 0)] * 3),
    "of fewer records": tally((ROWS, 0, 0, 0), (ROWS - 1, 0, 0, 0)),
    "of more records": tally((ROWS, 0, 0, 0), (ROWS, 0, 0, 1)),
    "of nothing to learn": tally((ROWS, 0, 0, 0), (0, 0, ROWS - 1, 1)),
}


@pytest.mark.parametrize("name", FALSE_COUNTS)
def test_counts_that_cannot_be_true_are_not_recorded(name: str, tmp_path: Path) -> None:
    made = Run(tmp_path, sft())
    made.ready()
    with pytest.raises(Misused):
        made.keeper.tally(FALSE_COUNTS[name])
    assert made.recorded == []


def test_counts_of_many_datasets_come_in_parts(tmp_path: Path) -> None:
    made = Run(tmp_path, sft())
    made.ready()
    made.keeper.tally(tally((ROWS, 0, 0, 0)))
    with pytest.raises(Misused):  # one is missing
        made.keeper.step(Step(step=1))
    with pytest.raises(Misused):
        made.keeper.tally(GOOD)
    assert made.recorded == []
    made.keeper.tally(tally((1, 2, 3, 2)))
    assert [event for event, _ in made.recorded] == ["data.counted"]
    made.keeper.step(Step(step=1))


def test_records_are_counted_once_and_before_the_first_step(tmp_path: Path) -> None:
    made = Run(tmp_path, sft())
    made.ready()
    memory, descriptor = SharedMemory.create(8)
    os.close(descriptor)
    early: list[Callable[[], Reply]] = [
        lambda: made.keeper.step(Step(step=1)),
        lambda: made.keeper.stop(Stop(step=1, ahead=0, span=1, sealing=None)),
        lambda: made.keeper.seal(Seal(counter=1, step=1, previous="", size=8), memory),
        lambda: made.keeper.sign(Sign(**SIGN)),
    ]
    made.keeper.take(FileDelivered(name="model.safetensors", size=8, offset=0, length=8), memory)
    for ask in early:
        with pytest.raises(Misused):
            ask()
    made.keeper.tally(GOOD)
    assert [event for event, _ in made.recorded] == ["data.counted"]
    with pytest.raises(Misused):
        made.keeper.tally(GOOD)
    made.keeper.step(Step(step=1))
    made.keeper.stop(Stop(step=2, ahead=0, span=1, sealing=None))
    assert made.stepped == [1, 2]
    with pytest.raises(Misused):
        made.keeper.step(Step(step=made.recipe.trainer.max_steps + 1))


@pytest.mark.claim("C739")
def test_the_keeper_counts_the_steps_of_epochs_itself(tmp_path: Path) -> None:
    """A workload that trains on beyond its epochs is told no."""
    recipe = sft(trainer={"max_steps": 0, "num_train_epochs": 1.5})  # 24 records, four a step
    for counted, last in ((with_steps(recipe, [ROWS, ROWS]), 6), (recipe, 0)):
        made = Run(tmp_path / str(last), counted)
        made.ready()
        made.keeper.tally(GOOD)
        for step in range(1, last + 1):
            made.keeper.step(Step(step=step))
        with pytest.raises(Misused):
            made.keeper.step(Step(step=last + 1))


def test_a_resumed_run_counts_nothing(tmp_path: Path) -> None:
    resume = CheckpointRef(counter=1, step=2, digest="00" * 32)
    made = Run(tmp_path, sft(), resume=resume)
    made.ready()
    with pytest.raises(Misused):
        made.keeper.tally(GOOD)
    made.keeper.step(Step(step=3))


def test_the_secret_is_given_where_the_recipe_draws(tmp_path: Path) -> None:
    assert Run(tmp_path / "plain", sft()).ready()["secret"] is None
    private = Run(tmp_path / "private", private_sft())
    assert from_base64(private.ready()["secret"]) == SECRET.reveal()
    assert draws(sft(audit={"canaries": 2, "repetitions": 1, "membership": False}))


def test_files_of_the_base_model_open_by_the_names_that_are_listed(tmp_path: Path) -> None:
    content = bytes(range(256)) * 1024
    made = Run(tmp_path, sft(), model=Folder(**{"config.json": b"", "model.safetensors": content}))
    assert made.ready()["model"] == ["config.json", "model.safetensors"]
    for name, expected in {"config.json": b"", "model.safetensors": content}.items():
        reply = made.keeper.open_model(OpenModel(name=name))
        assert reply.descriptor is not None
        memory = SharedMemory.receive(reply.descriptor)
        assert bytes(memory.view[: reply.fields["size"]]) == expected
    for name in ("config", "../config.json", "", "/etc/passwd"):
        with pytest.raises(Misused):
            made.keeper.open_model(OpenModel(name=name))
    with pytest.raises(Misused):
        Run(tmp_path / "none", sft()).keeper.open_model(OpenModel(name="config.json"))


def spent(*epsilons: float, noise: float = 1.5) -> Spent:
    return Spent(noise_multiplier=noise, epsilons=epsilons)


def test_what_private_training_spent_stays_within_the_recipe() -> None:
    recipe: Any = private_sft()
    opened = of_owners("clinic-a", "clinic-b")
    most = recipe.privacy.target_epsilon

    def section(stated: Spent | None, **changed: Any) -> dict[str, Any]:
        return write_privacy(Sign(**SIGN | changed, spent=stated), recipe, opened)

    noise = recipe.privacy.noise_multiplier or 1.5
    found = section(spent(most / 2, most, noise=noise))
    assert (found["epsilon"], found["steps"]) == (most, SIGN["steps"])
    assert [dataset["records"] for dataset in found["datasets"]] == [ROWS, ROWS]
    assert [dataset["sample_rate"] for dataset in found["datasets"]] == [
        found["batch"] / (2 * ROWS)
    ] * 2
    wrong: list[tuple[Spent | None, dict[str, Any]]] = [
        (None, {}),
        (spent(most, noise=noise), {}),
        (spent(most, most * 1.01, noise=noise), {}),
        (spent(most, most, noise=noise), {"steps": recipe.trainer.max_steps + 1}),
    ]
    for stated, changed in wrong:
        with pytest.raises(Misused):
            section(stated, **changed)
    named = recipe.model_copy(
        update={"privacy": recipe.privacy.model_copy(update={"noise_multiplier": 2.0})}
    )
    with pytest.raises(Misused):
        write_privacy(Sign(**SIGN, spent=spent(most, most)), named, opened)
    with pytest.raises(Misused):
        write_privacy(Sign(**SIGN, spent=spent(most, most)), sft(), opened)
    assert write_privacy(Sign(**SIGN), sft(), opened) == {"dp": "none"}


def test_a_file_of_the_base_model_that_ends_early_is_refused() -> None:
    class Short(io.BytesIO):
        def readinto(self, _buffer: Any, /) -> int:
            return 0

    model = SimpleNamespace(open_file=lambda _name: Short(b"weights"))
    with pytest.raises(DataInvalid):
        in_memory(cast("Any", model), "model.safetensors")


@pytest.mark.claim("C604")
def test_measurements_have_a_step_that_was_told_or_comes_next(tmp_path: Path) -> None:
    made = Run(tmp_path, sft(), resume=CheckpointRef(counter=1, step=2, digest="00" * 32))
    made.ready()
    values: dict[str, float | None] = {"loss": 0.5}
    for step in (259, 4711, 2**53 - 1):
        with pytest.raises(Misused):
            made.keeper.metrics(OfferMetrics(step=step, values=values))
    made.keeper.step(Step(step=3))
    made.keeper.metrics(OfferMetrics(step=3, values=values))
    made.keeper.metrics(OfferMetrics(step=259, values=values))
    assert [step for step, _ in made.released] == [3, 259]


@pytest.mark.claim("C604")
def test_a_run_that_is_resumed_releases_nothing_again(tmp_path: Path) -> None:
    before = [{"step": step, "values": {"loss": 1.0}} for step in (1, 2)]
    resume = CheckpointRef(counter=1, step=2, digest="00" * 32)
    made = Run(tmp_path, sft(), resume=resume, history=before)
    made.ready()
    for step in (0, 1, 2, 3, 2, 1):
        made.keeper.metrics(OfferMetrics(step=step, values={"loss": step + 0.25}))
    made.keeper.metrics(OfferMetrics(step=2, values={"accuracy": 1.0}))
    assert made.released == [(3, {"loss": 3.25}), (2, {"accuracy": 1.0})]


@pytest.mark.claim("C604")
def test_a_digest_of_tokens_comes_of_a_phase_that_takes_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signed: list[Any] = []

    def close_run(_run: object, trained: Any) -> Any:
        signed.append(trained)
        return SimpleNamespace(manifest="/out/manifest.json")

    monkeypatch.setattr("sealtrain.guest.keeper.close_run", close_run)
    made = ready_to_sign(tmp_path)
    with pytest.raises(Misused):
        made.keeper.sign(Sign(**SIGN, tokens_sha256="4b" * 32))
    made.keeper.sign(Sign(**SIGN))
    assert [trained.tokens_sha256 for trained in signed] == [None]
    takes = {
        (scripts, phase, digest): digests_tokens(
            SimpleNamespace(
                scripts=scripts, phase=phase, trainer=SimpleNamespace(token_digest=digest)
            )
        )
        for scripts in ((), ("train.py",))
        for phase in ("cpt", "sft")
        for digest in (True, False)
    }
    assert [settings for settings, taken in takes.items() if taken] == [((), "cpt", True)]


@pytest.mark.claim("C604")
def test_no_manifest_counts_steps_that_were_not_told(tmp_path: Path) -> None:
    made = ready_to_sign(tmp_path)
    for steps in (257, 4711, 2**53 - 1):
        with pytest.raises(Misused):
            made.keeper.sign(Sign(**SIGN | {"steps": steps}))


def ready_to_sign(folder: Path) -> Run:
    made = Run(folder, sft())
    made.ready()
    made.keeper.tally(GOOD)
    memory, descriptor = SharedMemory.create(8)
    os.close(descriptor)
    made.keeper.take(FileDelivered(name="model.safetensors", size=8, offset=0, length=8), memory)
    return made


@pytest.mark.claim("C605")
def test_no_record_is_read_that_the_signed_counts_leave_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = ready_to_sign(tmp_path)
    memory, slot_bytes, reply = made.keeper.slots(0)
    assert reply.descriptor is not None
    os.close(reply.descriptor)
    wanted = LayBatch(dataset=1, batch=0, slot=0)

    def close_run(_run: object, _trained: object) -> Any:
        with pytest.raises(Refusal):  # another connection asks while the manifest is signed
            made.keeper.lay(0, wanted, memory, slot_bytes)
        return SimpleNamespace(manifest="/out/manifest.json")

    monkeypatch.setattr("sealtrain.guest.keeper.close_run", close_run)
    for _ in range(2):
        made.keeper.lay(0, wanted, memory, slot_bytes)
    made.keeper.sign(Sign(**SIGN))
    with pytest.raises(Refusal) as refused:
        made.keeper.lay(0, wanted, memory, slot_bytes)
    assert refused.value.error.code == "data-invalid"
    assert sum(made.served.values()) == 2 * ROWS


@pytest.mark.claim("C605")
def test_a_batch_that_does_not_open_is_not_counted(tmp_path: Path) -> None:
    made = ready_to_sign(tmp_path)
    memory, slot_bytes, reply = made.keeper.slots(0)
    assert reply.descriptor is not None
    os.close(reply.descriptor)

    def broken(_number: int) -> Any:
        raise DataInvalid("damaged")

    dataset: Any = made.opened[0].dataset
    dataset.batch = broken
    with pytest.raises(Refusal):
        made.keeper.lay(0, LayBatch(dataset=0, batch=0, slot=0), memory, slot_bytes)
    assert set(made.served.values()) <= {0}


@pytest.mark.claim("C606")
@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize(
    "weaker", [{"landlock": 0}, {"seccomp": False}, {"unbound": 2}, {"memory": "folder"}]
)
def test_the_log_says_how_far_the_border_of_the_weakest_rank_holds(
    tmp_path: Path, first: int, weaker: dict[str, Any]
) -> None:
    made = Run(tmp_path, sft())
    ready = [READY, RankReady.model_construct(**READY.to_dict() | weaker)]
    for rank in (first, 1 - first):
        made.keeper.begin(rank, ready[rank])
    last = made.closed[-1].to_dict()
    assert {name: last[name] for name in weaker} == weaker


@pytest.mark.claim("C606")
def test_ranks_that_are_as_strong_are_logged_once(tmp_path: Path) -> None:
    made = Run(tmp_path, sft())
    for rank in (0, 1, 2):
        made.keeper.begin(rank, READY)
    assert [held.landlock for held in made.closed] == [6]


@pytest.mark.claim("C606")
def test_no_rank_begins_after_the_signature(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = SimpleNamespace(manifest="/out/manifest.json")
    monkeypatch.setattr("sealtrain.guest.keeper.close_run", lambda _run, _trained: answer)
    made = ready_to_sign(tmp_path)
    made.keeper.sign(Sign(**SIGN))
    with pytest.raises(Misused):
        made.keeper.begin(1, READY)


@pytest.mark.claim("C558")
@pytest.mark.parametrize("kind", ["float16", "float32", "float64"])
def test_a_batch_of_narrow_numbers_fits_into_its_slot(tmp_path: Path, kind: str) -> None:
    numbers = pa.array(range(100_000), pa.float64()).cast(kind, safe=False)
    batch = pa.RecordBatch.from_arrays([numbers, numbers], names=["prompt", "completion"])
    dataset: Any = PlainDataset([batch])
    dataset.largest_batch = pa.ipc.get_record_batch_size(batch)
    source = Source(role="train", owner="clinic-a", name="notes", weight=1.0, dataset=dataset)
    made = Run(tmp_path, sft(), sources=[source])
    memory, slot_bytes, reply = made.keeper.slots(0)
    assert reply.descriptor is not None
    os.close(reply.descriptor)
    answer = made.keeper.lay(0, LayBatch(dataset=0, batch=0, slot=1), memory, slot_bytes)
    laid = memory.view[slot_bytes : slot_bytes + answer.fields["length"]]
    found = pa.ipc.open_stream(bytes(laid)).read_next_batch()
    assert found.column(0).to_pylist()[:3] == [0.0, 1.0, 2.0]
    assert found.schema.types == [pa.float64()] * 2


def test_a_checkpoint_that_does_not_open_leaves_nothing_in_the_keeper(tmp_path: Path) -> None:
    made = Run(tmp_path, sft())
    made.ready()
    made.keeper.tally(GOOD)
    memory, descriptor = SharedMemory.create(1 << 20)
    os.close(descriptor)
    sealed = made.keeper.seal(Seal(counter=1, step=1, previous="", size=1 << 20), memory)
    (file,) = (tmp_path / "checkpoints").iterdir()
    damaged = bytearray(file.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    file.write_bytes(damaged)
    question = Open(counter=1, step=1, digest=sealed.fields["digest"], previous="")
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        with pytest.raises(Refusal) as refused:
            made.keeper.open(question)
        assert isinstance(refused.value.error, SealRefused)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.claim("C611", "C612")
def test_products_under_pads_are_told_before_a_checkpoint_and_made_before_the_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signed = SimpleNamespace(manifest="/out/manifest.json")
    monkeypatch.setattr("sealtrain.guest.keeper.close_run", lambda *_: signed)
    lora = {"method": "lora", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]}
    recipe = sft(collaboration={"kind": "pads", "pads": "own"}, peft=lora)
    memory, descriptor = SharedMemory.create(8)
    os.close(descriptor)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        place = write_host_and_port(*listener.getsockname()[:2])
        helpers = {"accelerator": place, "dealer": None}
        made = Run(tmp_path, recipe, settings=SimpleNamespace(out=tmp_path, **helpers))
        keeper = made.keeper
        made.ready()
        keeper.tally(GOOD)
        keeper.step(Step(step=1))
        keeper.take(
            FileDelivered(name="adapter_model.safetensors", size=8, offset=0, length=8), memory
        )
        seal = Seal(counter=1, step=1, previous="", size=8)
        for too_early in (lambda: keeper.seal(seal, memory), lambda: keeper.sign(Sign(**SIGN))):
            with pytest.raises(Misused):
                too_early()
        os.close(keeper.help(ConnectHelper(name="accelerator")).descriptor or -1)
        keeper.help(ProductsBegun(layers={"q_proj": 2}, products=2))
        for products in (3, 4):
            keeper.help(ProductsMade(products=products, rows=8, bytes_out=16, bytes_in=16))
        keeper.seal(seal, memory)
        keeper.sign(Sign(**SIGN))
        before = list(made.recorded)
        with pytest.raises(Misused):
            keeper.help(ProductsMade(products=5, rows=8, bytes_out=16, bytes_in=16))
    assert made.recorded == before
    assert [event for event, _ in before][-3:] == ["pads.begun", "pads.spent", "rows.served"]


@pytest.mark.claim("C611")
def test_a_recipe_without_helpers_passes_no_connection(tmp_path: Path) -> None:
    made = Run(tmp_path, sft())
    made.ready()
    with pytest.raises(Misused):
        made.keeper.help(ConnectHelper(name="accelerator"))
