"""Seals, publishes, reads and leaves outputs in a store of Azure.

``azure_player.py FOLDER CA CONNECTION``, the last of an emulator that speaks TLS by that CA.

It runs in the environment in which adlfs is installed, with an account of Azurite in the
environment, and prints as JSON what came of each step.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from azure.storage.blob import BlobServiceClient
from private_network import proxy
from raw_server import server
from sealing_world import all_rows, json_lines, sealed_folder, signed

from sealtrain.base.outbound import Outbound, parse_proxy, reach_by
from sealtrain.errors import SealtrainError
from sealtrain.sealing.datakey import DataKey
from sealtrain.sealing.opened_dataset import SealedDataset
from sealtrain.sealing.store import SealedStore
from sealtrain.storage.connect import open_folder
from sealtrain.storage.folder import RemoteFolder
from sealtrain.storage.outputs import OutputStore
from sealtrain.storage.publish import publish
from sealtrain.storage.retry import Patience

ACCOUNT = "AZURE_STORAGE_CONNECTION_STRING"
STORE = "store.bank.example"
RUN_ID, COMPOSE_HASH = "5a" * 16, "ab" * 32
ROWS = [{"text": f"{n} " + "word " * 180, "n": n} for n in range(2000)]
slept: list[float] = []


def folder_at(path: str, container: str = "bank") -> RemoteFolder:
    url = f"abfs://{container}@devstoreaccount1.dfs.core.windows.net/{path}"
    return open_folder(url, patience=Patience(sleep=slept.append))


def fault(work: Callable[[], object]) -> dict[str, Any]:
    """How something is refused, and how often it was tried again."""
    slept.clear()
    try:
        work()
    except SealtrainError as error:
        told = error.to_dict()
        return {
            "code": told["code"],
            "check": told.get("check"),
            "got": told.get("got"),
            "again": len(slept),
        }
    return {"code": None}


def sealed_and_read(folder: Path) -> dict[str, Any]:
    """A dataset as an owner seals and publishes it and a guest reads it, with its key."""
    source = folder / "rows.jsonl"
    source.write_text(json_lines(ROWS))
    made = sealed_folder(source, folder / "a.sealed", shard_bytes=1 << 20, sign=signed)
    done = publish(made.folder, folder_at("data/a.sealed"), read_back=True)
    again = publish(made.folder, folder_at("data/a.sealed"))
    store = folder_at("data/a.sealed")
    with SealedDataset.open(store, made.key, root=made.description.root) as dataset:
        same = all_rows(dataset) == ROWS
    return {"files": done.files, "sent": done.sent, "sent_again": again.sent, "same": same}


def left_and_taken(folder: Path) -> dict[str, Any]:
    """Sealed checkpoints as a guest leaves them, twice, and another takes them."""
    out, key = folder / "out", DataKey(bytes(32))
    files: dict[str, bytes] = {}
    for number in (1, 2):
        for part, name in (
            ("checkpoints", f"checkpoint-{number:08d}-{number * 100:010d}"),
            ("journal", f"journal-{number:08d}"),
        ):
            with SealedStore(out / part, key, label=part).write(name, {}) as sealed:
                sealed.write(bytes(4000 * number))
            path = out / part / f"{name}.sealed"
            files[f"{part}/{path.name}"] = path.read_bytes()
        store = OutputStore(folder_at("run"), COMPOSE_HASH)
        store.read()  # as a guest does that goes on
        store.leave(out, run_id=RUN_ID, state="checkpointed", attempts=number)
    there = OutputStore(folder_at("run"), COMPOSE_HASH)
    index = there.read()
    there.take(folder / "taken")
    taken = {name: (folder / "taken" / name).read_bytes() for name in files}
    return {"attempts": None if index is None else index.attempts, "same": taken == files}


def faults(folder: Path, account: str) -> dict[str, Any]:
    """What a wrong key, a key that is none, no container and no server are told as."""
    local = folder / "rows.jsonl"

    def write(container: str = "bank") -> None:
        folder_at("run", container).put("a", str(local))

    def read(container: str = "bank") -> None:
        folder_at("data/a.sealed", container).read("dataset.json", 1 << 20)

    found: dict[str, Any] = {
        "no container, write": fault(lambda: write("nowhere")),
        "no container, read": fault(lambda: read("nowhere")),
        "no file": fault(lambda: folder_at("data").read("none", 10)),
    }
    key = account.split("AccountKey=")[1].split(";")[0]
    for name, other in (("wrong key", "AAAA" + key[4:]), ("no key", "x")):
        os.environ[ACCOUNT] = account.replace(key, other)
        found |= {f"{name}, write": fault(write), f"{name}, read": fault(read)}
    os.environ[ACCOUNT] = account.partition("BlobEndpoint=")[0] + (
        "BlobEndpoint=http://127.0.0.1:9/devstoreaccount1;"
    )
    found["no server"] = fault(read)
    os.environ[ACCOUNT] = "nonsense"
    found["no account"] = fault(read)
    assert key not in json.dumps(found)
    return found


def behind_a_proxy(folder: Path, authority: Path, account: str) -> dict[str, Any]:
    """A store behind a private authority and a proxy, and each fault of a network.

    Args:
        folder: Has certificates by the names of faults.
        authority: Certificate of the authority.
        account: Connection string of an emulator that speaks TLS.
    """
    bank = authority.read_text()
    with BlobServiceClient.from_connection_string(
        account, connection_verify=str(authority)
    ) as service:
        service.create_container("bank")
    before, _, endpoint = account.partition("BlobEndpoint=")
    there = urlsplit(endpoint).netloc.replace("localhost", "127.0.0.1")
    os.environ[ACCOUNT] = f"{before}BlobEndpoint=https://{STORE}/devstoreaccount1;"
    # Neither counts: a guest's operator writes its environment.
    os.environ["HTTPS_PROXY"] = "http://127.0.0.1:9"
    os.environ["SSL_CERT_FILE"] = str(authority)

    def read() -> None:
        slept.clear()
        folder_at("data/a.sealed").read("dataset.json", 1 << 20)

    def fault_by(by: Outbound) -> dict[str, Any]:
        reach_by(lambda: by)
        return fault(read)

    found: dict[str, Any] = {}
    with proxy(names={f"{STORE}:443": there}) as made:
        through = parse_proxy(made.url.replace("://", "://me:hunter2@"), "proxy")
        by = Outbound(authorities=bank, proxy=through)
        reach_by(lambda: by)
        (folder / "sent").write_bytes(b"sealed")
        folder_at("behind").put("a", str(folder / "sent"))
        found["same"] = folder_at("behind").read("a", 10) == b"sealed"
        found["heads"] = sorted({head.decode("latin-1") for head in made.asked})
        found["no authority"] = fault_by(Outbound(proxy=through))
    for name in ("expired", "wrong name"):
        shown = folder / f"{name}.server.pem"
        with (
            server(lambda _connection, _number: None, certificate=shown) as (url, _),
            proxy(to=url.replace("https://localhost", "127.0.0.1")) as other,
        ):
            other_way = parse_proxy(other.url, "proxy")
            found[name] = fault_by(Outbound(authorities=bank, proxy=other_way))
    with proxy(answer=b"HTTP/1.1 407 Who\r\nContent-Length: 0\r\n\r\n") as wary:
        refusing = parse_proxy(wary.url, "proxy")
        found["proxy refuses"] = fault_by(Outbound(authorities=bank, proxy=refusing))
    found["no proxy there"] = fault_by(Outbound(authorities=bank, proxy=through))
    assert "hunter2" not in json.dumps({**found, "heads": None})
    return found


def main() -> None:
    folder, account = Path(sys.argv[1]), os.environ[ACCOUNT]
    with BlobServiceClient.from_connection_string(account) as service:
        service.create_container("bank")
    told = {"data": sealed_and_read(folder), "run": left_and_taken(folder)}
    told |= {"faults": faults(folder, account)}
    print(json.dumps(told | {"behind": behind_a_proxy(folder, Path(sys.argv[2]), sys.argv[3])}))


if __name__ == "__main__":
    main()
