"""An owner states at the desk how data may be used: seal, inspect, status, rewrap."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from broker_site import BrokerSite, broker_site
from typer.testing import CliRunner
from world import DAY, lock_changed

from sealtrain.base.clock import system_clock, to_rfc3339
from sealtrain.cli import app
from sealtrain.client.broker_api import BrokerClient
from sealtrain.errors import (
    ConfigError,
    DataInvalid,
    FormatUnknown,
    SealtrainError,
    SignatureInvalid,
    UsageError,
)
from sealtrain.sealing.errors import SealRefused
from sealtrain.signing.errors import PurposeMismatch, RetentionEnded

A = "hospital-a"
PURPOSE = "early detection"
LINES = "".join(
    json.dumps({"prompt": f"case {number}", "completion": "benign"}) + "\n" for number in range(7)
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerSite]:
    with broker_site(tmp_path_factory.mktemp("data-use")) as made:
        yield made


@pytest.fixture(scope="module")
def broker(site: BrokerSite) -> Iterator[BrokerClient]:
    with site.serving("state") as client:
        site.broker_file(client)
        yield client


@pytest.fixture(scope="module")
def deployment(site: BrokerSite, broker: BrokerClient) -> Path:
    locked = lock_changed(
        site.consortium.consortium_id,
        (site.pin.broker_id,),
        lambda recipe: recipe.update(purpose=PURPOSE),
    )
    path = site.folder / "purposeful.json"
    path.write_bytes(locked.compose_bytes)
    return path


def run(*words: str | Path) -> Any:
    return CliRunner().invoke(app, [*map(str, words)])


def words_of(site: BrokerSite, deployment: Path) -> list[str | Path]:
    return [
        "--identity", site.folder / f"{A}.identity.json", "--broker", site.folder / "broker.yaml",
        "--deployment", deployment,
    ]  # fmt: skip


def seal(site: BrokerSite, deployment: Path, folder: Path, stated: str) -> Any:
    (folder / "a.jsonl").write_text(LINES)
    (folder / "use.yaml").write_text(stated)
    return run(
        "seal", folder / "a.jsonl", "--name", "biopsies", *words_of(site, deployment),
        "--out", folder / "a.sealed", "--data-use", folder / "use.yaml", "--json",
    )  # fmt: skip


@pytest.mark.claim("C175")
def test_what_is_stated_is_signed_shown_and_stated_anew(
    site: BrokerSite, deployment: Path, tmp_path: Path
) -> None:
    until, later = (to_rfc3339(system_clock() + days * DAY + 600) for days in (10, 90))
    stated = f"purposes: [{PURPOSE}]\npurposes_bind: true\nretention_until: {until}\n"
    done = seal(site, deployment, tmp_path, stated)
    assert done.exit_code == 0, done.output
    sealed = tmp_path / "a.sealed"
    claimed = json.loads(run("inspect", sealed, "--json").stdout)["claimed"]
    assert claimed["data_use"] == {
        "purposes": [PURPOSE],
        "purposes_bind": True,
        "retention_until": until,
    }
    assert until in run("inspect", sealed).stdout
    asked = ["status", "--deployment", deployment, "--broker", site.folder / "broker.yaml"]
    (found,) = json.loads(run(*asked, "--json").stdout)["brokers"].values()
    assert found["retention"] == [
        {"owner": A, "dataset": "biopsies", "until": until, "days_left": 10, "ending": True}
    ]
    assert until in run(*asked).stdout

    (tmp_path / "use.yaml").write_text(f"retention_until: {later}\n")
    changed = ["--data-use", tmp_path / "use.yaml"]
    done = run("rewrap", sealed, *words_of(site, deployment), *changed)
    assert done.exit_code == 0, done.output
    (found,) = json.loads(run(*asked, "--json").stdout)["brokers"].values()
    (kept,) = found["retention"]
    assert (kept["until"], kept["ending"]) == (later, False)
    assert json.loads(run("inspect", sealed, "--json").stdout)["claimed"]["data_use"] == {
        "retention_until": later
    }


@pytest.mark.claim("C178")
@pytest.mark.parametrize(
    ("stated", "error"),
    [
        ("purposes: [advertising]\npurposes_bind: true\n", PurposeMismatch),
        ("retention_until: 2020-01-01T00:00:00Z\n", RetentionEnded),
        ("phi: perhaps\n", ConfigError),
        ('purposes: ["care\\e[2J"]\n', ConfigError),
        ("", ConfigError),
    ],
)
def test_what_could_not_be_released_is_not_sealed(
    site: BrokerSite, deployment: Path, tmp_path: Path, stated: str, error: type[SealtrainError]
) -> None:
    done = seal(site, deployment, tmp_path, stated)
    assert isinstance(done.exception, error), done.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.jsonl", "use.yaml"]


def test_a_statement_without_a_deployment_is_refused(site: BrokerSite, tmp_path: Path) -> None:
    (tmp_path / "use.yaml").write_text("phi: none\n")
    identity = site.folder / f"{A}.identity.json"
    done = run("rewrap", tmp_path, "--identity", identity, "--data-use", tmp_path / "use.yaml")
    assert isinstance(done.exception, UsageError)
    done = run("rewrap", tmp_path, "--identity", identity, "--data-use", tmp_path / "none.yaml")
    assert isinstance(done.exception, DataInvalid)


def test_status_names_what_to_seal_before_what_to_approve(
    site: BrokerSite, deployment: Path
) -> None:
    asked = ["status", "--deployment", deployment, "--broker", site.folder / "broker.yaml"]
    (found,) = json.loads(run(*asked, "--json").stdout)["brokers"].values()
    codes = [obstacle["code"] for obstacle in found["obstacles"]]
    assert codes == ["dataset-unknown"] * (len(codes) - 1) + ["approvals-missing"]
    assert len(codes) > 1
    shown = run(*asked).stdout
    assert shown.rindex("sealtrain seal") < shown.index("sealtrain approve")


@pytest.mark.claim("C622")
def test_an_owner_seals_what_the_recipe_reads_and_sees_its_columns(
    site: BrokerSite, deployment: Path, tmp_path: Path
) -> None:
    source, sealed = tmp_path / "a.csv", tmp_path / "a.sealed"
    source.write_text('name,prompt,completion\nÇağla,7,12\nJosé,8,"a, b"\n')
    words = ["seal", source, "--name", "biopsies", *words_of(site, deployment)]
    told = run(*words, "--out", tmp_path / "all.sealed", "--no-register", "--json")
    assert told.exit_code == 0, told.output
    assert "name" in told.stderr
    done = run(*words, "--out", sealed, "--columns", "read", "--no-register", "--json")
    assert done.exit_code == 0, done.output
    own = ["--identity", site.folder / f"{A}.identity.json"]
    answer = json.loads(run("inspect", sealed, *own, "--json").stdout)
    assert answer["columns"] == {"prompt": "string", "completion": "string"}
    assert "columns" not in json.loads(run("inspect", sealed, "--json").stdout)
    shown = run("inspect", sealed).stdout
    assert f"{A}.biopsies" in shown
    assert "2 records" in shown
    other = run("inspect", sealed, "--identity", site.folder / "hospital-b.identity.json")
    assert isinstance(other.exception, SealtrainError)
    for name, form in (("b.csv", '"prompt","completion"'), ("b.jsonl", "{"), ("b.txt", "{")):
        opened = run("open", sealed, *own, "--out", tmp_path / name)
        assert opened.exit_code == 0, opened.output
        assert (tmp_path / name).read_text().startswith(form)
    wrong = run(*words, "--out", tmp_path / "x.sealed", "--columns", "some")
    assert isinstance(wrong.exception, UsageError)
    assert not (tmp_path / "x.sealed").exists()


@pytest.mark.claim("C658")
def test_an_owner_asks_whether_a_record_is_in_a_dataset(
    site: BrokerSite, deployment: Path, tmp_path: Path
) -> None:
    source, sealed = tmp_path / "a.jsonl", tmp_path / "a.sealed"
    rows = [{"prompt": "7", "completion": "12"}, {"prompt": "8", "completion": "a, b"}]
    source.write_text("".join(json.dumps(row) + "\n" for row in [*rows, rows[0]]))
    words = ["seal", source, "--name", "biopsies", *words_of(site, deployment), "--no-register"]
    assert run(*words, "--out", sealed, "--commitments").exit_code == 0
    asked, own = tmp_path / "record.json", ["--identity", site.folder / f"{A}.identity.json"]

    def told(record: object, *more: object) -> Any:
        asked.write_text(json.dumps(record))
        return run("contains", sealed, asked, *(more or own), "--json")

    assert json.loads(told(rows[0]).stdout)["rows"] == [0, 2]
    assert json.loads(told(rows[1]).stdout) == {
        "dataset": "biopsies",
        "contained": True,
        "rows": [1],
    }
    for other in (rows[0] | {"completion": "13"}, {"prompt": "7"}, {}):
        assert json.loads(told(other).stdout)["contained"] is False
    assert isinstance(told([rows[0]]).exception, DataInvalid)
    foreign = told(rows[0], "--identity", site.folder / "hospital-b.identity.json")
    assert isinstance(foreign.exception, SignatureInvalid)
    # Commitments that were cut, or are another dataset's, answer nothing.
    held = (sealed / "commitments.sealed").read_bytes()
    (sealed / "commitments.sealed").write_bytes(held[:-1])
    assert isinstance(told(rows[0]).exception, SealRefused)
    (sealed / "commitments.sealed").write_bytes(held)
    assert run(*words, "--out", tmp_path / "plain.sealed").exit_code == 0
    sealed = tmp_path / "plain.sealed"
    assert isinstance(told(rows[0]).exception, FormatUnknown)
