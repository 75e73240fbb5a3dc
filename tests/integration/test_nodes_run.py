"""Several nodes train one model as real processes: together, interrupted, and proven afterwards."""

from __future__ import annotations

import signal
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from collecting import COLLECTING
from polling import wait_until
from stage import OWNERS, RECIPE, stage

from sealtrain.manifest import form

if not COLLECTING:
    import torch
    from language_world import write_base
    from nodes_world import Nodes, recipe_of, weights

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(280)]


@pytest.mark.nightly
def test_two_nodes_end_with_the_weights_of_one_guest_and_a_manifest_of_both(
    tmp_path: Path,
) -> None:
    with stage(tmp_path) as world:
        alone = Nodes(world, "alone", recipe_of(1))
        world.run(*world.train_words(alone.folder, "alone-run"))
        both = Nodes(world, "both", recipe_of(2))
        with both.lead("run") as (lead, place), both.join(1, place) as other:
            done = lead.wait_for_end(within=200)
            assert other.wait_for_end(within=60)["node"] == 1
        assert done["steps"] == 12
        one, two = weights(alone.opened("alone-run")), weights(both.opened("run"))
        assert one.keys() == two.keys()
        assert all(torch.equal(one[name], two[name]) for name in one)
        verdict = world.run("verify", tmp_path / "run" / "manifest.json", "--trust", both.trust())
        assert all(check["outcome"] == "passed" for check in verdict["checks"])
        entries = form.read((tmp_path / "run" / "manifest.json").read_bytes()).predicate.run_log
        joined = [entry for entry in entries.entries if entry["event"] == "nodes.joined"]
        assert [[node["node"] for node in entry["fields"]["nodes"]] for entry in joined] == [[1]]


@pytest.mark.nightly
@pytest.mark.claim("C739", "C743")
def test_two_nodes_train_a_sealed_base_as_one_guest_does(tmp_path: Path) -> None:
    """By epochs, with scaled losses and an optimizer of eight bits: what one guest takes."""
    base = write_base(tmp_path / "saved", RECIPE["model"]["config"])
    changed: dict[str, Any] = {
        "model": {"sealed": "base"},
        "datasets": [
            *RECIPE["datasets"],
            {"owner": OWNERS[0], "name": "base", "role": "model"},
        ],
        # 120 records of three owners, four a step
        "trainer": {
            "max_steps": 0, "num_train_epochs": 0.4, "fp16": True, "optim": "adamw_bnb_8bit"
        },
    }  # fmt: skip
    sources = {f"{OWNERS[0]}.base": base}
    with stage(tmp_path) as world:
        world.anew = True  # the warm process has the packages of another recipe
        alone = Nodes(world, "alone", recipe_of(1, **changed), sources)
        world.run(*world.train_words(alone.folder, "alone-run"))
        both = Nodes(world, "both", recipe_of(2, **changed), sources)
        with both.lead("run") as (lead, place), both.join(1, place) as other:
            assert lead.wait_for_end(within=200)["steps"] == 12
            assert other.wait_for_end(within=60)["node"] == 1
        one, two = weights(alone.opened("alone-run")), weights(both.opened("run"))
        assert one.keys() == two.keys()
        assert all(torch.equal(one[name], two[name]) for name in one)
        manifest = world.folder / "run" / "manifest.json"
        verdict = world.run("verify", manifest, "--trust", both.trust())
        assert all(check["outcome"] == "passed" for check in verdict["checks"])


@pytest.mark.nightly
@pytest.mark.claim("C743")
def test_two_nodes_audit_their_model_as_one_guest_does(tmp_path: Path) -> None:
    """By canaries that both draw alike; one that each drew for itself would stay unknown."""
    figures = ["canary_exposure", "canary_exposure_max", "membership_auc"]
    released = RECIPE["release_policy"] | {"metrics": ["loss", *figures]}
    changed = {"audit": {"canaries": 2, "repetitions": 40}, "release_policy": released}
    with stage(tmp_path) as world:
        both = Nodes(world, "both", recipe_of(2, **changed))
        with both.lead("run") as (lead, place), both.join(1, place) as other:
            assert lead.wait_for_end(within=200)["steps"] == 12
            other.wait_for_end(within=60)
        manifest = world.folder / "run" / "manifest.json"
        verdict = world.run("verify", manifest, "--trust", both.trust())
        assert all(check["outcome"] == "passed" for check in verdict["checks"])
        metrics = form.read(manifest.read_bytes()).predicate.run.metrics
        assert set(figures) <= set(metrics)


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("backend", ["trl", "fsdp"])
def test_two_nodes_of_two_ranks_end_with_the_weights_of_one_guest_of_four_but_for_rounding(
    tmp_path: Path, backend: str
) -> None:
    """Each node adds up its own ranks first (spec/node-wire.md §5); gloo has its own order."""
    shared_out: dict[str, Any] = {
        "backend": {"name": backend},
        "trainer": {"max_grad_norm": 0.0},
    }
    with stage(tmp_path) as world:
        world.anew = True  # the warm process has PyTorch, beside which no ranks are forked
        alone = Nodes(world, "alone", recipe_of(1, ranks=4, **shared_out))
        world.run(*world.train_words(alone.folder, "alone-run"))
        both = Nodes(world, "both", recipe_of(2, ranks=2, **shared_out))
        for out in ("run", "again"):
            with both.lead(out) as (lead, place), both.join(1, place, out=f"{out}-1") as other:
                assert lead.wait_for_end(within=200)["steps"] == 12
                assert other.wait_for_end(within=60)["node"] == 1
        one, two, again = (
            weights(nodes.opened(out))
            for nodes, out in ((alone, "alone-run"), (both, "run"), (both, "again"))
        )
        assert one.keys() == two.keys() == again.keys()
        assert all(torch.equal(two[name], again[name]) for name in two)
        for name in one:
            torch.testing.assert_close(two[name], one[name], rtol=1e-3, atol=1e-5)
        verdict = world.run("verify", tmp_path / "run" / "manifest.json", "--trust", both.trust())
        assert all(check["outcome"] == "passed" for check in verdict["checks"])


@pytest.mark.nightly
@pytest.mark.skipif(
    find_spec("deepspeed") is None,
    reason="DeepSpeed is not installed: pip install 'sealtrain[deepspeed]'",
)
@pytest.mark.parametrize("zero", [1, 2, 3])
def test_two_nodes_of_deepspeed_end_with_the_weights_of_one_guest(
    tmp_path: Path, zero: int
) -> None:
    shared_out: dict[str, Any] = {
        "backend": {"name": "deepspeed", "zero_stage": zero},
        "trainer": {"max_grad_norm": 0.0},  # each backend sums a norm in an order of its own
    }
    with stage(tmp_path) as world:
        world.anew = True  # the warm process has the packages of another recipe
        alone = Nodes(world, "alone", recipe_of(1, **shared_out))
        world.run(*world.train_words(alone.folder, "alone-run"))
        both = Nodes(world, "both", recipe_of(2, **shared_out))
        with both.lead("run") as (lead, place), both.join(1, place) as other:
            assert lead.wait_for_end(within=200)["steps"] == 12
            assert other.wait_for_end(within=60)["node"] == 1
        one, two = weights(alone.opened("alone-run")), weights(both.opened("run"))
        assert one.keys() == two.keys()
        assert all(torch.equal(one[name], two[name]) for name in one)
        verdict = world.run("verify", tmp_path / "run" / "manifest.json", "--trust", both.trust())
        assert all(check["outcome"] == "passed" for check in verdict["checks"])


@pytest.mark.claim("C164")
def test_a_killed_node_is_replaced_and_the_run_ends_as_if_nothing_had_happened(
    tmp_path: Path,
) -> None:
    with stage(tmp_path) as world:
        both = Nodes(world, "both", recipe_of(2, steps=40))
        with both.lead("whole") as (lead, place), both.join(1, place, out="w1") as other:
            lead.wait_for_end(within=200)
            other.wait_for_end(within=60)
        with both.lead("run", wait_seconds=180) as (lead, place):
            with both.join(1, place, out="n1") as other:
                wait_until(lambda: any((tmp_path / "run" / "checkpoints").glob("*")) or other.gone)
                assert other.kill() == -signal.SIGKILL
            wait_until(lambda: "node-lost" in "\n".join(lead.read_stderr()))
            wait_until(lambda: both.place(lead) != place)
            with both.join(1, both.place(lead), out="n2") as other:
                assert lead.wait_for_end(within=200)["steps"] == 40
                other.wait_for_end(within=60)
        one, two = weights(both.opened("whole")), weights(both.opened("run"))
        assert all(torch.equal(one[name], two[name]) for name in one)
        verdict = world.run("verify", tmp_path / "run" / "manifest.json", "--trust", both.trust())
        assert all(check["outcome"] == "passed" for check in verdict["checks"])
        entries = form.read((tmp_path / "run" / "manifest.json").read_bytes()).predicate.run_log
        joined = [entry for entry in entries.entries if entry["event"] == "nodes.joined"]
        assert len({entry["fields"]["session"] for entry in joined}) == 2
