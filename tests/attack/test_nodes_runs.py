"""Runs of two nodes as real processes, where an owner, an operator or the machine interferes."""

from __future__ import annotations

import signal
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml
from carrying import carries
from collecting import COLLECTING
from polling import wait_until
from ports import free_port
from relays import altering, carried
from stage import OWNERS, Stage, stage

from sealtrain.cli.programs import SideProgram
from sealtrain.client.errors import BrokerUnreachable
from sealtrain.consortium.errors import ApprovalRevoked
from sealtrain.errors import NodeLost, SealtrainError
from sealtrain.manifest import form

if not COLLECTING:
    import torch
    from nodes_world import Nodes, recipe_of, weights

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(280)]


def revoke(world: Stage, nodes: Nodes) -> None:
    for owner in OWNERS[:2]:
        world.run(
            "revoke", "--deployment", nodes.folder / "app-compose.json",
            "--identity", world.identity(owner), "--broker", world.broker, "--yes",
        )  # fmt: skip


def sealed(out: Path) -> set[str]:
    return {path.name for path in (out / "checkpoints").glob("*")}


@pytest.mark.claim("C162")
def test_owners_who_revoke_stop_every_node_with_a_sealed_checkpoint(tmp_path: Path) -> None:
    with stage(tmp_path) as world:
        both = Nodes(world, "both", recipe_of(2, steps=4000))
        with both.lead("run") as (lead, place), both.join(1, place) as other:
            wait_until(lambda: sealed(tmp_path / "run") or lead.gone or other.gone)
            revoke(world, both)
            for part in (lead, other):
                with pytest.raises(ApprovalRevoked):
                    part.wait_for_end(within=100)
        assert sealed(tmp_path / "run")
        # Nothing of it goes on, and nobody gets the keys for it again.
        answer = world.try_run(*both.lead_words("run"))
        assert (answer.code, answer.error) == (3, "approval-revoked")


@pytest.mark.nightly
@pytest.mark.claim("C235")
@pytest.mark.timeout(400)
def test_a_node_whose_lease_lapses_unheard_ends_the_run_at_its_last_checkpoint(
    tmp_path: Path,
) -> None:
    """Its operator cuts one node off from the broker; the lead's own lease stays live."""
    with stage(tmp_path, lease_seconds=60) as world, ExitStack() as wire:
        # No checkpoint is due: the one that is sealed is that of the stop.
        recipe = recipe_of(2, steps=100_000, trainer={"save_steps": 100_000})
        both = Nodes(world, "both", recipe)
        pin = yaml.safe_load(world.broker.read_text())
        host, _, port = pin["url"].rpartition("/")[2].partition(":")
        between, seen = wire.enter_context(carried((host, int(port)), altering(), altering()))
        other_pin = tmp_path / "between.yaml"
        other_pin.write_text(
            yaml.safe_dump(pin | {"url": f"http://{between[0]}:{between[1]}"}, sort_keys=False)
        )
        with both.lead("run") as (lead, place), both.join(1, place, broker=other_pin) as other:
            wait_until(lambda: "step " in "\n".join(lead.read_stderr()) or lead.gone or other.gone)
            assert seen.there
            assert not sealed(tmp_path / "run")
            wire.close()
            with pytest.raises(NodeLost, check=carries(got="broker-unreachable")):
                lead.wait_for_end(within=200)
            with pytest.raises(BrokerUnreachable):
                other.wait_for_end(within=60)
        assert sealed(tmp_path / "run")
        assert not (tmp_path / "run" / "manifest.json").exists()


def met_anew(both: Nodes, lead: SideProgram, place: str) -> str:
    """The place at which the lead waits for its nodes again."""
    return str(wait_until(lambda: (found := both.place(lead)) != place and found))


@pytest.mark.nightly
@pytest.mark.claim("C164")
def test_nodes_stop_stall_and_die_and_the_model_is_that_of_one_guest(tmp_path: Path) -> None:
    with stage(tmp_path) as world:
        alone = Nodes(world, "alone", recipe_of(1, steps=80))
        world.run(*world.train_words(alone.folder, "alone-run"))
        both = Nodes(world, "both", recipe_of(2, steps=80))
        out = tmp_path / "run"
        with both.lead("run", wait_seconds=240) as (lead, place):
            with both.join(1, place, out="n1") as other:
                wait_until(lambda: sealed(out) or other.gone)
                other.send(signal.SIGSTOP)
                time.sleep(2)
                other.send(signal.SIGCONT)
                before = sealed(out)
                assert other.end(signal.SIGTERM) == 143
            place = met_anew(both, lead, place)
            assert max(sealed(out)) >= max(before)  # two are kept, and some were sealed meanwhile
            with both.join(1, place, out="n2") as other:
                wait_until(lambda: sealed(out) - before or other.gone)
                assert (lead.kill(), other.kill()) == (-signal.SIGKILL, -signal.SIGKILL)
        with both.lead("run") as (lead, place), both.join(1, place, out="n3") as other:
            assert lead.wait_for_end(within=200)["steps"] == 80
            other.wait_for_end(within=60)
        one, two = weights(alone.opened("alone-run")), weights(both.opened("run"))
        assert all(torch.equal(one[name], two[name]) for name in one)
        verdict = world.run("verify", out / "manifest.json", "--trust", both.trust())
        assert all(check["outcome"] == "passed" for check in verdict["checks"])
        log = form.read((out / "manifest.json").read_bytes()).predicate.run_log.entries
        met = [entry["fields"]["session"] for entry in log if entry["event"] == "nodes.joined"]
        assert len(set(met)) == len(met) >= 2


@pytest.mark.nightly
@pytest.mark.claim("C164")
def test_two_of_three_nodes_that_die_at_one_moment_are_replaced(tmp_path: Path) -> None:
    with stage(tmp_path) as world, ExitStack() as stack:
        three = Nodes(world, "three", recipe_of(3, steps=40))

        def joined(name: str, place: str) -> list[SideProgram]:
            return [
                stack.enter_context(three.join(node, place, out=f"{name}{node}")) for node in (1, 2)
            ]

        with three.lead("whole") as (lead, place):
            others = joined("w", place)
            lead.wait_for_end(within=200)
            for other in others:
                other.wait_for_end(within=60)
        out = tmp_path / "run"
        with three.lead("run", wait_seconds=240) as (lead, place):
            others = joined("n", place)
            wait_until(lambda: sealed(out) or any(other.gone for other in others))
            for other in others:
                other.send(signal.SIGKILL)
            for other in others:
                assert other.kill() == -signal.SIGKILL
            again = joined("m", met_anew(three, lead, place))
            assert lead.wait_for_end(within=200)["steps"] == 40
            for other in again:
                other.wait_for_end(within=60)
        one, two = weights(three.opened("whole")), weights(three.opened("run"))
        assert all(torch.equal(one[name], two[name]) for name in one)
        verdict = world.run("verify", out / "manifest.json", "--trust", three.trust())
        assert all(check["outcome"] == "passed" for check in verdict["checks"])


@pytest.mark.nightly
@pytest.mark.claim("C164", "C271")
@pytest.mark.timeout(500)
@pytest.mark.parametrize("backend", ["trl", "fsdp"])
def test_nodes_of_two_ranks_go_on_from_the_checkpoint_that_they_pass_on(
    tmp_path: Path, backend: str
) -> None:
    """The first rank of a node fetches it, and both train on from it; the lead is killed, too."""
    with stage(tmp_path) as world:
        world.anew = True  # the warm process has PyTorch, and ranks are forked before it
        recipe = recipe_of(2, steps=24, ranks=2, backend={"name": backend})
        both = Nodes(world, "both", recipe)
        with both.lead("whole") as (lead, place), both.join(1, place, out="w1") as other:
            lead.wait_for_end(within=200)
            other.wait_for_end(within=60)
        out = tmp_path / "run"
        with both.lead("run") as (lead, place), both.join(1, place, out="n1") as other:
            wait_until(lambda: sealed(out) or lead.gone or other.gone)
            assert (lead.kill(), other.kill()) == (-signal.SIGKILL, -signal.SIGKILL)
        with both.lead("run") as (lead, place), both.join(1, place, out="n2") as other:
            assert lead.wait_for_end(within=200)["steps"] == 24
            other.wait_for_end(within=60)
        assert list((tmp_path / "n2" / "checkpoints").iterdir()) == []
        one, two = weights(both.opened("whole")), weights(both.opened("run"))
        assert all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.nightly
@pytest.mark.claim("C762", "C164")
@pytest.mark.timeout(900)
def test_a_killed_node_of_two_ranks_is_replaced_by_nodes_of_one(tmp_path: Path) -> None:
    """Its whole process dies with both ranks; the lead lives on, and both follow its ticket."""
    with stage(tmp_path) as world, ExitStack() as stack:
        world.anew = True  # the warm process has PyTorch, and ranks are forked before it
        recipe = recipe_of(
            2,
            steps=24,
            ranks=2,
            trainer={"max_grad_norm": 0.0},
            backend={"name": "fsdp", "resume_ranks": [1]},
        )
        recipe["trainer"] |= {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 3}
        recipe["collaboration"] |= {"resume_nodes": [3]}
        nodes = Nodes(world, "nodes", recipe)
        nodes.boot(nodes.socket(2))
        with nodes.lead("whole") as (lead, place), nodes.join(1, place, out="w1") as other:
            lead.wait_for_end(within=300)
            other.wait_for_end(within=60)
        out = tmp_path / "run"
        lead, place = stack.enter_context(nodes.lead("run", wait_seconds=300, ranks=1, nodes=3))
        with nodes.join(1, place, out="n1") as other:
            # Shards lie there before it does; it counts once it names them.
            begun = out / "checkpoints"
            wait_until(
                lambda: any(begun.glob("checkpoint-*")) or lead.gone or other.gone, seconds=300
            )
            assert other.kill() == -signal.SIGKILL
        wait_until(lambda: "node-lost" in "\n".join(lead.read_stderr()))
        whole = {path.name for path in out.glob("checkpoints/checkpoint-*")}
        assert whole  # and each opens, or the run would not go on
        assert not list(out.glob("checkpoints/**/*.tmp*"))
        place = met_anew(nodes, lead, place)
        others = [stack.enter_context(nodes.join(node, place, out=f"m{node}")) for node in (1, 2)]
        assert lead.wait_for_end(within=300)["steps"] == 24
        for node in others:
            node.wait_for_end(within=60)
        one, two = weights(nodes.opened("whole")), weights(nodes.opened("run"))
        assert one.keys() == two.keys()
        for name in one:
            torch.testing.assert_close(two[name], one[name], rtol=1e-3, atol=1e-5)
        verdict = world.run("verify", out / "manifest.json", "--trust", nodes.trust())
        assert all(check["outcome"] == "passed" for check in verdict["checks"])
        predicate = form.read((out / "manifest.json").read_bytes()).predicate
        joined = [
            (entry["fields"]["ranks"], len(entry["fields"]["nodes"]))
            for entry in predicate.run_log.entries
            if entry["event"] == "nodes.joined"
        ]
        assert joined == [(2, 1), (1, 2)]
        assert predicate.run.environment["world_size"] == "3"


@pytest.mark.nightly
@pytest.mark.claim("C164", "C271")
@pytest.mark.timeout(500)
def test_a_node_outlives_its_lead_twice_and_knows_that_the_run_has_got_further(
    tmp_path: Path,
) -> None:
    """It waits anew from each checkpoint on, which it keeps until the run is done."""
    with stage(tmp_path) as world, ExitStack() as stack:
        both = Nodes(world, "both", recipe_of(2, steps=400, trainer={"save_steps": 20}))
        out, kept = tmp_path / "run", tmp_path / "n1" / "checkpoints"

        def newest() -> str:
            return max((path.name for path in out.glob("checkpoints/checkpoint-*")), default="")

        port = free_port()
        lead, place = stack.enter_context(both.lead("run", listen=f"127.0.0.1:{port}"))
        other = stack.enter_context(both.join(1, place, wait_seconds=240, out="n1"))
        begun_from: list[set[str]] = []
        for _ in range(2):
            before = newest()
            wait_until(lambda: newest() > before or lead.gone or other.gone)  # noqa: B023
            before = newest()  # the journal of the one before lies beside it by now
            wait_until(lambda: newest() > before or lead.gone or other.gone)  # noqa: B023
            lost = "\n".join(other.read_stderr()).count("[node-lost]")
            assert lead.kill() == -signal.SIGKILL
            wait_until(lambda: "\n".join(other.read_stderr()).count("[node-lost]") > lost)  # noqa: B023
            begun_from.append({path.name for path in kept.iterdir()})
            words = both.lead_words("run", listen=f"127.0.0.1:{port}")
            lead = stack.enter_context(world.part(*words))
        assert lead.wait_for_end(within=250)["steps"] == 400
        other.wait_for_end(within=60)
        assert [len(names) for names in begun_from] == [0, 1]
        assert list(kept.iterdir()) == []


@pytest.mark.nightly
@pytest.mark.claim("C164")
def test_a_lead_that_is_stopped_seals_a_checkpoint_and_ends_its_nodes(tmp_path: Path) -> None:
    with stage(tmp_path) as world:
        both = Nodes(world, "both", recipe_of(2, steps=4000))
        out = tmp_path / "run"
        with both.lead("run") as (lead, place), both.join(1, place) as other:
            wait_until(lambda: sealed(out) or lead.gone or other.gone)
            assert lead.end(signal.SIGTERM) == 143
            with pytest.raises(SealtrainError) as caught:
                other.wait_for_end(within=60)
        assert caught.value.code in ("node-lost", "run-stopped")
        assert sealed(out)


@pytest.mark.nightly
@pytest.mark.claim("C270")
def test_owners_who_revoke_while_nodes_are_awaited_end_the_wait(tmp_path: Path) -> None:
    with stage(tmp_path, lease_seconds=60) as world:
        three = Nodes(world, "three", recipe_of(3, steps=4000))
        with three.lead("run") as (lead, place), three.join(1, place) as other:
            wait_until(lambda: "waiting for the other nodes" in "\n".join(other.read_stderr()))
            revoke(world, three)
            for part in (lead, other):
                with pytest.raises(ApprovalRevoked):
                    part.wait_for_end(within=60)
        assert not sealed(tmp_path / "run")


@pytest.mark.nightly
@pytest.mark.claim("C270", "C271")
@pytest.mark.timeout(500)
def test_a_node_that_is_withheld_for_longer_than_a_lease_costs_nothing(tmp_path: Path) -> None:
    """Twice: as the run begins and as it goes on. Node 1 renews behind an address of its own."""
    with stage(tmp_path, lease_seconds=60) as world, ExitStack() as stack:
        three = Nodes(world, "three", recipe_of(3, steps=400))
        out = tmp_path / "run"

        def joined(node: int, place: str, name: str) -> SideProgram:
            listen = f"127.0.0.{node + 6}:0"
            return stack.enter_context(
                three.join(node, place, listen=listen, wait_seconds=240, out=name)
            )

        lead, place = stack.enter_context(three.lead("run", wait_seconds=240))
        one = joined(1, place, "n1")
        time.sleep(75)
        two = joined(2, place, "n2")
        wait_until(lambda: sealed(out) or lead.gone or one.gone or two.gone)
        assert two.kill() == -signal.SIGKILL
        place = met_anew(three, lead, place)
        assert one.kill() == -signal.SIGKILL
        assert list((tmp_path / "n2" / "checkpoints").iterdir()) == []
        one = joined(1, place, "n1")
        time.sleep(75)
        two = joined(2, place, "n2")
        assert lead.wait_for_end(within=200)["steps"] == 400
        for node in (one, two):
            node.wait_for_end(within=60)
        assert [list((tmp_path / name / "checkpoints").iterdir()) for name in ("n1", "n2")] == [
            [],
            [],
        ]
        verdict = world.run("verify", out / "manifest.json", "--trust", three.trust())
        assert all(check["outcome"] == "passed" for check in verdict["checks"])
        log = form.read((out / "manifest.json").read_bytes()).predicate.run_log.entries
        events = [entry["event"] for entry in log]
        counted = {"nodes.joined": 2, "run.resumed": 1, "run.restarted": 0}
        assert {name: events.count(name) for name in counted} == counted
