"""Settings in a script that a run on sealed data cannot follow are refused by name and line."""

from __future__ import annotations

import pytest
from carrying import carries

from sealtrain.recipe.errors import RecipeInvalid
from sealtrain.recipe.scriptsettings import refuse_settings

pytestmark = pytest.mark.claim("C145")
STREAM = "data = sealtrain.unwrap_dataset()\n"


@pytest.mark.parametrize(
    ("line", "got"),
    [
        ("SFTConfig(max_steps=3, dataloader_num_workers=2)", "dataloader_num_workers=2"),
        ("DataLoader(data, batch_size=4, num_workers=8)", "num_workers=8"),
        ("transformers.TrainingArguments('out', num_train_epochs=3)", "num_train_epochs=3"),
        ("SentenceTransformerTrainingArguments('out')", "no max_steps"),
        ("DPOConfig('out', max_steps=3, push_to_hub=True)", "push_to_hub=True"),
        (
            "TrainingArguments('o', max_steps=1, load_best_model_at_end=True)",
            "load_best_model_at_end=True",
        ),
        (
            "trainer.train(resume_from_checkpoint='max_steps')",
            "resume_from_checkpoint='max_steps'",
        ),
        ("class Mine(SFTTrainer):\n  def save_model(self): max_steps", "Mine.save_model"),
    ],
)
def test_what_no_run_follows_is_refused_by_name(line: str, got: str) -> None:
    with pytest.raises(RecipeInvalid, check=carries(check="scripts", got=got)):
        refuse_settings({"train.py": "import sealtrain\n", "lib/a.py": f"{STREAM}{line}\n"})


@pytest.mark.parametrize(
    "text",
    [
        f"{STREAM}TrainingArguments('out', max_steps=3, num_train_epochs=9)",
        f"{STREAM}args = TrainingArguments('out')\nargs.max_steps = 4",
        f"{STREAM}TrainingArguments(**settings)",
        "data = unwrap_dataset(map_style=True)\nTrainingArguments('out', num_train_epochs=2)",
        f"{STREAM}DataLoader(data, num_workers=0)",
        f"{STREAM}DataLoader(data, num_workers=WORKERS)",
        f"{STREAM}SFTConfig(max_steps=1, dataset_num_proc=4, report_to='wandb')",
        "class Store:\n  def save_model(self): pass",
        "def save_model(): pass",
    ],
)
def test_other_settings_pass(text: str) -> None:
    refuse_settings({"train.py": text, "notes.txt": "num_workers=("})
