"""Program ``trainer``: what a recipe trains anywhere else, on rows of a lent buffer."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from collecting import COLLECTING
from language_world import ADAPTERS, LORA, cpt, write_base
from programs import need
from training_world import OWNERS, checkpoint_store, run, seal_records, sources_of, write_records
from training_world import sft as sft_recipe
from variants import variants

from sealtrain.errors import DataInvalid, TripBroken, UsageError
from sealtrain.manifest.checks.collaborations.travelling import check_trips, terms_of
from sealtrain.recipe.collaborations.travelling import program_of
from sealtrain.recipe.errors import ModelInvalid, RecipeInvalid
from sealtrain.recipe.schema import parse_recipe
from sealtrain.signing.runlog import RunLog
from sealtrain_together.travelling.guest.held_rows import HeldRows
from sealtrain_together.travelling.measurement import StateMeter, fingerprint_of_bytes
from sealtrain_together.travelling.programs import build_program, parse_settings, settings_of
from sealtrain_together.travelling.rows import IGNORED, read_rows, write_row
from sealtrain_together.travelling.schedule import HolderPlan, TravelPlan, TripRotation
from sealtrain_together.travelling.trainer_program import TrainerProgram, TrainerSettings, Training

if not COLLECTING:
    import torch
    from travel_world import RUN_ID, TravelWorld, travel_world

pytestmark = [
    pytest.mark.long,
    pytest.mark.claim("C257"),
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),
]

ALONE = [{"owner": OWNERS[0], "name": "records", "role": "train"}]
BOTH = [{"owner": owner, "name": "records", "role": "train"} for owner in OWNERS]
ACCUMULATED = {"max_steps": 6, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}
if not COLLECTING:
    DEVICE: Any = "cuda" if torch.cuda.is_available() else "cpu"
    """Where a training computes that nothing is said to."""
TEXT = {"columns": {"text": "text"}}
CHAT = {"columns": {"messages": "messages"}}


def travels(make: Any, **changed: Any) -> Any:
    """A recipe whose training travels from one owner, or from those that ``datasets`` names."""
    asked = {"kind": "travelling", "program": "trainer", "policy": "policy.yaml"}
    usual: dict[str, Any] = {
        "datasets": ALONE,
        "model": {"path": "base", "tokenizer": {"path": "base"}},
    }
    trainer = ACCUMULATED | changed.pop("trainer", {})
    how = asked | {"buffer_bytes": changed.pop("buffer_bytes", 8192)}
    return make(trainer=trainer, collaboration=how, **usual | changed)


RECIPES: dict[str, Any] = {
    "answers, LoRA": lambda: travels(sft_recipe, peft=LORA),
    "answers, all weights": lambda: travels(sft_recipe, trainer={"max_length": 96}),
    "text, IA3": lambda: travels(sft_recipe, peft=ADAPTERS["ia3"], **TEXT),
    "chat, DoRA": lambda: travels(
        sft_recipe, peft=ADAPTERS["dora"], trainer={"assistant_only_loss": True}, **CHAT
    ),
    "answers, a prompt": lambda: travels(sft_recipe, peft=ADAPTERS["p-tuning"]),
    "text in bfloat16": lambda: travels(
        sft_recipe, trainer={"bf16": True, "neftune_noise_alpha": 5.0}, **TEXT
    ),
    "answers, adafactor": lambda: travels(sft_recipe, trainer={"optim": "adafactor"}),
    "answers, momentum": lambda: travels(sft_recipe, peft=LORA, trainer={"optim": "rmsprop"}),
    "merged": lambda: travels(sft_recipe, peft=LORA | {"merge": True}),
    "pre-training": lambda: travels(cpt, trainer={"block_size": 32}),
    "pre-training, LoRA": lambda: travels(cpt, peft=LORA, trainer={"block_size": 32}),
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint to go on from, and records beside it."""
    folder = tmp_path_factory.mktemp("trainer")
    write_base(folder / "base")
    return folder


@pytest.fixture(scope="module")
def sealed(base: Path) -> dict[str, Any]:
    return seal_records(write_records(base, 60), base)


class Rows:
    """A holder's rows, made before the accelerator's trainer is: a process has one at a time."""

    def __init__(self, held: HeldRows) -> None:
        self.data = bytearray(held.size)
        assert held.read_into(0, memoryview(self.data)) == held.size

    @property
    def size(self) -> int:
        return len(self.data)

    def read_into(self, offset: int, view: memoryview) -> int:
        part = self.data[offset : offset + len(view)]
        view[: len(part)] = part
        return len(part)


def rows_of(recipe: Any, base: Path, sealed: dict[str, Any], owner: str = OWNERS[0]) -> Rows:
    sources = [source for source in sources_of(recipe, sealed) if source.owner == owner]
    return Rows(HeldRows(recipe, base, sources, lambda: None))


def program_for(recipe: Any, base: Path, state: bytes | None = None) -> TrainerProgram:
    settings = settings_of(recipe, DEVICE)
    found = build_program(settings, state, Training(recipe=recipe, base_dir=base))
    assert isinstance(found, TrainerProgram)
    return found


def chunks_of(held: Rows, program: TrainerProgram, steps: int) -> Iterator[memoryview]:
    """Chunks of two steps each, so many steps together."""
    size = 2 * program.settings.step_bytes
    for number in range(steps // 2):
        chunk = memoryview(bytearray(size))
        assert held.read_into(number * size, chunk) == size
        yield chunk


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    variants(
        RECIPES,
        each_time=["answers, LoRA", "text in bfloat16"],
    ),
)
def test_one_holders_run_is_the_training_of_the_recipe(
    name: str, base: Path, sealed: dict[str, Any], tmp_path: Path
) -> None:
    recipe = RECIPES[name]()
    held = rows_of(recipe, base, sealed)
    program = program_for(recipe, base)
    for number, chunk in enumerate(chunks_of(held, program, 6)):
        tokens, loss = program.train(chunk)
        assert tokens * 4 == len(chunk)
        assert loss == loss, "a number"
        if number == 1:  # another accelerator goes on, whatever its process drew before
            state = program.state()
            program.close()
            torch.manual_seed(number)
            program = program_for(recipe, base, state)
            assert (program.state(), program.steps) == (state, 4)
    ours = program.files()
    store = checkpoint_store(tmp_path / "alone")
    theirs = run(recipe, sources_of(recipe, sealed), store, base_dir=base).trained.files
    assert ours == theirs


def plan_of(recipe: Any, held: dict[str, Rows]) -> TravelPlan:
    settings = settings_of(recipe, DEVICE)
    return TravelPlan(
        program=settings,
        holders=tuple(
            HolderPlan(name=name, tokens=rows.size // 4, max_tokens=1 << 30)
            for name, rows in held.items()
        ),
        buffer_bytes=recipe.collaboration.buffer_bytes,
        seal_every=2,
        max_steps=recipe.trainer.max_steps,
    )


def in_one_place(recipe: Any, base: Path, plan: TravelPlan, held: dict[str, Rows]) -> bytes:
    """The state after the rows of all trips, given to one training at once."""
    rotation, half, rows = TripRotation(plan), 0, bytearray()
    while (trip := rotation.next(half)) is not None:
        chunk = memoryview(bytearray(trip.size))
        assert held[trip.holder].read_into(trip.offset, chunk) == trip.size
        rows += chunk
        half = 1 - half
    program = program_for(recipe, base)
    program.train(memoryview(rows))
    state = program.state()
    program.close()
    return state


def world_of(world: TravelWorld, held: dict[str, Rows]) -> None:
    """Let these rows be what the world's holders have."""
    world.holders.clear()
    for name, rows in held.items():
        source: Any = rows
        world.hold(name, source=source)


@pytest.mark.slow
def test_a_run_of_two_owners_has_the_bits_of_their_rows_in_one_place(
    base: Path, sealed: dict[str, Any]
) -> None:
    recipe = travels(
        sft_recipe, peft=LORA, datasets=BOTH, buffer_bytes=4096, trainer={"max_steps": 7}
    )
    held = {owner: rows_of(recipe, base, sealed, owner) for owner in OWNERS}
    plan = plan_of(recipe, held)
    training = Training(recipe=recipe, base_dir=base)
    states: list[bytes] = []
    with travel_world(buffer_bytes=plan.buffer_bytes, training=training) as world:
        world_of(world, held)
        with world.orchestrator(plan, sealed=states.append) as orchestrator:
            model = orchestrator.run()
        came = check_trips(orchestrator.log.entries, terms_of(recipe))
    assert (came.steps, came.trips) == (7, 4)
    assert set(came.tokens) == set(OWNERS)
    assert model == in_one_place(recipe, base, plan, held)
    check_in_the_browsers_code(recipe, orchestrator.log.entries)
    assert states
    # Another orchestrator goes on from a sealed state, on another accelerator.
    program = program_for(recipe, base, states[0])
    assert program.steps < 7
    program.close()


@pytest.mark.slow
@pytest.mark.claim("C280")
def test_the_trainer_of_the_last_session_is_gone_when_another_takes_over(
    base: Path, sealed: dict[str, Any]
) -> None:
    """On the same accelerator, whose process has one trainer at a time."""
    recipe = travels(
        sft_recipe, peft=LORA, datasets=BOTH, buffer_bytes=4096, trainer={"max_steps": 11}
    )
    held = {owner: rows_of(recipe, base, sealed, owner) for owner in OWNERS}
    plan = plan_of(recipe, held).model_copy(update={"seal_every": 1})
    kept: list[tuple[bytes, list[Any]]] = []

    def dies(trip: Any, _loss: float) -> None:
        if trip.number == 3:
            raise KeyboardInterrupt

    before = _trainers()
    training = Training(recipe=recipe, base_dir=base)
    with travel_world(buffer_bytes=plan.buffer_bytes, training=training) as world:
        world_of(world, held)
        first = world.orchestrator(
            plan, on_trip=dies, sealed=lambda state: kept.append((state, first.log.entries))
        )
        with first, pytest.raises(KeyboardInterrupt):
            first.run()
        state, entries = kept[-1]
        log = RunLog.restore(RUN_ID, entries)
        with world.orchestrator(plan, log=log) as second:
            model = second.run(state)
        assert _trainers() - before == 1
        came = check_trips(second.log.entries, terms_of(recipe))
    assert (came.steps, came.takeovers) == (11, 1)
    assert model == in_one_place(recipe, base, plan, held)


def _trainers() -> int:
    return sum(thread.name == "feed" for thread in threading.enumerate())


def check_in_the_browsers_code(recipe: Any, entries: list[dict[str, Any]]) -> None:
    """The second verifier takes the log for this recipe, and for no other one."""
    node = need("node")["node"]
    other = recipe.model_copy(update={"name": "another"})
    asked = [
        {
            "kind": "travelling",
            "entries": entries,
            "recipe": document.to_dict(),
            "parties": [
                {"name": name, "from": "2000-01-01T00:00:00Z", "until": "2100-01-01T00:00:00Z"}
                for name in OWNERS
            ],
        }
        for document in (recipe, other)
    ]
    script = Path(__file__).parents[3] / "support" / "second_rules.mjs"
    done = subprocess.run(
        [node, "--no-warnings", str(script)],
        input="\n".join(map(json.dumps, asked)),
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert [json.loads(line) for line in done.stdout.splitlines()] == [None, "transcript-invalid"]


def test_a_row_comes_back_as_it_was_made() -> None:
    view = memoryview(bytearray(4 * 6))
    row = {"input_ids": [5, 0, 9, 7], "labels": [IGNORED, IGNORED, 9, 7]}
    write_row(row, view)
    assert read_rows(view, 6, 10, rows_a_step=1, whole=False) == [row]


def words(*numbers: int) -> memoryview:
    return memoryview(np.array(numbers, dtype="<u4").tobytes())


LEARNED, NONE = 1 << 31, (1 << 32) - 1


@pytest.mark.parametrize(
    ("chunk", "whole"),
    [
        (words(NONE, NONE, NONE), False),
        (words(LEARNED | 1, NONE, LEARNED | 2), False),
        (words(1, 2, 3), False),
        (words(LEARNED | 1, 2, 3), False),
        (words(LEARNED | 1, LEARNED | 10, 3), False),
        (words(LEARNED | 1, LEARNED | 2, 3), True),
        (words(LEARNED | 1, LEARNED | 2, NONE), True),
    ],
    ids=["none", "gap", "nothing learned", "nothing predicted", "beyond", "not learned", "short"],
)
def test_rows_that_the_recipe_does_not_mean_are_refused(chunk: memoryview, whole: bool) -> None:
    with pytest.raises(DataInvalid):
        read_rows(chunk, 3, 10, rows_a_step=1, whole=whole)


@pytest.mark.slow
def test_a_bad_chunk_changes_nothing_and_the_next_one_trains(
    base: Path, sealed: dict[str, Any]
) -> None:
    recipe = travels(sft_recipe, peft=LORA)
    held = rows_of(recipe, base, sealed)
    program = program_for(recipe, base)
    first, second, _ = chunks_of(held, program, 6)
    before = program.state()
    bad = memoryview(bytearray(os.urandom(len(first))))
    for value in (bad, first[: program.settings.step_bytes - 4]):
        with pytest.raises(DataInvalid):
            program.train(value)
    assert program.state() == before
    program.train(first)
    program.train(second)
    after = program.state()
    program.close()
    other = program_for(recipe, base)
    other.train(first)
    other.train(second)
    assert other.state() == after
    other.close()


@pytest.mark.slow
def test_the_base_is_measured_and_no_part_of_the_state(base: Path, sealed: dict[str, Any]) -> None:
    recipe = travels(sft_recipe, peft=LORA)
    held = rows_of(recipe, base, sealed)
    program = program_for(recipe, base)
    meter, keys = StateMeter(program), [os.urandom(32), os.urandom(32)]
    meter.take(keys[0])
    for chunk in chunks_of(held, program, 4):
        program.train(chunk)
    after = meter.take(keys[1])
    assert after == fingerprint_of_bytes(program.state(), keys[1])
    frozen = dict(program.list_fixed())
    assert frozen
    assert not frozen.keys() & dict(program.tensors()).keys()
    name = next(name for name in frozen if name.startswith("model."))
    with torch.no_grad():
        frozen[name].view(-1)[0] += 1e-3
    with pytest.raises(TripBroken) as changed:
        meter.check_unchanged()
    assert (changed.value.check, changed.value.got) == ("model", name)
    program.close()


@pytest.mark.slow
def test_a_chunk_moves_the_weights_no_further_than_the_recipe_says(
    base: Path, sealed: dict[str, Any]
) -> None:
    recipe = travels(sft_recipe, peft=LORA)
    how = recipe.collaboration.model_copy(update={"max_update_norm": 1e-3})
    recipe = recipe.model_copy(update={"collaboration": how})
    held = rows_of(recipe, base, sealed)
    program = program_for(recipe, base)
    names = [name for name, _ in program.tensors() if name.startswith("model.")]
    before = {name: tensor.clone() for name, tensor in program.tensors()}
    *_, chunk = chunks_of(held, program, 4)
    program.train(chunk)
    after = dict(program.tensors())
    moved = sum(float((after[name] - before[name]).double().square().sum()) for name in names)
    assert program.moved is not None
    assert program.moved > 1e-3
    assert moved**0.5 == pytest.approx(1e-3, rel=1e-3)
    program.close()


@pytest.mark.slow
def test_a_state_of_another_recipe_is_none_of_this_one(base: Path) -> None:
    recipe, other = (travels(sft_recipe, peft=LORA | {"r": r}) for r in (2, 4))
    program = program_for(other, base)
    state = program.state()
    program.close()
    with pytest.raises(ModelInvalid):
        program_for(recipe, base, state)
    with pytest.raises(ModelInvalid):
        TrainerProgram(
            TrainerSettings.from_dict(program_of(other)), Training(recipe=recipe, base_dir=base)
        )
    with pytest.raises(UsageError):
        build_program(settings_of(recipe, "cpu"))


def test_settings_say_which_recipe_is_trained() -> None:
    recipe, other = (travels(sft_recipe, peft=LORA | {"r": r}) for r in (2, 4))
    settings = settings_of(recipe, "cpu")
    assert isinstance(settings, TrainerSettings)
    assert settings.to_dict() == {"device": "cpu"} | program_of(recipe)
    assert parse_settings(settings.to_dict()) == settings
    assert settings != settings_of(other, "cpu")
    assert settings.step_bytes == 4 * 4 * 64


@pytest.mark.parametrize(
    ("section", "changed", "named"),
    [
        ("peft", LORA | {"quantization": {"bnb_4bit_quant_type": "nf4"}}, "peft.quantization"),
        ("trainer", {"fp16": True}, "trainer.fp16"),
        ("trainer", {"packing": True}, "trainer.packing"),
        ("trainer", {"max_length": None}, "trainer.max_length"),
        ("trainer", {"per_device_train_batch_size": 32}, "buffer_bytes"),
        (
            "collaboration",
            {
                "sequence_privacy": {
                    "noise_multiplier": 1.0,
                    "max_sequence_norm": 1.0,
                    "delta": 1e-5,
                }
            },
            "sequence_privacy",
        ),
        ("collaboration", {"program": "loop"}, "program: trainer"),
    ],
)
def test_what_the_trainer_cannot_do_here_is_refused_by_name(
    section: str, changed: dict[str, Any], named: str
) -> None:
    document = copy.deepcopy(travels(sft_recipe).to_dict())
    document[section] = (document[section] or {}) | changed
    with pytest.raises(RecipeInvalid, match=named):
        parse_recipe(document)
