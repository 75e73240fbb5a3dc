"""A run has its products made elsewhere as its recipe says, and notes what was made."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from carrying import carries
from channel_world import acceptance, guest
from collecting import COLLECTING

from sealtrain.errors import ModelInvalid
from sealtrain_collab.pads.check import read_pad_use
from sealtrain_collab.pads.guest.stand_ins import PadStandIns
from sealtrain_collab.pads.recipe import Pads

if not COLLECTING:
    from pads_world import accelerating, dealing, tiny_model, trained

    from sealtrain_collab.pads.protect import protected_layers, quantise

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
STEPS = 2


class Run:
    """As much of a run as is asked for."""

    def __init__(self, how: Pads, folder: Path, accelerator: Any, dealer: Any = None) -> None:
        trainer = SimpleNamespace(max_length=12, per_device_train_batch_size=2)
        self.recipe = SimpleNamespace(collaboration=how, trainer=trainer)
        self.settings = SimpleNamespace(
            accelerator=address(accelerator), dealer=address(dealer), out=folder
        )
        self.run_id = "ab" * 16
        accepts = acceptance()
        self.collect, self.policy = guest().collect, accepts.policy
        self.compose_hash, self.now = accepts.compose_hash, accepts.clock
        self.entries: list[dict[str, Any]] = [{"seq": 1, "event": "run.started", "fields": {}}]

    def record(self, event: str, fields: dict[str, Any]) -> None:
        self.entries.append({"seq": len(self.entries) + 1, "event": event, "fields": fields})

    def checkpointed(self, ref: Any) -> None:
        self.record("checkpoint.sealed", {})


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
            standins.checkpointed(SimpleNamespace())  # type: ignore[arg-type]
            standins.take_out(model)
    assert protected_layers(model) == []
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
        assert [one["event"] for one in run.entries] == ["run.started"]
