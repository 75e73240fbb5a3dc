"""Fetching collateral from a real server on this machine: each file once, bounded, typed."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from carrying import carries
from cryptography.x509 import ocsp
from http_server import Handler, http_served
from nvidia_world import HOUR, NONCE, NOW, Service, answer, device_claims

from sealtrain.attest.errors import CollateralUnreachable
from sealtrain.attest.nvidia.device import verify_device
from sealtrain.attest.nvidia.fetch import NvidiaServices, fetch_collateral, fetch_remote_verdict
from sealtrain.attest.nvidia.nras import verify_remote_verdict
from sealtrain.attest.nvidia.verify import verify_gpus
from sealtrain.base.digests import sha256_hex
from sealtrain.base.encoding import to_base64
from sealtrain.errors import UsageError
from sealtrain_rehearsal.simulator.gpu import SimulatedGpus
from sealtrain_rehearsal.simulator.gpu_collateral import simulate_collateral

GPUS = SimulatedGpus(b"simulated GPUs of a fetcher", count=2, mode="mpt")
EVIDENCE = GPUS.evidence(NONCE)
DEVICES = [
    verify_device(device, simulator_root=GPUS.root_der, now=NOW) for device in EVIDENCE.devices
]
SERVICE = Service()
Reply = tuple[int, bytes]


class Vendor:
    """A server with the vendor's four addresses; each can be told to answer otherwise."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.bodies: list[Any] = []
        self.instead: Callable[[str], Reply | None] = lambda path: None
        known = simulate_collateral(GPUS, NOW)
        self.rims = {f"/v1/rim/{name}": name for name in known.rims}
        self.collateral = known
        self.issued = {
            chain[depth].certificate.serial_number: (chain[depth], chain[depth + 1])
            for chain in (device.chain for device in GPUS.gpu_devices)
            for depth in range(1, 4)
        }

    def get(self, path: str) -> Reply:
        if path == "/.well-known/jwks.json":
            return 200, SERVICE.jwks.encode()
        name = self.rims.get(path)
        xml = None if name is None else self.collateral.rim(name)
        if xml is None:
            return 404, b"{}"
        body = {"id": name, "rim": to_base64(xml), "sha256": sha256_hex(xml), "rim_format": "TCG"}
        return 200, json.dumps(body).encode()

    def post(self, path: str, body: bytes) -> Reply:
        if path == "/ocsp":
            question = ocsp.load_der_ocsp_request(body)
            certificate, issuer = self.issued[question.serial_number]
            return 200, answer(certificate.certificate, issuer)
        if path == "/v4/attest/gpu":
            self.bodies.append(json.loads(body))
            names = [f"GPU-{at}" for at in range(len(self.bodies[-1]["evidence_list"]))]
            verdict = SERVICE.verdict({name: device_claims(ueid=name) for name in names})
            return 200, verdict.token.encode()
        return 404, b""


@pytest.fixture
def vendor() -> Vendor:
    return Vendor()


@pytest.fixture
def url(vendor: Vendor) -> Iterator[str]:
    class Answering(Handler):
        def do_GET(self) -> None:
            self.reply(vendor.instead(self.path) or vendor.get(self.path))

        def do_POST(self) -> None:
            self.reply(vendor.instead(self.path) or vendor.post(self.path, self.body()))

        def reply(self, told: Reply) -> None:
            vendor.asked.append(self.path)
            self.answer(*told[:2], **{"location": "/elsewhere"} if told[0] == 302 else {})

    with http_served(Answering) as found:
        yield found


@pytest.fixture
def services() -> Iterator[NvidiaServices]:
    with NvidiaServices(timeout=5, sleep=lambda _: None) as client:
        yield client


def fetch(services: NvidiaServices, url: str) -> Any:
    return fetch_collateral(DEVICES, services, rim_url=f"{url}/v1/rim/", ocsp_url=f"{url}/ocsp")


def test_what_was_fetched_verifies_later_without_the_network(
    services: NvidiaServices, url: str, vendor: Vendor
) -> None:
    collateral = fetch(services, url)
    found = verify_gpus(
        EVIDENCE,
        GPUS.policy(revocation="require"),
        collateral,
        nonce=NONCE,
        simulator_root=GPUS.root_der,
        now=NOW + HOUR,
    )
    assert list(found.devices) == ["gpu0", "gpu1"]
    # Two GPUs of one kind: two files, two certificates of their own and two that they share.
    assert sorted(vendor.asked.count(path) for path in set(vendor.asked)) == [1, 1, 4]


def test_a_verdict_is_archived_with_the_keys_of_its_hour(
    services: NvidiaServices, url: str, vendor: Vendor
) -> None:
    verdict = fetch_remote_verdict(EVIDENCE.devices, services, nonce=NONCE, nras_url=f"{url}/")
    assert len(verify_remote_verdict(verdict, nonce=NONCE, gpu_count=2, now=NOW)) == 2
    [question] = vendor.bodies
    assert question["nonce"] == NONCE.hex()
    assert (question["arch"], question["claims_version"]) == ("HOPPER", "3.0")
    assert question["evidence_list"][1]["evidence"] == EVIDENCE.devices[1].report
    kept = fetch_collateral(
        DEVICES, services, rim_url=f"{url}/v1/rim", ocsp_url=f"{url}/ocsp", nras=verdict
    )
    assert kept.nras == verdict


def garbled(**changes: Any) -> Callable[[str], Reply | None]:
    """A RIM answer with fields exchanged."""
    vendor = Vendor()

    def instead(path: str) -> Reply | None:
        if not path.startswith("/v1/rim/"):
            return None
        body = {**json.loads(vendor.get(path)[1]), **changes}
        return 200, json.dumps({k: v for k, v in body.items() if v is not None}).encode()

    return instead


def always(*reply: Any, where: str = "/") -> Callable[[str], Reply | None]:
    return lambda path: reply if path.startswith(where) else None  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("instead", "reason"),
    [
        (always(404, b""), "HTTP 404"),
        (always(500, b"no"), "HTTP 500"),
        (always(204, b""), "HTTP 204"),
        (always(302, b""), "HTTP 302"),
        (always(200, b""), "/v1/rim/"),
        (always(200, b"[]"), "/v1/rim/"),
        (always(200, b'{"rim": 1}'), "/v1/rim/"),
        (always(200, b"x" * (600 << 10)), "/v1/rim/"),
        (always(200, b"x" * (17 << 10), where="/ocsp"), "/ocsp"),
        (always(503, b"", where="/ocsp"), "HTTP 503"),
        (garbled(sha256="00" * 32), "/v1/rim/"),
        (garbled(id="NV_GPU_DRIVER_GH100_1"), "/v1/rim/"),
        (garbled(rim="QUJ"), "/v1/rim/"),
        (garbled(rim=None), "/v1/rim/"),
        (garbled(sha256=None), "/v1/rim/"),
    ],
)
def test_an_odd_answer_is_an_unreachable_service(
    services: NvidiaServices,
    url: str,
    vendor: Vendor,
    instead: Callable[[str], Reply | None],
    reason: str,
) -> None:
    vendor.instead = instead
    with pytest.raises(CollateralUnreachable, match=reason):
        fetch(services, url)
    assert "/elsewhere" not in vendor.asked


@pytest.mark.parametrize(
    ("instead", "reason"),
    [
        (always(403, b"", where="/v4"), "HTTP 403"),
        (always(404, b"", where="/.well-known"), "HTTP 404"),
        (always(200, b"", where="/v4"), "127.0.0.1"),
        (always(200, b"\xff", where="/.well-known"), "127.0.0.1"),
        (always(200, b"x" * (600 << 10), where="/.well-known"), "jwks.json"),
        (always(200, b"x" * (300 << 10), where="/v4"), "/v4/attest/gpu"),
    ],
)
def test_an_odd_verdict_is_an_unreachable_service(
    services: NvidiaServices,
    url: str,
    vendor: Vendor,
    instead: Callable[[str], Reply | None],
    reason: str,
) -> None:
    vendor.instead = instead
    with pytest.raises(CollateralUnreachable, match=reason):
        fetch_remote_verdict(EVIDENCE.devices, services, nonce=NONCE, nras_url=url)


@pytest.mark.parametrize("where", ["/v1/rim/", "/ocsp"])
def test_a_service_that_recovers_is_asked_again(
    services: NvidiaServices, url: str, vendor: Vendor, where: str
) -> None:
    failures = [503, 500]
    vendor.instead = lambda path: (
        (failures.pop(), b"") if failures and path.startswith(where) else None
    )
    assert fetch(services, url).rims
    assert sum(path.startswith(where) for path in vendor.asked) == 2 + (2 if "rim" in where else 4)


def test_a_service_that_does_not_answer_is_named(url: str, vendor: Vendor) -> None:
    freed = threading.Event()
    vendor.instead = lambda path: (200, b"") if freed.wait(5) else None
    with NvidiaServices(timeout=0.2, sleep=lambda _: None) as services:
        with pytest.raises(CollateralUnreachable, match="Timeout"):
            fetch(services, url)
        freed.set()
        with pytest.raises(CollateralUnreachable, match="ConnectError"):
            fetch(services, "http://127.0.0.1:9")


def test_an_answer_that_trickles_in_ends(url: str) -> None:
    with (
        NvidiaServices(timeout=5, total=0.0) as services,
        pytest.raises(CollateralUnreachable, check=carries(check="collateral")),
    ):
        fetch(services, url)


def test_a_password_in_an_address_is_not_repeated(services: NvidiaServices) -> None:
    with pytest.raises(UsageError) as caught:
        fetch(services, "http://somebody:hunter2@127.0.0.1:9")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("address", ["", "ftp://127.0.0.1", "file:///etc/passwd", "http://[", "x"])
def test_only_http_addresses_are_asked(services: NvidiaServices, address: str) -> None:
    with pytest.raises((UsageError, CollateralUnreachable)):
        fetch_collateral(DEVICES, services, rim_url=address, ocsp_url=address)


def test_proxies_of_the_environment_are_not_used(
    services: NvidiaServices, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert fetch(services, url).rims


def test_a_verdict_needs_gpus_of_one_family(services: NvidiaServices, url: str) -> None:
    with pytest.raises(UsageError):
        fetch_remote_verdict([], services, nonce=NONCE, nras_url=url)
    mixed = [
        EVIDENCE.devices[0],
        EVIDENCE.devices[1].model_copy(update={"architecture": "BLACKWELL"}),
    ]
    with pytest.raises(UsageError):
        fetch_remote_verdict(mixed, services, nonce=NONCE, nras_url=url)
