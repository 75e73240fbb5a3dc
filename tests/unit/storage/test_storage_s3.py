"""S3 as moto serves it: the same records, typed refusals, the right server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from carrying import carries
from collecting import COLLECTING
from raw_server import says, server
from sealing_world import SealedFolder, all_rows, json_lines, sealed_folder, signed
from storage_world import HASTY
from tls_world import certificate

from sealtrain.errors import DataInvalid, UsageError
from sealtrain.sealing.errors import FileTruncated
from sealtrain.sealing.opened_dataset import SealedDataset
from sealtrain.storage.connect import open_folder
from sealtrain.storage.errors import StorageUnreachable
from sealtrain.storage.publish import publish

if not COLLECTING:
    from sealtrain.storage.s3 import S3FileSystem

pytestmark = pytest.mark.long

ROWS = [{"text": f"{n} " + "word " * 150, "n": n} for n in range(3000)]


@pytest.fixture(scope="module")
def store() -> Iterator[str]:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0)
    server.start()
    try:
        _, port = server.get_host_and_port()
        yield f"http://127.0.0.1:{port}"
    finally:
        server.stop()


@pytest.fixture
def bucket(store: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    import boto3

    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", store)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    client = boto3.client("s3")
    client.create_bucket(Bucket="hospital")
    yield "hospital"
    for content in client.list_objects_v2(Bucket="hospital").get("Contents", []):
        client.delete_object(Bucket="hospital", Key=content["Key"])
    client.delete_bucket(Bucket="hospital")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> SealedFolder:
    folder = tmp_path_factory.mktemp("sealed")
    source = folder / "rows.jsonl"
    source.write_text(json_lines(ROWS))
    return sealed_folder(source, folder / "a.sealed", shard_bytes=1 << 20, sign=signed)


def upload(made: SealedFolder, bucket: str) -> None:
    import boto3

    for path in made.folder.iterdir():
        boto3.client("s3").upload_file(str(path), bucket, f"records/a.sealed/{path.name}")


def test_a_dataset_is_read_from_s3_as_from_a_disk(made: SealedFolder, bucket: str) -> None:
    upload(made, bucket)
    folder = open_folder(f"s3://{bucket}/records/a.sealed")
    with SealedDataset.open(folder, made.key, root=made.description.root) as dataset:
        assert all_rows(dataset) == ROWS


def test_it_names_the_server_it_will_speak_to(store: str, bucket: str) -> None:
    [host] = open_folder(f"s3://{bucket}/a.sealed").hosts
    assert host == store


def test_what_is_not_there_or_too_short_is_refused(made: SealedFolder, bucket: str) -> None:
    import boto3

    url = f"s3://{bucket}/records/a.sealed"
    with pytest.raises(DataInvalid, match=r"index\.sealed"):
        SealedDataset.open(open_folder(url), made.key, root=made.description.root)
    upload(made, bucket)
    name = made.description.shards[0].name
    short = (made.folder / name).read_bytes()[:-50_000]
    boto3.client("s3").put_object(Bucket=bucket, Key=f"records/a.sealed/{name}", Body=short)
    with SealedDataset.open(open_folder(url), made.key, root=made.description.root) as dataset:
        with pytest.raises(FileTruncated):
            dataset.batch(0)
        assert dataset.batch(dataset.num_batches - 1).num_rows


def test_authorities_of_a_store_of_ones_own_are_those_that_were_configured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = certificate(tmp_path, "localhost")
    part = says("206 Partial Content", b"ab", "Content-Range: bytes 0-1/2")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
    with server(lambda one, _: one.sendall(part), certificate=shown) as (url, heads):
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", url)
        with closing(S3FileSystem()) as store, pytest.raises(ConnectionError):
            store.cat_file("s3://hospital/one", start=0, end=10)
        monkeypatch.setenv("AWS_CA_BUNDLE", str(shown))
        with closing(S3FileSystem()) as store:
            assert store.cat_file("s3://hospital/one", start=0, end=10) == b"ab"
        assert len(heads) == 1
        assert heads[0].startswith(b"GET /hospital/one HTTP/1.1\r\n")
    monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "none"))
    with pytest.raises(UsageError):
        S3FileSystem()


def test_a_store_that_is_gone_ends_in_exit_4(
    made: SealedFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    folder = open_folder("s3://nowhere/a.sealed", patience=HASTY)
    with pytest.raises(StorageUnreachable):
        SealedDataset.open(folder, made.key, root=made.description.root)


def test_any_filesystem_of_fsspec_serves(made: SealedFolder) -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    for path in made.folder.iterdir():
        memory.pipe_file(f"/records/a.sealed/{path.name}", path.read_bytes())
    folder = open_folder("memory://records/a.sealed")
    with SealedDataset.open(folder, made.key, root=made.description.root) as dataset:
        assert all_rows(dataset) == ROWS


def test_another_scheme_is_a_usage_error() -> None:
    from sealtrain.errors import UsageError

    with pytest.raises(UsageError, check=carries(got="gopher")):
        open_folder("gopher://host/a.sealed")


def test_a_dataset_is_published_to_s3_and_read_back(made: SealedFolder, bucket: str) -> None:
    url = f"s3://{bucket}/published/a.sealed"
    assert publish(made.folder, open_folder(url), read_back=True).sent == len(
        list(made.folder.iterdir())
    )
    assert publish(made.folder, open_folder(url)).sent == 0
    with SealedDataset.open(open_folder(url), made.key, root=made.description.root) as dataset:
        assert all_rows(dataset) == ROWS


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("AWS_ENDPOINT_URL_S3", "not a url"),
        ("AWS_ENDPOINT_URL_S3", "ftp//secret-user@host"),
        ("AWS_PROFILE", "secret-profile-that-is-none"),
    ],
)
def test_a_configuration_that_cannot_be_used_is_named_and_not_shown(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
    monkeypatch.setenv(name, value)
    with pytest.raises(UsageError) as refused:
        open_folder("s3://bucket/a.sealed")
    assert refused.value.check == "storage"
    assert value not in str(refused.value.to_dict())
