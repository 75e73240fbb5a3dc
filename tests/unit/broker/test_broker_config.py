"""Settings and the throttle: values no broker can run with are refused at once."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from carrying import carries

from sealtrain.broker.config import AnswerSettings, BrokerConfig
from sealtrain.broker.service.throttle import Throttle
from sealtrain.errors import TooManyRequests, UsageError


def config(**changed: Any) -> BrokerConfig:
    fields: dict[str, Any] = {
        "consortium": Path("consortium.json"),
        "policy": Path("policy.yaml"),
        "root_secret": "file:root",
        "state": Path("state"),
        "guest": "guest.sock",
        "collateral": "file:collateral.json",
        "platform": "simulator",
    }
    return BrokerConfig(**(fields | changed))


def test_a_broker_listens_on_loopback_unless_told_otherwise() -> None:
    assert config().host == "127.0.0.1"
    assert config().answers.lease_seconds == 3600
    assert config().limits.challenge_seconds == 120


@pytest.mark.parametrize(
    "changed",
    [
        {"platform": "none"},
        {"port": -1},
        {"port": 65536},
    ],
)
def test_values_out_of_range(changed: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        config(**changed)


@pytest.mark.parametrize("name", ["consortium", "policy", "root_secret", "state", "guest"])
def test_what_decides_trust_has_no_default(name: str) -> None:
    with pytest.raises(TypeError):
        BrokerConfig(**{key: value for key, value in _fields().items() if key != name})


def _fields() -> dict[str, Any]:
    made = config()
    names = ("consortium", "policy", "root_secret", "state", "guest", "collateral", "platform")
    return {name: getattr(made, name) for name in names}


def test_a_throttle_counts_by_the_minute() -> None:
    throttle = Throttle(2)
    throttle.take(60)
    throttle.take(119)
    with pytest.raises(TooManyRequests):
        throttle.take(119)
    throttle.take(120)


def test_a_throttle_counts_across_threads() -> None:
    throttle = Throttle(10)
    passed: list[int] = []

    def take() -> None:
        try:
            throttle.take(60)
            passed.append(1)
        except TooManyRequests:
            pass

    threads = [threading.Thread(target=take) for _ in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(passed) == 10


@pytest.mark.parametrize("seconds", [59, 7 * 24 * 3600 + 1])
def test_a_lease_that_no_broker_gives_is_refused(seconds: int) -> None:
    with pytest.raises(UsageError, check=carries(check="lease seconds")):
        AnswerSettings(lease_seconds=seconds)
