"""A parent instance: what it refuses to start, what it hands in, and whom it makes tunnels to."""

from __future__ import annotations

import io
import json
import socket
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from carrying import carries
from enclave_world import PlayedKernel, answering, bound, reached, stopped
from nitro_world import NOW, PKI
from world import founded, simulated_policy

from sealtrain.attest.errors import GuestApiUnreachable
from sealtrain.broker.service.deployment import BrokerDocument
from sealtrain.client.errors import TicketInvalid
from sealtrain.client.ticket import parse_ticket
from sealtrain.errors import DataInvalid, ImageRefused, UsageError
from sealtrain.guest.enclave.init import EnclaveInit
from sealtrain.guest.enclave.launch import EnclaveLaunch, plan_launch
from sealtrain.guest.enclave.parent import (
    MAX_ANSWER_BYTES,
    Parent,
    ParentMachine,
    nitro_cli,
    read_started,
    run_words,
    running,
    stage_of,
)
from sealtrain.guest.enclave.ports import PROXY_URL, STATUS_PORT, TUNNEL_PORT
from sealtrain.guest.enclave.tunnels import MAX_HEAD_BYTES, Tunnels
from sealtrain.image.machine.enclavefile import write_enclave
from sealtrain.recipe.document import frame_of
from sealtrain.recipe.errors import LockInvalid
from sealtrain.recipe.lock import LockedRecipe
from sealtrain_rehearsal.simulator.nitro import SimulatedNsm

pytestmark = pytest.mark.claim("C673")

VECTORS = Path(__file__).parents[3] / "vectors"
DOCUMENTS = {
    case["name"]: case["compose"].encode()
    for case in json.loads((VECTORS / "recipe/compose.json").read_text("utf-8"))["cases"]
}
SIZED = DOCUMENTS["nitro, an enclave of a size"]
TICKETS = {
    case["name"]: case
    for case in json.loads((VECTORS / "deployment/tickets.json").read_text("utf-8"))["cases"]
}
IMAGE = f"sha256:{'5a' * 32}"
ID = "i-00000000000000001-enc0000000000000001"
CID = 16


def ticket(**changed: Any) -> Any:
    said = json.loads(TICKETS["train"]["ticket"])
    kept = {name: said[name] for name in ("version", "role", "brokers")}
    fields = {"data": ["https://data.example/a"], "store": "https://store.example:8443/out"}
    made = {**kept, **fields, **changed}
    return parse_ticket(json.dumps(made).encode())


def eif(image: str | None = IMAGE, *, memory: int = 64 << 20) -> bytes:
    into = io.BytesIO()
    metadata = b"{}" if image is None else json.dumps({"ImageName": image}).encode()
    sections = ((1, b"kernel"), (2, b"quiet"), (5, metadata), (3, b"init"), (3, b"root"))
    found = [(kind, io.BytesIO(content)) for kind, content in sections]
    write_enclave(into, found, processors=2, memory=memory)
    return into.getvalue()


def launched(
    document: bytes = SIZED,
    *,
    data: bytes | None = None,
    given: Any = None,
    reach: Sequence[str] = (),
) -> EnclaveLaunch:
    return plan_launch(
        Path("image.eif"),
        eif() if data is None else data,
        document,
        frame_of(document),
        ticket() if given is None else given,
        config=LockedRecipe.parse(document).recipe.hardware.enclave,
        reach=reach,
    )


def test_what_the_recipe_says_is_started_and_the_tickets_servers_are_reached() -> None:
    found = launched(reach=["KMS.example:443"])
    assert run_words(found) == (
        *("run-enclave", "--eif-path", "image.eif"),
        *("--cpu-count", "4", "--memory", "16384"),
    )
    (broker,) = ticket().brokers
    parts = urlsplit(broker.url)
    assert found.servers == {
        ("data.example", 443),
        ("store.example", 8443),
        ("kms.example", 443),
        (parts.hostname, parts.port or 443),
    }
    assert json.loads(found.ticket)["outbound_proxy"] == PROXY_URL


def test_without_the_recipes_word_the_image_files_defaults_count() -> None:
    found = launched(DOCUMENTS["nitro"], data=eif(memory=256 << 20))
    assert (found.processors, found.memory_mib) == (2, 256)


@pytest.mark.parametrize(
    ("changed", "check"),
    [
        ({"outbound_proxy": "http://proxy.example:3128"}, "outbound_proxy"),
        ({"store": None}, "store"),
        ({"store": "http://store.example/out"}, "address"),
        ({"data": ["/sealed/a"]}, "address"),
        ({"data": ["http://data.example/a"]}, "address"),
        ({"peers": {"accelerator": "10.0.0.1:8471"}}, "peers"),
    ],
)
def test_a_ticket_that_no_enclave_can_use_is_refused(changed: dict[str, Any], check: str) -> None:
    with pytest.raises(TicketInvalid, check=carries(check=check)):
        launched(given=ticket(**changed))


def test_a_brokers_ticket_is_for_no_guest() -> None:
    with pytest.raises(TicketInvalid, check=carries(check="role")):
        launched(given=parse_ticket(b'{"version":1,"role":"broker"}'))


def broker_document() -> bytes:
    return BrokerDocument(
        consortium=founded(),
        policy=simulated_policy(),
        chain=None,
        succession=None,
        platform="nitro",
        image=f"registry.example/broker@{IMAGE}",
        key_provider_id="",
        root_secret="file:/run-data/root.secret",
        lease_seconds=3600,
        boot_auth=False,
        gateway_app_id="",
        database=False,
    ).to_bytes()


def test_a_broker_needs_a_service_of_collateral_or_its_file() -> None:
    """Its document names a file that an enclave does not have, unless the parent hands it in."""
    document = broker_document()

    def plan(collateral: bytes, **files: bytes) -> EnclaveLaunch:
        given = parse_ticket(b'{"version":1,"role":"broker"%s}' % collateral)
        return plan_launch(
            Path("image.eif"),
            eif(),
            document,
            frame_of(document),
            given,
            config=None,
            files=files,
        )

    with pytest.raises(TicketInvalid, check=carries(check="collateral")):
        plan(b"")
    assert plan(b"", **{"collateral.json": b"{}"}).files is not None
    found = plan(b',"collateral":"https://pccs.example"')
    assert (found.servers, found.ports) == ({("pccs.example", 443)}, (8470,))


def test_another_image_file_starts_nothing() -> None:
    with pytest.raises(LockInvalid, check=carries(check="image")):
        launched(data=eif(f"sha256:{'00' * 32}"))
    with pytest.raises(ImageRefused, check=carries(check="EIF")):
        launched(data=eif(None))
    with pytest.raises(ImageRefused, check=carries(check="EIF")):
        launched(data=eif()[:-1])
    with pytest.raises(ImageRefused, check=carries(check="memory")):
        launched(DOCUMENTS["nitro"], data=eif(memory=0))
    with pytest.raises(LockInvalid, check=carries(check="image")):
        launched(DOCUMENTS["simulator, bash"])
    with pytest.raises(UsageError):
        launched(reach=["kms.example"])


ANSWER = {"EnclaveID": ID, "EnclaveCID": CID, "NumberOfCPUs": 4, "MemoryMiB": 16384}


def test_what_nitro_cli_says_is_what_was_asked_for() -> None:
    found = read_started(json.dumps(ANSWER).encode(), launched())
    assert (found.id, found.cid) == (ID, CID)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"[]",
        b"null",
        b"{" * 4000,
        b'"' + b"x" * MAX_ANSWER_BYTES + b'"',
        *(
            json.dumps(ANSWER | changed).encode()
            for changed in (
                {"EnclaveID": "--all"},
                {"EnclaveID": None},
                {"EnclaveCID": 3},
                {"EnclaveCID": True},
                {"EnclaveCID": "16"},
                {"EnclaveCID": (1 << 32) - 1},
                {"NumberOfCPUs": 2},
                {"MemoryMiB": 512},
            )
        ),
    ],
)
def test_another_answer_of_nitro_cli_is_refused(answer: bytes) -> None:
    with pytest.raises(GuestApiUnreachable, check=carries(check="nitro-cli")):
        read_started(answer, launched())


def test_enclaves_that_run_are_listed() -> None:
    said = [{"EnclaveID": "a", "State": "RUNNING"}, {"EnclaveID": "b", "State": "TERMINATING"}, {}]
    assert running(json.dumps(said).encode()) == {"a"}
    for wrong in (b"{}", b"[1]", b"x"):
        with pytest.raises(GuestApiUnreachable):
            running(wrong)


@pytest.mark.parametrize("program", ["false", "no-such-program-anywhere"])
def test_a_program_that_fails_is_named(program: str) -> None:
    with pytest.raises(GuestApiUnreachable, check=carries(check="nitro-cli")):
        nitro_cli(program)(("run-enclave",))


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\n",
        b"{}\n",
        b'{"stage":"keys"}\n',
        b'["measured"]\n',
        b'{"stage":["ended"]}\n',
        b"\xff\n",
        b"[" * 500,
        b'{"stage":"measured"}' + b" " * 600,
    ],
)
def test_a_line_that_is_no_stage_is_none(line: bytes) -> None:
    assert stage_of(line) is None


def test_a_stage_says_no_more_than_its_form() -> None:
    found = stage_of(b'{"stage":"ended","status":-1,"code":"\\u001b[2J' + b"x" * 200 + b'"}\n')
    assert found is not None
    assert found.status is None
    assert found.code is not None
    assert "\x1b" not in found.code
    assert len(found.code) <= 60


class Played:
    """A machine whose nitro-cli starts an init in a thread; vsock is a folder of unix sockets."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kernel = PlayedKernel(folder)
        self.asked: list[tuple[str, ...]] = []
        self.nsm = SimulatedNsm(PKI, clock=lambda: NOW)
        self.ticket = b""
        self.taken: tuple[str, ...] = ()
        self.alive = True
        (folder / "enclave").mkdir()
        (folder / "run-data").mkdir()
        (folder / "enclave/image").write_text(f"{IMAGE}\n")
        self.play: Callable[[], None] = self.honestly
        self._threads: list[threading.Thread] = []

    def honestly(self) -> None:
        """As ``init.main`` does, and a guest that takes its ticket."""
        init = EnclaveInit(
            self.kernel,
            files=self.folder,
            nsm=lambda: self.nsm,
            is_parent=lambda _: True,
        )
        self.taken = init.take_files(init.measure())
        with self.kernel.listen(8475) as listener:
            listener.listen()
            connection, _ = listener.accept()
            with connection:
                while data := connection.recv(7):
                    self.ticket += data
        init.tell("started")
        init.tell("ended", status=0, code="ended")

    def listen(self, port: int) -> socket.socket:
        return bound(self.folder / f"parent-{port}")

    def connect(self, cid: int, port: int) -> socket.socket:
        assert cid == CID
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(str(self.folder / f"enclave-{port}"))
        except OSError:
            connection.close()
            raise
        return connection

    def cli(self, words: Sequence[str]) -> bytes:
        self.asked.append(tuple(words))
        if words[0] == "run-enclave":
            thread = threading.Thread(target=self.play)
            thread.start()
            self._threads.append(thread)
            return json.dumps(ANSWER).encode()
        if words[0] == "describe-enclaves":
            state = "RUNNING" if self.alive else "TERMINATING"
            return json.dumps([{"EnclaveID": ID, "State": state}]).encode()
        return b"{}"

    def parent(self, launch: EnclaveLaunch, **changed: Any) -> Parent:
        machine = ParentMachine(cli=self.cli, vsock=self, tunnels=Tunnels(launch.servers))
        return Parent(launch, machine, **{"look_seconds": 0.05, **changed})

    def close(self) -> None:
        for thread in self._threads:
            thread.join(10)


@pytest.fixture
def played(tmp_path: Path) -> Any:
    made = Played(tmp_path)
    yield made
    made.close()


TERMINATED = ("terminate-enclave", "--enclave-id", ID)


def test_document_and_ticket_are_handed_in_and_the_end_is_heard(played: Played) -> None:
    launch, stages = launched(), []
    ended = played.parent(launch, on_stage=stages.append).run()
    assert (ended.status, ended.code) == (0, "ended")
    assert [stage.stage for stage in stages] == ["measured", "started", "ended"]
    assert (played.folder / "run/sealtrain/app-compose.json").read_bytes() == launch.document
    assert played.ticket == launch.ticket
    assert played.asked[0] == run_words(launch)
    assert played.asked[-1] == TERMINATED


@pytest.mark.claim("C722")
def test_a_brokers_files_are_handed_in_between_document_and_ticket(played: Played) -> None:
    document = broker_document()
    launch = plan_launch(
        Path("image.eif"),
        eif(),
        document,
        frame_of(document),
        parse_ticket(b'{"version":1,"role":"broker","collateral":"https://pccs.example"}'),
        config=LockedRecipe.parse(SIZED).recipe.hardware.enclave,
        files={"collateral.json": b"what a vendor signed"},
    )
    ended = played.parent(launch).run()
    assert (ended.status, ended.code) == (0, "ended")
    assert played.taken == ("collateral.json",)
    assert (played.folder / "run-data/collateral.json").read_bytes() == b"what a vendor signed"
    assert played.ticket == launch.ticket


@pytest.mark.claim("C722")
@pytest.mark.parametrize("name", ["root.secret", "app-compose.json", "../init", ""])
def test_a_file_that_the_document_does_not_name_starts_nothing(name: str) -> None:
    document = broker_document()
    with pytest.raises(DataInvalid):
        plan_launch(
            Path("image.eif"),
            eif(),
            document,
            frame_of(document),
            parse_ticket(b'{"version":1,"role":"broker","collateral":"https://pccs.example"}'),
            config=None,
            files={name: b"content"},
        )


def test_an_enclave_that_refuses_the_document_is_heard(played: Played) -> None:
    def refuse() -> None:
        EnclaveInit(played.kernel).tell("ended", status=125, code="lock-invalid")

    played.play = refuse
    ended = played.parent(launched()).run()
    assert (ended.status, ended.code) == (125, "lock-invalid")
    assert played.asked[-1] == TERMINATED


def test_an_enclave_that_takes_nothing_is_ended(played: Played) -> None:
    played.play = lambda: None
    with pytest.raises(GuestApiUnreachable, check=carries(check="document")):
        played.parent(launched(), hand_in_seconds=0.1).run()
    assert played.asked[-1] == TERMINATED


def test_an_enclave_that_is_gone_without_a_word_is_named(played: Played) -> None:
    def take() -> None:
        for port in (8474, 8475):
            with played.kernel.listen(port) as listener:
                listener.listen()
                connection, _ = listener.accept()
                with connection:
                    while connection.recv(1 << 16):
                        pass
        played.alive = False

    played.play = take
    with pytest.raises(GuestApiUnreachable, check=carries(check="enclave")):
        played.parent(launched()).run()
    assert played.asked[-1] == TERMINATED


def test_an_enclave_that_is_gone_before_it_took_its_document_is_not_waited_for(
    played: Played,
) -> None:
    def vanish() -> None:
        played.alive = False

    played.play = vanish
    with pytest.raises(GuestApiUnreachable, check=carries(check="enclave")):
        played.parent(launched()).run()
    assert played.asked[-1] == TERMINATED


def test_nothing_is_left_where_nitro_cli_answers_with_something_else(played: Played) -> None:
    played.cli = lambda words: b"{}"  # type: ignore[method-assign]
    with pytest.raises(GuestApiUnreachable, check=carries(check="nitro-cli")):
        played.parent(launched()).run()
    for port in (STATUS_PORT, TUNNEL_PORT):
        with pytest.raises(OSError):  # of the system
            PlayedKernel(played.folder).connect(3, port)


def test_an_enclave_of_another_size_is_ended(played: Played) -> None:
    def cli(words: Sequence[str]) -> bytes:
        played.asked.append(tuple(words))
        return json.dumps(ANSWER | {"MemoryMiB": 512}).encode()

    played.cli = cli  # type: ignore[method-assign]
    with pytest.raises(GuestApiUnreachable, check=carries(check="nitro-cli")):
        played.parent(launched()).run()
    assert played.asked[-1] == TERMINATED


def test_a_program_without_end_is_ended() -> None:
    with pytest.raises(GuestApiUnreachable, check=carries(check="nitro-cli")):
        nitro_cli("yes", seconds=30)(("run-enclave",))
    with pytest.raises(GuestApiUnreachable, check=carries(check="nitro-cli")):
        nitro_cli("sleep", seconds=0.05)(("60",))


def test_what_a_program_says_is_its_answer() -> None:
    assert nitro_cli("echo")(("[]",)) == b"[]\n"


def asked(tunnels: Tunnels, *parts: bytes, ends: bool = False) -> bytes:
    """What a client of the tunnels' port gets."""
    ours, theirs = socket.socketpair()

    def serve() -> None:
        with theirs:
            tunnels(theirs)

    thread = threading.Thread(target=serve)
    thread.start()
    with ours:
        ours.settimeout(10)
        for part in parts:
            ours.sendall(part)
        if ends:
            ours.shutdown(socket.SHUT_WR)
        got = b""
        while data := ours.recv(1 << 16):
            got += data
    thread.join(10)
    return got


def test_a_listed_server_is_reached_in_any_case_and_in_pieces(tmp_path: Path) -> None:
    server = answering(tmp_path / "s", lambda connection: connection.sendall(b"hello"))
    found = []

    def reach(address: tuple[str, int]) -> socket.socket:
        found.append(address)
        return reached(tmp_path / "s")

    tunnels = Tunnels([("store.example", 443), ("::1", 1)], reach=reach)
    for named in (b"store.example:443", b"STORE.example:443", b"[::1]:1"):
        head = b"CONNECT " + named + b" HTTP/1.1\r\nHost: x\r\n\r\n"
        for size in (1, len(head)):
            parts = [head[at : at + size] for at in range(0, len(head), size)]
            assert asked(tunnels, *parts, ends=False) == b"HTTP/1.1 200 OK\r\n\r\nhello"
    assert set(found) == {("store.example", 443), ("::1", 1)}
    stopped(server)


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"CONNECT other.example:443 HTTP/1.1\r\n\r\n", b"403"),
        (b"CONNECT store.example:80 HTTP/1.1\r\n\r\n", b"403"),
        (b"CONNECT store.example:0443 HTTP/1.1\r\n\r\n", b"200"),
        (b"CONNECT store.example.:443 HTTP/1.1\r\n\r\n", b"403"),
        (b"CONNECT a@store.example:443 HTTP/1.1\r\n\r\n", b"400"),
        (b"CONNECT store.example HTTP/1.1\r\n\r\n", b"400"),
        (b"CONNECT store.example:443\r\n\r\n", b"400"),
        (b"GET http://169.254.169.254/ HTTP/1.1\r\n\r\n", b"400"),
        (b"CONNECT store.example:443 HTTP/1.1\r\n\r\nmore", b"400"),
        (b"CONNECT store.example:443 HTTP/1.1\r\n\r\nx: y\r\n\r\n", b"400"),
        (b"\xff\xfe\r\n\r\n", b"400"),
        ((b"CONNECT store.example:443 HTTP/1.1\r\n").ljust(MAX_HEAD_BYTES, b"x"), b"400"),
    ],
)
def test_no_other_tunnel_is_made(head: bytes, status: bytes) -> None:
    def reach(_: tuple[str, int]) -> socket.socket:
        ours, theirs = socket.socketpair()
        theirs.close()
        return ours

    got = asked(Tunnels([("store.example", 443)], reach=reach), head)
    assert got.split(b" ")[1] == status


def test_a_client_that_stalls_or_leaves_gets_no_tunnel() -> None:
    tunnels = Tunnels([("store.example", 443)], seconds=0.05)
    assert asked(tunnels, b"CONNECT ").startswith(b"HTTP/1.1 400")
    assert asked(tunnels, ends=True).startswith(b"HTTP/1.1 400")


def test_a_server_that_is_gone_is_said() -> None:
    def reach(_: tuple[str, int]) -> socket.socket:
        raise ConnectionRefusedError

    head = b"CONNECT store.example:443 HTTP/1.1\r\n\r\n"
    assert asked(Tunnels([("store.example", 443)], reach=reach), head).startswith(b"HTTP/1.1 502")
