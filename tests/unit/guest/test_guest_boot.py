"""What a guest's first programs decide, and what their agent answers to whom."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sealtrain.attest.guest import open_guest
from sealtrain.errors import ImageRefused
from sealtrain.guest.boot.agent import MAX_REQUEST_BYTES, GuestAgent, answers
from sealtrain.guest.boot.command import words_of
from sealtrain.guest.boot.decisions import (
    BootParameters,
    choose_device,
    parse_network,
    parse_parameters,
    partition_name,
)
from sealtrain.image.disk.guest_disk import WORDS
from sealtrain.recipe.errors import LockInvalid

pytestmark = pytest.mark.claim("C663")
ROOT = "ab" * 32
DOCUMENT = b'{"name": "guest"}'


# --- Decisions ------------------------------------------------------------------------------------


def test_the_command_line_names_one_root() -> None:
    read = parse_parameters(f"{WORDS} sealtrain.root={ROOT} sealtrain.blocks=300\n")
    assert read == BootParameters(root_hash=ROOT, blocks=300)
    assert read.sectors == 2400
    table = read.verity_table("253:2").split()
    assert table[:8] == ["1", "253:2", "253:2", "4096", "4096", "300", "301", "sha256"]
    assert table[8:] == [ROOT, "00" * 32, "1", "panic_on_corruption"]


@pytest.mark.parametrize(
    "line",
    [
        "",
        f"sealtrain.root={ROOT}",
        "sealtrain.blocks=300",
        f"sealtrain.root={ROOT} sealtrain.root={ROOT} sealtrain.blocks=300",
        f"sealtrain.root={ROOT} sealtrain.blocks=300 sealtrain.blocks=301",
        f"sealtrain.root={ROOT[:-1]} sealtrain.blocks=300",
        f"sealtrain.root={ROOT.upper()} sealtrain.blocks=300",
        f"sealtrain.root={ROOT} sealtrain.blocks=0",
        f"sealtrain.root={ROOT} sealtrain.blocks=-1",
        f"sealtrain.root={ROOT} sealtrain.blocks=99999999999",
        f"xsealtrain.root={ROOT} sealtrain.blocks=300",
    ],
)
def test_another_command_line_starts_no_root(line: str) -> None:
    with pytest.raises(ImageRefused):
        parse_parameters(line)


def test_two_devices_of_one_name_are_refused() -> None:
    assert choose_device({"vda2": "root", "vda1": "boot"}, "root", "root") == "vda2"
    for found in ({}, {"vda2": "root", "vdb2": "root"}, {"../vda": "root"}, {"": "root"}):
        with pytest.raises(ImageRefused):
            choose_device(found, "root", "root")


def test_a_partition_says_its_name() -> None:
    assert partition_name("MAJOR=253\nPARTN=2\nPARTNAME=sealtrain-root\n") == "sealtrain-root"
    assert partition_name("MAJOR=253\nDEVTYPE=disk\n") == ""


def test_a_network_is_an_address_and_a_gateway_in_it() -> None:
    network = parse_network(b"10.0.2.15/24 10.0.2.2\n")
    assert network.address == bytes((10, 0, 2, 15))
    assert network.mask == bytes((255, 255, 255, 0))
    assert network.gateway == bytes((10, 0, 2, 2))


@pytest.mark.parametrize(
    "text",
    [
        b"", b"10.0.2.15/24", b"10.0.2.15 10.0.2.2", b"10.0.2.15/24 10.0.3.2",
        b"10.0.2.15/33 10.0.2.2", b"10.0.2.15/24 10.0.2.15", b"fe80::1/64 fe80::2",
        b"10.0.2.15/24 10.0.2.2 10.0.2.3", "10.0.2.15/24 \uff110.0.2.2".encode(),
        b"\xff/24 10.0.2.2",
    ],
)  # fmt: skip
def test_another_network_is_refused(text: bytes) -> None:
    with pytest.raises(ImageRefused):
        parse_network(text)


@pytest.mark.parametrize("document", [b"", b"{}", b"[]", DOCUMENT, b'{"document": 1}'])
def test_something_else_than_a_document_starts_no_command(document: bytes) -> None:
    with pytest.raises(LockInvalid):
        words_of(document)


# --- The agent ------------------------------------------------------------------------------------


def attested(report_data: bytes) -> dict[str, Any]:
    return {"tee": "test-vtpm", "report_data": report_data.hex()}


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    place = tmp_path_factory.mktemp("agent") / "agent.sock"
    with GuestAgent(place, answers(DOCUMENT, attested, "test-vtpm")) as served:
        served.start()
        yield place
        served.shutdown()


def asked(place: Path, path: str, body: bytes, **headers: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("guest")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.settimeout(10)
    connection.sock.connect(str(place))
    connection.request("POST", path, body, headers)
    answer = connection.getresponse()
    found = answer.status, json.loads(answer.read())
    connection.close()
    return found


def test_the_client_of_guests_reads_document_and_evidence(agent: Path) -> None:
    guest = open_guest("simulator", str(agent), collateral=None)
    assert guest.app_compose() == DOCUMENT
    assert guest.accelerators(bytes(32)) is None
    assert guest.attest(bytes(64)) == attested(bytes(64))
    assert guest.tier() == "cloud"


def test_the_socket_is_one_users(agent: Path) -> None:
    assert agent.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("path", ["/", "/v1/GetKey", "/v1/Attest", "/simulator/Nsm", "/../v1/Info"])
def test_it_knows_no_other_request(agent: Path, path: str) -> None:
    assert asked(agent, path, b"{}")[0] == 404


@pytest.mark.parametrize(
    "body",
    [
        b"[]", b"{", b'{"report_data": 1}', b'{"report_data": "zz"}', b'{"report_data": ""}',
        b'{"report_data": "' + b"00" * 65 + b'"}', b"",
    ],
)  # fmt: skip
def test_a_malformed_request_gets_no_evidence(agent: Path, body: bytes) -> None:
    status, answer = asked(agent, "/simulator/Attest", body)
    assert status == 400
    assert set(answer) == {"error"}


@pytest.mark.parametrize("length", [str(MAX_REQUEST_BYTES + 1), "-1", "x", "9" * 30])
def test_a_long_request_is_refused_before_it_is_read(agent: Path, length: str) -> None:
    status, _ = asked(agent, "/simulator/Attest", b"", **{"Content-Length": length})
    assert status == 400
    assert asked(agent, "/v1/Info", b"")[0] == 200
