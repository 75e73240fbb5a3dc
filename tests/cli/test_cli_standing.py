"""An owner at the desk: approve several runs, begin a series, add to it; and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from broker_site import BrokerSite, broker_site
from carrying import carries
from series_world import reads_series
from typer.testing import CliRunner
from world import lock_changed

import sealtrain
from sealtrain.cli import app
from sealtrain.client.broker_api import BrokerClient
from sealtrain.errors import SealtrainError

pytestmark = [pytest.mark.claim("C185"), pytest.mark.claim("C187")]

A, C = "hospital-a", "hospital-c"
LINES = "".join(
    json.dumps({"prompt": f"case {number}", "completion": "benign"}) + "\n" for number in range(7)
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerSite]:
    with broker_site(tmp_path_factory.mktemp("standing")) as made:
        yield made


@pytest.fixture(scope="module")
def broker(site: BrokerSite) -> Iterator[BrokerClient]:
    with site.serving("state") as client:
        site.broker_file(client)
        yield client


@pytest.fixture(scope="module")
def deployment(site: BrokerSite, broker: BrokerClient) -> Path:
    locked = lock_changed(site.consortium.consortium_id, (site.pin.broker_id,), reads_series)
    path = site.folder / "series.json"
    path.write_bytes(locked.compose_bytes)
    (site.folder / "data.jsonl").write_text(LINES)
    return path


def run(*words: str | Path) -> Any:
    return CliRunner().invoke(app, [*map(str, words), "--json"])


def words_of(site: BrokerSite, deployment: Path, owner: str) -> list[str | Path]:
    return [
        "--identity", site.folder / f"{owner}.identity.json",
        "--broker", site.folder / "broker.yaml", "--deployment", deployment,
    ]  # fmt: skip


def seal(site: BrokerSite, deployment: Path, out: str, *words: str | Path, owner: str = C) -> Any:
    return run(
        "seal", site.folder / "data.jsonl", *words_of(site, deployment, owner),
        "--out", site.folder / out, *words,
    )  # fmt: skip


def approve(site: BrokerSite, deployment: Path, *words: str, owner: str = C) -> Any:
    return run(
        "approve", *words_of(site, deployment, owner),
        "--consortium", site.folder / "consortium.json", "--yes", *words,
    )  # fmt: skip


def error_of(done: Any) -> tuple[int, str, str | None]:
    error = done.exception
    if isinstance(error, SealtrainError):
        return error.exit_code, error.code, error.check
    return done.exit_code, "usage" if done.exit_code == 2 else done.output, None


@pytest.fixture(scope="module")
def begun(site: BrokerSite, deployment: Path) -> Path:
    done = seal(
        site, deployment, "1.sealed", "--series", "biopsies", "--max-growth", "9",
        "--columns-may", "same",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    bounds = {"max_growth": 9, "schema": "same"}
    assert json.loads(done.stdout)["series"]["bounds"] == bounds
    return site.folder / "1.sealed"


def test_a_standing_approval_is_signed_and_shown(
    site: BrokerSite, deployment: Path, begun: Path
) -> None:
    done = approve(
        site, deployment, "--runs", "10", "--until", "2100-01-31", "--series", "biopsies"
    )
    assert done.exit_code == 0, done.output
    signed = json.loads(done.stdout)
    assert (signed["signed"]["runs"], signed["pinned"]) == (10, {})
    shown = run(
        "approvals", "status", "--deployment", deployment,
        "--broker", site.folder / "broker.yaml",
        "--consortium", site.folder / "consortium.json",
    )  # fmt: skip
    ((used,),) = json.loads(shown.stdout)["standing"].values()
    assert (used["owner"], used["runs_used"], used["runs"]) == (C, 0, 10)
    assert used["until"] == "2100-01-31T23:59:59Z"
    assert used["series"][0]["name"] == "biopsies"


def test_a_successor_follows_the_newest_or_the_one_that_is_named(
    site: BrokerSite, deployment: Path, begun: Path
) -> None:
    second = json.loads(seal(site, deployment, "2.sealed", "--series", "biopsies").stdout)
    assert second["series"]["number"] == 2
    after = ("--after", site.folder / "2.sealed")
    third = seal(site, deployment, "3.sealed", "--series", "biopsies", *after)
    assert json.loads(third.stdout)["series"]["number"] == 3
    fork = seal(site, deployment, "fork.sealed", "--series", "biopsies", *after)
    assert error_of(fork)[:2] == (3, "series-mismatch")


@pytest.mark.parametrize(
    ("words", "code", "check"),
    [
        (["--budget", "8"], "usage", "--runs"),
        (["--series", "biopsies"], "usage", "--runs"),
        (["--runs", "3", "--budget", "8"], "usage", "--budget"),
        (["--runs", "3", "--budget", "0"], "usage", "--budget"),
        (["--runs", "3", "--budget", "nan"], "usage", "--budget"),
        (["--runs", "3", "--budget", "1001"], "usage", "--budget"),
        (["--runs", "3", "--until", "tomorrow"], "usage", "--until"),
        (["--runs", "3", "--until", "2027-02-30"], "usage", "--until"),
        (["--runs", "3", "--until", "2020-01-01"], "usage", "--until"),
        (["--runs", "3", "--series", "others"], "dataset-unknown", "dataset name"),
        (["--runs", "3", "--series", "biopsies", "--unpinned"], "usage", "--unpinned"),
        (["--runs", "0"], "usage", None),
        (["--runs", "1.5"], "usage", None),
        (["--runs", "1000001"], "usage", None),
    ],
)
def test_a_standing_approval_in_another_form_is_refused(
    site: BrokerSite, deployment: Path, begun: Path, words: list[str], code: str, check: str | None
) -> None:
    found = error_of(approve(site, deployment, *words))
    assert found[1] == code
    assert check is None or found[2] == check


def test_a_series_of_which_nothing_is_registered_is_not_approved(
    site: BrokerSite, deployment: Path
) -> None:
    done = approve(site, deployment, "--runs", "3", "--series", "biopsies", owner=A)
    assert error_of(done) == (2, "usage", "--series")  # A's data is one dataset


@pytest.mark.parametrize(
    ("words", "code", "check"),
    [
        ([], "usage", "--name"),
        (["--name", "biopsies", "--series", "biopsies"], "usage", "--name"),
        (["--name", "biopsies"], "usage", "--series"),
        (["--name", "biopsies", "--after", "."], "usage", "--series"),
        (["--series", "biopsies", "--series-mode", "merge"], "usage", "--series-mode"),
        (["--series", "biopsies", "--series-mode", "replace"], "usage", "--series"),
        (["--series", "biopsies", "--max-growth", "5"], "usage", "--series"),
        (["--series", "biopsies", "--columns-may", "change"], "usage", None),
        (["--series", "others"], "dataset-unknown", "dataset name"),
    ],
)
def test_a_member_in_another_form_is_refused(
    site: BrokerSite, deployment: Path, begun: Path, words: list[str], code: str, check: str | None
) -> None:
    found = error_of(seal(site, deployment, "refused.sealed", *words))
    assert found[1] == code
    assert check is None or found[2] == check
    assert not (site.folder / "refused.sealed").exists()


def test_one_dataset_is_not_sealed_as_a_series(site: BrokerSite, deployment: Path) -> None:
    done = seal(site, deployment, "refused.sealed", "--series", "biopsies", owner=A)
    assert error_of(done) == (2, "usage", "--series")


def test_from_python_a_series_grows_and_an_approval_counts_runs(
    site: BrokerSite, deployment: Path, begun: Path
) -> None:
    """As the commands do it, with the same objects."""
    locked = sealtrain.LockedRecipe.load(deployment)
    owner = sealtrain.Owner(
        identity=site.folder / f"{C}.identity.json",
        brokers=(site.folder / "broker.yaml",),
        consortium=site.consortium,
    )
    place = owner.place_in_series("biopsies", locked)
    sealed = owner.seal(
        site.folder / "data.jsonl",
        site.folder / "python.sealed",
        name="biopsies",
        locked=locked,
        publication=sealtrain.Publication(series=place),
    )
    assert list(sealed.registered.done)
    after = owner.place_in_series("biopsies", locked, after=sealed.folder)
    assert (after.number, after.mode) == (place.number + 1, "append")
    with pytest.raises(SealtrainError, check=carries(check="--series")):
        owner.place_in_series("biopsies", locked, beginning=sealtrain.Beginning(mode="replace"))
    often = sealtrain.StandingRequest(runs=4, series=["biopsies"])
    intent = owner.prepare(locked, standing=often)
    assert intent.standing is not None
    assert intent.standing.runs == 4
    answers = owner.approve(locked, expecting=locked.recipe_hash, standing=often)
    [tally] = answers.at_all().values()
    assert tally.approvals[-1].decision.standing == intent.standing
    with pytest.raises(SealtrainError, check=carries(check="--unpinned")):
        owner.approve(locked, expecting=locked.recipe_hash, standing=often, unpinned=True)
