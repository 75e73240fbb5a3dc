"""The Grafana dashboard asks for nothing that a broker's or a run's metrics page does not serve."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from release_world import release_world

from sealtrain.broker.http.metrics import Metrics
from sealtrain.training.telemetry.endpoint import ShownMetrics

FILE = Path(__file__).resolve().parents[2] / "deploy" / "grafana" / "sealtrain.json"
DASHBOARD: dict[str, Any] = json.loads(FILE.read_text("utf-8"))
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
SELECTOR = re.compile(r"\b([a-z_]+)\{([^}]*)\}")
LABEL = re.compile(r"([a-z]+)=~?\"")
GROUPED = re.compile(r"by \(([a-z, ]+)\)")
OF_PROMETHEUS = {"up": set[str]()}
OF_EVERY_TARGET = {"job", "instance"}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Sample name → its labels, of both pages."""
    with release_world(tmp_path_factory.mktemp("broker")) as world:
        metrics = Metrics(world.broker)
        for refused in (False, True):
            metrics.count(
                method="POST",
                path="/v1/releases",
                status=403 if refused else 200,
                code="lease-expired" if refused else None,
                refused=refused,
                seconds=0.1,
            )
        text = metrics.text().decode()
    run = CollectorRegistry(auto_describe=False)
    shown = ShownMetrics(metrics={"loss": 1.0}, system={"cpu_percent": 1.0})
    shown.alerts["memory-percent"] += 1
    run.register(shown)
    text += generate_latest(run).decode()
    found: dict[str, set[str]] = dict(OF_PROMETHEUS)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, set()) | set(sample.labels)
    return found


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_panel_asks_for_what_is_served(
    panel: dict[str, Any], served: dict[str, set[str]]
) -> None:
    [target] = panel["targets"]
    asked = SELECTOR.findall(target["expr"])
    assert asked
    for name, inside in asked:
        assert name in served
        labels = set(LABEL.findall(inside))
        labels |= {
            word.strip() for group in GROUPED.findall(target["expr"]) for word in group.split(",")
        }
        labels |= set(re.findall(r"\{\{([a-z]+)\}\}", target["legendFormat"]))
        assert labels <= served[name] | OF_EVERY_TARGET


def test_every_number_that_is_served_is_shown(served: dict[str, set[str]]) -> None:
    asked = {name for panel in PANELS for name, _ in SELECTOR.findall(panel["targets"][0]["expr"])}
    unshown = {
        name
        for name in served
        if name not in asked and not name.endswith(("_created", "_sum", "_count", "_bucket"))
    }
    assert unshown == set()


def test_no_panel_hides_another_and_none_names_a_data_source() -> None:
    cells = set[tuple[int, int]]()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        own = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not own & cells
        assert place["x"] + place["w"] <= 24
        cells |= own
    assert {panel["datasource"]["uid"] for panel in PANELS} == {"${source}"}
