"""A broker of the release world over real HTTP, and what dstack's KMS would tell it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from release_world import ReleaseWorld, release_world

from sealtrain.broker.config import BrokerConfig, BrokerLimits
from sealtrain.broker.serve import listening

GATEWAY = "aa" * 20


def config_of(folder: Path, **changed: Any) -> BrokerConfig:
    """Settings of the socket; what is assembled comes from the release world."""
    fields: dict[str, Any] = {
        "consortium": folder / "consortium.json",
        "policy": folder / "policy.yaml",
        "root_secret": f"file:{folder / 'root'}",
        "state": folder,
        "guest": "none",
        "collateral": None,
        "platform": "simulator",
        "port": 0,
    }
    return BrokerConfig(**(fields | changed))


@contextmanager
def served_world(folder: Path, **changed: Any) -> Iterator[tuple[ReleaseWorld, str]]:
    """A release world and the URL of its broker, which answers dstack's KMS too."""
    limits = changed.pop("limits", BrokerLimits(posts_per_minute=10_000))
    socket = {name: changed.pop(name) for name in ("metrics_port", "proxies") if name in changed}
    arguments = {"limits": limits, "gateway_app_id": GATEWAY} | changed
    with (
        release_world(folder, **arguments) as world,
        listening(world.broker, config_of(folder, limits=limits, **socket)) as url,
    ):
        yield world, url


def boot_info(world: ReleaseWorld, **changed: Any) -> dict[str, Any]:
    """What the KMS asks about the guest of the approved recipe."""
    return {
        "teeVariant": "dstack-tdx",
        "mrAggregated": "11" * 32,
        "osImageHash": "22" * 32,
        "mrSystem": "33" * 32,
        "appId": world.locked.app_id,
        "composeHash": world.locked.compose_hash,
        "instanceId": "44" * 20,
        "deviceId": "55" * 32,
        "keyProviderInfo": "",
        "tcbStatus": "UpToDate",
        "advisoryIds": [],
    } | changed
