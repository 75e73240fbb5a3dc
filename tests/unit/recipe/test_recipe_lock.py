from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sealtrain.base.canonical import canonical_json
from sealtrain.base.digests import sha256_hex
from sealtrain.errors import AlreadyExists, UsageError
from sealtrain.recipe.errors import LockInvalid, ModelInvalid
from sealtrain.recipe.lock import Installation, LockedRecipe, load_lock, parse_lock

pytestmark = pytest.mark.claim("C7")

Document = dict[str, Any]
LockOf = Callable[..., LockedRecipe]


def test_locking_twice_gives_the_same_bytes(sft: Document, lock_of: LockOf) -> None:
    first, second = lock_of(sft), lock_of(sft)
    assert first.lock_bytes == second.lock_bytes
    assert first.compose_bytes == second.compose_bytes
    assert first.recipe_hash == sha256_hex(first.lock_bytes) == first.lock.recipe_hash
    assert first.compose_hash == sha256_hex(first.compose_bytes)
    assert first.app_id == first.compose_hash[:40]


def test_a_default_written_out_is_the_same_recipe(sft: Document, lock_of: LockOf) -> None:
    short = lock_of(sft)
    sft["trainer"] |= {"seed": 42, "weight_decay": 0, "learning_rate": 3e-3}
    sft = dict(reversed(sft.items()))
    assert lock_of(sft).lock_bytes == short.lock_bytes


def test_a_lock_names_no_place_and_no_time(
    sft: Document, lock_of: LockOf, tmp_path: Path, model_folder: Path
) -> None:
    sft["model"] = {"path": "base"}
    text = lock_of(sft).lock_bytes.decode()
    assert str(tmp_path) not in text
    assert set(json.loads(text)) == {
        *("version", "consortium_id", "brokers", "recipe", "code", "environment"),
        *("scripts", "model", "tokenizer", "models"),
    }


def test_model_and_tokenizer_are_pinned_by_digest(
    sft: Document, tabular: Document, lock_of: LockOf, model_folder: Path
) -> None:
    made = lock_of(sft).lock
    assert (made.model.kind, made.tokenizer.kind, made.tokenizer.sha256) == (
        "config", "bytes", None,
    )  # fmt: skip
    assert lock_of(tabular).lock.tokenizer.kind == "none"
    sft["model"] = {"path": "base"}
    loaded = lock_of(sft).lock
    assert (loaded.model.kind, loaded.tokenizer.kind) == ("folder", "folder")
    (model_folder / "config.json").write_text('{"model_type": "llama", "x": 1}')
    assert lock_of(sft).lock.model != loaded.model
    (model_folder / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(ModelInvalid, match=r"pytorch_model\.bin"):
        lock_of(sft)


def test_other_code_packages_or_owners_give_another_lock(
    sft: Document, lock_of: LockOf, installation: Installation
) -> None:
    base = lock_of(sft).recipe_hash
    code = (installation.code[0].model_copy(update={"sha256": "12" * 32}),)
    packages = dict(installation.environment.packages)
    del packages["trl"]
    environment = installation.environment.model_copy(update={"packages": packages})
    changed = [
        lock_of(sft, installation=dataclasses.replace(installation, code=code)),
        lock_of(sft, installation=dataclasses.replace(installation, environment=environment)),
        lock_of(sft, consortium_id="c1" * 32),
        lock_of(sft, brokers=["b0" * 32]),
    ]
    assert len({base, *(lock.recipe_hash for lock in changed)}) == 5
    assert lock_of(sft, brokers=["b1" * 32, "b0" * 32]).recipe_hash == base


@pytest.mark.parametrize(
    "brokers", [[], ["b0" * 32] * 2, [f"{number:064x}" for number in range(17)]]
)
def test_a_lock_names_one_broker_or_a_few(
    sft: Document, lock_of: LockOf, brokers: list[str]
) -> None:
    with pytest.raises(UsageError):
        lock_of(sft, brokers=brokers)


def test_files_are_written_once_and_read_back(
    sft: Document, lock_of: LockOf, tmp_path: Path
) -> None:
    locked = lock_of(sft)
    locked.write(tmp_path)
    locked.write(tmp_path)
    assert load_lock(tmp_path / "recipe.lock.json") == locked.lock
    assert (tmp_path / "app-compose.json").read_bytes() == locked.compose_bytes
    other = lock_of(sft | {"name": "other"})
    with pytest.raises(AlreadyExists):
        other.write(tmp_path)
    assert load_lock(tmp_path / "recipe.lock.json") == locked.lock
    other.write(tmp_path, overwrite=True)
    assert load_lock(tmp_path / "recipe.lock.json") == other.lock


def test_the_kms_contract_names_the_app(on_dstack: Document, lock_of: LockOf) -> None:
    on_dstack["hardware"]["app_id"] = "ab" * 20
    assert lock_of(on_dstack).app_id == "ab" * 20


def _without(path: str) -> Callable[[Document], None]:
    def change(lock: Document) -> None:
        *parents, last = path.split(".")
        for part in parents:
            lock = lock[part]
        del lock[last]

    return change


def _with(path: str, value: Any) -> Callable[[Document], None]:
    def change(lock: Document) -> None:
        *parents, last = path.split(".")
        for part in parents:
            lock = lock[part]
        lock[last] = value

    return change


PINNED = {
    "model": {"kind": "folder", "sha256": "00" * 32},
    "tokenizer": {"kind": "folder", "sha256": "00" * 32},
}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (_with("time", "now"), "time"),
        (_without("scripts"), "scripts"),
        (_with("version", 1), "version"),
        (_with("version", 3), "version"),
        (_without("brokers"), "brokers"),
        (_with("brokers", []), "brokers"),
        (_with("brokers", ["b1" * 32, "b0" * 32]), "brokers"),
        (_with("brokers", ["b0" * 32, "b0" * 32]), "brokers"),
        (_with("brokers", ["b0"]), "brokers"),
        (_with("brokers", [f"{number:064x}" for number in range(17)]), "brokers"),
        (_with("consortium_id", "x"), "consortium_id"),
        (_without("recipe.trainer.seed"), r"^lock\b"),
        (_with("recipe.trainer.max_steps", 0), "max_steps"),
        (_with("recipe.phase", "grow"), "phase"),
        (_with("recipe", None), "lock: recipe"),
        (_with("model.sha256", "00" * 32), "model"),
        (_with("model.kind", "folder"), "model"),
        (_with("recipe.model.init_seed", 8), "model"),
        (_with("tokenizer.kind", "none"), "tokenizer"),
        (_with("tokenizer.sha256", "00" * 32), "tokenizer"),
        (_without("models"), "models"),
        (_with("models", {"reward": PINNED}), "models"),
        (_with("environment.python", "2.7"), "python"),
        (_with("environment.packages.Torch", {}), "packages"),
        (_with("scripts", {"/etc/x.py": "pass"}), "scripts"),
    ],
)
def test_an_edited_lock_is_refused(
    sft: Document, lock_of: LockOf, change: Callable[[Document], None], problem: str
) -> None:
    document = json.loads(lock_of(sft).lock_bytes)
    assert parse_lock(canonical_json(document))
    change(document)
    with pytest.raises(LockInvalid, match=problem):
        parse_lock(canonical_json(document))


def test_a_lock_has_one_spelling(sft: Document, lock_of: LockOf) -> None:
    data = lock_of(sft).lock_bytes
    for other in (
        data + b"\n",
        b" " + data,
        json.dumps(json.loads(data)).encode(),
        data[:-1],
        b"[]",
        b"",
        b'{"version":2,' + data[1:],
    ):
        with pytest.raises(LockInvalid):
            parse_lock(other)


@pytest.mark.claim("C651")
def test_a_locked_recipe_carries_the_target_of_its_own_bytes(
    sft: Document, lock_of: LockOf
) -> None:
    locked = lock_of(sft)
    assert locked.target.to_dict() == {
        "app_id": locked.app_id,
        "compose_hash": sha256_hex(locked.compose_bytes),
        "recipe_hash": sha256_hex(locked.lock_bytes),
    }
    assert LockedRecipe.parse(locked.compose_bytes) == locked


@pytest.mark.claim("C651")
@pytest.mark.parametrize("name", ["target", "lock_bytes", "lock", "compose_bytes"])
def test_nothing_of_a_locked_recipe_is_swapped_after_the_check(
    sft: Document, lock_of: LockOf, name: str
) -> None:
    mine, other = lock_of(sft), lock_of(sft | {"name": "other"})
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(mine, name, getattr(other, name))
    # A target or a lock's bytes are given by no caller; a lock goes with no other's document.
    with pytest.raises((TypeError, ValueError, LockInvalid)):
        dataclasses.replace(mine, **{name: getattr(other, name)})
    fields = {"lock": mine.lock, "compose_bytes": mine.compose_bytes}
    with pytest.raises((TypeError, LockInvalid)):
        LockedRecipe(**fields | {name: getattr(other, name)})
