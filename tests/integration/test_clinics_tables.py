"""Three clinics with tables as their programs write them, from ``init`` to an opened model.

Gaps, dates, accents, own column names and labels that are numbers; one file of a German
spreadsheet, one in UTF-16, one that pandas wrote.
"""

from __future__ import annotations

import importlib.util
import json
import random
import sys
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import yaml
from ports import free_port
from stage import interpreter

from sealtrain.manifest import form
from sealtrain.manifest.files import manifest_bytes

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.nightly, pytest.mark.claim("C627")]

REPOSITORY = Path(__file__).resolve().parents[2]
SPEC = importlib.util.spec_from_file_location(
    "first_hour_of_clinics", REPOSITORY / "examples" / "first_hour" / "record.py"
)
assert SPEC is not None
assert SPEC.loader is not None
WALK = importlib.util.module_from_spec(SPEC)
sys.modules[SPEC.name] = WALK
SPEC.loader.exec_module(WALK)

PERSON = "Çağla Dvořák"
OWN_NAMES = {
    "clinic-b": {"âge": "Alter", "CRP": "CRP mg/L", "entrée": "Aufnahme", "tri": "Dringend "},
    "clinic-c": {"age": "Alter", "crp": "CRP mg/L", "in": "Aufnahme", "urgent": "Dringend "},
}
"""What the engineer writes at the datasets of the others."""


def write_tables(folder: Path) -> list[int]:
    """The three files, and the ages that are in them."""
    ages = []
    source = random.Random(7)  # noqa: S311 - test records
    rows = {"a": ["Patient;Alter;CRP mg/L;Aufnahme;Dringend "], "b": ["nom\tâge\tCRP\tentrée\ttri"]}
    rows["c"] = ["name,age,crp,in,urgent"]
    for number in range(48):
        age, crp, day = source.randrange(99), source.randrange(400) / 4, 1 + number % 28
        urgent = int(crp > 50)
        gap = number % 6 == 0
        ages += [age] * (2 if gap else 3)
        comma = "n/a" if gap else f"{crp:.2f}".replace(".", ",")
        rows["a"].append(f"{PERSON};{age};{comma};{day:02}.11.2025;{urgent}")
        rows["b"].append(f"{PERSON}\t{'' if gap else age}\t{crp}\t2025-11-{day:02}\t{urgent}")
        rows["c"].append(
            f'"{PERSON}, {number}",{age},{"" if gap else crp},11/{day}/2025,{urgent}.0'
        )
    texts = {name: "\n".join(lines) + "\n" for name, lines in rows.items()}
    (folder / "a.csv").write_text(texts["a"], "utf-8-sig")
    (folder / "b.csv").write_text(texts["b"], "utf-16")
    (folder / "c.csv").write_text(texts["c"], "utf-8")
    return ages


def name_columns(folder: Path) -> None:
    """The engineer's edit: what the other clinics call their columns, and a median for gaps."""
    path = folder / "recipe.yaml"
    recipe: dict[str, Any] = yaml.safe_load(path.read_text("utf-8"))
    for dataset in recipe["datasets"]:
        if dataset["owner"] in OWN_NAMES:
            dataset["columns"] = OWN_NAMES[dataset["owner"]]
    recipe["missing"] = {"Alter": "median", "CRP mg/L": "own-category"}
    recipe["release_policy"]["metrics"] = ["loss", "missing_1"]
    path.write_text(yaml.safe_dump(recipe, allow_unicode=True, sort_keys=False), "utf-8")


WORDS = {
    "a": ["--decimals", "comma", "--dates", "Aufnahme=DD.MM.YYYY"],
    "b": ["--dates", "entrée=YYYY-MM-DD"],
    "c": ["--dates", "in=MM/DD/YYYY"],
}
FEATURES = [word for name in ("alter", "CRP mg/L", "Aufnahme") for word in ("--feature", name)]


def seal(clinic: str) -> list[str]:
    signs = [] if clinic == "a" else ["--identity", f"{clinic}/clinic-{clinic}.identity.json"]
    return [
        *(
            "sealtrain",
            "seal",
            f"{clinic}.csv",
            "--name",
            "a",
            "--columns",
            "read",
            "--and-approve",
        ),
        *("--out", f"sealed/clinic-{clinic}.sealed", *WORDS[clinic], *signs),
    ]


def check() -> list[str]:
    words = ["sealtrain", "recipe", "check", "recipe.yaml", "--consortium", "consortium.json"]
    for clinic, told in WORDS.items():
        words += ["--records", f"clinic-{clinic}.a={clinic}.csv"]
        words += ["--seal-as", f"clinic-{clinic}.a={' '.join(told)}"]
    return words


COMMANDS = [
    *(["sealtrain", "keygen", f"clinic-{value}", "--out", value] for value in "bc"),
    [
        *("sealtrain", "init", "--owner-name", "clinic-a", "--sample", "a.csv", *FEATURES),
        *("--label", "dringend", "--with", "b/clinic-b.public.json"),
        *("--with", "c/clinic-c.public.json"),
    ],
    check(),
    ["sealtrain", "up"],
    ["sealtrain", "lock", "recipe.yaml", "--out", "locked"],
    *(seal(clinic) for clinic in "abc"),
    [
        *("sealtrain", "train", "--platform", "simulator", "--guest", "up/guest.sock"),
        *("--collateral", "file:up/simulated-root/collateral.json", "--data", "sealed"),
        *("--out", "run"),
    ],
    ["sealtrain", "open", "run", "--trust", "up/trust.yaml", "--out", "model"],
    [
        *("sealtrain", "inspect", "sealed/clinic-b.sealed", "--json"),
        *("--identity", "b/clinic-b.identity.json"),
    ],
    [
        *("sealtrain", "open", "sealed/clinic-b.sealed", "--out", "b-again.csv"),
        *("--identity", "b/clinic-b.identity.json"),
    ],
]


def test_three_clinics_come_to_an_opened_model_in_fourteen_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(COMMANDS) <= 14
    monkeypatch.setattr(sys, "executable", interpreter())
    ages = write_tables(tmp_path)
    steps = [WALK.Step(words, "", "", 0) for words in COMMANDS]
    said = []
    for step, played in zip(steps, WALK.play(steps, tmp_path, port=free_port()), strict=True):
        assert played.status == 0, f"{step.words}\n{played.said}"
        said.append(played.said)
        if step.words[1] == "init":
            name_columns(tmp_path)
    assert (tmp_path / "model/model.safetensors").stat().st_size > 0
    config = json.loads((tmp_path / "model/config.json").read_text())
    assert (config["filled"], config["marked"]) == ([0, 1], [1])
    metrics = form.read(manifest_bytes(tmp_path / "run/manifest.json")).predicate.run.metrics
    assert metrics["missing_1"] == pytest.approx(median(ages), abs=0.06)
    answer = json.loads(said[-2][said[-2].index("{") :])
    assert answer["columns"] == {
        "âge": "int64",
        "CRP": "double",
        "entrée": "int64",
        "tri": "string",
    }
    again = (tmp_path / "b-again.csv").read_text("utf-8").splitlines()
    assert len(again) == 49
    assert PERSON not in "".join(again)  # the recipe does not read who it was
