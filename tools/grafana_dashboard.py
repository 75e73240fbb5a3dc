"""Write the Grafana dashboard of brokers and runs, which reads what their metrics pages serve.

    python tools/grafana_dashboard.py [--check]

Import ``deploy/grafana/sealtrain.json`` and choose the Prometheus data source. With ``--check``
nothing is written; a stale dashboard exits 1.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = Path(__file__).resolve().parents[1] / "deploy" / "grafana" / "sealtrain.json"

_SOURCE = {"type": "prometheus", "uid": "${source}"}
_COLUMNS = 24  # of Grafana's grid
_HEIGHT = 8
_AT = '{job=~"$job", instance=~"$instance"}'
_ANSWERS = 'job=~"$job", instance=~"$instance"'


@dataclass(frozen=True, slots=True)
class Panel:
    """One picture: what it shows, by which query, in which unit of Grafana's, from which value."""

    title: str
    says: str
    query: str
    legend: str
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 12
    least: int | None = 0


BROKERS = (
    Panel("Brokers that answer", "Targets that Prometheus could read.",
          f"sum(up{_AT})", "up", kind="stat", width=6),
    Panel("Leases that are live", "Runs that may go on: each holds a lease at each broker.",
          f"sum by (instance) (sealtrain_broker_leases{_AT})", "{{instance}}",
          kind="stat", width=6),
    Panel("Entries of the ledger", "It only grows.",
          f"sum by (instance) (sealtrain_broker_ledger_entries{_AT})", "{{instance}}",
          kind="stat", width=6),
    Panel("Decisions of owners", "Approvals and revocations that the broker remembers.",
          f"sum by (instance) (sealtrain_broker_decisions{_AT})", "{{instance}}",
          kind="stat", width=6),
    Panel("Granted and recorded", "Per minute: releases of keys, renewals, decisions, datasets…",
          f"sum by (action) (rate(sealtrain_broker_granted_total{_AT}[$__rate_interval])) * 60",
          "{{action}}"),
    Panel("Refused", "Per minute, by the error code: sealtrain explain CODE says what to do.",
          f"sum by (reason) (rate(policy_violations_total{_AT}[$__rate_interval])) * 60",
          "{{reason}}"),
    Panel("Time of an answer", "99 of 100 requests took less, by path.",
          "histogram_quantile(0.99, sum by (le, path) "
          f"(rate(sealtrain_broker_request_seconds_bucket{_AT}[$__rate_interval])))",
          "{{path}}", unit="s"),
    Panel("Requests that failed in the broker", "Per minute, status 500 and above: not refusals.",
          "sum by (status) (rate(sealtrain_broker_request_seconds_count"
          f'{{{_ANSWERS}, status=~"5.."}}[$__rate_interval])) * 60', "{{status}}"),
    Panel("Challenges that are remembered", "Used ones, until they expire.",
          f"sum by (instance) (sealtrain_broker_challenges_used{_AT})", "{{instance}}"),
)  # fmt: skip
RUNS = (
    Panel("Optimizer steps", "Done since the run began, those before a resume included.",
          f"sealtrain_steps_total{_AT}", "{{instance}}"),
    Panel("Training records", "Per second.",
          f"rate(sealtrain_samples_total{_AT}[$__rate_interval])", "{{instance}}"),
    Panel("Released metrics", "What the release policy of the recipe lets out, rounded by it.",
          f"sealtrain_metric{_AT}", "{{instance}} {{name}}", least=None),
    Panel("Alerts that fired", "Since the run began, by alert.",
          f"sealtrain_alerts_total{_AT}", "{{instance}} {{alert}}"),
    Panel("Processor, memory, accelerator", "Where the recipe says monitoring.system_metrics.",
          f'sealtrain_system{{{_ANSWERS}, name=~".*_percent"}}', "{{instance}} {{name}}",
          unit="percent"),
    Panel("Memory", "Of the training process, and of the accelerator.",
          f'sealtrain_system{{{_ANSWERS}, name=~"(gpu_)?memory_bytes"}}',
          "{{instance}} {{name}}", unit="bytes"),
    Panel("Disk and network", "Bytes per second.",
          f'rate(sealtrain_system{{{_ANSWERS}, name=~"(disk|network)_.*_bytes"}}'
          "[$__rate_interval])", "{{instance}} {{name}}", unit="Bps", width=24),
)  # fmt: skip


def dashboard() -> dict[str, Any]:
    """The dashboard, as Grafana imports it."""
    return {
        "uid": "sealtrain",
        "title": "sealtrain: brokers and runs",
        "description": "Numbers only: no name of an owner, no record, no key.",
        "tags": ["sealtrain"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [_source(), _variable("job"), _variable("instance")]},
        "panels": list(_lay_out({"Brokers": BROKERS, "Runs": RUNS})),
    }


def _source() -> dict[str, Any]:
    return {"name": "source", "label": "data source", "type": "datasource", "query": "prometheus"}


def _variable(label: str) -> dict[str, Any]:
    within = "" if label == "job" else '{job=~"$job"}'
    return {
        "name": label,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": f"label_values(up{within}, {label})", "refId": label},
        "includeAll": True,
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
        "refresh": 2,  # whenever the range of time changes
    }


def _lay_out(rows: dict[str, tuple[Panel, ...]]) -> Iterator[dict[str, Any]]:
    number = y = 0
    for title, panels in rows.items():
        number += 1
        yield {
            "id": number,
            "type": "row",
            "title": title,
            "collapsed": False,
            "panels": [],
            "gridPos": {"x": 0, "y": y, "w": _COLUMNS, "h": 1},
        }
        x, y = 0, y + 1
        for panel in panels:
            if x + panel.width > _COLUMNS:
                x, y = 0, y + _HEIGHT
            number += 1
            yield _draw(panel, number, {"x": x, "y": y, "w": panel.width, "h": _HEIGHT})
            x += panel.width
        y += _HEIGHT


def _draw(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.says,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": panel.least}, "overrides": []},
        "targets": [
            {
                "refId": "A",
                "datasource": _SOURCE,
                "expr": panel.query,
                "legendFormat": panel.legend,
            }
        ],
    }


def main() -> None:
    """Write the dashboard, or hold the file against it."""
    text = json.dumps(dashboard(), indent=2) + "\n"
    if FILE.exists() and FILE.read_text("utf-8") == text:
        return
    if "--check" in sys.argv[1:]:
        sys.exit(f"stale: {FILE.name}; run make format")
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
