"""Numbers for Prometheus: what was granted, what was refused and why, how long, how much."""

from __future__ import annotations

import urllib.request
from pathlib import Path

import httpx2
import pytest
from collecting import COLLECTING
from prometheus_client.parser import text_string_to_metric_families
from release_world import boot_info, config_of, release_world

from sealtrain.base.canonical import canonical_json
from sealtrain.broker.http.metrics import Metrics, metrics_page
from sealtrain.errors import Unreachable, UsageError

if not COLLECTING:
    from sealtrain.broker.http.app import broker_app
    from sealtrain.broker.http.server import serving


def page(port: int) -> dict[tuple[str, ...], float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        text = answer.read().decode()
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_the_page_counts_what_was_asked_and_names_nobody(tmp_path: Path) -> None:
    secret = "rosebud" * 5
    with release_world(tmp_path, gateway_app_id="") as world:
        metrics = Metrics(world.broker)
        app = broker_app(world.broker, metrics)
        with metrics_page(metrics, 0) as port, serving(app, config_of(tmp_path)) as url:
            assert page(port())["sealtrain_broker_granted_total", "release"] == 0
            ask = {"version": 1, "consortium_id": world.consortium.consortium_id}
            info = boot_info(world)
            with httpx2.Client(base_url=url, trust_env=False) as client:
                client.post("/v1/challenges", content=canonical_json(ask | {"purpose": "release"}))
                client.post("/bootAuth/app", content=canonical_json(info))
                client.post("/bootAuth/kms", content=canonical_json(info))
                client.post("/v1/challenges", content=b"{}")
                for path in (f"/{secret}", "/"):
                    client.get(f"{path}{secret}")
                client.request(secret.upper(), "/v1/health")
                client.get("/v1/health")  # by then the one before it is counted
            found = page(port())
            size = world.ledger.size
            compose_hash = world.locked.compose_hash
    assert found["sealtrain_broker_granted_total", "challenge"] == 1
    assert found["sealtrain_broker_granted_total", "boot-app"] == 1
    assert found["sealtrain_broker_granted_total", "boot-kms"] == 0
    assert found["policy_violations_total", "approvals-missing"] == 1
    assert [key for key in found if key[0] == "policy_violations_total"] == [
        ("policy_violations_total", "approvals-missing")
    ]
    assert found["sealtrain_broker_ledger_entries",] == size
    assert found["sealtrain_broker_challenges_used",] == 0
    assert found["sealtrain_broker_decisions",] == 2
    assert found["sealtrain_broker_leases",] == 0
    counted = "sealtrain_broker_request_seconds_count"
    assert found[counted, "POST", "/v1/challenges", "200"] == 1
    assert found[counted, "POST", "/v1/challenges", "400"] == 1
    assert found[counted, "GET", "unknown", "404"] == 2
    assert found[counted, "other", "/v1/health", "405"] == 1
    assert secret not in str(found).lower()
    assert compose_hash not in str(found)


def test_without_its_databases_the_page_still_shows_what_was_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with release_world(tmp_path) as world:
        metrics = Metrics(world.broker)

        def gone(*_: object, **__: object) -> None:
            raise Unreachable("the disk is gone")

        monkeypatch.setattr("sealtrain.broker.store.memory.begin", gone)
        monkeypatch.setattr(type(world.ledger), "size", property(gone))
        with metrics_page(metrics, 0) as port:
            found = page(port())
    assert ("sealtrain_broker_granted_total", "release") in found
    assert ("sealtrain_broker_ledger_entries",) not in found


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with release_world(tmp_path) as world:
        metrics = Metrics(world.broker)
        with (
            metrics_page(metrics, 0) as port,
            pytest.raises(UsageError) as caught,
            metrics_page(metrics, port()),
        ):
            raise AssertionError("two pages on one port")
    assert caught.value.check == "metrics port"


def test_a_fault_of_the_broker_is_no_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("fault")

    with release_world(tmp_path) as world:
        metrics = Metrics(world.broker)
        monkeypatch.setattr(type(world.broker.registry), "policies", fail)
        with serving(broker_app(world.broker, metrics), config_of(tmp_path)) as url:
            for path in ("/v1/policies", "/v1/health"):  # by the second the first is counted
                httpx2.get(f"{url}{path}", trust_env=False)
        shown = metrics.text().decode()
    assert 'path="/v1/policies",status="500"' in shown
    assert "policy_violations_total{" not in shown
