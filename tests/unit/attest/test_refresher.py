"""Collateral that is kept fresh: by whom, when, and what never replaces what is there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from sealtrain.attest.errors import (
    CollateralExpired,
    CollateralMismatch,
    CollateralUnreachable,
    RevocationUnknown,
    TcbStatusRefused,
)
from sealtrain.attest.refresher import (
    DAY,
    Published,
    Refresher,
    snp_published,
    tdx_published,
)
from sealtrain.attest.snp.collect import SERVICE, certificates_in, distribution_addresses
from sealtrain.attest.snp.fetch import fetch_published
from sealtrain.attest.snp.parse import parse_report
from sealtrain.attest.tdx.collect import load_collateral
from sealtrain.attest.tdx.parse import parse_quote
from sealtrain.errors import EvidenceRefused, UsageError
from sealtrain_rehearsal.simulator.pki import SimulatedPki
from sealtrain_rehearsal.simulator.snp import SimulatedSnp

pytestmark = pytest.mark.claim("C719")

NOW = 1_800_000_000
SEED = b"refresher" * 4
PKI = SimulatedPki(SEED)


class Feed:
    """What a service publishes, at a time that the test sets."""

    def __init__(self, *published: Published | Exception) -> None:
        self.now = NOW
        self.published = list(published)

    def clock(self) -> int:
        return self.now

    def fetch(self, now: int) -> Published:
        found = self.published.pop(0)
        if isinstance(found, Exception):
            raise found
        return found


def made(at: int, *, days: float = 30, text: bytes = b"{}") -> Published:
    return Published(files={"": text}, made=at, until=at + int(days * DAY))


def unreachable() -> CollateralUnreachable:
    return CollateralUnreachable("gone", check="collateral")


def refresher(feed: Feed, place: Path, every: int = DAY) -> Refresher:
    return Refresher(feed.fetch, place, clock=feed.clock, every=every)


def test_it_asks_again_at_half_of_the_time_that_is_left_and_daily_at_the_latest(
    tmp_path: Path,
) -> None:
    feed = Feed(made(NOW), made(NOW, days=1), made(NOW, days=0.001))
    keeper = refresher(feed, tmp_path / "tdx.json")
    pauses = [keeper.step().pause for _ in range(3)]
    assert pauses == [DAY, DAY // 2, 60]


def test_a_failure_keeps_the_files_and_is_tried_again_ever_later(tmp_path: Path) -> None:
    place = tmp_path / "tdx.json"
    feed = Feed(made(NOW, text=b"good"), *(unreachable() for _ in range(9)), made(NOW + 1))
    keeper = refresher(feed, place)
    keeper.refresh()
    steps = [keeper.step() for _ in range(9)]
    assert {step.code for step in steps} == {"collateral-unreachable"}
    assert [step.pause for step in steps] == [60, 120, 240, 480, 960, 1920, 3600, 3600, 3600]
    assert place.read_bytes() == b"good"
    assert steps[-1].until == NOW + 30 * DAY
    recovered = keeper.step()
    assert (recovered.code, recovered.pause) == (None, DAY)


def test_a_service_that_turns_time_back_replaces_nothing(tmp_path: Path) -> None:
    place = tmp_path / "tdx.json"
    feed = Feed(made(NOW, text=b"new"), made(NOW - 1, text=b"old"), made(NOW, text=b"same"))
    keeper = refresher(feed, place)
    keeper.refresh()
    with pytest.raises(TcbStatusRefused):
        keeper.refresh()
    assert place.read_bytes() == b"new"
    keeper.refresh()
    assert place.read_bytes() == b"same"


def test_what_is_over_is_not_written(tmp_path: Path) -> None:
    feed = Feed(made(NOW - 40 * DAY))
    with pytest.raises(CollateralExpired):
        refresher(feed, tmp_path / "tdx.json").refresh()
    assert list(tmp_path.iterdir()) == []


def test_tdx_collateral_is_checked_before_it_replaces_a_file(tmp_path: Path) -> None:
    quote = parse_quote(PKI.quote(bytes(64)))
    honest = PKI.collateral(NOW)
    found = tdx_published(honest, quote, NOW)
    place = tmp_path / "tdx.json"
    feed = Feed(found)
    refresher(feed, place).refresh()
    assert load_collateral(f"file:{place}") == honest
    with pytest.raises(EvidenceRefused):  # another vendor's root
        tdx_published(SimulatedPki(b"another one" * 4).collateral(NOW), quote, NOW)
    altered = honest.model_copy(update={"tcb_info": honest.tcb_info.replace("1", "2", 1)})
    with pytest.raises(CollateralMismatch):
        tdx_published(altered, quote, NOW)
    with pytest.raises(CollateralExpired):
        tdx_published(honest, quote, NOW + 400 * DAY)


# --- AMD ------------------------------------------------------------------------------------------


class Kds:
    """AMD's service for one chip."""

    def __init__(self, guest: SimulatedSnp) -> None:
        self.raw = guest.report(bytes(64), b"{}")
        addresses = distribution_addresses(parse_report(self.raw))
        assert addresses is not None
        leaf, issuer, root = guest.certificates()
        pem = b"".join(
            x509.load_der_x509_certificate(der).public_bytes(Encoding.PEM) for der in (issuer, root)
        )
        crl = addresses[1].removesuffix("cert_chain") + "crl"
        self.held = {addresses[0]: leaf, addresses[1]: pem, crl: guest.revocations(NOW)}
        self.asked: list[str] = []

    def get(self, url: str, most: int) -> bytes:
        self.asked.append(url)
        found = self.held[url.replace("https://mirror.example", SERVICE)]
        assert len(found) <= most
        return found


def kds() -> tuple[Kds, SimulatedSnp]:
    guest = SimulatedSnp(SEED, version=3)
    return Kds(guest), guest


def test_amds_files_are_those_that_a_guests_address_reads(tmp_path: Path) -> None:
    service, guest = kds()
    found = fetch_published(service.raw, now=NOW, get=service.get, simulator_root=guest.root_der)
    keeper = Refresher(lambda now: snp_published(found), tmp_path / "amd", clock=lambda: NOW)
    keeper.refresh()
    assert set(certificates_in(tmp_path / "amd")) == set(guest.certificates())
    assert (tmp_path / "amd/amd.crl").read_bytes() == guest.revocations(NOW)
    assert len(service.asked) == 3


def test_a_mirror_of_amds_is_asked_for_the_same_paths() -> None:
    service, guest = kds()
    fetch_published(
        service.raw,
        now=NOW,
        service="https://mirror.example/",
        get=service.get,
        simulator_root=guest.root_der,
    )
    assert all(url.startswith("https://mirror.example/vcek/v1/") for url in service.asked)
    with pytest.raises(UsageError):
        fetch_published(service.raw, now=NOW, service="http://mirror.example", get=service.get)


@pytest.mark.parametrize("at", [0, 1, 2])
@pytest.mark.parametrize("spoil", [lambda raw: b"", lambda raw: raw[:-9], lambda raw: b"<html>"])
def test_a_service_that_hands_out_something_else_is_refused(
    at: int, spoil: Callable[[bytes], bytes]
) -> None:
    service, guest = kds()
    url = list(service.held)[at]
    service.held[url] = spoil(service.held[url])
    with pytest.raises((EvidenceRefused, CollateralUnreachable)):
        fetch_published(service.raw, now=NOW, get=service.get, simulator_root=guest.root_der)


def test_files_of_another_chip_or_root_are_refused() -> None:
    service, guest = kds()
    other = Kds(SimulatedSnp(b"another machine" * 3, version=3))
    mixed: Any = dict(zip(service.held, other.held.values(), strict=True))
    service.held = mixed
    with pytest.raises(EvidenceRefused):
        fetch_published(service.raw, now=NOW, get=service.get, simulator_root=guest.root_der)


def test_a_list_that_is_over_is_refused() -> None:
    service, guest = kds()
    with pytest.raises(RevocationUnknown):
        fetch_published(
            service.raw, now=NOW + 400 * DAY, get=service.get, simulator_root=guest.root_der
        )


def test_a_report_whose_certificate_amd_does_not_publish_says_so() -> None:
    guest = SimulatedSnp(SEED, signing_key="vlek")
    with pytest.raises(UsageError):
        fetch_published(guest.report(bytes(64), b"{}"), now=NOW, get=lambda url, most: b"")
