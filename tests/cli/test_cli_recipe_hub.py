"""``lock`` brings a model by its id on the hub, and owners see where it comes from."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from collecting import COLLECTING
from hub import FakeHub, serving_hub
from world import RECIPE, founded, signer, simulated_policy

from sealtrain.base.encoding import to_base64
from sealtrain.client.pin import BrokerPin
from sealtrain.recipe.errors import EnvironmentChanged, RecipeInvalid
from sealtrain.recipe.lock import load_lock
from sealtrain.recipe.measure import check_environment
from sealtrain.recipe.schema import parse_recipe

if not COLLECTING:
    from transformers import LlamaConfig, LlamaForCausalLM

pytestmark = [pytest.mark.long, pytest.mark.claim("C154")]

MODEL = {"id": "org/tiny", "revision": "v1", "tokenizer": {"kind": "bytes"}}


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    (tmp_path / "consortium.json").write_bytes(founded().to_bytes())
    pin = BrokerPin(
        url="http://127.0.0.1:9",
        signing_key=to_base64(signer("broker").public),
        compose_hash="ab" * 32,
        appraisal=simulated_policy(),
    )
    (tmp_path / "broker.yaml").write_text(pin.to_yaml())
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(RECIPE | {"model": MODEL}))
    return tmp_path


def sealtrain(desk: Path, *words: str | Path, **env: str) -> Any:
    """A process of its own: the hub's client reads its environment when it is loaded."""
    return subprocess.run(
        [sys.executable, "-m", "sealtrain", *map(str, words)],
        cwd=desk,
        env=os.environ | {"HF_HOME": str(desk / "hf"), "HF_HUB_OFFLINE": "0"} | env,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_a_model_by_its_id_is_locked_shown_and_measured(desk: Path) -> None:
    saved = desk / "saved"
    config = LlamaConfig(
        vocab_size=259, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(saved)
    files = {path.name: path.read_bytes() for path in saved.iterdir()}
    files["README.md"] = b"---\nlicense: apache-2.0\n---\n"
    with serving_hub(FakeHub(files=files)) as hub:
        before = sealtrain(desk, "recipe", "check", "recipe.yaml", "--json", HF_ENDPOINT=hub.url)
        assert before.returncode == 0, before.stderr
        assert any("org/tiny" in left for left in json.loads(before.stdout)["not_checked"])
        assert hub.asked == []
        locked = sealtrain(
            desk, "lock", "recipe.yaml", "--broker", "broker.yaml", "--json", HF_ENDPOINT=hub.url
        )
    assert locked.returncode == 0, locked.stderr
    pin = {"id": "org/tiny", "commit": hub.commit, "licence": "apache-2.0"}
    assert json.loads(locked.stdout)["hub"] == {"model": pin}
    shown = sealtrain(desk, "recipe", "show", "recipe.lock.json")
    one_line = " ".join(shown.stdout.split())
    digest = load_lock(desk / "recipe.lock.json").model.sha256
    assert f"org/tiny at commit {hub.commit}" in one_line
    assert f"SHA-256 {digest}" in one_line
    assert "apache-2.0" in one_line
    as_json = json.loads(sealtrain(desk, "recipe", "show", "recipe.lock.json", "--json").stdout)
    assert as_json["hub"] == {"model": pin}
    # The guest is given the folder, and asks nobody: the hub is gone by now.
    lock = load_lock(desk / "recipe.lock.json")
    check_environment(lock, desk)
    LlamaForCausalLM.from_pretrained(desk / lock.recipe.model.path)
    weights = desk / lock.recipe.model.path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\0")
    with pytest.raises(EnvironmentChanged):
        check_environment(lock, desk)


def test_a_hub_that_is_not_there_ends_without_a_trace(desk: Path) -> None:
    (desk / "recipe.yaml").write_text(
        yaml.safe_dump(RECIPE | {"model": MODEL | {"revision": "ab" * 20}})
    )
    there = {path.name for path in desk.iterdir()}
    done = sealtrain(
        desk, "lock", "recipe.yaml", "--broker", "broker.yaml", "--json", HF_HUB_OFFLINE="1"
    )
    assert done.returncode == 4, done.stderr
    assert json.loads(done.stdout)["error"]["code"] == "hub-unreachable"
    assert {path.name for path in desk.iterdir()} - {"hf"} == there


@pytest.mark.parametrize(
    "model",
    [
        {"id": "org/tiny"},
        {"revision": "v1"},
        {"id": "tiny", "revision": "v1"},
        {"id": "../tiny", "revision": "v1"},
        {"id": "org/ti--ny", "revision": "v1"},
        {"id": "org/tiny", "revision": "../../x"},
        {"id": "org/tiny", "revision": "refs/pr/1"},
        {"id": "org/tiny", "revision": "v1", "path": "../../x"},
    ],
)
def test_an_id_that_is_none_is_refused(model: dict[str, str]) -> None:
    with pytest.raises(RecipeInvalid):
        parse_recipe(RECIPE | {"model": model})
