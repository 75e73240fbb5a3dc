"""Files that a parent hands to a broker in an enclave: which they may be, and what it tries."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from enclave_world import PlayedKernel, reached
from nitro_world import NOW, PKI
from world import founded, simulated_policy

from sealtrain.broker.service.deployment import BrokerDocument
from sealtrain.client.errors import TicketInvalid
from sealtrain.client.parentticket import receive_from_sender
from sealtrain.errors import DataInvalid
from sealtrain.guest.enclave.handedfiles import (
    MAX_FILES_BYTES,
    names_of,
    read_message,
    write_message,
)
from sealtrain.guest.enclave.init import EnclaveInit
from sealtrain.guest.enclave.plan import EnclaveProgram, program_of
from sealtrain.guest.enclave.ports import FILES_PORT
from sealtrain.recipe.document import frame_of
from sealtrain_rehearsal.simulator.nitro import SimulatedNsm

pytestmark = pytest.mark.claim("C722")

IMAGE = f"sha256:{'5a' * 32}"
KMS = (
    "awskms:/run-data/root.ciphertext?region=eu-central-1"
    "&key=arn:aws:kms:eu-central-1:111122223333:key/12345678-1234-1234-1234-123456789012"
)
DOCUMENTS = {
    case["name"]: case["compose"].encode()
    for case in json.loads(
        (Path(__file__).parents[3] / "vectors/recipe/compose.json").read_text("utf-8")
    )["cases"]
}


def broker(root_secret: str = KMS, *, database: bool = True) -> bytes:
    return BrokerDocument(
        consortium=founded(),
        policy=simulated_policy(),
        chain=None,
        succession=None,
        platform="nitro",
        image=f"registry.example/broker@{IMAGE}",
        key_provider_id="",
        root_secret=root_secret,
        lease_seconds=3600,
        boot_auth=False,
        gateway_app_id="",
        database=database,
    ).to_bytes()


def names(document: bytes) -> frozenset[str]:
    return names_of(frame_of(document))


def test_a_broker_s_document_names_what_may_be_handed_in() -> None:
    assert names(broker()) == {"database", "root.ciphertext", "collateral.json"}
    assert names(broker(database=False)) == {"root.ciphertext", "collateral.json"}


def test_a_root_secret_never_comes_from_the_parent() -> None:
    """A parent that handed one in would know every key that the broker releases."""
    for uri in ("file:/run-data/root.secret", "file:/run-data/root.ciphertext"):
        assert names(broker(uri)) == {"database", "collateral.json"}


@pytest.mark.parametrize(
    "uri",
    [
        KMS.replace("/run-data/", "/"),
        KMS.replace("/run-data/", "/run-data/below/"),
        KMS.replace("root.ciphertext", ".."),
        KMS.replace("/run-data/root.ciphertext", "root.ciphertext"),
    ],
)
def test_a_name_outside_of_the_folder_is_none(uri: str) -> None:
    assert names(broker(uri)) == {"database", "collateral.json"}


def test_a_training_s_document_names_none() -> None:
    assert names(DOCUMENTS["nitro"]) == frozenset()


NAMES = frozenset({"database", "root.ciphertext"})


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"[]",
        b"null",
        b"{",
        b'{"database": 1}',
        b'{"database":"not base64"}',
        b'{"database":"AA==","database":"AQ=="}',
        b'{ "database":"AA=="}',
        write_message({"root.secret": b"known to the parent"}),
        write_message({"../enclave/image": b"another image"}),
        write_message({"app-compose.json": b"another document"}),
        write_message({"": b""}),
        write_message({"database": bytes(MAX_FILES_BYTES)}),
    ],
    ids=range(13),
)
def test_another_message_is_refused(message: bytes) -> None:
    with pytest.raises(DataInvalid):
        read_message(message, NAMES)


class Enclave:
    """An init whose document was measured already."""

    def __init__(self, folder: Path) -> None:
        self.sockets = folder / "s"
        self.sockets.mkdir()
        (folder / "run-data").mkdir()
        self.kept = folder / "run-data"
        self.kernel = PlayedKernel(self.sockets)
        self.init = EnclaveInit(
            self.kernel,
            files=folder,
            nsm=lambda: SimulatedNsm(PKI, clock=lambda: NOW),
            is_parent=lambda _: True,
        )
        self.program: EnclaveProgram = replace(
            program_of(frame_of(broker()), IMAGE), files=names(broker())
        )

    def given(self, *parts: bytes) -> Any:
        def give() -> None:
            with reached(self.sockets / f"enclave-{FILES_PORT}") as connection:
                for part in parts:
                    connection.sendall(part)

        thread = threading.Thread(target=give)
        thread.start()
        try:
            return self.init.take_files(self.program)
        except Exception as error:  # returned to the caller
            return error
        finally:
            thread.join()


@pytest.fixture
def enclave(tmp_path: Path) -> Iterator[Enclave]:
    made = Enclave(tmp_path)
    yield made
    made.init.close()


def test_files_lie_where_the_document_says_for_its_program_alone(enclave: Enclave) -> None:
    files = {
        "database": b"postgresql://database.example/broker",
        "root.ciphertext": bytes(range(99)),
    }
    message = write_message(files)
    # However the parent splits it.
    assert enclave.given(message[:1], message[1:40], message[40:]) == tuple(sorted(files))
    for name, data in files.items():
        place = enclave.kept / name
        assert place.read_bytes() == data
        assert place.stat().st_mode & 0o777 == 0o600
        assert ("give", name, 65532) in enclave.kernel.done


def test_a_file_that_the_document_does_not_name_writes_nothing(enclave: Enclave) -> None:
    done = enclave.given(write_message({"database": b"x", "root.secret": b"known"}))
    assert isinstance(done, DataInvalid)
    assert list(enclave.kept.iterdir()) == []


def test_a_message_that_is_cut_writes_nothing(enclave: Enclave) -> None:
    assert isinstance(enclave.given(write_message({"database": b"address"})[:-5]), DataInvalid)
    assert list(enclave.kept.iterdir()) == []


def test_files_are_taken_once(enclave: Enclave) -> None:
    """A parent that replays the message meets files that are there, and replaces none."""
    assert enclave.given(write_message({"database": b"first"})) == ("database",)
    assert isinstance(enclave.given(write_message({"database": b"second"})), OSError)
    assert (enclave.kept / "database").read_bytes() == b"first"


def test_a_document_without_names_asks_for_nothing(enclave: Enclave) -> None:
    enclave.program = replace(enclave.program, files=frozenset())
    assert enclave.init.take_files(enclave.program) == ()
    assert not [done for done in enclave.kernel.done if done[0] == "listen"]


def test_a_parent_that_sends_nothing_starts_nothing(tmp_path: Path) -> None:
    """Its stalled connection is closed, and so is the wait."""
    kernel = PlayedKernel(tmp_path)
    with kernel.listen(FILES_PORT) as listener:
        listener.listen()
        with reached(tmp_path / f"enclave-{FILES_PORT}"), pytest.raises(TicketInvalid):
            receive_from_sender(
                listener, MAX_FILES_BYTES, is_sender=lambda _: True, within=0.2, sends_within=0.05
            )
