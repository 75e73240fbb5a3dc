"""How parties train together: settings of each kind, what is refused, the policy in the lock."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from policies import intel

from sealtrain.attest.policy import policy_from_dict
from sealtrain.base.canonical import canonical_json, parse_json
from sealtrain.errors import TrustInvalid
from sealtrain.recipe.collaboration import holders_of, is_shared_out
from sealtrain.recipe.collaborations.travelling import Travelling
from sealtrain.recipe.diff import diff
from sealtrain.recipe.errors import LockInvalid, ModelInvalid, RecipeInvalid
from sealtrain.recipe.lock import LockedRecipe, parse_lock
from sealtrain.recipe.schema import parse_recipe

Locks = Callable[..., LockedRecipe]
Document = dict[str, Any]

FEDERATED: Document = {
    "kind": "federated",
    "policy": "policy.yaml",
    "rounds": 3,
    "local_steps": 10,
    "min_parties": 2,
    "aggregation": "exact",
}
FLOWER: Document = {"aggregation": "flower"}
TRAVELLING: Document = {"kind": "travelling", "policy": "policy.yaml", "buffer_bytes": 4096}
PADS: Document = {"kind": "pads", "pads": "own"}
PRODUCTS: Document = {"products": {"pads": "dealer", "skip": ["lm_head"]}}
DORA: Document = {"method": "lora", "target_modules": ["q_proj"], "use_dora": True}
PREFIX: Document = {"method": "prefix_tuning", "num_virtual_tokens": 4}
CUT: Document = {"kind": "cut", "policy": "policy.yaml", "layers": 1}


@pytest.fixture
def cpt(sft: Document) -> Document:
    return sft | {
        "phase": "cpt",
        "model": {
            "config": {
                "model_type": "gpt2",
                "n_layer": 1,
                "n_head": 2,
                "n_embd": 16,
                "vocab_size": 64,
            },
            "init_seed": 1,
        },
        "datasets": [
            dataset | {"weight": 1} for dataset in sft["datasets"] if dataset["role"] == "train"
        ],
        "columns": {"tokens": "ids"},
        "trainer": {"max_steps": 9, "block_size": 16, "lr_scheduler_type": "constant"},
        "peft": None,
    }


@pytest.fixture
def of_kind(sft: Document, cpt: Document) -> dict[str, Document]:
    """A recipe of each kind that is accepted."""
    return {
        "federated": sft | {"collaboration": FEDERATED},
        "pads": sft | {"collaboration": PADS},
        "cut": sft | {"collaboration": CUT},
        "travelling": cpt | {"collaboration": TRAVELLING},
    }


@pytest.fixture
def policy_file(tmp_path: Path) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_text(yaml.safe_dump(intel()), "utf-8")
    return path


def test_a_recipe_without_collaboration_locks_to_the_bytes_it_always_had(
    sft: Document, lock_of: Locks
) -> None:
    without = lock_of(sft)
    assert b"collaboration" not in without.lock_bytes
    assert "policy" not in parse_json(without.lock_bytes)
    assert lock_of(sft | {"collaboration": None}).lock_bytes == without.lock_bytes
    assert without.lock.appraisal is None


@pytest.mark.parametrize("kind", ["federated", "pads", "cut", "travelling"])
def test_each_kind_locks_with_its_defaults_written_out(
    kind: str, of_kind: dict[str, Document], lock_of: Locks, policy_file: Path
) -> None:
    locked = lock_of(of_kind[kind])
    document = parse_json(locked.lock_bytes)
    assert parse_lock(locked.lock_bytes) == locked.lock
    assert is_shared_out(locked.lock.recipe) == (kind != "pads")
    expected = {
        "federated": {"round_seconds": 600, "trim": None, "max_update_norm": None},
        "pads": {"checks": 2, "skip": [], "policy": None},
        "cut": {"spf_share": 0.0, "wire": "bfloat16"},
        "travelling": {"max_tokens": None, "seal_every": 8},
    }[kind]
    assert document["recipe"]["collaboration"].items() >= expected.items()


def test_the_lock_holds_the_policy_whole(
    of_kind: dict[str, Document], lock_of: Locks, policy_file: Path
) -> None:
    locked = lock_of(of_kind["federated"])
    assert locked.lock.appraisal == policy_from_dict(intel())
    assert parse_json(locked.lock_bytes)["policy"] == policy_from_dict(intel()).to_dict()
    policy_file.write_text(yaml.safe_dump(intel(advisories="any")), "utf-8")
    other = lock_of(of_kind["federated"])
    assert other.recipe_hash != locked.recipe_hash
    (change,) = diff(locked.lock, other.lock)
    assert (change.path, change.area, change.severity) == (
        "policy.cpu.advisories",
        "collaboration",
        "critical",
    )


def test_a_policy_that_is_absent_or_none_is_refused_at_locking(
    of_kind: dict[str, Document], lock_of: Locks, tmp_path: Path
) -> None:
    with pytest.raises(ModelInvalid, match=r"policy\.yaml"):
        lock_of(of_kind["cut"])
    (tmp_path / "policy.yaml").write_text("version: 2\n", "utf-8")
    with pytest.raises(TrustInvalid):
        lock_of(of_kind["cut"])


def test_a_lock_whose_policy_does_not_fit_its_recipe_is_refused(
    sft: Document, of_kind: dict[str, Document], lock_of: Locks, policy_file: Path
) -> None:
    good = parse_json(lock_of(of_kind["cut"]).lock_bytes)

    def refused(document: Document) -> LockInvalid:
        with pytest.raises(LockInvalid) as caught:
            parse_lock(canonical_json(document))
        return caught.value

    assert refused({k: v for k, v in good.items() if k != "policy"}).check == "policy"
    assert refused(parse_json(lock_of(sft).lock_bytes) | {"policy": intel()}).check == "policy"
    weaker = copy.deepcopy(good)
    del weaker["policy"]["cpu"]["debug"]
    assert "appraisal policy" in str(refused(weaker))
    assert refused(good | {"policy": None}).check == "lock"


def test_tokens_are_limited_by_owner_or_for_all(cpt: Document) -> None:
    def limit(value: object) -> Travelling:
        found = parse_recipe(cpt | {"collaboration": TRAVELLING | {"max_tokens": value}})
        assert isinstance(found.collaboration, Travelling)
        return found.collaboration

    assert limit(None).limit_of("hospital-a") is None
    assert limit(500).limit_of("hospital-b") == 500
    some = limit({"hospital-a": 7})
    assert (some.limit_of("hospital-a"), some.limit_of("hospital-b")) == (7, None)


def test_holders_are_the_owners_of_training_data(sft: Document) -> None:
    sft["datasets"].append({"owner": "tester", "name": "x", "role": "test"})
    assert holders_of(parse_recipe(sft)) == ("hospital-a", "hospital-b")


DP = {"dp": "sgd", "target_epsilon": 8, "delta": 1e-5}


@pytest.mark.parametrize(
    ("kind", "changed", "named"),
    [
        ("federated", {"phase": "dpo"}, "classify"),
        ("federated", {"peft": None}, "prefix_tuning"),
        ("federated", {"peft": {"method": "ia3", "target_modules": ["q"]}}, "prefix_tuning"),
        ("federated", {"trainer": {"max_steps": 29}}, r"collaboration\.rounds"),
        ("federated", {"privacy": DP}, "dp: sgd"),
        ("federated", {"scripts": ["mine.py"]}, "script"),
        ("federated", {"backend": {"name": "trl", "ranks": 2}}, "backend"),
        ("federated", {"validation": {}}, "validation"),
        ("pads", {"backend": {"name": "fsdp"}}, "backend"),
        ("pads", {"peft": None}, "peft.method lora"),
        ("pads", {"peft": DORA}, "use_dora"),
        ("pads", {"peft": {"method": "ia3", "target_modules": ["q"]}}, "prefix_tuning"),
        (
            "federated",
            {"peft": DORA, "collaboration": FEDERATED | PRODUCTS},
            r"collaboration\.products",
        ),
        ("cut", {"peft": None}, "peft.method lora"),
        ("travelling", {"peft": {"method": "lora", "target_modules": ["c_attn"]}}, "peft: null"),
        ("travelling", {"columns": {"text": "t"}}, "tokens"),
    ],
)
def test_what_a_kind_cannot_do_is_refused(
    kind: str, changed: Document, named: str, of_kind: dict[str, Document]
) -> None:
    recipe = of_kind[kind] | changed
    if changed.get("phase") == "dpo":
        recipe |= {"columns": {"prompt": "p", "chosen": "c", "rejected": "r"}}
    if "columns" in changed:
        recipe["model"] = recipe["model"] | {"tokenizer": {"kind": "bytes"}}
    with pytest.raises(RecipeInvalid, match=named):
        parse_recipe(recipe)


@pytest.mark.parametrize(
    ("kind", "changed", "named"),
    [
        ("federated", {"min_parties": 3}, r"collaboration\.min_parties"),
        ("federated", {"min_parties": 1}, "min_parties"),
        ("federated", {"trim": 1}, "trimmed-mean"),
        ("federated", {"aggregation": "trimmed-mean"}, "trimmed-mean"),
        ("federated", {"aggregation": "trimmed-mean", "trim": 1}, "min_parties"),
        ("federated", {"aggregation": "mean"}, "aggregation"),
        ("federated", {"policy": "/etc/policy.yaml"}, r"federated\.policy"),
        ("federated", {"rouns": 1}, "rouns"),
        ("federated", {"aggregation": "flower"}, "strategy"),
        ("federated", {"strategy": {"name": "FedAvg"}}, "strategy"),
        ("federated", FLOWER | {"strategy": {"name": "FedSGD"}}, "FedSGD"),
        ("federated", FLOWER | {"strategy": {"name": "FedAdam", "etaa": 1}}, "etaa"),
        ("federated", FLOWER | {"strategy": {"name": "FedAvg", "eta": 0.1}}, "eta"),
        ("federated", FLOWER | {"strategy": {"name": "FedAdam", "beta_1": 1.0}}, "beta_1"),
        (
            "federated",
            FLOWER | {"strategy": {"name": "FedAvg", "fraction_evaluate": 0.5}},
            "fraction_evaluate",
        ),
        (
            "federated",
            FLOWER | {"strategy": {"name": "FedAvg", "min_available_nodes": 3}},
            "min_available_nodes",
        ),
        (
            "federated",
            FLOWER | {"strategy": {"name": "FedAvg", "fraction_train": 0.5, "min_train_nodes": 1}},
            "min_train_nodes",
        ),
        ("federated", FLOWER | {"strategy": {"name": "Krum"}}, "num_malicious_nodes"),
        ("federated", {"products": {"checks": 2}}, "pads"),
        ("federated", {"products": {"pads": "own", "checks": 3}}, "checks"),
        ("federated", {"products": {"pads": "own", "skip": ["a", "a"]}}, "twice"),
        ("federated", {"products": {"pads": "own", "policy": "policy.yaml"}}, "policy"),
        ("federated", {"masks": {"threshold": 2}}, "masks"),
        ("federated", {"kind": "gossip"}, "collaboration"),
        ("travelling", {"max_tokens": {"stranger": 1}}, "stranger"),
        ("travelling", {"max_tokens": 0}, "max_tokens"),
        ("pads", {"pads": "dealer"}, "pads: dealer"),
        ("pads", {"policy": "policy.yaml"}, "pads: dealer"),
        ("pads", {"checks": 3}, "checks"),
        ("cut", {"spf_share": 1.5}, "spf_share"),
    ],
)
def test_settings_out_of_range_or_without_each_other_are_refused(
    kind: str, changed: Document, named: str, of_kind: dict[str, Document]
) -> None:
    recipe = of_kind[kind]
    recipe["collaboration"] = recipe["collaboration"] | changed
    with pytest.raises(RecipeInvalid, match=named):
        parse_recipe(recipe)


def test_products_of_parties_are_in_the_lock_where_the_recipe_has_them(
    of_kind: dict[str, Document], lock_of: Locks, policy_file: Path
) -> None:
    plain = lock_of(of_kind["federated"])
    assert "products" not in parse_json(plain.lock_bytes)["recipe"]["collaboration"]
    assert lock_of(with_products(of_kind, {"products": None})).lock_bytes == plain.lock_bytes
    locked = lock_of(with_products(of_kind, PRODUCTS))
    written = parse_json(locked.lock_bytes)["recipe"]["collaboration"]["products"]
    assert written == {"pads": "dealer", "checks": 2, "skip": ["lm_head"]}
    assert parse_lock(locked.lock_bytes) == locked.lock
    how = locked.lock.recipe.collaboration
    assert how is not None
    assert how.helpers == ("accelerator", "dealer")
    changes = diff(plain.lock, locked.lock)
    assert {(change.area, change.severity) for change in changes} == {("collaboration", "critical")}


def with_products(of_kind: dict[str, Document], products: Document) -> Document:
    federated = of_kind["federated"]
    return federated | {"collaboration": federated["collaboration"] | products}


def test_a_prefix_trains_under_pads(sft: Document) -> None:
    mean = FEDERATED | {"aggregation": "fedavg"} | PRODUCTS
    for how in (PADS, mean):
        assert parse_recipe(sft | {"collaboration": how, "peft": PREFIX}).collaboration is not None


def test_ffa_and_exact_merge_lora_alone(sft: Document) -> None:
    with pytest.raises(RecipeInvalid, match=r"collaboration\.aggregation exact"):
        parse_recipe(sft | {"collaboration": FEDERATED, "peft": PREFIX})
    mean = FEDERATED | {"aggregation": "fedavg"}
    assert parse_recipe(sft | {"collaboration": mean, "peft": PREFIX}).collaboration is not None
