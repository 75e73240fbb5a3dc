"""Collateral over HTTP from a PCCS, and a cache that never goes backwards."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from carrying import carries
from exhibit_world import real_collateral, real_quote
from pccs import Answer, Pccs, serving
from tls_world import certificate, name_servers

from sealtrain.attest.errors import (
    CollateralMismatch,
    CollateralUnreachable,
    QuoteRootUntrusted,
    SimulatedEvidence,
    TcbStatusRefused,
)
from sealtrain.attest.evidence import Collateral
from sealtrain.attest.tdx.cache import DAY, obtain_collateral
from sealtrain.attest.tdx.collect import load_collateral
from sealtrain.attest.tdx.fetch import fetch_collateral, platform_of
from sealtrain.attest.tdx.parse import TdxQuote, parse_quote
from sealtrain.errors import TrustInvalid, UsageError
from sealtrain_rehearsal.simulator.pki import SimulatedPki

NOW = 1_800_000_000


def no_pause(_seconds: float) -> None:
    pass


@pytest.fixture(scope="module")
def quote(pki: SimulatedPki) -> TdxQuote:
    return parse_quote(pki.quote(bytes(64)))


@pytest.fixture
def pccs(pki: SimulatedPki) -> Iterator[Pccs]:
    with serving(Pccs(collateral=pki.collateral(NOW), fmspc="00" * 6)) as server:
        yield server


def test_what_a_pccs_serves_is_what_arrives(pccs: Pccs, quote: TdxQuote) -> None:
    for root_crl_as_hex in (True, False):
        pccs.root_crl_as_hex = root_crl_as_hex
        assert fetch_collateral(pccs.url, quote) == pccs.collateral
        assert load_collateral(pccs.url, quote) == pccs.collateral
    assert fetch_collateral(pccs.url + "/sgx/certification/v4/", quote) == pccs.collateral
    early = len(pccs.asked)
    fetch_collateral(pccs.url, quote, update="early")
    assert sum("update=early" in target for target in pccs.asked[early:]) == 2


@pytest.mark.parametrize(
    ("name", "collateral"),
    [
        ("tdx/tdx_quote", "tdx/tdx_quote_collateral.json"),
        ("tdx/own-mock/quote.bin", "tdx/own-mock/collateral.json"),
    ],
)
def test_real_collateral_survives_the_journey_byte_for_byte(
    shared: Path, name: str, collateral: str
) -> None:
    """The signed texts are Intel's; one changed byte would break their signatures."""
    real = real_collateral(shared, collateral)
    asked = parse_quote(real_quote(shared, name))
    with serving(Pccs(collateral=real, fmspc=platform_of(asked).fmspc)) as server:
        assert fetch_collateral(server.url, asked) == real


def test_a_processor_platform_asks_for_its_own_revocation_list(shared: Path) -> None:
    raw = real_quote(shared, "tdx/tdx_quote")
    assert platform_of(parse_quote(raw)).ca == "platform"
    assert platform_of(parse_quote(raw)).fmspc == "b0c06f000000"


def test_intels_own_service_is_asked_for_the_root_list_where_intel_has_it(
    pki: SimulatedPki, quote: TdxQuote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api, certificates = (f"{name}.trustedservices.intel.com" for name in ("api", "certificates"))
    intel = Pccs(collateral=pki.collateral(NOW), fmspc="00" * 6)
    root_list = bytes.fromhex(intel.collateral.root_ca_crl)
    intel.change = lambda path, answer: (
        (200, {}, root_list) if path == "/IntelSGXRootCA.der" else answer
    )
    shown = certificate(tmp_path, api, certificates)
    with serving(intel, shown):
        there = "127.0.0.1", urlsplit(intel.url).port or 0
        name_servers(monkeypatch, {api: there, certificates: there}, shown)
        assert fetch_collateral(f"https://{api}", quote) == intel.collateral
        with pytest.raises(CollateralUnreachable):  # the certificate is for other names
            fetch_collateral(intel.url.replace("http:", "https:"), quote, sleep=no_pause)
    paths = [urlsplit(target).path for target in intel.asked]
    asked = list(zip(intel.hosts, paths, strict=True))
    assert [path for host, path in asked if host == certificates] == ["/IntelSGXRootCA.der"]
    assert [host for host, _ in asked].count(api) == 3
    assert len(asked) == 4


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_service_that_recovers_is_asked_again(pccs: Pccs, quote: TdxQuote, status: int) -> None:
    failures = [status, status]

    def fail_twice(_path: str, answer: Answer) -> Answer:
        return (failures.pop(), {}, b"") if failures else answer

    pccs.change = fail_twice
    assert fetch_collateral(pccs.url, quote, sleep=no_pause) == pccs.collateral
    assert len(pccs.asked) == 4 + 2


@pytest.mark.parametrize(("status", "tries"), [(404, 1), (401, 1), (302, 1), (500, 3)])
def test_a_service_that_does_not_answer_is_unreachable(
    pccs: Pccs, quote: TdxQuote, status: int, tries: int
) -> None:
    pccs.change = lambda _path, _answer: (status, {"Location": "http://127.0.0.1:1/"}, b"{}")
    with pytest.raises(CollateralUnreachable) as caught:
        fetch_collateral(pccs.url, quote, sleep=no_pause)
    assert caught.value.exit_code == 4
    assert str(status) in str(caught.value.got)
    assert len(pccs.asked) == tries


def test_nobody_listening_is_unreachable(quote: TdxQuote) -> None:
    with pytest.raises(CollateralUnreachable):
        fetch_collateral("http://127.0.0.1:1", quote, sleep=no_pause)


def test_the_environment_names_no_proxy(
    pccs: Pccs, quote: TdxQuote, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "ALL_PROXY", "http_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert fetch_collateral(pccs.url, quote) == pccs.collateral


def test_an_answer_without_end_is_cut(pccs: Pccs, quote: TdxQuote) -> None:
    pccs.change = lambda _path, answer: (200, answer[1], b"\x30" * (3 << 20))
    with pytest.raises(CollateralUnreachable) as caught:
        fetch_collateral(pccs.url, quote, sleep=no_pause)
    assert str(2 << 20) in str(caught.value.got)
    assert len(pccs.asked) == 1


MALFORMED = {
    "no JSON": ("tcb", b"<html>"),
    "a list": ("tcb", b"[]"),
    "no signature": ("tcb", b'{"tcbInfo":{"a":1}}'),
    "a short signature": ("tcb", b'{"tcbInfo":{"a":1},"signature":"00"}'),
    "two infos": ("tcb", b'{"tcbInfo":{},"tcbInfo":{},"signature":"' + b"0" * 128 + b'"}'),
    "more fields": ("tcb", b'{"tcbInfo":{},"signature":"' + b"0" * 128 + b'","x":1}'),
    "another document": ("tcb", b'{"enclaveIdentity":{},"signature":"' + b"0" * 128 + b'"}'),
    "an info too deep": ("tcb", b'{"tcbInfo":' + b"[" * 99 + b"]" * 99 + b"}"),
    "bytes that are no text": ("identity", b'{"enclaveIdentity":"\xff"}'),
    "no revocation list": ("pckcrl", b"\x30\x03\x02\x01\x00"),
    "an empty revocation list": ("rootcacrl", b""),
    "hex of no revocation list": ("rootcacrl", b"3003020100"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_an_answer_in_another_form_is_refused(pccs: Pccs, quote: TdxQuote, name: str) -> None:
    last, body = MALFORMED[name]
    pccs.change = lambda path, answer: (200, answer[1], body) if path.endswith(last) else answer
    with pytest.raises(CollateralMismatch):
        fetch_collateral(pccs.url, quote)


@pytest.mark.parametrize("chain", ["", "%2D%2D", "not%20a%20chain", "%FF"])
def test_an_answer_without_its_issuers_is_refused(pccs: Pccs, quote: TdxQuote, chain: str) -> None:
    for last in ("pckcrl", "tcb", "identity"):
        headers = {"TCB-Info-Issuer-Chain": chain} if chain else {}
        pccs.change = lambda path, answer, last=last, headers=headers: (
            (200, headers, answer[2]) if path.endswith(last) else answer
        )
        with pytest.raises(CollateralMismatch):
            fetch_collateral(pccs.url, quote)


@pytest.mark.parametrize(
    "url", ["", "pccs.example", "ftp://pccs.example", "https://", "https://u:p@h", "http://é"]
)
def test_what_is_no_url_of_a_service_is_a_usage_error(quote: TdxQuote, url: str) -> None:
    with pytest.raises(UsageError) as caught:
        fetch_collateral(url, quote)
    assert "p@" not in str(caught.value)


def test_a_service_without_a_quote_and_other_schemes_are_refused(tmp_path: Path) -> None:
    for uri in ("https://pccs.example", "http://pccs.example", "ftp://x", "file:", "collateral"):
        with pytest.raises(TrustInvalid):
            load_collateral(uri)


# --- The cache ---------------------------------------------------------------------------------


class Service:
    """Hands out collateral without a network and counts."""

    def __init__(self, collateral: Collateral) -> None:
        self.collateral = collateral
        self.calls = 0

    def __call__(self, _url: str, _quote: TdxQuote) -> Collateral:
        self.calls += 1
        return self.collateral


def asked(
    folder: Path, service: Service, quote: TdxQuote, pki: SimulatedPki, now: int = NOW
) -> Collateral:
    return obtain_collateral(
        folder,
        "https://pccs.example",
        quote,
        now=now,
        simulator_root=pki.root_der,
        fetch=service,
    )


def test_an_answer_is_reused_for_a_day_and_no_longer(
    tmp_path: Path, pki: SimulatedPki, quote: TdxQuote
) -> None:
    service = Service(pki.collateral(NOW))
    folder = tmp_path / "cache"
    # The last one: a clock that was set back does not make an answer young for ever.
    for now, calls in ((NOW, 1), (NOW + DAY - 1, 1), (NOW + DAY, 2), (NOW + DAY - 10, 3)):
        assert asked(folder, service, quote, pki, now) == service.collateral
        assert service.calls == calls
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_an_answer_is_not_reused_beyond_its_own_end(
    tmp_path: Path, pki: SimulatedPki, quote: TdxQuote
) -> None:
    service = Service(pki.collateral(NOW, lifetime=3600))
    asked(tmp_path, service, quote, pki)
    asked(tmp_path, service, quote, pki, NOW + 3599)
    assert service.calls == 1
    service.collateral = pki.collateral(NOW + 3600)
    assert asked(tmp_path, service, quote, pki, NOW + 3600) == service.collateral


@pytest.mark.negative(19)
def test_collateral_that_was_rolled_back_is_refused(
    tmp_path: Path, pki: SimulatedPki, quote: TdxQuote
) -> None:
    """Older collateral is still signed and still in date; only memory shows that it is old."""
    service = Service(pki.collateral(NOW, tcb_evaluation_data_number=18))
    asked(tmp_path, service, quote, pki)
    service.collateral = pki.collateral(NOW, tcb_evaluation_data_number=17)
    with pytest.raises(
        TcbStatusRefused, check=carries(check="collateral floor", got="tcb_info 17")
    ):
        asked(tmp_path, service, quote, pki, NOW + DAY)
    service.collateral = pki.collateral(NOW, tcb_evaluation_data_number=19)
    asked(tmp_path, service, quote, pki, NOW + DAY)
    service.collateral = pki.collateral(NOW, tcb_evaluation_data_number=18)
    with pytest.raises(
        TcbStatusRefused, check=carries(check="collateral floor", got="tcb_info 18")
    ):
        asked(tmp_path, service, quote, pki, NOW + 2 * DAY)


@pytest.mark.negative(19)
def test_a_cached_answer_put_back_from_a_backup_is_refused(
    tmp_path: Path, pki: SimulatedPki, quote: TdxQuote
) -> None:
    service = Service(pki.collateral(NOW, tcb_evaluation_data_number=17))
    asked(tmp_path, service, quote, pki)
    (kept,) = (path for path in tmp_path.glob("*.json") if "highest" not in path.name)
    older = kept.read_bytes()
    service.collateral = pki.collateral(NOW, tcb_evaluation_data_number=18)
    asked(tmp_path, service, quote, pki, NOW + DAY)
    restored = older.replace(f'"fetched_at":{NOW}'.encode(), f'"fetched_at":{NOW + DAY}'.encode())
    assert restored != older
    kept.write_bytes(restored)
    with pytest.raises(
        TcbStatusRefused, check=carries(check="collateral floor", got="tcb_info 17")
    ):
        asked(tmp_path, service, quote, pki, NOW + DAY + 1)


def test_a_floor_that_cannot_be_read_is_not_forgotten(
    tmp_path: Path, pki: SimulatedPki, quote: TdxQuote
) -> None:
    service = Service(pki.collateral(NOW))
    asked(tmp_path, service, quote, pki)
    (floor,) = tmp_path.glob("*.highest.json")
    for damaged in (b"", b"{}", b"[1]", b'{"tcb_info":"x","qe_identity":1}'):
        floor.write_bytes(damaged)
        with pytest.raises(TcbStatusRefused, check=carries(check="collateral floor")):
            asked(tmp_path, service, quote, pki, NOW + DAY)


def test_a_damaged_cache_is_no_cache(tmp_path: Path, pki: SimulatedPki, quote: TdxQuote) -> None:
    service = Service(pki.collateral(NOW))
    asked(tmp_path, service, quote, pki)
    (kept,) = (path for path in tmp_path.glob("*.json") if "highest" not in path.name)
    for number, damaged in enumerate((b"", b"{}", b"[]", kept.read_bytes()[:-9], b'"x"')):
        kept.write_bytes(damaged)
        assert asked(tmp_path, service, quote, pki) == service.collateral
        assert service.calls == number + 2


def test_only_authentic_collateral_raises_the_floor(
    tmp_path: Path, pki: SimulatedPki, quote: TdxQuote
) -> None:
    """A PCCS that invents a high number must not lock its users out for ever."""
    honest = pki.collateral(NOW, tcb_evaluation_data_number=5)
    text = honest.tcb_info.replace('DataNumber":5', 'DataNumber":999')
    invented = honest.model_copy(update={"tcb_info": text})
    foreign = SimulatedPki(b"another vendor, another seed").collateral(
        NOW, tcb_evaluation_data_number=999
    )
    swapped = honest.model_copy(
        update={
            "qe_identity": honest.tcb_info,
            "qe_identity_signature": honest.qe_identity_signature,
        }
    )
    for lie in (invented, foreign, swapped):
        with pytest.raises(CollateralMismatch):
            asked(tmp_path, Service(lie), quote, pki)
        assert not list(tmp_path.glob("*.json"))
    asked(tmp_path, Service(honest), quote, pki)


def test_quotes_of_another_root_reach_neither_service_nor_disk(
    tmp_path: Path, pki: SimulatedPki, quote: TdxQuote
) -> None:
    foreign = parse_quote(SimulatedPki(b"another vendor, another seed").quote(bytes(64)))
    service = Service(pki.collateral(NOW))
    spliced = TdxQuote(
        **{name: getattr(foreign, name) for name in foreign.__slots__ if name != "certificates"},
        certificates=(*foreign.certificates[:2], quote.certificates[2]),
    )
    for stranger in (foreign, spliced):
        with pytest.raises(QuoteRootUntrusted):
            asked(tmp_path / "cache", service, stranger, pki)
    with pytest.raises(SimulatedEvidence):
        obtain_collateral(tmp_path / "cache", "https://p.example", quote, now=NOW, fetch=service)
    assert service.calls == 0
    assert not (tmp_path / "cache").exists()


def test_platforms_have_a_floor_each(tmp_path: Path, pki: SimulatedPki, quote: TdxQuote) -> None:
    other = SimulatedPki(b"unit-test seed of a simulated PKI", fmspc=b"\x09" * 6)
    assert other.root_der == pki.root_der
    asked(tmp_path, Service(pki.collateral(NOW, tcb_evaluation_data_number=18)), quote, pki)
    second = parse_quote(other.quote(bytes(64)))
    asked(tmp_path, Service(other.collateral(NOW, tcb_evaluation_data_number=17)), second, pki)
    assert len(list(tmp_path.glob("*.highest.json"))) == 2


def test_the_cache_fills_from_a_real_server(
    tmp_path: Path, pccs: Pccs, pki: SimulatedPki, quote: TdxQuote
) -> None:
    for _ in range(2):
        got = obtain_collateral(tmp_path, pccs.url, quote, now=NOW, simulator_root=pki.root_der)
        assert got == pccs.collateral
    assert sorted(urlsplit(target).path.rpartition("/")[2] for target in pccs.asked) == [
        "identity",
        "pckcrl",
        "rootcacrl",
        "tcb",
    ]
