"""``recipe check`` and ``lock`` judge a recipe at the desk; ``lock`` remembers where it lies."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
import yaml
from carrying import carries
from pyarrow import parquet
from typer.testing import CliRunner
from world import OWNERS, RECIPE, founded, signer, simulated_policy

from sealtrain.base.encoding import to_base64
from sealtrain.cli import app
from sealtrain.client.pin import BrokerPin
from sealtrain.errors import UsageError
from sealtrain.owner.data_fitness import layout_words, seal_words
from sealtrain.owner.reviewing import facts
from sealtrain.recipe.basefolder import base_of, remember_base
from sealtrain.recipe.errors import RecipeInvalid
from sealtrain.recipe.lock import load_lock

pytestmark = pytest.mark.long

ROWS = '{"prompt": "case", "completion": "benign"}\n' * 3


def run(*words: str | Path) -> Any:
    return CliRunner().invoke(app, [*map(str, words)])


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    (tmp_path / "recipe").mkdir()
    write(tmp_path, RECIPE)
    (tmp_path / "consortium.json").write_bytes(founded().to_bytes())
    pin = BrokerPin(
        url="http://127.0.0.1:9",
        signing_key=to_base64(signer("broker").public),
        compose_hash="ab" * 32,
        appraisal=simulated_policy(),
    )
    (tmp_path / "broker.yaml").write_text(pin.to_yaml())
    (tmp_path / "rows.jsonl").write_text(ROWS)
    return tmp_path


def write(desk: Path, recipe: dict[str, Any]) -> Path:
    path = desk / "recipe" / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe))
    return path


def check(desk: Path, *words: str | Path) -> Any:
    return run("recipe", "check", desk / "recipe" / "recipe.yaml", *words, "--json")


def lock(desk: Path) -> Any:
    return run(
        "lock", desk / "recipe" / "recipe.yaml", "--consortium", desk / "consortium.json",
        "--broker", desk / "broker.yaml", "--out", desk / "locked",
    )  # fmt: skip


def test_a_recipe_that_fits_says_what_was_checked_and_what_was_not(desk: Path) -> None:
    data = [f"--records={owner}.biopsies={desk / 'rows.jsonl'}" for owner in OWNERS]
    done = check(desk, "--consortium", desk / "consortium.json", *data)
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["fits"]
    assert {"owners and recipients", "data hospital-a.biopsies"} <= set(told["checked"])
    assert len(told["not_checked"]) == 1
    assert told["not_checked"][0].startswith("data hospital-a.biopsies-test")


@pytest.mark.parametrize(
    ("name", "text", "fits"),
    [
        ("rows.csv", "prompt,completion\nsize?,1\nsize?,2.50\n", True),
        ("rows.tsv", "prompt\tcompletion\n1\ttrue\n2\tfalse\n", True),
        ("rows.jsonl", '{"prompt": "size?", "completion": 1}\n', False),
    ],
)
def test_numbers_in_a_csv_are_text_where_the_recipe_reads_text(
    desk: Path, name: str, text: str, fits: bool
) -> None:
    write(desk, RECIPE | {"scripts": []})
    (desk / name).write_text(text)
    done = check(desk, f"--records={OWNERS[0]}.biopsies={desk / name}")
    assert json.loads(done.stdout)["fits"] is fits


def test_two_columns_of_one_name_are_refused_with_it(desk: Path) -> None:
    names = ["prompt", "completion", "completion"]
    columns = [pa.array(["case"]), pa.array(["benign"]), pa.array(["malign"])]
    path = desk / "rows.parquet"
    parquet.write_table(pa.Table.from_arrays(columns, names), path)
    done = check(desk, f"--records={OWNERS[0]}.biopsies={path}")
    assert done.exit_code == 5
    assert [wrong["got"] for wrong in json.loads(done.stdout)["wrong"]] == ["completion"]


def test_everything_that_is_wrong_is_listed_at_once(desk: Path) -> None:
    policy = RECIPE["release_policy"] | {"metrics": ["los"], "model": {"recipients": ["clinic-z"]}}
    datasets = [{"owner": "clinic-y", "name": "notes", "role": "train"}]
    write(desk, RECIPE | {"release_policy": policy, "datasets": datasets, "scripts": []})
    (desk / "book.xlsx").write_bytes(b"PK")
    done = check(
        desk, "--consortium", desk / "consortium.json",
        f"--records=clinic-y.notes={desk / 'book.xlsx'}",
    )  # fmt: skip
    assert done.exit_code == RecipeInvalid.exit_code
    wrong = {fault["about"]: fault for fault in json.loads(done.stdout)["wrong"]}
    assert set(wrong) == {
        "datasets", "release_policy.model.recipients", "release_policy.metrics",
        "data clinic-y.notes",
    }  # fmt: skip
    assert wrong["data clinic-y.notes"]["code"] == "format-unknown"
    refused = lock(desk)
    assert isinstance(refused.exception, RecipeInvalid)
    assert set(str(refused.exception.check).split(", ")) == set(wrong) - {"data clinic-y.notes"}
    assert not (desk / "locked").exists()


def test_data_alone_exits_as_data_does(desk: Path) -> None:
    (desk / "rows.jsonl").write_text('{"prompt": "case"}\n')
    done = check(desk, f"--records=hospital-a.biopsies={desk / 'rows.jsonl'}")
    assert done.exit_code == 5
    assert [refusal["code"] for refusal in json.loads(done.stdout)["wrong"]] == ["schema-mismatch"]


@pytest.mark.parametrize(
    "words",
    [["--records", "hospital-a.biopsies"], ["--seal-as", "hospital-a.biopsies=--format file"]],
    ids=["no path", "no data"],
)
def test_words_that_say_nothing_are_refused(desk: Path, words: list[str]) -> None:
    assert isinstance(check(desk, *words).exception, UsageError)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--row-tokens abc", "--row-tokens"),
        ("--row-tokens=", "--row-tokens"),
        ("--row-tokens -5", "--row-tokens"),
        ("--row-tokens ²", "--row-tokens"),
        (f"--row-tokens {'9' * 5000}", "--row-tokens"),
        ("--row-tokens", "--seal-as"),
        ("--format 'tokens", "--seal-as"),
        ("--formt tokens", "--seal-as"),
        ("tokens", "--seal-as"),
        ("--name other", "--seal-as"),
    ],
)
def test_options_of_seal_that_make_no_sense_are_refused_by_name(
    desk: Path, words: str, named: str
) -> None:
    done = check(
        desk, f"--records=hospital-a.biopsies={desk / 'rows.jsonl'}",
        f"--seal-as=hospital-a.biopsies={words}",
    )  # fmt: skip
    assert isinstance(done.exception, UsageError)
    assert done.exception.check == named
    with pytest.raises(UsageError, check=carries(check=named)):
        layout_words(seal_words(words))


def test_options_of_seal_are_read_as_a_shell_separates_them(desk: Path) -> None:
    words = seal_words("--format tokens --row-tokens=8 --dtype 'uint16' --no-publish-counts")
    chosen = layout_words(words)
    assert (chosen.form, chosen.token_shards.row_tokens, chosen.token_shards.dtype) == (
        "tokens", 8, "uint16",
    )  # fmt: skip


def test_a_lock_is_checked_from_where_its_recipe_lies(desk: Path) -> None:
    done = lock(desk)
    assert done.exit_code == 0, done.output
    locked = desk / "locked" / "recipe.lock.json"
    assert str(desk) not in locked.read_text() + (desk / "locked" / "app-compose.json").read_text()
    assert base_of(locked) == desk / "recipe"
    assert run("recipe", "check", locked).exit_code == 0
    moved = desk.rename(desk.with_name("moved"))  # all of it, so the way is the same
    assert base_of(moved / "locked" / "recipe.lock.json") == moved / "recipe"


@pytest.mark.parametrize("spoilt", ["gone", "{}", "not json", "another lock", "no such folder"])
def test_what_is_remembered_wrongly_counts_for_nothing(desk: Path, spoilt: str) -> None:
    lock(desk)
    locked = desk / "locked" / "recipe.lock.json"
    (note,) = (path for path in locked.parent.iterdir() if path.name.startswith("."))
    if spoilt == "gone":
        note.unlink()
    elif spoilt == "another lock":
        locked.write_bytes(locked.read_bytes().replace(b"biopsy", b"tissue"))
    elif spoilt == "no such folder":
        (desk / "recipe").rename(desk / "elsewhere")
    else:
        note.write_text(spoilt)
    assert base_of(locked) == locked.parent


def test_a_recipe_beside_its_lock_needs_no_note(desk: Path) -> None:
    lock(desk)
    locked = desk / "locked" / "recipe.lock.json"
    remember_base(locked, locked.parent)
    assert not [path for path in locked.parent.iterdir() if path.name.startswith(".")]


@pytest.mark.claim("C256")
@pytest.mark.parametrize(
    "changed", [{}, {"masks": {"threshold": 2}}, {"products": {"pads": "own"}}]
)
def test_a_recipe_says_at_the_desk_and_to_owners_what_others_see(
    desk: Path, changed: dict[str, Any]
) -> None:
    """A recipe that asks for masks is refused, as with any field that there is not."""
    (desk / "recipe" / "policy.yaml").write_text(yaml.safe_dump(simulated_policy().to_dict()))
    how = {
        "kind": "federated", "policy": "policy.yaml", "rounds": 1, "min_parties": 2,
        "local_steps": RECIPE["trainer"]["max_steps"], "aggregation": "fedavg",
    }  # fmt: skip
    write(desk, RECIPE | {"collaboration": how | changed})
    done = check(desk)
    if "masks" in changed:
        assert isinstance(done.exception, RecipeInvalid)
        assert isinstance(lock(desk).exception, RecipeInvalid)
        assert not (desk / "locked").exists()
        return
    assert lock(desk).exit_code == 0
    locked = load_lock(desk / "locked" / "recipe.lock.json")
    assert locked.recipe.collaboration is not None
    told = dict(facts(locked, (), ()))
    assert told["aggregator"] == json.loads(done.stdout)["aggregator"]
    assert told["aggregator"] == locked.recipe.collaboration.lead_sees
    assert ("accelerator" in told) == ("products" in changed)
    assert told.get("accelerator") == locked.recipe.collaboration.accelerator_sees


def test_a_review_says_by_which_rule_epochs_become_steps(desk: Path) -> None:
    epochs = {"max_steps": 0, "num_train_epochs": 2, "per_device_train_batch_size": 8}
    write(desk, RECIPE | {"trainer": RECIPE["trainer"] | epochs})
    assert lock(desk).exit_code == 0
    locked = load_lock(desk / "locked" / "recipe.lock.json")
    trained = [dataset for dataset in locked.recipe.datasets if dataset.role == "train"]
    registered = [
        SimpleNamespace(
            owner=dataset.owner, name=dataset.name, records=13, series=None, data_use=None
        )
        for dataset in locked.recipe.datasets
    ]
    steps = -(-2 * 13 * len(trained) // 8)
    untold = dict(facts(locked, (), ()))["trains"]
    told = dict(facts(locked, cast("Any", registered), ()))["trains"]
    assert "2 epochs in steps of 8 records" in untold
    assert f"{steps} steps for the {13 * len(trained)} records" in told


FITS = RECIPE | {"scripts": []}


@pytest.mark.claim("C580")
def test_the_first_record_is_shown_as_the_model_learns_it(desk: Path) -> None:
    write(desk, FITS)
    key = f"{OWNERS[0]}.biopsies"
    words = [f"--records={key}={desk / 'rows.jsonl'}"]
    done = check(desk, *words)
    told = json.loads(done.stdout)
    assert told["fits"], told
    (shown,) = told["shown"]
    (sequence,) = shown["sequences"]
    assert (shown["data"], shown["record"]) == (key, 1)
    assert sequence["spans"] == [
        {"use": "masked", "text": "case"},
        {"use": "learned", "text": "benign<eos>"},
    ]
    assert (sequence["tokens"], sequence["learned"], sequence["cut"]) == (11, 7, 0)
    lines = run("recipe", "check", desk / "recipe" / "recipe.yaml", *words).stdout.splitlines()
    assert "  masked   | case" in lines
    assert "  learned  | benign<eos>" in lines
    assert json.loads(check(desk, *words, "--no-show").stdout)["shown"] == []


@pytest.mark.claim("C580")
def test_a_shown_record_is_bounded_and_moves_no_cursor(desk: Path) -> None:
    write(desk, FITS)
    row = {"prompt": "\x1b[2Jcase" + "x" * 9000, "completion": "benign"}
    (desk / "rows.jsonl").write_text(json.dumps(row) + "\n")
    words = [f"--records={OWNERS[0]}.biopsies={desk / 'rows.jsonl'}"]
    (shown,) = json.loads(check(desk, *words).stdout)["shown"]
    (sequence,) = shown["sequences"]
    text = "".join(span["text"] for span in sequence["spans"])
    assert len(text) <= 4000
    assert sequence["cut"] + sequence["tokens"] == 9000 + 8 + 7
    assert "\x1b" not in run("recipe", "check", desk / "recipe" / "recipe.yaml", *words).stdout


@pytest.mark.claim("C521")
def test_preferences_in_conversations_need_a_template_at_the_desk(desk: Path) -> None:
    columns = {"prompt": "prompt", "chosen": "chosen", "rejected": "rejected"}
    policy = RECIPE["release_policy"] | {"metrics": []}
    write(desk, FITS | {"phase": "reward", "columns": columns, "release_policy": policy})
    turns = {
        "prompt": [{"role": "user", "content": "case"}],
        "chosen": [{"role": "assistant", "content": "benign"}],
        "rejected": [{"role": "assistant", "content": "malign"}],
    }
    (desk / "rows.jsonl").write_text(json.dumps(turns) + "\n")
    done = check(desk, f"--records={OWNERS[0]}.biopsies={desk / 'rows.jsonl'}")
    assert done.exit_code == RecipeInvalid.exit_code, done.output
    assert "columns.prompt" in [fault.get("field") for fault in json.loads(done.stdout)["wrong"]]
