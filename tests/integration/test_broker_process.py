"""The broker as a process: it starts, answers, stops on SIGTERM, and its log tells no secret."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from broker_site import BrokerSite, broker_site, newest_log, start
from world import OWNERS

from sealtrain.client.broker_api import BrokerClient
from sealtrain.client.errors import BrokerUnreachable
from sealtrain.errors import Unreachable


@pytest.fixture
def site(tmp_path: Path) -> Iterator[BrokerSite]:
    with broker_site(tmp_path) as made:
        yield made


def test_it_starts_answers_and_stops_gracefully(site: BrokerSite, tmp_path: Path) -> None:
    process, url = start(site.settings("state"), tmp_path)
    try:
        assert url.startswith("http://127.0.0.1:")
        with BrokerClient(url) as client:
            attested = site.keys_from(client, site.pin.model_copy(update={"url": url}))
            assert attested.simulated
            assert set(attested.keys) == set(OWNERS)
    finally:
        assert process.end() == 0
    with BrokerClient(url, timeout=2.0) as client, pytest.raises(BrokerUnreachable):
        client.health()
    assert "Traceback" not in newest_log(tmp_path)
    assert (tmp_path / "state").stat().st_mode & 0o077 == 0


def test_a_broker_that_cannot_reach_its_guest_does_not_start(
    site: BrokerSite, tmp_path: Path
) -> None:
    lost = {"guest": str(tmp_path / "none.sock")}
    with pytest.raises(Unreachable) as raised:
        start(site.settings("state") | lost, tmp_path)
    status, _, last = str(raised.value.got).partition(", ")
    assert status == "status 1"
    assert "GuestApiUnreachable" in last
    assert "GuestApiUnreachable" in newest_log(tmp_path)
