"""Which recipes several nodes train, what a node is told, and when a guest listens for nodes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from carrying import carries
from world import OWNERS, RECIPE, locked_in, simulated_policy

from sealtrain.base.encoding import to_base64
from sealtrain.client.errors import TicketInvalid
from sealtrain.client.ticket import parse_ticket
from sealtrain.errors import SealtrainError, UsageError
from sealtrain.guest.other_guests import expect_listening
from sealtrain.guest.settings import RunSettings, load_run, save_run
from sealtrain.recipe.backends import processes_of
from sealtrain.recipe.collaborations.nodes import MAX_PROCESSES
from sealtrain.recipe.errors import LockInvalid, RecipeInvalid
from sealtrain.recipe.lock import LockedRecipe
from sealtrain.recipe.schema import parse_recipe
from sealtrain_nodes.wire.membership import MAX_WORLD

pytestmark = pytest.mark.claim("C160")

TOGETHER: dict[str, Any] = {"kind": "nodes", "policy": "policy.yaml", "nodes": 4}


def recipe(**changed: Any) -> dict[str, Any]:
    together = TOGETHER | changed.pop("together", {})
    return RECIPE | {"collaboration": together, "backend": {"name": "trl", "ranks": 2}} | changed


def locked(folder: Path, document: dict[str, Any]) -> LockedRecipe:
    (folder / "policy.yaml").write_text(yaml.safe_dump(simulated_policy().to_dict()))
    made = locked_in(folder, document)
    made.write(folder)
    return made


def test_a_recipe_of_nodes_locks_with_its_policy_and_counts_all_ranks(tmp_path: Path) -> None:
    lock = locked(tmp_path, recipe()).lock
    assert lock.appraisal == simulated_policy()
    assert processes_of(lock.recipe) == 8
    how: Any = lock.recipe.collaboration
    assert (how.guests, how.ports(2), how.join_seconds) == (4, 3, 3600)


@pytest.mark.parametrize(
    "backend",
    [{"name": "trl"}, {"name": "fsdp"}, {"name": "deepspeed", "zero_stage": 3}],
    ids=lambda backend: backend["name"],
)
def test_nodes_train_with_every_backend_of_ranks(backend: dict[str, Any]) -> None:
    changed = {} if backend["name"] == "trl" else {"peft": None}
    document = recipe(backend=backend | {"ranks": 1}, **changed)
    assert processes_of(parse_recipe(document)) == 4


SETTINGS: dict[str, dict[str, Any]] = {
    "one node": {"nodes": 1},
    "no node": {"nodes": 0},
    "too many nodes": {"nodes": 257},
    "nodes as text": {"nodes": "4"},
    "nodes that wait for nobody": {"join_seconds": 0},
    "nodes that wait for ever": {"join_seconds": 604_801},
    "no policy": {"policy": None},
    "a policy elsewhere": {"policy": "/etc/policy.yaml"},
    "a further setting": {"wire": "plain"},
    "parties": {"min_parties": 2},
}


@pytest.mark.parametrize("changed", SETTINGS.values(), ids=SETTINGS)
def test_settings_of_another_form_are_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(RecipeInvalid):
        parse_recipe(recipe(together=changed))


FOLDER = {"path": "../models/base"}
MISFITS: dict[str, dict[str, Any]] = {
    "differential privacy": {
        "privacy": {
            "dp": "sgd",
            "target_epsilon": 8.0,
            "delta": 1e-5,
            "budgets": dict.fromkeys(OWNERS, 24.0),
        },
        "release_policy": RECIPE["release_policy"] | {"metrics": ["accuracy"]},
        "backend": {"name": "trl"},
    },
    "unsloth": {"backend": {"name": "unsloth"}, "model": FOLDER},
    "axolotl": {"backend": {"name": "axolotl"}, "model": FOLDER},
    "packing": {"trainer": RECIPE["trainer"] | {"packing": True}, "backend": {"name": "trl"}},
    "evaluation alone": {
        "phase": "evaluate",
        "peft": None,
        "model": {"sealed": "base"},
        "datasets": [
            {"owner": OWNERS[0], "name": "base", "role": "model"},
            {"owner": OWNERS[0], "name": "biopsies-test", "role": "test"},
        ],
        "columns": {"text": "prompt", "label": "completion"},
        "labels": ["benign", "malignant"],
        "release_policy": {
            "metrics": ["accuracy"],
            "round_to": 2,
            "model": {"recipients": [OWNERS[0]]},
        },
        "backend": {"name": "trl"},
    },
    "a model that is handed on": {
        "peft": RECIPE["peft"] | {"merge": True},
        "release_policy": RECIPE["release_policy"]
        | {"model": {"handed_on": {"deployment": "room/app-compose.json", "threshold": 2}}},
    },
}


@pytest.mark.parametrize("changed", MISFITS.values(), ids=MISFITS)
def test_what_one_guest_trains_but_nodes_cannot_is_refused_before_owners_are_asked(
    changed: dict[str, Any],
) -> None:
    alone = recipe(**changed)
    del alone["collaboration"]
    if alone["phase"] == "evaluate":
        for name in ("peft", "trainer", "backend"):
            del alone[name]
    parse_recipe(alone)
    with pytest.raises(RecipeInvalid):
        parse_recipe(alone | {"collaboration": TOGETHER})


def test_a_lock_without_the_policy_of_its_nodes_is_refused(tmp_path: Path) -> None:
    from sealtrain.recipe.lock import parse_lock

    document = json.loads(locked(tmp_path, recipe()).lock_bytes)
    del document["policy"]
    with pytest.raises(LockInvalid):
        parse_lock(json.dumps(document, sort_keys=True, separators=(",", ":")).encode())


# -- the ticket of a node --------------------------------------------------------------------------

TICKET: dict[str, Any] = {
    "version": 1,
    "role": "node",
    "brokers": [
        {
            "version": 2,
            "url": "http://127.0.0.1:1",
            "signing_key": to_base64(bytes(32)),
            "compose_hash": "ab" * 32,
            "appraisal": simulated_policy().to_dict(),
        }
    ],
    "data": ["/data/sealed"],
    "node": 3,
    "peers": {"lead": "10.0.0.7:8471"},
}


def spelled(**changed: Any) -> bytes:
    document = {name: value for name, value in (TICKET | changed).items() if value is not None}
    return json.dumps(document).encode()


def test_a_nodes_ticket_comes_back_as_it_was_written() -> None:
    ticket = parse_ticket(spelled(listen="10.0.0.8:9000", wait_seconds=60))
    assert parse_ticket(ticket.to_bytes()) == ticket
    assert (ticket.node, ticket.peers["lead"]) == (3, "10.0.0.7:8471")


ALTERED: dict[str, dict[str, Any]] = {
    "no number": {"node": None},
    "node 0": {"node": 0},
    "node 256": {"node": 256},
    "a number as text": {"node": "3"},
    "true": {"node": True},
    "no lead": {"peers": None},
    "a lead without a port": {"peers": {"lead": "10.0.0.7"}},
    "no data": {"data": None},
    "no brokers": {"brokers": None},
    "a party": {"party": "hospital-a"},
    "a run": {"run": "5a" * 16},
    "a store": {"store": "https://store.example"},
    "another role's number": {"role": "train"},
    "listening nowhere": {"listen": "somewhere"},
}


@pytest.mark.parametrize("changed", ALTERED.values(), ids=ALTERED)
def test_a_nodes_ticket_altered_in_any_field_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(TicketInvalid):
        parse_ticket(spelled(**changed))


def test_a_node_needs_to_know_its_lead() -> None:
    with pytest.raises((TicketInvalid, UsageError)):
        parse_ticket(spelled(peers={"accelerator": "10.0.0.7:1"})).peer("lead")


# -- where nodes join ------------------------------------------------------------------------------


def settings(folder: Path, listen: str | None) -> RunSettings:
    return RunSettings(
        lock=folder / "recipe.lock.json",
        platform="simulator",
        guest="guest.sock",
        collateral=None,
        brokers=(folder / "north.yaml",),
        data=(folder / "sealed",),
        base=folder,
        out=folder,
        listen=listen,
    )


def test_a_guest_listens_exactly_where_nodes_join_it(tmp_path: Path) -> None:
    for name in ("alone", "nodes"):
        (tmp_path / name).mkdir()
    locked(tmp_path / "alone", RECIPE)
    locked(tmp_path / "nodes", recipe())
    expect_listening(settings(tmp_path / "alone", None))
    expect_listening(settings(tmp_path / "nodes", "10.0.0.7:8471"))
    for name, listen in (("alone", "10.0.0.7:8471"), ("nodes", None)):
        with pytest.raises(UsageError):
            expect_listening(settings(tmp_path / name, listen))


def test_an_interrupted_lead_listens_where_it_listened(tmp_path: Path) -> None:
    for listen in ("10.0.0.7:8471", None):
        given = replace(settings(tmp_path, listen), guest=str(tmp_path / "guest.sock"))
        save_run(given, "5a" * 16)
        assert load_run(tmp_path)[0].listen == listen


def test_an_address_to_join_at_is_a_host_and_a_port(tmp_path: Path) -> None:
    from sealtrain.base.hostport import host_and_port

    for listen in ("", "10.0.0.7", "10.0.0.7:x", "10.0.0.7:70000"):
        with pytest.raises(SealtrainError, check=carries()):
            host_and_port(listen)


@pytest.mark.parametrize(("nodes", "ranks", "fits"), [(256, 16, True), (65, 64, False)])
def test_more_ranks_than_the_wire_connects_are_refused_when_the_recipe_is_read(
    nodes: int, ranks: int, fits: bool
) -> None:
    document = recipe(together={"nodes": nodes}, backend={"name": "trl", "ranks": ranks})
    assert MAX_PROCESSES == MAX_WORLD
    if fits:
        assert processes_of(parse_recipe(document)) == nodes * ranks
        return
    with pytest.raises(RecipeInvalid):
        parse_recipe(document)
