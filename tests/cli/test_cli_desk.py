"""Mistakes are judged at the desk where they are made: at seal, at register and at approve."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from broker_site import BrokerSite, broker_site
from typer.testing import CliRunner
from world import identity, lock_changed

from sealtrain.cli import app
from sealtrain.client.broker_api import BrokerClient
from sealtrain.client.errors import BrokerUnreachable
from sealtrain.consortium.errors import DatasetMismatch
from sealtrain.errors import (
    AlreadyExists,
    FormatUnknown,
    SealtrainError,
    SignatureInvalid,
    UsageError,
)
from sealtrain.recipe.errors import DatasetUnknown
from sealtrain.sealing.errors import RecordInvalid, SchemaMismatch

pytestmark = pytest.mark.long

A, B = "hospital-a", "hospital-b"
ROWS = [{"prompt": f"case {number}", "completion": "benign"} for number in range(7)]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerSite]:
    with broker_site(tmp_path_factory.mktemp("desk")) as made:
        yield made


@pytest.fixture(scope="module")
def broker(site: BrokerSite) -> Iterator[BrokerClient]:
    with site.serving("state") as client:
        site.broker_file(client)
        yield client


def run(*words: str | Path) -> Any:
    return CliRunner().invoke(app, [*map(str, words)])


def refused(done: Any, error: type[SealtrainError]) -> SealtrainError:
    assert isinstance(done.exception, error), (done.output, done.exception)
    return done.exception


def owner_words(site: BrokerSite, owner: str = A, broker: str = "broker.yaml") -> list[str | Path]:
    return [
        "--identity", site.folder / f"{owner}.identity.json", "--broker", site.folder / broker,
    ]  # fmt: skip


def seal(
    site: BrokerSite, source: Path, out: Path, *words: str | Path, owner: str = A,
    name: str = "biopsies", deployment: Path | None = None, broker: str = "broker.yaml",
) -> Any:  # fmt: skip
    return run(
        "seal", source, "--name", name, *owner_words(site, owner, broker),
        "--deployment", deployment or site.deployment, "--out", out, *words, "--json",
    )  # fmt: skip


def approve(
    site: BrokerSite, *words: str | Path, owner: str = A, deployment: Path | None = None
) -> Any:
    return run(
        "approve", "--deployment", deployment or site.deployment, *owner_words(site, owner),
        "--consortium", site.folder / "consortium.json", *words, "--yes",
    )  # fmt: skip


def recipe_for(site: BrokerSite, folder: Path, name: str, **datasets: Any) -> Path:
    """A deployment of another recipe, so that a test has the ledger's names for itself."""

    def change(recipe: dict[str, Any]) -> None:
        recipe["name"] = name
        recipe["datasets"][0] |= datasets

    locked = lock_changed(site.consortium.consortium_id, (site.pin.broker_id,), change)
    path = folder / f"{name}.json"
    path.write_bytes(locked.compose_bytes)
    return path


def entries(broker: BrokerClient) -> int:
    return len(broker.ledger_entries())


TEXT = {
    "lines.jsonl": LINES,
    "array.json": json.dumps(ROWS, indent=2),
    "lines.json": LINES,
    "commas.csv": "prompt,completion\n" + "case,benign\n" * 7,
    "semicolons.csv": "prompt;completion\n" + '"a, b";benign\n' * 7,
    "tabs.tsv": "prompt\tcompletion\n" + "a, b\tbenign\n" * 7,
}


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("name", TEXT)
def test_text_of_every_kind_is_sealed_as_records(
    site: BrokerSite, broker: BrokerClient, tmp_path: Path, name: str, packed: bool
) -> None:
    source = tmp_path / (f"{name}.gz" if packed else name)
    data = TEXT[name].encode()
    source.write_bytes(gzip.compress(data, mtime=0) if packed else data)
    done = seal(site, source, tmp_path / "out", "--no-register")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["records"] == 7


def test_a_folder_of_tables_is_one_dataset(
    site: BrokerSite, broker: BrokerClient, tmp_path: Path
) -> None:
    folder = tmp_path / "tables"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.csv").write_text("prompt;completion\na;b\n")
    done = seal(site, folder, tmp_path / "out", "--no-register")
    assert json.loads(done.stdout)["records"] == 3
    (folder / "notes.xlsx").write_bytes(b"PK")
    error = refused(seal(site, folder, tmp_path / "two", "--no-register"), FormatUnknown)
    assert (error.check, error.got) == ("format", ".xlsx")


@pytest.mark.parametrize(
    ("name", "data", "error"),
    [
        ("book.xlsx", b"PK", FormatUnknown),
        ("old.XLS", b"\xd0\xcf", FormatUnknown),
        ("packed.zip", b"PK", FormatUnknown),
        ("packed.parquet.gz", b"\x1f\x8b", FormatUnknown),
        ("notes.txt", b"text", FormatUnknown),
        ("no-suffix", b"text", FormatUnknown),
        ("torn.csv.gz", gzip.compress(TEXT["commas.csv"].encode(), mtime=0)[:-9], RecordInvalid),
        ("plain.csv.gz", TEXT["commas.csv"].encode(), RecordInvalid),
        ("object.json", b'{\n "rows": []\n}', RecordInvalid),
        ("torn.json", b'[{"prompt": "a", "completion": "b"},', RecordInvalid),
        ("numbers.json", b"[1, 2]", RecordInvalid),
        ("more.json", b'[{"prompt": "a", "completion": "b"}] x', RecordInvalid),
        ("wide.csv", b"text,label\na,b\n", SchemaMismatch),
        ("number.jsonl", b'{"prompt": 1, "completion": 2}\n', SchemaMismatch),
        ("hole.jsonl", LINES.encode() + b'{"prompt": null, "completion": "x"}', RecordInvalid),
    ],
)
def test_what_the_recipe_cannot_read_is_refused_by_name_and_leaves_nothing(
    site: BrokerSite,
    broker: BrokerClient,
    tmp_path: Path,
    name: str,
    data: bytes,
    error: type[SealtrainError],
) -> None:
    (tmp_path / name).write_bytes(data)
    before = entries(broker)
    found = refused(seal(site, tmp_path / name, tmp_path / "out"), error)
    assert found.hint
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert entries(broker) == before


def test_a_file_is_sealed_as_it_is_only_on_purpose(
    site: BrokerSite, broker: BrokerClient, tmp_path: Path
) -> None:
    (tmp_path / "book.xlsx").write_bytes(b"PK")
    done = seal(site, tmp_path / "book.xlsx", tmp_path / "out", "--format", "file", "--no-register")
    assert json.loads(done.stdout)["records"] is None
    both = ["--format", "file", "--layout", "arrow", "--no-register"]
    refused(seal(site, tmp_path / "book.xlsx", tmp_path / "two", *both), UsageError)


def test_all_missing_columns_are_named_with_what_they_may_be_called(
    site: BrokerSite, broker: BrokerClient, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text("Prompts,answer\na,b\n")
    error = refused(seal(site, tmp_path / "a.csv", tmp_path / "out"), SchemaMismatch)
    assert (error.owner, error.got) == (A, "Prompts, answer")
    assert error.expected == "prompt, completion"


def test_columns_go_by_the_owners_names(
    site: BrokerSite, broker: BrokerClient, tmp_path: Path
) -> None:
    deployment = recipe_for(site, tmp_path, "renamed", columns={"Frage": "prompt"})
    (tmp_path / "own.csv").write_text("Frage;completion\na;b\n")
    (tmp_path / "theirs.csv").write_text("prompt;completion\na;b\n")
    words: dict[str, Any] = {"deployment": deployment}
    done = seal(site, tmp_path / "own.csv", tmp_path / "out", "--no-register", **words)
    assert done.exit_code == 0, done.output
    error = refused(seal(site, tmp_path / "theirs.csv", tmp_path / "no", **words), SchemaMismatch)
    assert error.expected == "Frage (in the recipe prompt)"


@pytest.mark.parametrize(("owner", "name"), [(A, "biopsy"), (A, "notes"), (B, "biopsies-test")])
def test_a_dataset_that_the_recipe_does_not_name_is_not_sealed(
    site: BrokerSite, tmp_path: Path, owner: str, name: str
) -> None:
    (tmp_path / "a.jsonl").write_text(LINES)
    # No broker is asked: its file need not even exist.
    done = seal(site, tmp_path / "a.jsonl", tmp_path / "out", owner=owner, name=name, broker="no")
    error = refused(done, DatasetUnknown)
    assert (error.check, error.owner, error.got) == ("dataset name", owner, f"{owner}/{name}")


def test_a_refused_registration_is_made_up_for(
    site: BrokerSite, broker: BrokerClient, tmp_path: Path
) -> None:
    deployment = recipe_for(site, tmp_path, "made-up-for")
    (tmp_path / "a.jsonl").write_text(LINES)
    sealed = tmp_path / "biopsies.sealed"
    done = seal(site, tmp_path / "a.jsonl", sealed, "--no-register", deployment=deployment)
    assert done.exit_code == 0, done.output
    words = ["register", sealed, "--deployment", deployment, "--json"]
    before = entries(broker)
    refused(run(*words, *owner_words(site, B)), SignatureInvalid)
    error = refused(
        run("register", sealed, "--deployment", site.deployment, *owner_words(site)),
        DatasetMismatch,
    )
    assert error.check == "dataset binding"
    pin = site.pin.model_copy(update={"url": "http://127.0.0.1:9"})
    (site.folder / "gone.yaml").write_text(pin.to_yaml())
    refused(run(*words, *owner_words(site, A, "gone.yaml")), BrokerUnreachable)
    assert entries(broker) == before
    for _ in range(2):
        done = run(*words, *owner_words(site))
        assert json.loads(done.stdout)["registered"] == [broker.url]
    refused(seal(site, tmp_path / "a.jsonl", sealed, deployment=deployment), AlreadyExists)


def test_an_approval_pins_what_its_owner_registered_and_says_it_on_one_page(
    site: BrokerSite, broker: BrokerClient, tmp_path: Path
) -> None:
    deployment = recipe_for(site, tmp_path, "one-page")
    (tmp_path / "a.jsonl").write_text(LINES)
    before = entries(broker)
    error = refused(approve(site, deployment=deployment), DatasetUnknown)
    assert (error.got, error.expected) == ("none", "biopsies")
    assert entries(broker) == before

    done = seal(site, tmp_path / "a.jsonl", tmp_path / "a.sealed", deployment=deployment)
    sealed = json.loads(done.stdout)
    done = approve(site, deployment=deployment)
    assert done.exit_code == 0, done.output
    page = done.stderr.split("recipe hash")[0].splitlines()
    assert len(page) <= 30
    text = " ".join(" ".join(page).split())
    for told in (
        "LoRA, rank 8", "hospital-a/biopsies", "train, 7 records", "prompt, completion",
        "loss, accuracy", "NOT ATTESTED", sealed["root"][:16],
    ):  # fmt: skip
        assert told in text, (told, text)
    told = json.loads(approve(site, "--json", deployment=deployment).stdout)
    assert told["pinned"] == {sealed["dataset_id"]: sealed["root"]}
    assert told["lifted"] == []
    decision = broker_decisions(site, broker, deployment)[-1]
    assert decision.pins() == {sealed["dataset_id"]: sealed["root"]}


def broker_decisions(site: BrokerSite, broker: BrokerClient, deployment: Path) -> list[Any]:
    from sealtrain.recipe.lock import LockedRecipe

    found = broker.list_decisions(LockedRecipe.load(deployment).target, site.consortium)
    return [signed.decision for signed in found]


def test_each_setting_is_shown_on_request_and_none_without_a_value(
    site: BrokerSite, broker: BrokerClient, tmp_path: Path
) -> None:
    deployment = recipe_for(site, tmp_path, "in-detail")
    done = approve(site, "--unpinned", "--detail", deployment=deployment)
    assert done.exit_code == 0, done.output
    rows = done.stderr.splitlines()
    assert any("recipe.trainer.learning_rate" in row for row in rows)
    assert not any(row.rstrip().endswith(" -") for row in rows)
    assert "you pin nothing" in done.stderr


def test_files_are_read_and_the_broker_is_asked_before_the_word(
    site: BrokerSite, broker: BrokerClient, tmp_path: Path
) -> None:
    deployment = recipe_for(site, tmp_path, "before-the-word")
    words = [
        "approve", "--deployment", deployment, *owner_words(site, A, "gone.yaml"),
        "--consortium", site.folder / "consortium.json",
    ]  # fmt: skip
    pin = site.pin.model_copy(update={"url": "http://127.0.0.1:9"})
    (site.folder / "gone.yaml").write_text(pin.to_yaml())
    for done in (run(*words), run(*words, "--data", tmp_path / "missing.sealed")):
        assert isinstance(done.exception, SealtrainError)
        assert "Type APPROVE" not in done.output


def test_two_datasets_of_one_name_are_not_chosen_from(
    site: BrokerSite, broker: BrokerClient, tmp_path: Path
) -> None:
    deployment = recipe_for(site, tmp_path, "twice")
    (tmp_path / "a.jsonl").write_text(LINES)
    for name in ("one.sealed", "two.sealed"):
        done = seal(site, tmp_path / "a.jsonl", tmp_path / name, deployment=deployment)
        assert done.exit_code == 0, done.output
    assert refused(approve(site, deployment=deployment), UsageError).check == "--data"
    done = approve(site, "--data", tmp_path / "two.sealed", deployment=deployment)
    assert done.exit_code == 0, done.output
    run(
        "withdraw", tmp_path / "two.sealed", *owner_words(site),
        "--consortium", site.folder / "consortium.json", "--yes",
    )  # fmt: skip
    done = approve(site, deployment=deployment)  # the one that is left
    assert done.exit_code == 0, done.output
    assert len(broker_decisions(site, broker, deployment)[-1].pins()) == 1
    assert identity(A).public.name == A
