"""What several commands need first: the consortium, the target and a broker that proved itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sealtrain.consortium.decisions import Target
    from sealtrain.recipe.lock import Lock
    from sealtrain.release.client import AttestedBroker, BrokerClient

__all__ = ["attested_broker", "lock_of", "target_of"]

_MAX_COMPOSE = 4 << 20


def lock_of(deployment: Path) -> Lock:
    """The lock inside a deployment document."""
    from sealtrain.base.files import read_bounded
    from sealtrain.recipe.compose import extract_lock
    from sealtrain.recipe.lock import parse_lock

    return parse_lock(extract_lock(read_bounded(deployment, _MAX_COMPOSE)))


def target_of(deployment: Path) -> Target:
    """What an approval of a deployment document is about."""
    from sealtrain.base.files import read_bounded
    from sealtrain.consortium.decisions import Target
    from sealtrain.recipe.compose import app_id_of, compose_hash

    lock = lock_of(deployment)
    compose = read_bounded(deployment, _MAX_COMPOSE)
    return Target(
        app_id=app_id_of(compose, lock),
        compose_hash=compose_hash(compose),
        recipe_hash=lock.recipe_hash,
    )


def attested_broker(broker_file: Path, deployment: Path) -> tuple[BrokerClient, AttestedBroker]:
    """Have the broker of a broker file prove itself; take its keys for one deployment."""
    from sealtrain.base.clock import system_clock
    from sealtrain.release.client import BrokerClient, fetch_keys
    from sealtrain.release.pin import load_pin

    pin = load_pin(broker_file)
    client = BrokerClient(pin.url)
    target = target_of(deployment)
    attested = fetch_keys(
        client,
        pin,
        client.consortium(lock_of(deployment).consortium_id),
        app_id=target.app_id,
        compose_hash=target.compose_hash,
        now=system_clock(),
    )
    return client, attested
