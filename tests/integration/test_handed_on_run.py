"""A model that no person opens: one recipe trains it, a second goes on, a third measures it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from relays import altering, carried
from stage import CANARY, RECIPE, Stage, records, stage
from variants import NIGHT

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.claim("C140")]

OWNERS = ("clinic-a", "clinic-b", "clinic-c")


def trained_by(name: str, to: str, *datasets: dict[str, Any], **changed: Any) -> dict[str, Any]:
    """A recipe that trains and hands its model on to the recipe in the folder ``to``."""
    return RECIPE | {
        "phase": "classify",
        "name": name,
        "datasets": list(datasets),
        "columns": {"text": "prompt", "label": "completion"},
        "labels": [" a", " b"],
        "peft": {"method": "lora", "r": 2, "target_modules": ["q_proj"], "merge": True},
        "release_policy": {
            "metrics": ["loss"],
            "round_to": 4,
            "model": {"handed_on": {"deployment": f"../{to}/app-compose.json"}},
        },
        "trainer": {"max_steps": 3, "max_length": 48, "seed": 3, "save_steps": 1},
        **changed,
    }


def notes(owner: str, role: str = "train") -> dict[str, Any]:
    return {"owner": owner, "name": "notes", "role": role}


def model(name: str) -> dict[str, Any]:
    return {"owner": "clinic-c", "name": name, "role": "model"}


TRAINING = trained_by(
    "risk",
    "further",
    notes("clinic-a"),
    notes("clinic-b"),
    trainer={"max_steps": 30 if NIGHT else 3, "max_length": 48, "seed": 3, "save_steps": 2},
)
FURTHER = trained_by(
    "further", "room", notes("clinic-b"), notes("clinic-c"), model("risk"), model={"sealed": "risk"}
)
MEASURING: dict[str, Any] = {
    name: value for name, value in TRAINING.items() if name not in ("peft", "trainer")
} | {
    "phase": "evaluate",
    "name": "clean-room",
    "model": {"sealed": "further"},
    "datasets": [model("further"), notes("clinic-b", "test")],
    "trainer": {"max_length": 48},
    "release_policy": {
        "metrics": ["accuracy", "majority"],
        "round_to": 4,
        "model": {"recipients": ["clinic-b"]},
    },
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("handed-on")) as made:
        yield made


def locked(world: Stage, name: str, recipe: dict[str, Any]) -> Path:
    """A recipe whose model is not there yet."""
    folder = world.folder / name
    (folder / "sealed").mkdir(parents=True)
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    world.run("lock", folder / "recipe.yaml", "--broker", world.broker, "--out", folder)
    return folder


@pytest.fixture(scope="module")
def room(world: Stage) -> Path:
    """The last recipe, which is locked first."""
    return locked(world, "room", MEASURING)


@pytest.fixture(scope="module")
def further(world: Stage, room: Path) -> Path:
    return locked(world, "further", FURTHER)


@pytest.fixture(scope="module")
def trained(world: Stage, further: Path) -> Path:
    """The folder of the first run, which is killed and resumed at night."""
    folder = world.propose("training", TRAINING)
    world.approve(folder, "clinic-a", "clinic-b")
    out = world.folder / "trained"
    if not NIGHT:
        world.run(*world.train_words(folder, "trained"))
        return out
    world.train_and_kill(
        folder, "trained", lambda: any((out / "checkpoints").glob("checkpoint-*.sealed"))
    )
    assert not (out / "model").exists()
    world.run("resume", out)
    return out


def trust(world: Stage, folder: Path) -> Path:
    out = world.folder / f"{folder.name}-trust.yaml"
    if not out.exists():
        world.run(
            "trust", "new", "--consortium", "consortium.json",
            "--deployment", folder / "app-compose.json", "--policy", "policy.yaml",
            "--broker", world.broker, "--out", out,
        )  # fmt: skip
    return out


def adopt_words(
    world: Stage, before: str, after: Path, run: Path, owner: str, out: Path
) -> list[str | Path]:
    return [
        "adopt", run, "--identity", world.identity(owner),
        "--deployment", after / "app-compose.json", "--broker", world.broker,
        "--trust", trust(world, world.folder / before), "--out", out,
    ]  # fmt: skip


def sealed_notes(world: Stage, folder: Path, owner: str) -> None:
    source = world.inputs / f"{owner}.{folder.name}.jsonl"
    source.write_text(records(owner))
    world.run(
        "seal", source, "--name", "notes", "--identity", world.identity(owner),
        "--deployment", folder / "app-compose.json", "--broker", world.broker,
        "--out", folder / "sealed" / f"{owner}.notes.sealed",
    )  # fmt: skip


@pytest.fixture(scope="module")
def adopted(world: Stage, further: Path, trained: Path) -> Path:
    """The model of the first run, as the second recipe's data."""
    out = further / "sealed" / "clinic-c.risk.sealed"
    answer = world.run(*adopt_words(world, "training", further, trained, "clinic-c", out))
    assert len(answer["registered"]) == 1
    again = world.run(*adopt_words(world, "training", further, trained, "clinic-c", out))
    assert again == answer
    return out


@pytest.fixture(scope="module")
def continued(world: Stage, further: Path, adopted: Path) -> Path:
    """The folder of the second run."""
    for owner in ("clinic-b", "clinic-c"):
        sealed_notes(world, further, owner)
    world.boot(further)
    world.approve(further, "clinic-b", "clinic-c")
    world.run(*world.train_words(further, "continued"))
    return world.folder / "continued"


@pytest.fixture(scope="module")
def measured(world: Stage, room: Path, continued: Path) -> Any:
    out = room / "sealed" / "clinic-c.further.sealed"
    world.run(*adopt_words(world, "further", room, continued, "clinic-c", out))
    sealed_notes(world, room, "clinic-b")
    world.boot(room)
    world.approve(room, "clinic-b", "clinic-c")
    return world.run(*world.train_words(room, "measured"))


def test_the_first_run_verifies_and_names_the_recipe_that_comes_after(
    world: Stage, trained: Path
) -> None:
    words = (trained / "manifest.json", "--trust", trust(world, world.folder / "training"))
    report = world.run("verify", *words)
    assert {check["outcome"] for check in report["checks"]} == {"passed"}
    html = world.folder / "handed-on.html"
    world.run("report", *words, "--out", html)
    locked = world.run("recipe", "show", world.folder / "training" / "recipe.lock.json")
    pinned = {
        change["path"]: change
        for change in locked["changes"]
        if change["path"].startswith("handed_on")
    }
    assert pinned["handed_on.owner"]["after"] == "clinic-c"
    assert {finding["severity"] for finding in pinned.values()} == {"critical"}
    assert pinned["handed_on.compose_hash"]["after"] in html.read_text()


def test_the_others_use_it_and_their_manifests_name_its_roots(
    world: Stage, room: Path, further: Path, adopted: Path, continued: Path, measured: Any
) -> None:
    assert set(measured["metrics"]) == {"accuracy", "majority"}
    for run, recipe, model in (
        ("continued", further, adopted),
        ("measured", room, room / "sealed" / "clinic-c.further.sealed"),
    ):
        words = (world.folder / run / "manifest.json", "--trust", trust(world, recipe))
        report = world.run("verify", *words)
        assert {check["outcome"] for check in report["checks"]} == {"passed"}
        html = world.folder / f"{run}.html"
        world.run("report", *words, "--out", html)
        assert world.run("inspect", model)["claimed"]["root"] in html.read_text()


@pytest.mark.parametrize("owner", OWNERS)
def test_no_owner_opens_it(
    world: Stage, trained: Path, continued: Path, adopted: Path, owner: str, tmp_path: Path
) -> None:
    me = ("--identity", world.identity(owner), "--out", tmp_path / "open")
    for run in (trained, continued):
        answer = world.try_run("open", run, *me)
        assert (answer.code, answer.error) == (3, "no-stanza")
    assert (answer.code, answer.error) == (3, "no-stanza")
    answer = world.try_run("open", trained, *me, "--no-manifest")
    assert (answer.code, answer.error) == (3, "wrong-context")
    answer = world.try_run("open", adopted, *me)
    assert answer.code == 3
    assert answer.error == ("no-stanza" if owner == "clinic-c" else "signature-invalid")
    assert not (tmp_path / "open").exists()


def test_its_only_stanzas_are_the_brokers(world: Stage, adopted: Path) -> None:
    stanzas = world.run("inspect", adopted)["stanzas"]
    assert [stanza["kind"] for stanza in stanzas] == ["recipe"]


def test_its_owner_cannot_rewrap_it_for_another_recipe(
    world: Stage, trained: Path, adopted: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "risk.sealed"
    shutil.copytree(adopted, copy)
    answer = world.try_run(
        "rewrap", copy, "--identity", world.identity("clinic-c"),
        "--deployment", world.folder / "training" / "app-compose.json", "--broker", world.broker,
    )  # fmt: skip
    assert (answer.code, answer.error) == (3, "no-stanza")


def test_another_owner_cannot_adopt_it(
    world: Stage, further: Path, trained: Path, tmp_path: Path
) -> None:
    out = tmp_path / "mine"
    answer = world.try_run(*adopt_words(world, "training", further, trained, "clinic-a", out))
    assert (answer.code, answer.error) == (3, "dataset-mismatch")
    assert not out.exists()


def test_a_model_of_persons_is_not_adopted_nor_one_for_another_recipe(
    world: Stage, room: Path, trained: Path, measured: Any, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    words = adopt_words(world, "room", room, world.folder / "measured", "clinic-c", out)
    answer = world.try_run(*words)
    assert (answer.code, answer.error) == (2, "usage")
    answer = world.try_run(*adopt_words(world, "training", room, trained, "clinic-c", out))
    assert (answer.code, answer.error) == (3, "dataset-mismatch")
    assert not out.exists()


def test_a_key_that_the_broker_did_not_sign_ends_a_run_before_it_asks_for_keys(
    world: Stage, trained: Path, tmp_path: Path
) -> None:
    """Found at the end, it would cost the training and the privacy that was reserved for it."""

    def forged(data: bytes) -> bytes:
        if b"sealing-key+json" not in data:
            return data
        return re.sub(rb'("sig":")(.)', lambda at: at[1] + (b"B" if at[2] == b"A" else b"A"), data)

    pin = yaml.safe_load(world.broker.read_bytes())
    there = urlsplit(pin["url"])
    address = (there.hostname or "", there.port or 0)
    with carried(address, altering(), altering(forged)) as (relayed, relay):
        broker = tmp_path / "broker.yaml"
        url = f"{there.scheme}://{relayed[0]}:{relayed[1]}"
        broker.write_text(yaml.safe_dump(pin | {"url": url}))
        words = world.train_words(world.folder / "training", "forged")
        words[words.index("--broker") + 1] = broker
        answer = world.try_run(*words)
        asked = b"".join(map(bytes, relay.there))
    assert (answer.code, answer.error) == (3, "signature-invalid")
    assert b"/v1/keys/signed" in asked
    assert b"/v1/releases" not in asked
    assert not (world.folder / "forged").exists()


@pytest.mark.claim("C141")
def test_a_model_that_the_operator_swapped_is_not_adopted(
    world: Stage, further: Path, trained: Path, tmp_path: Path
) -> None:
    swapped = tmp_path / "run"
    shutil.copytree(trained, swapped)
    shard = swapped / "model" / "shard-00000.sealed"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    out = tmp_path / "out"
    answer = world.try_run(*adopt_words(world, "training", further, swapped, "clinic-c", out))
    assert (answer.code, answer.error) == (3, "subject-mismatch")
    assert not out.exists()


@pytest.mark.claim("C141")
def test_a_copy_that_the_operator_swapped_gets_no_key_and_opens_nowhere(
    world: Stage, room: Path, measured: Any, tmp_path: Path
) -> None:
    data = tmp_path / "sealed"
    shutil.copytree(room / "sealed", data)
    shard = data / "clinic-c.further.sealed" / "shard-00001.sealed"
    changed = bytearray(shard.read_bytes())
    changed[len(changed) // 2] ^= 1
    shard.write_bytes(changed)
    words = world.train_words(room, "swapped")[1:]
    words[words.index("--data") + 1] = data
    assert world.try_run("train", *words).code == 3
    assert not (world.folder / "swapped" / "manifest.json").exists()


@pytest.mark.claim("C142")
def test_a_withdrawn_model_is_released_to_no_further_run(
    world: Stage, room: Path, measured: Any
) -> None:
    model = room / "sealed" / "clinic-c.further.sealed"
    world.run(
        "withdraw", model, "--identity", world.identity("clinic-c"),
        "--broker", world.broker, "--yes",
    )  # fmt: skip
    answer = world.try_run(*world.train_words(room, "later"))
    assert (answer.code, answer.error) == (3, "dataset-withdrawn")


def test_nothing_of_it_lies_in_the_clear(world: Stage, measured: Any) -> None:
    held = [path for path in world.folder.rglob("*") if path.is_file()]
    assert any(path.name == "shard-00000.sealed" for path in held)
    for path in held:
        if path.parent != world.inputs:
            data = path.read_bytes()
            assert CANARY.encode() not in data, path
            assert b'"format":"pt"' not in data, path  # header of a safetensors file
