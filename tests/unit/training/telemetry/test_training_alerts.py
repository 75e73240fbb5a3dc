from __future__ import annotations

import json
import math
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from http_server import Handler, http_served
from training_world import checkpoint_store, classify, run, seal_records, sources_of, write_records

from sealtrain.recipe.errors import RecipeInvalid
from sealtrain.recipe.monitoring import Alert, Monitoring
from sealtrain.training.telemetry.monitor import (
    ALERTS_FILE,
    Alerts,
    Fired,
    Monitor,
    to_file,
    to_webhook,
)


def learning(steps: int = 200, seed: int = 1) -> list[float]:
    """A loss that falls from 2.5 towards 0.5, as noisy as a real one."""
    source = random.Random(seed)  # noqa: S311
    return [0.5 + 2 * math.exp(-step / 40) * source.uniform(0.8, 1.2) for step in range(steps)]


def fired(alert: Alert, losses: list[float]) -> list[Fired]:
    told: list[Fired] = []
    alerts = Alerts([alert], told.append)
    for step, loss in enumerate(losses):
        alerts.loss(step, loss)
    return told


@pytest.mark.parametrize("seed", range(5))
def test_a_run_that_learns_alarms_nobody(seed: int) -> None:
    losses = learning(seed=seed)
    assert fired(Alert(when="loss-not-finite"), losses) == []
    assert fired(Alert(when="loss-diverges", threshold=2.0), losses) == []


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_no_number_fires_once(loss: float) -> None:
    losses = [*learning(50), loss, loss, loss]
    assert fired(Alert(when="loss-not-finite"), losses) == [Fired("loss-not-finite", 50, None)]


def test_it_fires_again_after_it_has_recovered() -> None:
    losses = [1.0, math.nan, 1.0, math.nan]
    assert [item.step for item in fired(Alert(when="loss-not-finite"), losses)] == [1, 3]


def test_a_loss_that_runs_away_fires_where_it_crosses() -> None:
    best = min(learning())
    away = [best * 1.5, best * 2.9, best * 3.1, best * 9, best * 90]
    told = fired(Alert(when="loss-diverges", threshold=3.0), learning() + away)
    assert told == [Fired("loss-diverges", 202, 3.0)]


def test_losses_below_zero_have_no_factor() -> None:
    assert fired(Alert(when="loss-diverges", threshold=1.5), [-1.0, 5.0, 50.0]) == []


@pytest.mark.parametrize(
    ("alert", "method", "quiet", "loud"),
    [
        (Alert(when="no-step", threshold=60.0), "no_step_for", 59.0, 61.0),
        (Alert(when="memory-percent", threshold=90.0), "memory", 90.0, 90.1),
        (Alert(when="lease-seconds-left", threshold=300.0), "lease", 301.0, 299.0),
    ],
)
def test_a_threshold_fires_beyond_it_and_not_before(
    alert: Alert, method: str, quiet: float, loud: float
) -> None:
    told: list[Fired] = []
    alerts = Alerts([alert], told.append)
    for value in (quiet, quiet, loud, loud, quiet, loud):
        getattr(alerts, method)(7, value)
    assert told == [Fired(alert.when, 7, alert.threshold)] * 2


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_standstill_and_a_lease_are_seen_between_steps(tmp_path: Path) -> None:
    clock, left = Clock(), [500.0]
    wanted = Monitoring(
        alerts=(
            Alert(when="no-step", threshold=10.0),
            Alert(when="lease-seconds-left", threshold=60.0),
            Alert(when="memory-percent", threshold=99.0),
        ),
        alert_to="file",
    )
    monitor = Monitor(wanted, folder=tmp_path, lease_left=lambda: left[0], clock=clock)
    monitor.step(3, {})
    for clock.now in (5.0, 9.0):
        monitor.look()
    assert not (tmp_path / ALERTS_FILE).exists()
    clock.now, left[0] = 11.0, 59.0
    monitor.look()
    monitor.step(4, {})
    monitor.look()
    lines = [json.loads(line) for line in (tmp_path / ALERTS_FILE).read_text().splitlines()]
    assert lines == [
        {"alert": "no-step", "step": 3, "threshold": 10.0},
        {"alert": "lease-seconds-left", "step": 3, "threshold": 60.0},
    ]
    assert monitor.shown.alerts == {"no-step": 1, "lease-seconds-left": 1}


def test_memory_in_use_is_measured_for_real() -> None:
    told: list[Fired] = []
    wanted = Monitoring(alerts=(Alert(when="memory-percent", threshold=1e-6),), alert_to="file")
    monitor = Monitor(wanted)
    monitor.alerts = Alerts(wanted.alerts, told.append)
    with monitor:
        monitor.look()
    assert [answer.alert for answer in told] == ["memory-percent"]


@pytest.fixture
def hook() -> Iterator[tuple[str, list[bytes], threading.Event]]:
    """A webhook that keeps what it gets."""
    got: list[bytes] = []
    there = threading.Event()

    class Keeping(Handler):
        def do_POST(self) -> None:
            got.append(self.body())
            self.answer(204)
            there.set()

    with http_served(Keeping) as url:
        yield f"{url}/alerts", got, there


def test_a_webhook_gets_name_step_and_threshold_only(
    hook: tuple[str, list[bytes], threading.Event],
) -> None:
    url, got, there = hook
    to_webhook(url)(Fired("loss-diverges", 12, 3.0))
    assert there.wait(10)
    assert json.loads(got[0]) == {"alert": "loss-diverges", "step": 12, "threshold": 3.0}


def test_a_webhook_that_does_not_answer_stops_nothing() -> None:
    before = set(threading.enumerate())
    to_webhook("http://127.0.0.1:1/nobody")(Fired("no-step", 1, 2.0))
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
        assert not thread.is_alive()


def test_a_file_grows_by_lines(tmp_path: Path) -> None:
    tell = to_file(tmp_path / "alerts.jsonl")
    for step in (1, 2):
        tell(Fired("loss-not-finite", step, None))
    assert len((tmp_path / "alerts.jsonl").read_text().splitlines()) == 2


def test_a_training_that_diverges_raises_the_alarm(tmp_path: Path) -> None:
    """A learning rate no optimizer survives: the alert fires on the real series of losses."""
    sealed = dict(seal_records(write_records(tmp_path), tmp_path))
    alerts = [{"when": "loss-diverges", "threshold": 4.0}]
    for rate, wanted in ((0.001, 0), (10.0, 1)):
        recipe = classify(
            trainer={"learning_rate": rate, "logging_steps": 1, "max_grad_norm": 0.0},
            monitoring={"alerts": alerts, "alert_to": "file"},
        )
        folder = tmp_path / str(rate)
        folder.mkdir()
        with Monitor(recipe.monitoring, folder=folder) as monitor:
            run(
                recipe,
                sources_of(recipe, sealed),
                checkpoint_store(folder / "checkpoints"),
                monitor=monitor,
            )
        assert (folder / ALERTS_FILE).exists() == bool(wanted)
        assert (monitor.shown.alerts["loss-diverges"] >= 1) == bool(wanted)


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        ({"alerts": [{"when": "no-step"}], "alert_to": "file"}, "no-step"),
        (
            {"alerts": [{"when": "loss-not-finite", "threshold": 1.0}], "alert_to": "file"},
            "loss-not-finite",
        ),
        (
            {"alerts": [{"when": "loss-diverges", "threshold": 0.5}], "alert_to": "file"},
            "loss-diverges",
        ),
        ({"alerts": [{"when": "loss-not-finite"}]}, "alert_to"),
        ({"alert_to": "file"}, "alert_to"),
        ({"alerts": [{"when": "loss-not-finite"}] * 2, "alert_to": "file"}, "monitoring: alerts"),
        ({"alerts": [{"when": "loss-not-finite"}], "alert_to": "/srv/x"}, "alert_to"),
        ({"alerts": [{"when": "loss-not-finite"}], "alert_to": "https://a:b@c/x"}, "alert_to"),
        ({"alerts": [{"when": "loss-not-finite"}], "alert_to": "https://c/x?record=1"}, "alert_to"),
    ],
)
def test_a_section_that_makes_no_sense_is_refused(section: dict[str, Any], problem: str) -> None:
    with pytest.raises(RecipeInvalid, match=problem):
        classify(monitoring=section)
