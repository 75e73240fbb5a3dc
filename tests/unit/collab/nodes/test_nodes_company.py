"""All ranks of all nodes as one guest sees them: ports, numbers, names, and an honest blame."""

from __future__ import annotations

import os
import resource
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from carrying import carries

from sealtrain.errors import NodeLost, UsageError
from sealtrain.training.distributed.ranks import Company, gather_ranks
from sealtrain_nodes.company import NodeCompany, RankPlace
from sealtrain_nodes.wire.openfiles import allow_files

pytestmark = pytest.mark.claim("C160")

RUN, SESSION = "5a" * 16, "a5" * 16


def members(*companies: NodeCompany) -> list[RankPlace]:
    return [
        RankPlace(host="127.0.0.1", port=port, public_key=company.public_key)
        for company in companies
        for port in company.ports
    ]


def test_a_company_has_a_port_for_each_rank_and_a_key_of_its_own() -> None:
    with (
        NodeCompany.open(("127.0.0.1", 0), ranks=2, first=0) as one,
        NodeCompany.open(("127.0.0.1", 0), ranks=2, first=2) as two,
    ):
        ports = [*one.ports, *two.ports]
        assert len(set(ports)) == 4
        assert one.public_key != two.public_key
        assert (one.world, list(one.urls)) == (0, [])
        one.meet(members(one, two), run_id=RUN, session=SESSION)
        assert one.world == 4
        assert list(one.urls) == [f"tcp://127.0.0.1:{port}" for port in ports]
        assert one.explain_failure() is None
    for port in ports:
        with pytest.raises(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            pass


def test_an_address_in_use_is_said_and_the_ports_before_it_are_given_back() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError):
            NodeCompany.open(("127.0.0.1", port - 1), ranks=2, first=0)
    with NodeCompany.open(("127.0.0.1", port - 1), ranks=1, first=0):
        pass


@pytest.mark.claim("C167")
def test_a_guest_with_infiniband_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "uverbs0").touch()
    with pytest.raises(UsageError, check=carries(check="infiniband", got="uverbs0")):
        NodeCompany.open(("127.0.0.1", 0), ranks=1, first=0, fabric=tmp_path)
    (tmp_path / "uverbs0").unlink()
    (tmp_path / "rdma_cm").touch()  # the kernel's module alone reaches nothing
    with NodeCompany.open(("127.0.0.1", 0), ranks=1, first=0, fabric=tmp_path):
        pass


@pytest.mark.claim("C164")
def test_a_node_that_dies_before_it_connects_ends_the_wait_of_the_others() -> None:
    ours, its = socket.socketpair()
    with (
        ours,
        NodeCompany.open(("127.0.0.1", 0), ranks=1, first=0, meeting_seconds=60.0) as one,
        NodeCompany.open(("127.0.0.1", 0), ranks=1, first=1) as two,
    ):
        one.meet(members(one, two), run_id=RUN, session=SESSION)
        one.watch({"node 1": ours})
        its.send(b"its last words, which nobody reads here")
        threading.Timer(0.5, its.close).start()
        begin = time.monotonic()
        with pytest.raises(NodeLost, check=carries(check="node", got="node 1")):
            one.connect()
        assert time.monotonic() - begin < 15  # libraries are loaded meanwhile


def test_nobody_connects_before_nodes_have_met() -> None:
    with (
        NodeCompany.open(("127.0.0.1", 0), ranks=1, first=0) as one,
        pytest.raises(AssertionError),
    ):
        one.connect()


def test_a_node_that_died_before_it_connected_is_a_lost_node() -> None:
    """It may be replaced: the run waits for it, as for one that died later."""
    with (
        NodeCompany.open(("127.0.0.1", 0), ranks=1, first=0, meeting_seconds=1.0) as one,
        NodeCompany.open(("127.0.0.1", 0), ranks=1, first=1) as two,
    ):
        one.meet(members(one, two), run_id=RUN, session=SESSION)
        two.leave()
        with pytest.raises(NodeLost) as caught:
            one.connect()
    assert caught.value.retry == "later"


def test_a_key_of_another_length_is_no_member() -> None:
    with NodeCompany.open(("127.0.0.1", 0), ranks=1, first=0) as one:
        other = RankPlace(host="127.0.0.1", port=1, public_key=bytes(31))
        with pytest.raises(UsageError):
            one.meet([*members(one), other], run_id=RUN, session=SESSION)


class _Three:
    """A company of which this guest has the third rank."""

    first, world = 2, 3

    def __init__(self) -> None:
        self.joined: list[tuple[int, dict[str, str]]] = []
        self.left = 0

    def connect(self, rank: int) -> None:
        names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
        self.joined.append((rank, {name: os.environ[name] for name in names}))

    def leave(self) -> None:
        self.left += 1


def test_a_guest_of_a_company_has_its_global_number_even_with_one_rank() -> None:
    made = _Three()
    company: Company = made
    before = dict(os.environ)
    given: dict[str, Any] = {"group": False, "prepare": lambda: None, "secure": lambda: None}
    with gather_ranks(1, work=lambda _order: None, company=company, **given) as ranks:
        assert ranks.processes == ()
    expected = {"RANK": "2", "LOCAL_RANK": "0", "WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "1"}
    assert (made.joined, made.left) == ([(2, expected)], 1)
    assert dict(os.environ) == before


def test_a_company_is_left_where_it_cannot_be_connected() -> None:
    class Nobody(_Three):
        def connect(self, rank: int) -> None:
            raise UsageError("no such rank", got=rank)

    made = Nobody()
    given: dict[str, Any] = {"group": False, "prepare": lambda: None, "secure": lambda: None}
    with (
        pytest.raises(UsageError),
        gather_ranks(1, work=lambda _order: None, company=made, **given),
    ):
        raise AssertionError
    assert made.left == 1


def test_a_rank_of_many_may_have_a_connection_to_each_open() -> None:
    """1,024 files are what many machines allow at first, and a thousand ranks need more."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)

    def limit(soft: int, hard: int) -> tuple[str, int]:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        try:
            allow_files(1000)
        except UsageError as error:
            return str(error.check), int(error.got or 0)
        return "", resource.getrlimit(resource.RLIMIT_NOFILE)[0]

    found = []
    for soft, hard in ((1024, 4096), (3000, 4096), (1024, 1100)):
        here, there = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.write(there, repr(limit(soft, hard)).encode())
            finally:
                os._exit(0)
        os.close(there)
        with os.fdopen(here, "rb") as told:
            found.append(told.read().decode())
        os.waitpid(child, 0)
    assert found == ["('', 1512)", "('', 3000)", "('open files', 1100)"]
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before
