from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from carrying import carries

from sealtrain.errors import DataInvalid
from sealtrain.recipe.errors import RecipeInvalid
from sealtrain.recipe.modelspec import FolderTokenizer, ModelFromFolder
from sealtrain.recipe.phases.classify import ClassifyRecipe, ClassifyTabularColumns
from sealtrain.recipe.phases.sft import (
    MessagesColumns,
    PromptCompletionColumns,
    SftRecipe,
    TextColumns,
)
from sealtrain.recipe.schema import json_schema, load_recipe, parse_recipe

Document = dict[str, Any]


def test_a_recipe_is_of_its_phase_and_writes_its_defaults_out(sft: Document) -> None:
    recipe = parse_recipe(sft)
    assert isinstance(recipe, SftRecipe)
    assert recipe.owners == ("hospital-a", "hospital-b")
    written = recipe.to_dict()
    assert written["trainer"]["gradient_accumulation_steps"] == 1
    assert written["release_policy"]["logs"] == "none"
    assert written["peft"]["lora_alpha"] == 16
    assert parse_recipe(json.loads(json.dumps(written))) == recipe


@pytest.mark.parametrize(
    ("columns", "kind"),
    [
        ({"text": "note"}, TextColumns),
        ({"prompt": "q", "completion": "a"}, PromptCompletionColumns),
        ({"messages": "chat"}, MessagesColumns),
    ],
)
def test_the_columns_tell_the_kind_of_record(sft: Document, columns: Any, kind: type) -> None:
    recipe = parse_recipe(sft | {"columns": columns})
    assert type(recipe.columns) is kind
    assert set(recipe.columns.names) == set(columns.values())


def test_a_tabular_classifier_counts_its_labels(tabular: Document) -> None:
    recipe = parse_recipe(tabular)
    assert isinstance(recipe, ClassifyRecipe)
    assert isinstance(recipe.columns, ClassifyTabularColumns)
    assert (recipe.num_labels, recipe.labels) == (2, ("benign", "malignant"))
    assert recipe.columns.names == ("radius", "texture", "diagnosis")


def test_a_model_folder_brings_its_tokenizer_unless_another_is_named(sft: Document) -> None:
    own = parse_recipe(sft | {"model": {"path": "../models/base"}}).model
    assert isinstance(own, ModelFromFolder)
    assert own.tokenizer == FolderTokenizer(path="../models/base")
    other = parse_recipe(sft | {"model": {"path": "m", "tokenizer": {"path": "t"}}}).model
    assert other.tokenizer == FolderTokenizer(path="t")


@pytest.mark.parametrize(
    ("place", "name", "near"),
    [
        ("trainer", "learning_rat", "learning_rate"),
        ("trainer", "gradient_checkpointing", "activation_checkpointing"),
        ("peft", "lora_aplha", "lora_alpha"),
        ("release_policy", "metric", "metrics"),
        ("hardware", "imag", "image"),
        ("columns", "promt", "prompt"),
        (None, "hardwear", "hardware"),
    ],
)
def test_an_unknown_field_is_refused_with_a_near_name(
    sft: Document, place: str | None, name: str, near: str
) -> None:
    target = sft if place is None else sft[place]
    target[name] = "x"
    with pytest.raises(RecipeInvalid, match=name) as refusal:
        parse_recipe(sft)
    assert repr(near) in str(refusal.value.hint)


@pytest.mark.parametrize(
    "name",
    [
        "report_to",
        "push_to_hub",
        "hub_token",
        "hub_model_id",
        "output_dir",
        "logging_dir",
        "run_name",
        "trust_remote_code",
        "log_completions",
        "model_init_kwargs",
        "dataset_kwargs",
        "resume_from_checkpoint",
        "include_for_metrics",
        "deepspeed",
        "debug",
    ],
)
def test_arguments_that_carry_data_out_or_code_in_do_not_exist(sft: Document, name: str) -> None:
    sft["trainer"][name] = "x"
    with pytest.raises(RecipeInvalid, check=carries(field=f"trainer.{name}")):
        parse_recipe(sft)


BROKEN: list[tuple[str, Any, str]] = [
    ("version", 2, "version"),
    ("version", "1", "version"),
    ("name", "Has Space", "name"),
    ("description", "zero\u200bwidth", "description"),
    ("description", "turned \u202e around", "description"),
    ("phase", "grow", "phase"),
    ("phase", None, "phase"),
    ("datasets", [], "datasets"),
    ("datasets.0.owner", "A", "owner"),
    ("datasets.0.role", "valid", "role"),
    ("datasets.0.weight", 0, "weight"),
    ("datasets.0.weight", "2", "weight"),
    ("datasets.2.weight", 2, "datasets.2"),
    ("datasets.1", {"owner": "hospital-a", "name": "biopsies", "role": "test"}, "datasets"),
    ("columns", {}, "columns"),
    ("columns", {"text": "a", "prompt": "b"}, "prompt"),
    ("trainer.max_steps", 0, "max_steps"),
    ("trainer.max_steps", 1.5, "max_steps"),
    ("trainer.max_steps", True, "max_steps"),
    ("trainer.learning_rate", "3e-3", "learning_rate"),
    ("trainer.learning_rate", 0, "learning_rate"),
    ("trainer.seed", -1, "seed"),
    ("trainer.seed", 1 << 32, "seed"),
    ("trainer.optim", "lomo", "optim"),
    ("model.attn_implementation", "linear", "attn_implementation"),
    ("model.attn_implementation", "flash_attention_2", "sdpa"),
    ("trainer.optim", "adamw_8bit", "adamw_bnb_8bit"),
    ("trainer.warmup_steps", 1.5, "warmup_steps"),
    ("trainer.padding_free", True, "padding_free"),
    ("peft.method", "magic", "method"),
    ("peft.r", 0, "peft.lora.r"),
    ("peft.target_modules", "q_.*", "target_modules"),
    ("peft.target_modules", [], "target_modules"),
    ("privacy", {}, "privacy: .*'dp'"),
    ("privacy.dp", "epsilon", "dp"),
    ("release_policy.metrics", ["Loss!"], "metrics"),
    ("release_policy.metrics", ["loss", "loss"], "metrics"),
    ("release_policy.round_to", 9, "round_to"),
    ("release_policy.logs", "all", "logs"),
    ("release_policy.model.recipients", [], "recipients"),
    ("release_policy.model.recipients", ["a", "a"], "recipients"),
    ("hardware.platforms", [], "platforms"),
    ("hardware.platforms", ["tpm"], "platforms"),
    ("hardware.platforms", ["nitro"], "image"),
    ("hardware.platforms", ["dstack", "snp"], "platforms"),
    ("hardware.platforms", ["simulator", "simulator"], "platforms"),
    ("hardware.platforms", ["dstack"], "image"),
    ("hardware.image", "name:latest", "image"),
    ("hardware.image", f"$x@sha256:{'0' * 64}", "image"),
    ("hardware.key_provider", "kms", "key_provider_id"),
    ("hardware.key_provider_id", "00", "key_provider"),
    ("hardware.app_id", "0" * 40, "app_id"),
    ("model", {}, "model"),
    ("model.config", {"hidden_size": 3}, "model_type"),
    ("model.config", {"model_type": "x", "auto_map": {"AutoModel": "evil.py"}}, "auto_map"),
    ("model.config", {"model_type": "x", "a": {"trust_remote_code": True}}, "trust_remote_code"),
    ("model.config", {"model_type": "x", "_attn_implementation": "a"}, "_attn_implementation"),
    ("model.config", {"model_type": "x", "attn_implementation": "org/k"}, "attn_implementation"),
    ("model.config", {"model_type": "x", "n": 1 << 60}, "model"),
    ("model.config", {"model_type": "x", "n": [[[[[[[1]]]]]]]}, "model"),
    ("model.tokenizer", None, "tokenizer"),
    ("model.tokenizer", {"kind": "words"}, "tokenizer"),
    ("model", {"path": "/models/base"}, "path"),
    ("model", {"path": "../../etc"}, "path"),
    ("model", {"path": "a/../../etc"}, "path"),
    ("model", {"path": "a/../b"}, "path"),
    ("model", {"path": "a\\b"}, "path"),
    ("model", {"path": "~/b"}, "path"),
    ("model", {"path": "a//b"}, "path"),
    ("model", {"path": ".hidden"}, "path"),
    ("model", {"path": ".."}, "path"),
    ("model", {"path": ""}, "path"),
    ("model", {"path": "$HOME"}, "path"),
    ("model", {"path": "https://example.org/m"}, "path"),
]


@pytest.mark.parametrize(("place", "value", "problem"), BROKEN)
def test_a_value_outside_its_range_is_refused_by_name(
    sft: Document, place: str, value: Any, problem: str
) -> None:
    parse_recipe(sft)
    *path, last = place.split(".")
    target: Any = sft
    for part in path:
        target = target[int(part) if part.isdigit() else part]
    target[int(last) if last.isdigit() else last] = value
    with pytest.raises(RecipeInvalid, match=problem):
        parse_recipe(sft)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"labels": ["a"]}, "num_labels"),
        ({"labels": ["a", "a"]}, "labels"),
        ({"labels": ["a", "b"], "num_labels": 3}, "num_labels"),
        ({"labels": None}, "num_labels"),
        ({"columns": {"features": [], "label": "y"}}, "features"),
        ({"columns": {"features": ["x", "x"], "label": "y"}}, r"columns\.tabular"),
        ({"columns": {"features": ["x", "y"], "label": "y"}}, r"columns\.tabular"),
        ({"columns": {"text": "t", "label": "y"}}, "tokenizer"),
        ({"peft": {"method": "lora", "target_modules": ["q"]}}, "peft"),
        ({"model": {"path": "m"}}, "model.config"),
        ({"model": {"config": {"model_type": "mlp"}, "init_seed": 1,
                    "tokenizer": {"kind": "bytes"}}}, "tokenizer"),
    ],
)  # fmt: skip
def test_a_classifier_must_fit_its_columns(tabular: Document, change: Any, problem: str) -> None:
    parse_recipe(tabular)
    with pytest.raises(RecipeInvalid, match=problem):
        parse_recipe(tabular | change)


@pytest.mark.parametrize("field", ["privacy", "release_policy", "hardware", "trainer", "columns"])
def test_what_owners_agree_to_must_be_written(sft: Document, field: str) -> None:
    del sft[field]
    with pytest.raises(RecipeInvalid, check=carries(field=field)):
        parse_recipe(sft)


def test_a_missing_or_huge_file_is_a_typed_refusal(tmp_path: Path) -> None:
    with pytest.raises(DataInvalid, check=carries(code="data-invalid")):
        load_recipe(tmp_path / "none.yaml")
    big = tmp_path / "big.yaml"
    big.write_bytes(b"#" * (1 << 20))
    with pytest.raises(RecipeInvalid, check=carries(expected="at most 131072")):
        load_recipe(big)
    big.write_text("- a list")
    with pytest.raises(RecipeInvalid, check=carries(check="recipe")):
        load_recipe(big)


def test_an_invalid_value_is_never_quoted(sft: Document) -> None:
    sft["trainer"]["max_steps"] = "canary-4711"
    with pytest.raises(RecipeInvalid) as refusal:
        parse_recipe(sft)
    assert "canary" not in str(refusal.value.to_dict())


def test_the_published_json_schema_is_current(repository: Path) -> None:
    published = (repository / "spec" / "schema" / "recipe.schema.json").read_text("utf-8")
    assert published == json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n", (
        "run: python tools/recipe_schema.py"
    )


def test_the_specification_lists_the_fields_that_locks_leave_out(repository: Path) -> None:
    def marked(schema: Any) -> set[str]:
        if isinstance(schema, list):
            return set().union(*map(marked, schema))
        if not isinstance(schema, dict):
            return set()
        fields = schema.get("properties", {}).items()
        here = {name for name, field in fields if isinstance(field, dict) and "x-left-out" in field}
        return here.union(*map(marked, schema.values()))

    text = (repository / "spec" / "recipe.md").read_text("utf-8")
    listed = re.search(r"`x-left-out`, which are left out: ([^|]+) \|", text)
    assert listed is not None
    names = {name.rsplit(".", 1)[-1] for name in re.findall(r"`([a-z0-9_.]+)`", listed[1])}
    assert names == marked(json_schema())


def test_importing_the_package_loads_no_training_library() -> None:
    program = (
        "import sys, sealtrain.recipe.lock, sealtrain.recipe.measure, sealtrain.recipe.diff\n"
        "heavy = {'torch','transformers','numpy','pyarrow','httpx2','yaml','packaging'}\n"
        "sys.exit(','.join(sorted(heavy & set(sys.modules))) or None)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
