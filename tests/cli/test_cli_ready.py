"""What sealtrain brings to start from and to look up, from a checkout and from a wheel."""

from __future__ import annotations

import ast
import hashlib
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from click.testing import Result
from source_tree import source_modules
from typer.testing import CliRunner

import sealtrain
from sealtrain.base.shipped import find_shipped
from sealtrain.cli import app
from sealtrain.errors import DataInvalid, SealtrainError, UsageError
from sealtrain.manifest.second_verifier import join_page, join_script

pytestmark = pytest.mark.long

REPOSITORY = Path(__file__).resolve().parents[2]
SHIPPED = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["hatch"]["build"][
    "targets"
]["wheel"]["shared-data"]


def ran(*words: str) -> Result:
    return CliRunner().invoke(app, words)


def test_every_ready_recipe_is_listed_with_its_phase_and_what_it_is_for() -> None:
    listed = {
        recipe["name"]: recipe for recipe in json.loads(ran("recipes", "--json").stdout)["recipes"]
    }
    assert set(listed) == {path.stem for path in (REPOSITORY / "recipes").glob("*.yaml")}
    for name, told in listed.items():
        recipe = yaml.safe_load((REPOSITORY / f"recipes/{name}.yaml").read_text())
        assert (told["phase"], told["description"]) == (recipe["phase"], recipe["description"])


def test_a_recipe_is_printed_as_it_is() -> None:
    path = REPOSITORY / "recipes/sft-lora.yaml"
    assert ran("recipes", "sft-lora").stdout == path.read_text()


def test_a_recipe_that_is_not_there_is_refused() -> None:
    assert isinstance(error := ran("recipes", "sft-lorra").exception, UsageError)
    assert error.got == "sft-lorra"


def test_an_error_is_explained_by_its_page_and_a_misspelt_one_by_its_neighbours() -> None:
    text = json.loads(ran("explain", "run-mismatch", "--json").stdout)["text"]
    assert "`sealtrain.errors.RunMismatch` · exit 3" in text
    assert "sealtrain resume" in text
    error = ran("explain", "run-mismtch").exception
    assert isinstance(error, UsageError)
    assert "run-mismatch" in str(error.expected)


def test_every_code_can_be_explained() -> None:
    def codes(kind: type[SealtrainError]) -> set[str]:
        below = [
            each_kind
            for each_kind in kind.__subclasses__()
            if each_kind.__module__ == kind.__module__
        ]
        return {kind.code}.union(*map(codes, below))

    assert {code for code in codes(SealtrainError) if ran("explain", code).exit_code} == set()


def test_the_wheel_brings_whatever_code_looks_for_beside_itself() -> None:
    asked = {
        node.args[0].value
        for path in source_modules(REPOSITORY).values()
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call)
        and getattr(node.func, "id", "") == "find_shipped"
        and isinstance(node.args[0], ast.Constant)
    }
    assert asked >= {"recipes", "docs/reference/errors.md"}
    assert asked - SHIPPED.keys() == set()
    assert all(place == f"share/sealtrain/{name}" for name, place in SHIPPED.items())
    assert all((REPOSITORY / name).exists() for name in SHIPPED)


@pytest.mark.claim("C650")
def test_checkout_and_wheel_join_the_same_second_verifier() -> None:
    """``make newest`` plays this with our wheel, whose page has the digest of the checkout's."""
    # A joined copy beside it would grow old, and an auditor would open it.
    joined = (REPOSITORY / "verify/verify.html", REPOSITORY / "src/sealtrain/manifest/verifier.js")
    assert not any(path.exists() for path in joined)
    (line,) = (REPOSITORY / "verify/verify.html.sha256").read_text().splitlines()
    assert line == f"{hashlib.sha256(join_page().encode()).hexdigest()}  verify.html"
    brought = {
        path.relative_to(find_shipped("verify")) for path in find_shipped("verify").rglob("*.*")
    }
    assert brought == {
        path.relative_to(REPOSITORY / "verify") for path in (REPOSITORY / "verify").rglob("*.*")
    }
    for text in (join_page(), join_script()):
        assert re.findall(r"^(?:import|export) .*", text, re.MULTILINE) == []


def test_what_is_not_brought_is_said() -> None:
    with pytest.raises(DataInvalid):
        find_shipped("recipes/none.yaml")


def test_a_file_is_found_where_a_wheel_puts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = tmp_path / "lib/site-packages"
    record = packages / "sealtrain-9.dist-info"
    record.mkdir(parents=True)
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: sealtrain\nVersion: 9\n")
    (record / "RECORD").write_text("../../share/sealtrain/recipes/mine.yaml,,\n")
    mine = tmp_path / "share/sealtrain/recipes/mine.yaml"
    mine.parent.mkdir(parents=True)
    mine.write_text("version: 1\n")
    module = packages / "sealtrain/__init__.py"
    monkeypatch.syspath_prepend(str(packages))
    monkeypatch.setattr(sealtrain, "__file__", str(module))
    assert find_shipped("recipes/mine.yaml") == mine


WITHOUT = """
import sys
for name in {absent!r}:
    sys.modules[name] = None
sys.argv = ["sealtrain", *{words!r}]
from sealtrain.cli import main
main()
"""


def without(absent: list[str], *words: str) -> tuple[int, dict[str, str]]:
    """How a command ends where packages are not installed."""
    program = WITHOUT.format(absent=absent, words=[*words, "--json"])
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "Traceback" not in done.stderr
    return done.returncode, json.loads(done.stdout)["error"]


def test_a_command_names_the_extra_that_it_needs(tmp_path: Path) -> None:
    recipe = yaml.safe_load((REPOSITORY / "recipes/classify-tabular.yaml").read_text())
    recipe["validation"] = {"min_records": 1}
    records = tmp_path / "records.csv"
    records.write_text("a,b\n1,2\n")
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    [first, *_] = recipe["datasets"]
    code, error = without(
        ["pyarrow"],
        "validate",
        str(tmp_path / "recipe.yaml"),
        "--records",
        f"{first['owner']}.{first['name']}={records}",
    )
    assert (code, error["code"], error["got"]) == (2, "extra-missing", "pyarrow")
    assert "sealtrain[seal]" in error["hint"]
