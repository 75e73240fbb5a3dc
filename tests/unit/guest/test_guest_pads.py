"""A run has its products made elsewhere as its recipe says, and notes what was made."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from carrying import carries
from channel_world import acceptance, guest
from collecting import COLLECTING

from sealtrain.base.canonical import canonical_json, parse_json
from sealtrain.guest.workload.channel import Misused
from sealtrain.guest.workload.messages import (
    ConnectHelper,
    ProductsBegun,
    ProductsMade,
    WorkloadQuestion,
    parse_question,
)
from sealtrain.manifest.checks.collaborations.padfacts import layer_counts
from sealtrain.manifest.checks.collaborations.pads import read_pad_use
from sealtrain.recipe.collaborations.pads import Pads
from sealtrain.recipe.errors import ModelInvalid
from sealtrain_together.errors import DealerUnreachable
from sealtrain_together.pads.guest.keeper import KeptPads
from sealtrain_together.pads.guest.workload import PadStandIns

if not COLLECTING:
    from pads_world import accelerating, dealing, tiny_model, trained

    from sealtrain_together.pads.protect import list_protected, quantise

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
STEPS = 2


class Run:
    """As much of a run as its keeper and its workload ask for, in one process."""

    def __init__(self, how: Pads, folder: Path, accelerator: Any, dealer: Any = None) -> None:
        trainer = SimpleNamespace(max_length=12, per_device_train_batch_size=2)
        self.recipe = SimpleNamespace(collaboration=how, trainer=trainer)
        self.settings = SimpleNamespace(accelerator=address(accelerator), dealer=address(dealer))
        self.run_id, self.memory = "ab" * 16, folder
        self.lease = SimpleNamespace(require=lambda: None)
        accepts = acceptance()
        self.collect, self.policy = guest().collect, accepts.policy
        self.compose_hash, self.now = accepts.compose_hash, accepts.clock
        self.entries: list[dict[str, Any]] = [{"seq": 1, "event": "run.started", "fields": {}}]
        self.keeping: Any = KeptPads(self, seconds=10.0)  # type: ignore[arg-type]
        self.control, self.store = SimpleNamespace(ask=self.asked), SimpleNamespace()

    def asked(self, question: WorkloadQuestion) -> tuple[dict[str, Any], int | None]:
        """As a channel carries it, both ways."""
        reply = self.keeping.answer(parse_question("control", question.to_bytes()))
        return parse_json(canonical_json(reply.fields)), reply.descriptor

    def ask(self, question: WorkloadQuestion) -> dict[str, Any]:
        return self.asked(question)[0]

    def record(self, event: str, fields: dict[str, Any]) -> None:
        self.entries.append({"seq": len(self.entries) + 1, "event": event, "fields": fields})


def address(place: Any) -> str | None:
    return None if place is None else "{}:{}".format(*place)


@pytest.mark.parametrize("pads", ["own", "pool", "dealer"])
def test_pads_are_made_as_the_recipe_says_and_the_log_holds_together(
    pads: Any, tmp_path: Path
) -> None:
    policy = "policy.yaml" if pads == "dealer" else None
    how = Pads(kind="pads", pads=pads, checks=1, skip=("lm_head",), policy=policy)
    unmasked = tiny_model()
    quantise(unmasked, skip=["lm_head"])
    model = tiny_model()
    with accelerating() as accelerator, dealing() as dealer:
        run = Run(how, tmp_path, accelerator, dealer if pads == "dealer" else None)
        with PadStandIns(run) as standins:  # type: ignore[arg-type]  # as much as is asked for
            standins.put_in(model)
            assert trained(model, STEPS)[0] == trained(unmasked, STEPS)[0]
            assert (tmp_path / "pads.pool").exists() == (pads == "pool")
            run.store.before_seal()
            run.keeping.log()
            run.record("checkpoint.sealed", {})
            standins.take_out(model)
            run.keeping.log()
    assert list_protected(model) == []
    assert list(tmp_path.iterdir()) == []
    run.record("training.finished", {})
    found = read_pad_use(run.entries, how)
    names = ("down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj")
    assert found.layers == dict.fromkeys(names, 2)
    assert found.products >= STEPS * 4 * 2
    begun = run.entries[1]["fields"]
    assert begun["dealer"] == ({"simulated": True} if pads == "dealer" else None)


def test_a_layer_to_skip_that_is_not_there_is_refused_before_anything_is_sent(
    tmp_path: Path,
) -> None:
    how = Pads(kind="pads", pads="own", skip=("head",))
    with accelerating() as accelerator:
        run = Run(how, tmp_path, accelerator)
        with (
            PadStandIns(run) as standins,  # type: ignore[arg-type]
            pytest.raises(ModelInvalid, check=carries(check="skip", got="head")),
        ):
            standins.put_in(tiny_model())
        assert [entry["event"] for entry in run.entries] == ["run.started"]


@pytest.fixture
def begun(tmp_path: Path) -> Iterator[Run]:
    """A run whose workload has its one connection and began."""
    with accelerating() as accelerator:
        run = Run(Pads(kind="pads", pads="own"), tmp_path, accelerator)
        _, descriptor = run.asked(ConnectHelper(name="accelerator"))
        assert descriptor is not None
        os.close(descriptor)
        run.ask(ProductsBegun(layers={"q_proj": 2}, products=2))
        run.ask(made(4))
        yield run


def made(products: int, **others: int) -> ProductsMade:
    counts = {"rows": 8, "bytes_out": 16, "bytes_in": 16} | others
    return ProductsMade(products=products, **counts)


@pytest.mark.claim("C611")
@pytest.mark.parametrize(
    "question",
    [
        ConnectHelper(name="accelerator"),  # a second time
        ConnectHelper(name="dealer"),  # which the recipe has not
        ProductsBegun(layers={"q_proj": 2}, products=2),  # a second time
        made(3),
        made(4, rows=7),
        made(4, bytes_in=15),
    ],
)
def test_what_a_workload_may_not_ask_or_say_again_ends_the_run(
    begun: Run, question: WorkloadQuestion
) -> None:
    before = list(begun.entries)
    with pytest.raises(Misused):
        begun.ask(question)
    assert begun.entries == before
    begun.ask(made(4))


@pytest.mark.claim("C612")
def test_a_log_has_one_entry_for_each_checkpoint_however_much_is_told(begun: Run) -> None:
    for products in range(5, 50):
        begun.ask(made(products))
    assert [entry["event"] for entry in begun.entries] == ["run.started", "pads.begun"]
    for _ in range(2):  # a checkpoint, and the end without a product since
        begun.keeping.log()
    (spent,) = begun.entries[2:]
    assert (spent["event"], spent["fields"]["products"]) == ("pads.spent", 49)


@pytest.mark.claim("C612")
@pytest.mark.parametrize(
    ("layers", "products"),
    [({"Mrs Example, 078-05-1120": 1}, 1), ({"q_proj": 1, "patient": 1}, 1), ({"q_proj": 2}, 3)],
)
def test_layers_have_names_of_a_closed_list(
    layers: dict[str, int], products: int, tmp_path: Path
) -> None:
    with accelerating() as accelerator:
        run = Run(Pads(kind="pads", pads="own"), tmp_path, accelerator)
        with pytest.raises(Misused):  # before there is a machine
            run.ask(ProductsBegun(layers={"q_proj": 1}, products=1))
        _, descriptor = run.asked(ConnectHelper(name="accelerator"))
        assert descriptor is not None
        os.close(descriptor)
        with pytest.raises(Misused):
            run.ask(ProductsBegun(layers=layers, products=products))
        with pytest.raises(Misused):
            run.ask(made(1))
        with pytest.raises(Misused):
            run.keeping.require_told()
    assert [entry["event"] for entry in run.entries] == ["run.started"]


@pytest.mark.claim("C612")
def test_a_layer_of_another_name_counts_as_other() -> None:
    layers = ["layers.0.attn.q_proj.base_layer", "layers.0.attn.k_proj"]
    assert layer_counts([layers, ["model.mrs"]]) == {"k_proj": 1, "other": 1, "q_proj": 1}


@pytest.mark.claim("C611")
def test_a_dealer_that_does_not_prove_itself_is_not_passed_on(tmp_path: Path) -> None:
    how = Pads(kind="pads", pads="dealer", policy="policy.yaml")
    with accelerating() as accelerator:  # which is no dealer
        run = Run(how, tmp_path, accelerator, accelerator)
        assert run.keeping.waits == frozenset()
        with pytest.raises(DealerUnreachable):
            run.asked(ConnectHelper(name="dealer"))
        with pytest.raises(Misused):
            run.asked(ConnectHelper(name="dealer"))
