"""The scripts in ``examples/scripts``, from sealing to a model that loads again."""

from __future__ import annotations

import base64
import difflib
import importlib.util
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from stage import OWNERS, RECIPE, Stage, stage
from variants import variants

pytestmark = [
    pytest.mark.long,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "scripts"
NAMES = sorted(path.parent.name for path in EXAMPLES.glob("*/train.py"))
TEXT = "radius 3, texture 4"
CLASSIFIED = f'model.eval()(**collate([{{"text": "{TEXT}", "label": 0}}])).logits'
PROBES = {
    "transformers_trainer": CLASSIFIED,
    "lightning_fit": CLASSIFIED.replace("model.", "trainer.lightning_module.model.", 1),
    "accelerate_loop": f'model.eval()(**tokenizer("{TEXT}", return_tensors="pt")).logits',
    "sentence_transformers_pairs": f'model.eval().encode("{TEXT}", convert_to_tensor=True)',
    "trl_dpo": f'trainer.model.eval()(**trainer.processing_class("{TEXT}", return_tensors="pt"))'
    ".logits",
}
"""What each script says about a text with its trained model."""


def module(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@pytest.mark.parametrize("name", NAMES)
def test_at_most_four_lines_of_a_script_change(name: str) -> None:
    before, after = (
        (EXAMPLES / name / f"{each_name}.py").read_text() for each_name in ("before", "train")
    )
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="")
    changed = [line[0] for line in list(lines)[2:] if line[0] in "+-"]
    assert 0 < max(changed.count("+"), changed.count("-")) <= 4


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("own")) as made:
        yield made


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    module(EXAMPLES / "run.py").base_models(folder)
    return folder


def probed(script: str, expression: str) -> str:
    """A script that measures its trained model before it ends."""
    lines = f"import torch\nwith torch.no_grad():\n    seen = ({expression}).double().abs().sum()\n"
    ended = re.sub(r"(sign_manifest\(.*)\)$", r"\1, probe=float(seen))", script.strip())
    return ended.replace("sealtrain.sign_manifest(", f"{lines}sealtrain.sign_manifest(") + "\n"


def played(world: Stage, models: Path, name: str) -> tuple[Path, dict[str, Any]]:
    """An example trained by the stage's clinics; its opened model, and the manifest's predicate."""
    folder = EXAMPLES / name
    recipe = yaml.safe_load((folder / "recipe.yaml").read_text().replace("hospital-", "clinic-"))
    recipe["release_policy"] |= {"metrics": ["loss", "probe"], "logs": "structured"}
    base = recipe["model"]["path"]
    files: dict[str, str | bytes] = {
        f"{base}/{path.name}": path.read_bytes() for path in (models / base).iterdir()
    }
    files["train.py"] = probed((folder / "train.py").read_text(), PROBES[name])
    data = module(EXAMPLES / "run.py").write_records(name, world.folder / "inputs" / name)
    sources = {key.replace("hospital-", "clinic-"): path for key, path in data.items()}
    proposed = world.propose(name, recipe, files, sources)
    world.approve(proposed, *OWNERS[:2])
    world.anew = "packages" in recipe
    try:
        world.run(*world.train_words(proposed, f"{name}-run"))
    finally:
        world.anew = False
    run, trust = world.folder / f"{name}-run", world.folder / f"{name}-trust.yaml"
    world.run(
        "trust", "new", "--consortium", "consortium.json", "--policy", "policy.yaml",
        "--deployment", proposed / "app-compose.json", "--broker", world.broker, "--out", trust,
    )  # fmt: skip
    assert world.run("verify", run / "manifest.json", "--trust", trust)["accepted"]
    out = world.folder / f"{name}-model"
    words = ["--identity", world.identity("clinic-a"), "--trust", trust, "--out", out]
    world.run("open", run / "model", *words)
    envelope = json.loads((run / "manifest.json").read_bytes())["bundle"]["dsseEnvelope"]
    predicate = json.loads(base64.b64decode(envelope["payload"]))["predicate"]
    assert not any(b"sealtrain-" in path.read_bytes() for path in out.rglob("*.json"))
    return out, predicate


def said(logits: Any) -> float:
    return float(logits.detach().double().abs().sum())


def classified(folder: Path, _base: Path) -> float:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    return said(model(**AutoTokenizer.from_pretrained(folder)(TEXT, return_tensors="pt")).logits)


def continued(folder: Path, _base: Path) -> float:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    return said(model(**AutoTokenizer.from_pretrained(folder)(TEXT, return_tensors="pt")).logits)


def adapted(folder: Path, base: Path) -> float:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), folder).eval()
    return said(model(**AutoTokenizer.from_pretrained(folder)(TEXT, return_tensors="pt")).logits)


def encoded(folder: Path, _base: Path) -> float:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu")
    return said(model.eval().encode(TEXT, convert_to_tensor=True))


OPENED: dict[str, Callable[[Path, Path], float]] = {
    "transformers_trainer": classified,
    "lightning_fit": classified,
    "accelerate_loop": continued,
    "sentence_transformers_pairs": encoded,
    "trl_dpo": adapted,
}


@pytest.mark.claim("C143")
@pytest.mark.claim("C144")
@pytest.mark.parametrize("name", variants(NAMES, each_time=["accelerate_loop"]))
def test_an_opened_model_says_what_the_trained_one_said(
    world: Stage, models: Path, name: str
) -> None:
    folder, predicate = played(world, models, name)
    base = models / predicate["recipe"]["lock"]["recipe"]["model"]["path"]
    run = predicate["run"]
    assert run["steps"] == 12
    assert OPENED[name](folder, base) == pytest.approx(run["metrics"]["probe"], abs=2e-6)
    if name == "trl_dpo":
        settings = json.loads((folder / "adapter_config.json").read_bytes())
        digest = predicate["recipe"]["lock"]["model"]["sha256"]
        assert settings["base_model_name_or_path"] == f"decoder@sha256:{digest}"


@pytest.mark.nightly
@pytest.mark.claim("C145")
def test_an_axolotl_file_becomes_a_recipe_that_trains(world: Stage, models: Path) -> None:
    run = module(EXAMPLES / "run.py")
    made = world.folder / "imported"
    made.mkdir()
    shutil.copy(EXAMPLES / "axolotl" / "axolotl.yaml", made)
    shutil.copytree(models / "decoder", made / "decoder")
    words = run.import_words(made, ["clinic-a.records", "clinic-b.records"])
    answer = world.run(*words)
    said = yaml.safe_load((made / "axolotl.yaml").read_text())
    assert answer["translated"].keys() | answer["left_out"].keys() == said.keys()
    again = world.try_run(*words)
    assert (again.code, again.error) == (2, "already-exists")
    recipe = yaml.safe_load((made / "recipe.yaml").read_text())
    data = run.write_records("axolotl", world.folder / "inputs" / "axolotl")
    folder = world.propose(
        "axolotl",
        recipe,
        {f"decoder/{path.name}": path.read_bytes() for path in (models / "decoder").iterdir()},
        {key.replace("hospital-", "clinic-"): path for key, path in data.items()},
    )
    world.approve(folder, *OWNERS[:2])
    outcome = world.run(*world.train_words(folder, "axolotl-run"))
    assert outcome["steps"] == 15  # a fifth of 569 records, eight a step
    out = world.folder / "axolotl-model"
    run_folder = world.folder / "axolotl-run"
    world.run("open", run_folder, "--identity", world.identity("clinic-a"), "--out", out)
    settings = json.loads((out / "adapter_config.json").read_bytes())
    lock = json.loads((folder / "recipe.lock.json").read_bytes())
    assert settings["base_model_name_or_path"] == f"decoder@sha256:{lock['model']['sha256']}"
    assert (settings["r"], settings["lora_alpha"]) == (4, 8)
    assert adapted(out, models / "decoder") > 0


@pytest.mark.parametrize(
    ("content", "code", "error"),
    [
        (None, 5, "data-invalid"),
        (b"", 2, "recipe-invalid"),
        (b"a: [1,\n", 2, "recipe-invalid"),
        (b"- 1\n", 2, "recipe-invalid"),
        (b"a: &x 1\nb: *x\n", 2, "recipe-invalid"),
        (b"\xff\xfe", 2, "recipe-invalid"),
        (b"a" * 300_000, 5, "limit-exceeded"),
        (b"base_model: ./m\nfp16: true\n", 2, "recipe-invalid"),
    ],
)
def test_a_file_that_is_no_axolotl_file_is_refused_and_writes_nothing(
    world: Stage, tmp_path: Path, content: bytes | None, code: int, error: str
) -> None:
    source, out = tmp_path / "axolotl.yaml", tmp_path / "recipe.yaml"
    if content is not None:
        source.write_bytes(content)
    answer = world.try_run("recipe", "import", source, "--dataset", "a.b", "--out", out)
    assert (answer.code, answer.error) == (code, error)
    assert not out.exists()


WIDE = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from trl import SFTConfig, SFTTrainer

import sealtrain
from sealtrain.training.models.base import byte_tokenizer

tokenizer = byte_tokenizer()
torch.manual_seed(1)
model = LlamaForCausalLM(LlamaConfig(
    vocab_size=259, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
    num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=128))
train = sealtrain.unwrap_dataset(map_style=True)
second = sealtrain.unwrap_dataset(("clinic-b", "notes"), map_style=True)
test = sealtrain.unwrap_dataset(role="test")
for view in (train, second, test):
    assert view.column_names == ["prompt", "completion"], view.column_names
assert {row["prompt"][:8] for row in second} == {"clinic-b"}
try:
    sealtrain.unwrap_dataset(("clinic-b", "notes"), role="test")
except sealtrain.errors.UsageError:
    missing = 1
# The value of a keyword that is computed is no literal for the lock to see.
settings = {"report_to": "wandb", "dataset_num_proc": 2}
trainer = SFTTrainer(
    model,
    args=SFTConfig("scratch", num_train_epochs=1, per_device_train_batch_size=8, use_cpu=True,
                   bf16=False, activation_checkpointing=False, logging_steps=2, max_length=64,
                   save_steps=50, eval_strategy="epoch", **settings),
    train_dataset=train, eval_dataset=test, processing_class=tokenizer,
    callbacks=[sealtrain.SealedRun()],
)
trainer.train()
measured = trainer.evaluate()["eval_loss"]
sealtrain.sign_manifest(trainer, train_rows=len(train), second_rows=len(second),
                        test_rows=len(test), eval_loss=measured, missing=missing)
"""


def wide(name: str) -> dict[str, Any]:
    """A recipe of two owners whose columns have different names, and a test split."""
    renamed = {"columns": {"question": "prompt", "answer": "completion"}}
    metrics = ["train_rows", "second_rows", "test_rows", "eval_loss", "missing"]
    return RECIPE | {
        "name": name,
        "scripts": ["train.py"],
        "datasets": [
            {"owner": "clinic-a", "name": "notes", "role": "train"},
            {"owner": "clinic-b", "name": "notes", "role": "train", **renamed},
            {"owner": "clinic-a", "name": "check", "role": "test"},
        ],
        "release_policy": RECIPE["release_policy"] | {"metrics": metrics, "logs": "structured"},
    }


def proposed(world: Stage, name: str, script: str) -> Path:
    """The folder of that recipe with a script, and the data of its owners."""
    other = world.folder / f"{name}.jsonl"
    rows = [{"question": f"clinic-b {at}:", "answer": f" {at % 2}"} for at in range(24)]
    other.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return world.propose(name, wide(name), {"train.py": script}, sources={"clinic-b.notes": other})


@pytest.mark.nightly
def test_a_script_reads_datasets_by_role_and_owner_and_trains_for_epochs(world: Stage) -> None:
    folder = proposed(world, "wide", WIDE)
    world.approve(folder, *OWNERS[:2])
    outcome = world.run(*world.train_words(folder, "wide-run"))
    counted = {
        name: outcome["metrics"][name] for name in ("train_rows", "second_rows", "test_rows")
    }
    assert counted == {"train_rows": 64, "second_rows": 24, "test_rows": 40}
    assert outcome["steps"] == 8  # one epoch of 64 records, eight a step
    assert outcome["metrics"]["missing"] == 1
    assert outcome["metrics"]["eval_loss"] > 0


LYING = """
import torch

import sealtrain


class Model(torch.nn.Linear):
    def save_pretrained(self, folder):
        open(folder + "/pytorch_model.bin", "wb").write(b"")

    @classmethod
    def from_pretrained(cls, folder):
        return cls(1, 1)


model = Model(1, 1)
loop = sealtrain.SealedLoop(model, torch.optim.SGD(model.parameters(), lr=0.1))
"""


@pytest.mark.claim("C143")
def test_a_model_that_could_not_be_opened_is_refused_before_it_trains(world: Stage) -> None:
    folder = proposed(world, "lying", LYING)
    world.approve(folder, *OWNERS[:2])
    answer = world.try_run(*world.train_words(folder, "lying-run"))
    assert (answer.code, answer.error) == (3, "model-not-reloaded")
    assert not (world.folder / "lying-run" / "manifest.json").exists()
    assert not (world.folder / "lying-run" / "model").exists()


@pytest.mark.claim("C145")
def test_a_setting_that_no_run_follows_is_refused_when_the_recipe_is_locked(world: Stage) -> None:
    folder = world.folder / "workers"
    folder.mkdir()
    (folder / "recipe.yaml").write_text(yaml.safe_dump(wide("workers")))
    (folder / "train.py").write_text(WIDE.replace("num_train_epochs=1", "dataloader_num_workers=2"))
    answer = world.try_run(
        "lock", folder / "recipe.yaml", "--broker", world.broker, "--out", folder
    )
    assert (answer.code, answer.error) == (2, "recipe-invalid")
    assert answer.data["error"]["got"] == "dataloader_num_workers=2"
    assert not (folder / "recipe.lock.json").exists()
