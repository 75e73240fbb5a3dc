"""``sealtrain init`` makes what the next commands need, and keeps every file that is there."""

from __future__ import annotations

import json
import shlex
import stat
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from sealtrain.cli import app
from sealtrain.cli.project import load_project
from sealtrain.consortium.members import Consortium
from sealtrain.errors import DataInvalid, UsageError
from sealtrain.keys.identity import Identity
from sealtrain.recipe.schema import load_recipe


def ran(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["init", *map(str, words)])


SAMPLES = {
    "sft": '{"prompt": "a", "completion": "b"}\n',
    "dpo": '{"prompt": "a", "chosen": "b", "rejected": "c"}\n',
    "embed": '{"anchor": "a", "positive": "b"}\n',
    "cpt": '{"text": "a"}\n',
    "classify": '{"x": 1, "label": "no"}\n{"x": 2, "label": "yes"}\n',
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("phase", SAMPLES)
def test_a_sample_gives_a_recipe_that_parses(tmp_path: Path, phase: str) -> None:
    (tmp_path / "My Records.jsonl").write_text(SAMPLES[phase])
    result = ran("--owner-name", "clinic-a", "--sample", "My Records.jsonl", "--json")
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert (answer["phase"], answer["kept"]) == (phase, [])
    recipe = load_recipe(tmp_path / "recipe.yaml")
    assert recipe.phase == phase
    assert [(dataset.owner, dataset.name) for dataset in recipe.datasets] == [
        ("clinic-a", "my-records")
    ]
    private = tmp_path / "keys/clinic-a.identity.json"
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    project = load_project(tmp_path / "sealtrain.toml")
    assert project.value("identity") == private
    assert project.value("brokers") == (tmp_path / "up/broker.yaml",)
    assert project.value("lock") == tmp_path / "locked/recipe.lock.json"


CLINIC = (
    "Patienten-Nr;Aufnahme;Alter;CRP mg/L;Beschwerde;Dringend \n"
    "P1;05.08.2025;41;1,5;naïve Atemnot;1\nP2;23.01.2024;n/a;7;Husten;0\nP3;13.05.2025;7;;Sturz;\n"
)


@pytest.mark.claim("C625")
def test_columns_that_are_called_otherwise_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(CLINIC)
    words = ("--owner-name", "clinic-a", "--sample", "a.csv", "--label", "dringend")
    result = ran(*words, "--text", "Beschwerde", "--json")
    assert result.exit_code == 0, result.output
    recipe = load_recipe(tmp_path / "recipe.yaml")
    assert recipe.to_dict()["columns"] == {"text": "Beschwerde", "label": "Dringend "}
    assert recipe.to_dict()["labels"] == ["0", "1"]


@pytest.mark.claim("C625")
def test_of_numbers_it_says_how_the_file_is_sealed(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(CLINIC)
    features = [word for name in ("Alter", "crp mg/l", "Aufnahme") for word in ("--feature", name)]
    words = ("--owner-name", "clinic-a", "--sample", "a.csv", "--label", "Dringend", *features)
    result = ran(*words, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["seal_as"] == [
        *("--decimals", "comma"),
        *("--dates", "Aufnahme=DD.MM.YYYY"),
    ]
    recipe = load_recipe(tmp_path / "recipe.yaml").to_dict()
    assert recipe["missing"] == {"Alter": "own-category", "CRP mg/L": "own-category"}
    columns = recipe["columns"]
    assert columns == {"features": ["Alter", "CRP mg/L", "Aufnahme"], "label": "Dringend "}


@pytest.mark.claim("C625")
@pytest.mark.parametrize(
    ("words", "check"),
    [
        (["--text", "Beschwerden"], "--text"),
        (["--text", "Beschwerde", "--label", "Patient"], "--label"),
        (["--text", "Beschwerde", "--label", "leer"], "--label"),
        (["--feature", "Beschwerde", "--label", "Dringend"], "--feature"),
        (["--feature", "um", "--label", "Dringend"], "--feature"),
        (["--feature", "CRP mg/L", "--feature", "punkt", "--label", "Dringend"], "--feature"),
        (["--feature", "leer", "--label", "Dringend"], "--feature"),
    ],
)
def test_a_column_that_cannot_be_what_it_is_named_is_refused(
    tmp_path: Path, words: list[str], check: str
) -> None:
    rows = [line.split(";") for line in CLINIC.splitlines()]
    more = [["um", "punkt", "leer"], ["01/02/2025", "1.5", ""], ["03/04/2025", "2.5", ""]]
    more.append(["05/06/2025", "3.5", ""])
    text = "".join(";".join([*row, *also]) + "\n" for row, also in zip(rows, more, strict=True))
    (tmp_path / "a.csv").write_text(text)
    result = ran("--owner-name", "clinic-a", "--sample", "a.csv", *words)
    assert isinstance(result.exception, UsageError)
    assert result.exception.check == check
    assert not (tmp_path / "keys").exists()


def test_columns_are_named_of_a_sample() -> None:
    result = ran("--owner-name", "clinic-a", "--text", "note")
    assert isinstance(result.exception, UsageError)


def test_a_short_run_does_not_only_warm_up(tmp_path: Path) -> None:
    rows = [{"text": f"note {number}", "label": ["no", "yes"][number % 2]} for number in range(60)]
    (tmp_path / "notes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert ran("--owner-name", "clinic-a", "--sample", "notes.jsonl").exit_code == 0
    trainer = load_recipe(tmp_path / "recipe.yaml").trainer
    warmup = trainer.warmup_steps
    steps = warmup if warmup >= 1 else warmup * trainer.max_steps
    assert steps <= trainer.max_steps / 10


def test_the_commands_that_come_next_are_typed_as_a_shell_reads_them(tmp_path: Path) -> None:
    (tmp_path / "Ärzte daten").mkdir()
    sample = "Ärzte daten/brief é $(x).jsonl"
    (tmp_path / sample).write_text(SAMPLES["sft"])
    result = ran("--owner-name", "clinic-a", "--sample", sample)
    [seal] = [line for line in result.stdout.splitlines() if "sealtrain seal " in line]
    assert shlex.split(seal)[:4] == ["sealtrain", "seal", sample, "--name"]


@pytest.mark.parametrize("name", ["Dr. No", "ä", "", "-a", "a" * 64, "a/b", "a\n"])
@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["init", "--owner-name", "{}"], "--owner-name"),
        (["keygen", "--out", "new", "--", "{}"], "NAME"),
        (["consortium", "create", "--owner", "nobody.json", "--", "{}"], "NAME"),
    ],
)
def test_what_is_no_name_is_refused_before_anything_is_made(
    tmp_path: Path, words: list[str], option: str, name: str
) -> None:
    (tmp_path / "nobody.json").write_bytes(Identity.generate("nobody").public.to_bytes())
    result = CliRunner().invoke(app, [word.format(name) for word in words])
    assert isinstance(result.exception, UsageError)
    assert result.exception.check == option
    assert [path.name for path in tmp_path.iterdir()] == ["nobody.json"]


def test_again_it_keeps_every_file(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(SAMPLES["sft"])
    words = ("--owner-name", "clinic-a", "--sample", "a.jsonl")
    assert ran(*words).exit_code == 0
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    result = ran(*words, "--broker", "other.yaml", "--json")
    assert json.loads(result.stdout)["written"] == []
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_without_a_sample_there_is_no_recipe(tmp_path: Path) -> None:
    assert ran("new", "--owner-name", "clinic-a").exit_code == 0
    assert Identity.load(tmp_path / "new/keys/clinic-a.identity.json").name == "clinic-a"
    assert not (tmp_path / "new/recipe.yaml").exists()


def test_with_other_owners_it_founds_their_consortium(tmp_path: Path) -> None:
    """It knows the others by their public files alone, and writes no key for them."""
    (tmp_path / "notes.jsonl").write_text(SAMPLES["sft"] * 64)
    for owner in ("clinic-b", "clinic-c"):
        public = Identity.generate(owner).public
        (tmp_path / f"{owner}.public.json").write_bytes(public.to_bytes())
    words = ("--owner-name", "clinic-a", "--sample", "notes.jsonl")
    result = ran(*words, "--with", "clinic-b.public.json", "--with", "clinic-c.public.json")
    assert result.exit_code == 0, result.output
    owners = ["clinic-a", "clinic-b", "clinic-c"]
    consortium = Consortium.load(tmp_path / "consortium.json")
    assert [member.name for member in consortium.owners] == owners
    assert consortium.thresholds.approve == 2
    assert consortium.own_data_consent
    recipe = load_recipe(tmp_path / "recipe.yaml")
    assert [(dataset.owner, dataset.name) for dataset in recipe.datasets] == [
        (owner, "notes") for owner in owners
    ]
    assert recipe.release_policy.model.recipients == ("clinic-a",)
    batch = recipe.trainer.per_device_train_batch_size * recipe.trainer.gradient_accumulation_steps
    assert recipe.trainer.max_steps == 3 * 3 * 64 // batch
    shown = max(recipe.trainer.logging_steps, recipe.release_policy.every_n_steps)
    assert recipe.trainer.max_steps // shown >= 10
    assert [path.name for path in tmp_path.rglob("*.identity.json")] == ["clinic-a.identity.json"]


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ((), UsageError),
        (("--owner-name", "No Name"), UsageError),
        (("--owner-name", "a", "--sample", "none.csv"), DataInvalid),
        (("--owner-name", "a", "--sample", "odd.csv"), UsageError),
        (("--owner-name", "a", "--with", "none.json"), DataInvalid),
    ],
)
def test_a_refusal_leaves_nothing(tmp_path: Path, words: tuple[str, ...], kind: type) -> None:
    (tmp_path / "odd.csv").write_text("foo,bar\nx,y\n")
    result = ran(*words)
    assert isinstance(result.exception, kind)
    assert [path.name for path in tmp_path.iterdir()] == ["odd.csv"]
