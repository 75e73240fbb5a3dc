"""Pages of runs over a broker that recorded submissions, and over folders of runs."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from collecting import COLLECTING
from manifest_world import RUN_ID
from world import identity

from sealtrain.client.ticket import RunTicket
from sealtrain.consortium.submissions import Submission, sign_control
from sealtrain.manifest import form
from sealtrain.manifest.trainedrecords import read_stated
from sealtrain_console.web.curves import Curve, Curves
from sealtrain_console.web.serving import serving
from sealtrain_console.web.sources import Sources

if not COLLECTING:
    from console_world import LIVE_ID, PAGES, ConsoleWorld, console_world, live_run, measured

    from sealtrain_console.web.app import console_app

OWNER = "hospital-a"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleWorld]:
    with console_world(tmp_path_factory.mktemp("console")) as made:
        yield made


def got(url: str, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", urlsplit(url).port, timeout=30)
    connection.request("GET", path, headers={"Host": urlsplit(url).netloc})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def test_a_submission_is_listed_with_who_says_what(world: ConsoleWorld) -> None:
    site = world.site
    pin = site.pin.model_copy(update={"url": world.client.url})
    ticket = RunTicket(version=1, role="train", data=("/sealed",), brokers=(pin,))
    now = site.now()
    document = Submission.of(
        consortium_id=site.consortium.consortium_id,
        target=site.target,
        name="nightly-7",
        ticket=json.loads(ticket.to_bytes()),
        submitter=identity(OWNER).signer.key_id,
        signed_at=now,
        not_after=now + 3600,
    )
    with site.owner(world.client, OWNER) as mine:
        mine.post_control(Submission, sign_control(document, identity(OWNER).signer))
    status, text = got(world.url, "/runs/submitted")
    assert status == 200
    assert "nightly-7" in text
    assert "waiting" in text


@pytest.mark.claim("C582")
def test_a_completed_run_shows_what_became_of_its_records(world: ConsoleWorld) -> None:
    status, text = got(world.url, f"/runs/{RUN_ID}")
    assert status == 200
    said = read_stated(form.read(world.audited.manifest()).predicate)
    assert text.count('data-label="records"') == len(said.datasets) > 0
    assert all(dataset.words in text for dataset in said.datasets)
    assert 'data-limit="records-not-counted"' in text
    assert 'data-label="records"' not in got(world.url, f"/runs/{LIVE_ID}")[1]


def test_a_live_runs_curves_are_what_its_file_says_and_grow_with_it(
    world: ConsoleWorld, tmp_path: Path
) -> None:
    folder = live_run(tmp_path / "live", points=40)
    sources = Sources(consortium=world.sources.consortium, runs=(folder,))
    with serving(console_app(PAGES, {"sources": sources, "curves": Curves()})) as url:
        first: dict[str, Any] = json.loads(got(url, f"/runs/{LIVE_ID}/curves")[1])
        with (folder / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"step": 40, "values": {"loss": 99.0}}) + "\n")  # again
            file.write(json.dumps({"step": 41, "values": {"loss": 5.0}}) + "\n")
            file.write('{"step": 42, "val')  # not ended yet
        second: dict[str, Any] = json.loads(got(url, f"/runs/{LIVE_ID}/curves")[1])
    assert first["curves"]["loss"]["steps"] == list(range(1, 41))
    assert first["curves"]["loss"]["values"] == [measured(step)["loss"] for step in range(1, 41)]
    assert (second["step"], second["left_out"]) == (41, 0)
    assert second["curves"]["loss"]["values"][-2:] == [measured(40)["loss"], 5.0]


def test_a_completed_run_draws_what_its_manifest_holds(world: ConsoleWorld) -> None:
    found: dict[str, Any] = json.loads(got(world.url, f"/runs/{RUN_ID}/curves")[1])
    assert found["curves"]
    assert "SIMULATED" in got(world.url, f"/runs/{RUN_ID}")[1]


def test_a_run_that_is_nowhere_here_is_shown_from_brokers_or_refused(world: ConsoleWorld) -> None:
    unknown = "ab" * 16
    assert got(world.url, f"/runs/{unknown}")[0] == 200
    assert "not on this machine" in got(world.url, f"/runs/{unknown}")[1]
    assert got(world.url, f"/runs/{unknown}/curves")[0] == 404
    assert "No key was released" in got(world.url, f"/runs/{unknown}/ledger")[1]


@pytest.mark.parametrize("points", [1, 599, 600, 601, 5_000, 100_000])
def test_a_curve_stays_small_and_loses_no_spike(points: int) -> None:
    curve = Curve()
    for step in range(points):
        curve.add(step, -7.0 if step == points // 2 else 9.0 if step == points // 3 else 1.0)
    steps, values = curve.points()
    assert len(steps) <= 1202
    assert steps == sorted(steps)
    assert min(values) == -7.0
    assert curve.count == points
    if points > 2:
        assert max(values) == 9.0
    assert steps[0] < max(2, points // 100 + 1)
