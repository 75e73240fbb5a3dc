"""The backend of a recipe: one spelling of each meaning, and no name that nothing stands behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from carrying import carries

from sealtrain.base.canonical import canonical_json, parse_json
from sealtrain.recipe.backends import DEFAULT, UNDIVIDED, Division, divide_among
from sealtrain.recipe.diff import diff
from sealtrain.recipe.errors import LockInvalid, RecipeInvalid
from sealtrain.recipe.lock import LockedRecipe, parse_lock
from sealtrain.recipe.schema import parse_recipe

Locks = Callable[..., LockedRecipe]


def test_a_recipe_without_backend_locks_to_the_bytes_it_always_had(
    sft: dict[str, Any], lock_of: Locks
) -> None:
    without = lock_of(sft)
    assert without.lock.recipe.backend == DEFAULT
    assert b"backend" not in without.lock_bytes
    assert lock_of(sft | {"backend": {"name": "trl"}}).lock_bytes == without.lock_bytes
    assert lock_of(sft | {"backend": {"name": "trl", "ranks": 1}}).lock_bytes == without.lock_bytes


def test_a_lock_that_writes_the_default_out_is_not_normalised(
    sft: dict[str, Any], lock_of: Locks
) -> None:
    document = parse_json(lock_of(sft).lock_bytes)
    document["recipe"]["backend"] = {"name": "trl", "ranks": 1}
    with pytest.raises(LockInvalid, check=carries(check="lock")):
        parse_lock(canonical_json(document))


@pytest.mark.parametrize(
    ("backend", "why"),
    [
        ("trl", "backend"),
        (None, "backend"),
        ({}, "name"),
        ({"name": "torch"}, "torch"),
        ({"name": "accelerate"}, "accelerate"),
        ({"name": "trl", "ranks": 0}, "ranks"),
        ({"name": "trl", "ranks": 65}, "ranks"),
        ({"name": "trl", "ranks": "2"}, "ranks"),
        ({"name": "trl", "zero_stage": 1}, "zero_stage"),
        ({"name": "trl", "rank": 1}, "rank"),
        ({"name": "fsdp", "reshard": False}, "reshard"),
        ({"name": "deepspeed"}, "zero_stage"),
        ({"name": "deepspeed", "zero_stage": 4}, "zero_stage"),
        ({"name": "deepspeed", "zero_stage": 1, "offload": "nvme"}, "offload"),
    ],
)
def test_what_no_backend_knows_is_refused(sft: dict[str, Any], backend: Any, why: str) -> None:
    with pytest.raises(RecipeInvalid, match=why):
        parse_recipe(sft | {"backend": backend})


def test_a_backend_is_in_lock_and_difference(sft: dict[str, Any], lock_of: Locks) -> None:
    before = lock_of(sft).lock
    after = lock_of(sft | {"backend": {"name": "fsdp", "ranks": 4}}).lock
    assert after.to_dict()["recipe"]["backend"] == {
        "name": "fsdp",
        "ranks": 4,
        "reshard_after_forward": True,
    }
    found = {change.path: (change.kind, change.area) for change in diff(before, after)}
    assert found == {
        f"recipe.backend.{name}": ("added", "trainer")
        for name in ("name", "ranks", "reshard_after_forward")
    }


def test_a_strategy_of_sharding_is_in_the_lock_where_it_is_not_the_usual_one(
    sft: dict[str, Any], lock_of: Locks
) -> None:
    def locked(**settings: str) -> Any:
        return lock_of(sft | {"backend": {"name": "fsdp", "ranks": 4, **settings}}).lock

    usual, full = locked(), locked(sharding_strategy="FULL_SHARD")
    assert locked(sharding_strategy="HYBRID_SHARD").to_dict() == usual.to_dict()
    assert full.to_dict()["recipe"]["backend"]["sharding_strategy"] == "FULL_SHARD"
    assert full.recipe_hash != usual.recipe_hash
    with pytest.raises(RecipeInvalid):
        locked(sharding_strategy="SHARD_GRAD_OP")


@pytest.mark.parametrize(
    "backend",
    [{"name": "fsdp"}, {"name": "trl", "ranks": 2}, {"name": "deepspeed", "zero_stage": 2}],
    ids=lambda backend: backend["name"],
)
@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"trainer": {"max_steps": 2, "packing": True}}, "packing"),
        ({"trainer": {"max_steps": 2, "padding_free": True, "max_length": None}}, "padding_free"),
        (
            {
                "privacy": {"dp": "sgd", "target_epsilon": 8.0, "delta": 1e-4},
                "release_policy": {
                    "metrics": ["accuracy"],
                    "round_to": 4,
                    "model": {"recipients": ["hospital-a"]},
                },
            },
            "sgd",
        ),
    ],
)
def test_what_a_backend_cannot_train_is_refused(
    sft: dict[str, Any], backend: Any, changed: dict[str, Any], why: str
) -> None:
    parse_recipe(sft | {"backend": backend})
    parse_recipe(sft | changed)
    with pytest.raises(RecipeInvalid, match=why):
        parse_recipe(sft | {"backend": backend} | changed)


SHARED_OUT = [{"name": "fsdp"}, {"name": "deepspeed", "zero_stage": 2}]


def test_a_script_has_ranks_but_no_backend_that_shares_a_model_out(sft: dict[str, Any]) -> None:
    scripts = {"scripts": ["train.py"]}
    several = parse_recipe(sft | scripts | {"backend": {"name": "trl", "ranks": 2}})
    assert several.backend is not None
    for backend in SHARED_OUT:
        with pytest.raises(RecipeInvalid, match="script"):
            parse_recipe(sft | scripts | {"backend": backend})


@pytest.mark.parametrize("backend", [{"name": "trl", "ranks": 2}, *SHARED_OUT])
def test_a_phase_that_trains_by_a_trainer_has_every_backend(
    tabular: dict[str, Any], backend: Any
) -> None:
    assert parse_recipe(tabular | {"backend": backend}).backend.name == backend["name"]


@pytest.mark.parametrize("backend", SHARED_OUT, ids=lambda backend: backend["name"])
def test_a_policy_that_answers_and_an_evaluation_are_not_shared_out(
    sft: dict[str, Any], tabular: dict[str, Any], backend: Any
) -> None:
    rlhf = sft | {
        "phase": "rlhf",
        "columns": {"prompt": "prompt"},
        "trainer": {"max_steps": 2, "algorithm": "ppo"},
        "reward": {"model": {"path": "scorer", "tokenizer": {"kind": "bytes"}}},
    }
    evaluation = {key: value for key, value in tabular.items() if key != "trainer"} | {
        "phase": "evaluate",
        "model": {"path": "trained", "tokenizer": None},
        "datasets": [{"owner": "hospital-a", "name": "held-out", "role": "test"}],
        "release_policy": sft["release_policy"] | {"metrics": ["accuracy"]},
    }
    for recipe in (rlhf, evaluation):
        parse_recipe(recipe | {"backend": {"name": "trl", "ranks": 2}})
        with pytest.raises(RecipeInvalid, check=carries(check="recipe")):
            parse_recipe(recipe | {"backend": backend})


def test_copies_keep_the_best_model_and_what_cannot_be_split(sft: dict[str, Any]) -> None:
    best = {"eval_steps": 1, "metric_for_best_model": "loss", "load_best_model_at_end": True}
    prompts = {"peft": {"method": "prompt_tuning", "num_virtual_tokens": 2}}
    for changed in ({"trainer": {"max_steps": 2} | best}, prompts):
        parse_recipe(sft | {"backend": {"name": "trl", "ranks": 2}} | changed)
        for backend in SHARED_OUT:
            with pytest.raises(RecipeInvalid):
                parse_recipe(sft | {"backend": backend} | changed)


def test_adapters_over_weights_of_another_kind_are_not_shared_out(sft: dict[str, Any]) -> None:
    half = sft | {"model": sft["model"] | {"dtype": "bfloat16"}}
    parse_recipe(half | {"backend": {"name": "trl", "ranks": 2}})
    for backend in SHARED_OUT:
        with pytest.raises(RecipeInvalid, check=carries(check="recipe")):
            parse_recipe(half | {"backend": backend})


@pytest.mark.parametrize("backend", SHARED_OUT, ids=lambda backend: backend["name"])
def test_a_base_in_four_bits_is_shared_out(sft: dict[str, Any], backend: Any) -> None:
    quantized = {"peft": sft["peft"] | {"quantization": {}}, "model": {"path": "base"}}
    assert parse_recipe(sft | quantized | {"backend": backend}).peft.quantization is not None


PRECISE = {"max_steps": 2, "fp16": True}


@pytest.mark.parametrize("name", ["trl", "fsdp"])
def test_fp16_is_in_a_lock_only_where_it_is_wanted(
    sft: dict[str, Any], lock_of: Locks, name: str
) -> None:
    backend = {"backend": {"name": name, "ranks": 2}}
    assert b"fp16" not in lock_of(sft | backend).lock_bytes
    assert lock_of(sft | backend | {"trainer": PRECISE}).lock.recipe.trainer.fp16


@pytest.mark.parametrize(
    "changed",
    [
        {"trainer": PRECISE | {"bf16": True}},
        {"backend": {"name": "deepspeed", "zero_stage": 1}},
        {"model": {"path": "base", "dtype": "bfloat16"}},
        {"scripts": ["train.py"]},
    ],
    ids=str,
)
def test_what_fp16_cannot_do_is_refused(sft: dict[str, Any], changed: dict[str, Any]) -> None:
    parse_recipe(sft | {"trainer": PRECISE})
    with pytest.raises(RecipeInvalid, check=carries(check="recipe")):
        parse_recipe(sft | {"trainer": PRECISE} | changed)


def test_fp16_does_not_scale_an_adapter_beside_four_bits(sft: dict[str, Any]) -> None:
    base = {"model": {"path": "base"}, "trainer": PRECISE}
    parse_recipe(sft | base)
    with pytest.raises(RecipeInvalid, check=carries(check="recipe")):
        parse_recipe(sft | base | {"peft": sft["peft"] | {"quantization": {}}})


def test_gradients_in_pieces_are_not_for_deepspeed(sft: dict[str, Any]) -> None:
    encoder = {
        "phase": "embed",
        "columns": {"anchor": "question", "positive": "passage"},
        "peft": None,
        "trainer": {"max_steps": 2, "mini_batch_size": 2},
    }
    parse_recipe(sft | encoder | {"backend": {"name": "fsdp", "ranks": 2}})
    with pytest.raises(RecipeInvalid, check=carries(check="recipe")):
        parse_recipe(sft | encoder | {"backend": {"name": "deepspeed", "zero_stage": 2}})


def test_a_reference_that_lies_beside_the_model_is_not_shared_out(sft: dict[str, Any]) -> None:
    columns = {"prompt": "prompt", "chosen": "chosen", "rejected": "rejected"}
    dpo = sft | {"phase": "dpo", "columns": columns, "peft": None}
    for stage in (0, 1, 2):
        parse_recipe(dpo | {"backend": {"name": "deepspeed", "zero_stage": stage}})
    whole = {"backend": {"name": "deepspeed", "zero_stage": 3}}
    parse_recipe(dpo | whole | {"peft": sft["peft"]})
    parse_recipe(dpo | whole | {"trainer": {"max_steps": 2, "loss_type": "orpo"}})
    with pytest.raises(RecipeInvalid, check=carries(check="recipe")):
        parse_recipe(dpo | whole)


def parts(accumulated: int) -> dict[str, Any]:
    return {"trainer": {"max_steps": 2, "gradient_accumulation_steps": accumulated}}


@pytest.mark.parametrize("name", ["trl", "fsdp"])
def test_other_numbers_of_ranks_are_approved_and_keep_the_records_of_a_step(
    sft: dict[str, Any], lock_of: Locks, name: str
) -> None:
    backend = {"name": name, "ranks": 2, "resume_ranks": [1, 4]}
    locked = lock_of(sft | parts(2) | {"backend": backend}).lock
    assert locked.to_dict()["recipe"]["backend"]["resume_ranks"] == [1, 4]
    recipe = locked.recipe
    assert divide_among(recipe, UNDIVIDED) is recipe
    assert divide_among(recipe, Division(ranks=2, nodes=1)) is recipe
    for ranks, accumulated in ((1, 4), (4, 1)):
        divided = divide_among(recipe, Division(ranks=ranks))
        assert divided.backend.ranks == ranks
        assert divided.trainer.gradient_accumulation_steps == accumulated
    with pytest.raises(RecipeInvalid, check=carries(check="backend.resume_ranks", got="3")):
        divide_among(recipe, Division(ranks=3))
    with pytest.raises(RecipeInvalid, check=carries(check="collaboration.resume_nodes", got="2")):
        divide_among(recipe, Division(nodes=2))


def test_no_number_of_ranks_is_approved_unless_named(sft: dict[str, Any]) -> None:
    for backend in ({"name": "trl"}, {"name": "deepspeed", "zero_stage": 2, "ranks": 2}):
        with pytest.raises(RecipeInvalid, check=carries(check="backend.resume_ranks")):
            divide_among(parse_recipe(sft | {"backend": backend}), Division(ranks=4))


@pytest.mark.parametrize(
    "backend",
    [
        {"name": "trl", "ranks": 2, "resume_ranks": [3]},
        {"name": "trl", "ranks": 2, "resume_ranks": [2]},
        {"name": "trl", "ranks": 2, "resume_ranks": [4, 1]},
        {"name": "trl", "ranks": 2, "resume_ranks": [1, 1]},
        {"name": "trl", "ranks": 2, "resume_ranks": [0]},
        {"name": "deepspeed", "zero_stage": 1, "ranks": 2, "resume_ranks": [1]},
        {"name": "unsloth", "resume_ranks": [2]},
    ],
    ids=str,
)
def test_numbers_that_cannot_continue_a_run_are_refused(sft: dict[str, Any], backend: Any) -> None:
    with pytest.raises(RecipeInvalid):
        parse_recipe(sft | parts(2) | {"backend": backend})


def test_a_phase_whose_batch_spans_ranks_continues_with_its_own_number(sft: dict[str, Any]) -> None:
    encoder = {
        "phase": "embed",
        "columns": {"anchor": "question", "positive": "passage"},
        "peft": None,
    }
    backend = {"name": "trl", "ranks": 2}
    parse_recipe(sft | encoder | parts(2) | {"backend": backend})
    with pytest.raises(RecipeInvalid, match="embed"):
        parse_recipe(sft | encoder | parts(2) | {"backend": backend | {"resume_ranks": [1]}})
