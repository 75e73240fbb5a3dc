"""A store that is slow, broken, lying or hostile: the right records or a typed refusal."""

from __future__ import annotations

import gc
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from carrying import carries
from sealing_world import SealedFolder, all_rows, json_lines, sealed_folder
from storage_world import Server, serving

from sealtrain.errors import DataInvalid, EgressRefused, LimitExceeded, UsageError
from sealtrain.guest.sandbox.network import confine_to
from sealtrain.sealing.errors import FileTruncated, NotSealed, RootMismatch, SealRefused
from sealtrain.sealing.opened_dataset import SealedDataset
from sealtrain.storage.address import parse_address
from sealtrain.storage.errors import StorageUnreachable
from sealtrain.storage.retry import Busy, Patience

pytestmark = pytest.mark.claim("C32")

ROWS = [{"text": f"{n} " + "word " * 180, "n": n} for n in range(4000)]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> SealedFolder:
    folder = tmp_path_factory.mktemp("sealed")
    source = folder / "rows.jsonl"
    source.write_text(json_lines(ROWS))
    return sealed_folder(source, folder / "a.sealed", shard_bytes=1 << 20)


@pytest.fixture
def server(made: SealedFolder) -> Iterator[Server]:
    with serving(made.folder.parent) as running:
        yield running


def opened(server: Server, made: SealedFolder, **options: Any) -> SealedDataset:
    return SealedDataset.open(
        server.folder("a.sealed", **options), made.key, root=made.description.root
    )


def copied(made: SealedFolder, target: Path) -> Path:
    return Path(shutil.copytree(made.folder, target / "a.sealed"))


def test_a_dataset_is_read_over_http_as_from_a_disk(server: Server, made: SealedFolder) -> None:
    with opened(server, made) as dataset:
        assert not dataset.local
        assert all_rows(dataset) == ROWS


def test_a_group_of_one_mebibyte_is_one_request(server: Server, made: SealedFolder) -> None:
    folder = server.folder("a.sealed")
    with SealedDataset.open(folder, made.key, root=made.description.root) as dataset:
        before = folder.requests
        for number in range(dataset.num_batches):
            dataset.batch(number)
        shards = len(made.description.shards)
        size = sum(shard.size for shard in made.description.shards)
        # Header, trailer and groups of each shard; its last group is read when it is opened.
        assert folder.requests - before <= 2 * shards + size // (64 * 16400) + shards
        read = [(path, headers["range"]) for _, path, headers in server.seen if "shard" in path]
        assert len(read) == len(set(read))


def test_failures_that_pass_are_waited_for(server: Server, made: SealedFolder) -> None:
    with opened(server, made) as dataset:
        server.failures = 3
        assert dataset.batch(0).num_rows
        server.cuts = 3
        assert all_rows(dataset) == ROWS
    assert server.status[503] == 3


def test_failures_that_stay_end_in_exit_4(server: Server, made: SealedFolder) -> None:
    with opened(server, made) as dataset:
        server.failures = 10_000
        with pytest.raises(
            StorageUnreachable, check=carries(check="storage", got="HTTP 503, 6 times")
        ) as caught:
            dataset.batch(0)
        assert caught.value.exit_code == 4
        server.failures, server.cuts = 0, 10_000
        with pytest.raises(StorageUnreachable, match="RemoteProtocolError"):
            dataset.batch(0)


def test_a_server_that_is_gone_ends_in_exit_4(made: SealedFolder) -> None:
    with serving(made.folder.parent) as gone:
        folder = gone.folder("a.sealed")
    with pytest.raises(StorageUnreachable):
        SealedDataset.open(folder, made.key, root=made.description.root)


def test_access_denied_is_not_asked_again(server: Server, made: SealedFolder) -> None:
    server.denies = True
    with pytest.raises(StorageUnreachable, check=carries(check="storage", got="HTTP 403")):
        opened(server, made)
    assert server.status[403] == 1


def test_a_server_that_ignores_ranges_is_named(server: Server, made: SealedFolder) -> None:
    with opened(server, made) as dataset:
        server.ranges = False
        with pytest.raises(UsageError, check=carries(check="storage", got="200 OK")):
            dataset.batch(0)
    assert server.status[200] == 1


def test_redirects_are_not_followed(server: Server, made: SealedFolder) -> None:
    server.redirects = "http://127.0.0.1:1/elsewhere"
    with pytest.raises(UsageError, check=carries(check="storage", got="HTTP 302")):
        opened(server, made)


def test_a_missing_file_is_data_invalid(server: Server, made: SealedFolder) -> None:
    with pytest.raises(DataInvalid, match=r"index\.sealed"):
        SealedDataset.open(server.folder("b.sealed"), made.key, root=made.description.root)


def test_a_server_that_sends_more_than_it_announces(server: Server, made: SealedFolder) -> None:
    with opened(server, made) as dataset:
        server.grows = 1
        with pytest.raises(StorageUnreachable, check=carries(check="storage")):
            dataset.batch(0)


@pytest.mark.parametrize("claim", [0, 100, 70_000, 1 << 39])
def test_a_lie_about_lengths_opens_nothing(server: Server, made: SealedFolder, claim: int) -> None:
    server.claims = claim
    with pytest.raises((SealRefused, NotSealed)) as caught:
        opened(server, made)
    assert caught.type in (FileTruncated, NotSealed)


def test_an_impossible_length_is_refused_before_anything_is_kept(
    server: Server, made: SealedFolder
) -> None:
    server.claims = 1 << 60
    with pytest.raises(LimitExceeded):
        opened(server, made)


def test_a_shard_cut_short_is_truncated(tmp_path: Path, made: SealedFolder) -> None:
    copy = copied(made, tmp_path)
    shard = copy / "shard-00001.sealed"
    shard.write_bytes(shard.read_bytes()[:-1])
    with serving(tmp_path) as running, opened(running, made) as dataset:
        assert dataset.batch(0).num_rows
        with pytest.raises(FileTruncated):
            all_rows(dataset)


def test_a_file_that_changes_while_it_is_read(tmp_path: Path, made: SealedFolder) -> None:
    copy = copied(made, tmp_path)
    with serving(tmp_path) as running, opened(running, made, kept_bytes=1) as dataset:
        first = dataset.batch(0).to_pylist()
        shard = copy / "shard-00000.sealed"
        data = bytearray(shard.read_bytes())
        data[2000:900_000] = bytes(898_000)
        shard.write_bytes(data)
        dataset.batch(dataset.num_batches - 1)
        with pytest.raises(RootMismatch):
            dataset.batch(0)
        assert first == ROWS[: len(first)]


def test_another_genuine_version_is_refused_by_its_root(tmp_path: Path, made: SealedFolder) -> None:
    source = tmp_path / "rows.jsonl"
    source.write_text(json_lines(ROWS[:100]))
    other = sealed_folder(source, tmp_path / "a.sealed")
    with serving(tmp_path) as running, pytest.raises(RootMismatch):
        SealedDataset.open(running.folder("a.sealed"), other.key, root=made.description.root)


def test_many_threads_read_at_once(server: Server, made: SealedFolder) -> None:
    with opened(server, made, kept_bytes=2 << 20) as dataset:
        found: dict[int, list[Any]] = {}

        def read(start: int) -> None:
            for number in range(start, dataset.num_batches, 4):
                found[number] = dataset.batch(number).to_pylist()

        threads = [threading.Thread(target=read, args=(start,)) for start in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [row for number in sorted(found) for row in found[number]] == ROWS


def test_the_memory_for_answers_is_bounded(server: Server, made: SealedFolder) -> None:
    folder = server.folder("a.sealed", kept_bytes=1 << 20)
    roomy = server.folder("a.sealed", kept_bytes=1 << 30)
    asked = []
    for place in (folder, roomy):
        with SealedDataset.open(place, made.key, root=made.description.root) as dataset:
            all_rows(dataset)
            once = place.requests
            all_rows(dataset)
            asked.append((once, place.requests - once))
    (_first, again), (_whole, kept) = asked
    assert kept == 0
    assert again > 0, "what does not fit into the memory is asked for again"


@pytest.mark.parametrize(
    "url",
    ["https://me:secret@host/a", "https://me@host/a", "https://host/a?sig=secret", "https://host/a#x",
     "https://host/", "https://host", "s3://bucket", "https://host:port/a"],
)  # fmt: skip
def test_urls_with_secrets_or_without_folders_are_refused(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_address(url)
    assert "secret" not in f"{caught.value} {caught.value.hint} {caught.value.got}".replace(
        "secrets belong", ""
    )


@pytest.mark.parametrize("after", [86_400.0, None])
def test_a_pause_is_bounded_whatever_the_store_asks_for(after: float | None) -> None:
    def later() -> None:
        raise Busy("later", after)

    paused: list[float] = []
    patience = Patience(attempts=41, sleep=paused.append)
    with pytest.raises(StorageUnreachable):
        patience.ask(later, what="a file")
    assert len(paused) == 40
    assert max(paused) == paused[-1] == patience.longest


# The refused connection's socket is left to the collector, which warns.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_confined_run_reads_from_the_store_it_named_only(
    server: Server, made: SealedFolder
) -> None:
    with serving(made.folder.parent) as other:
        folder = server.folder("a.sealed")
        with confine_to("http://127.0.0.1:9", *folder.hosts):
            with SealedDataset.open(folder, made.key, root=made.description.root) as dataset:
                assert all_rows(dataset) == ROWS
            with pytest.raises(EgressRefused):
                other.folder("a.sealed").read("dataset.json", 100)
    assert not other.seen
    gc.collect()  # here, or it warns in another test
