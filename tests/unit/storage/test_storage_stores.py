"""Stores as people have them: without checksums, presigned, misnamed, refusing for good."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from carrying import carries
from old_store import old_store
from private_network import Authority
from pydantic import ValidationError

from sealtrain.base.outbound import Outbound, ProxyServer, reach_by
from sealtrain.base.tunnel import EXPIRED
from sealtrain.client.ticket import RunTicket
from sealtrain.errors import DataInvalid, ExtraMissing, SealtrainError, UsageError
from sealtrain.storage.address import is_url, parse_address
from sealtrain.storage.connect import open_folder
from sealtrain.storage.errors import StorageRefused, StorageUnreachable
from sealtrain.storage.retry import Patience, Unanswered, Unsafe

pytestmark = pytest.mark.long

SLEPT: list[float] = []
ONCE = Patience(sleep=SLEPT.append)


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    SLEPT.clear()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")


@pytest.mark.claim("C633")
@pytest.mark.parametrize("status", [400, 501, 0])
def test_a_store_that_knows_no_additional_checksum_takes_files(
    status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is signed holds the content's SHA-256 all the same, so such a store checks it too."""
    (tmp_path / "a").write_bytes(b"sealed")
    with old_store(status) as store:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", store.url)
        folder = open_folder("s3://bucket/run", patience=ONCE)
        for name in ("one", "two"):
            folder.put(name, str(tmp_path / "a"))
        assert folder.read("two", 100) == b"sealed"
        folder.close()
    tries = [path for method, path in store.asked if method == "PUT"]
    assert len(tries) == (2 if status == 0 else 3)  # found out once
    if status:
        assert store.checked == ["/bucket/run/one", "/bucket/run/two"]
    assert SLEPT == []


@pytest.mark.claim("C633")
@pytest.mark.parametrize("status", [400, 501])
def test_such_a_store_of_a_private_authority_takes_files_over_tls(
    status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over TLS checksums travel behind the content, and are not part of the signature."""
    bank = Authority(tmp_path / "bank")
    (tmp_path / "a").write_bytes(b"sealed" * 1000)
    with old_store(status, bank.server("127.0.0.1")) as store:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", store.url)
        before = reach_by(lambda: Outbound(authorities=bank.pem.decode()))
        try:
            folder = open_folder("s3://bucket/run", patience=ONCE)
            folder.put("one", str(tmp_path / "a"))
            assert folder.read("one", 10_000) == b"sealed" * 1000
            folder.close()
        finally:
            reach_by(before)
    assert store.checked == ["/bucket/run/one"]


@pytest.mark.claim("C633")
@pytest.mark.parametrize(
    ("answer", "refused"),
    [
        ((501, "NotImplemented"), StorageRefused),
        ((400, "InvalidArgument"), StorageRefused),
        ((400, "EntityTooLarge"), StorageRefused),
        ((403, "RequestTimeTooSkewed"), StorageRefused),
        ((404, "NoSuchBucket"), StorageRefused),
        ((403, "AccessDenied"), StorageUnreachable),
        ((400, "ExpiredToken"), StorageUnreachable),
    ],
)
def test_what_no_further_try_changes_is_not_tried_again(
    answer: tuple[int, str],
    refused: type[StorageUnreachable],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "a").write_bytes(b"sealed")
    with old_store() as store:
        store.always = answer
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", store.url)
        folder = open_folder("s3://bucket/run", patience=ONCE)
        with pytest.raises(StorageUnreachable) as caught:
            folder.put("one", str(tmp_path / "a"))
        folder.close()
    assert type(caught.value) is refused
    assert SLEPT == []
    assert len(store.asked) <= 2


def test_a_busy_store_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"sealed")
    with old_store() as store:
        store.always = (503, "SlowDown")
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", store.url)
        folder = open_folder("s3://bucket/run", patience=ONCE)
        with pytest.raises(StorageUnreachable) as caught:
            folder.put("one", str(tmp_path / "a"))
        folder.close()
    assert type(caught.value) is StorageUnreachable
    assert len(SLEPT) == ONCE.attempts - 1


BAD = [
    "file:///bank/store/run1",
    "file://./bank/store/run1",
    "file:/bank/store",
    "local:///bank",
    "s3://bucket:9000/x",
    "s3://my bucket/x",
    "s3://bucket,other/x",
    "https://bucket.s3.amazonaws.com/run?X-Amz-Algorithm=A&X-Amz-Signature=ab12",
    "https://account.blob.core.windows.net/run?sv=1&sig=ab12",
    "https://storage.googleapis.com/run?X-Goog-Signature=ab12",
    "abfs://container:secret@account.dfs.core.windows.net/run",
    "https://user@host/run",
    "https://user:secret@host:99999/run",
    "https://host:port/run?sig=ab12",
]


@pytest.mark.claim("C634")
@pytest.mark.parametrize("url", BAD)
def test_a_url_that_is_no_store_is_refused_where_it_is_written(url: str) -> None:
    assert is_url(url)
    with pytest.raises(UsageError) as caught:
        parse_address(url)
    assert caught.value.check == "address"
    assert "ab12" not in str(caught.value.to_dict())
    assert "secret@" not in str(caught.value.to_dict())
    with pytest.raises(ValidationError):
        RunTicket(version=1, role="lead", brokers=(), store=url)


def test_a_container_of_azure_is_named_as_azure_names_it() -> None:
    url = "abfs://container@account.dfs.core.windows.net/run"
    made = parse_address(url)
    assert (made.scheme, made.url, made.name) == ("abfs", url, "run")
    with pytest.raises(ExtraMissing, check=carries(got="adlfs")):
        open_folder(url)


class FromAzure(Exception):  # stands for those of Azure's library
    def __init__(self, status: int | None, code: str) -> None:
        super().__init__("The MAC signature found in the request 'secret' is not the same")
        self.status_code, self.error_code = status, code


FromAzure.__module__ = "azure.core.exceptions"


@pytest.mark.claim("C706")
@pytest.mark.parametrize(
    ("status", "code", "error", "again"),
    [
        (403, "AuthenticationFailed", StorageRefused, 0),
        (None, "AzureSigningError", StorageRefused, 0),
        (409, "ContainerBeingDeleted", StorageRefused, 0),
        (404, "ContainerNotFound", DataInvalid, 0),
        (503, "ServerBusy", StorageUnreachable, 5),
        (None, "ServiceRequestError", StorageUnreachable, 5),
    ],
)
def test_an_error_of_azure_is_judged_by_its_status(
    status: int | None, code: str, error: type[SealtrainError], again: int
) -> None:
    from sealtrain.storage.azure import AzureFileSystem
    from sealtrain.storage.folder import RemoteFolder

    class Inner:
        def cat_file(self, _path: str, **_range: int) -> bytes:
            raise FromAzure(status, code)

    slept: list[float] = []
    address = parse_address("abfs://bank@account.dfs.core.windows.net/run")
    patience = Patience(sleep=slept.append)
    folder = RemoteFolder(AzureFileSystem(Inner()), address, patience=patience)
    with pytest.raises(SealtrainError) as caught:
        folder.read("a", 10)
    assert type(caught.value) is error
    assert len(slept) == again
    assert "secret" not in str(caught.value.to_dict())


@pytest.mark.claim("C706")
def test_azure_answers_an_empty_file_and_tries_once_by_itself() -> None:
    from sealtrain.storage.azure import AzureFileSystem

    class Policy:
        total_retries = 3

    class Config:
        retry_policy = Policy()

    class Client:
        _config = Config()

    class Inner:
        service_client = Client()

        def cat_file(self, _path: str, **_range: int) -> bytes:
            raise FromAzure(416, "InvalidRange")

    inner = Inner()
    assert AzureFileSystem(inner).cat_file("a", 0, 10) == b""
    assert Config.retry_policy.total_retries == 0


class Transport:
    """Stands for that of Azure's library, which raises what aiohttp raised."""

    def __init__(self, fault: Exception | None = None) -> None:
        self.asked: list[dict[str, Any]] = []
        self.fault = fault

    async def send(self, _request: object, **options: Any) -> str:
        self.asked.append(options)
        if self.fault is not None:
            raise FromAzure(None, "ServiceRequestError") from self.fault
        return "answer"


def by_azure(transport: Transport, url: str, by: Outbound) -> str:
    """What the transport's client gets, with a proxy in the environment."""
    from sealtrain.storage.azure import AzureFileSystem

    config = SimpleNamespace(transport=transport)
    before = reach_by(lambda: by)
    try:
        AzureFileSystem(SimpleNamespace(service_client=SimpleNamespace(_config=config)))
    finally:
        reach_by(before)
    asked = transport.send(SimpleNamespace(url=url), proxies={"https": "http://environment:1"})
    return asyncio.run(asked)


BANK = Outbound(
    proxy=ProxyServer(host="proxy.bank", port=3128, authorization="Basic bWU6"),
    direct=(".near.example",),
)


@pytest.mark.claim("C745")
@pytest.mark.parametrize(
    ("url", "tunnelled"),
    [
        ("https://account.blob.core.windows.net/bank", True),
        ("https://account.near.example/bank", False),
        ("https://127.0.0.1:10000/bank", False),
        ("http://account.blob.core.windows.net/bank", False),
    ],
)
def test_a_store_of_azure_is_reached_as_the_settings_say(url: str, tunnelled: bool) -> None:
    transport = Transport()
    assert by_azure(transport, url, BANK) == "answer"
    (options,) = transport.asked
    assert "proxies" not in options
    assert ("ssl" in options) == url.startswith("https")
    found = {name: options.get(name) for name in ("proxy", "proxy_headers")}
    assert found == {
        "proxy": "http://proxy.bank:3128" if tunnelled else None,
        "proxy_headers": {"Proxy-Authorization": "Basic bWU6"} if tunnelled else None,
    }


@pytest.mark.claim("C745")
@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("ClientHttpProxyError", Unsafe),
        ("ClientProxyConnectionError", Unanswered),
        ("ClientOSError", FromAzure),
    ],
)
def test_a_fault_of_the_network_is_no_error_of_azure(fault: str, error: type[Exception]) -> None:
    made = type(fault, (Exception,), {"status": 407, "__module__": "aiohttp.client_exceptions"})
    with pytest.raises(error):
        by_azure(Transport(made()), "https://account.blob.core.windows.net/bank", BANK)


@pytest.mark.claim("C745")
def test_a_certificate_that_does_not_count_is_no_error_of_azure() -> None:
    refused = ssl.SSLCertVerificationError(1, "certificate verify failed")
    refused.verify_code = 10
    with pytest.raises(Unsafe, match=EXPIRED) as caught:
        by_azure(Transport(refused), "https://account.blob.core.windows.net/bank", BANK)
    assert caught.value.check == "tls"


def test_a_store_without_the_folder_is_told_once(tmp_path: Path) -> None:
    class Nowhere:
        def put_file(self, _local: str, _there: str) -> None:
            raise FileNotFoundError("/nowhere")

    from sealtrain.storage.folder import RemoteFolder

    (tmp_path / "a").write_bytes(b"sealed")
    folder = RemoteFolder(Nowhere(), parse_address("https://host/run"), patience=ONCE)
    with pytest.raises(StorageRefused):
        folder.put("a", str(tmp_path / "a"))
    assert SLEPT == []
