"""Which connection gives way to a new one, by address group, stage and age."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable

import pytest

from sealtrain.base.connections import (
    Caps,
    Connection,
    Connections,
    ConnectionStage,
    address_group,
    listener_ended,
)
from sealtrain.broker.config import BrokerLimits
from sealtrain.errors import TooManyRequests

pytestmark = pytest.mark.claim("C96")


class Site:
    """A table, and the names of connections that were cut."""

    def __init__(self, *, exempt: tuple[str, ...] = (), **limits: int) -> None:
        self.table = Connections(BrokerLimits(**limits), exempt)
        self.cut: list[str] = []

    def open(
        self, name: str, address: str, stage: ConnectionStage = ConnectionStage.HEAD
    ) -> Connection | None:
        made = self.table.open(address, self._cutting(name))
        if made is not None:
            made.stage = stage
        return made

    def must(
        self, name: str, address: str, stage: ConnectionStage = ConnectionStage.HEAD
    ) -> Connection:
        made = self.open(name, address, stage)
        assert made is not None
        return made

    def _cutting(self, name: str) -> Callable[[], object]:
        return lambda: self.cut.append(name)


@pytest.mark.parametrize(
    ("address", "group"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::1", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::1", "2001:db8:1:3::/64"),
        ("::1", "::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", "unknown"),
        ("/run/broker.sock", "unknown"),
    ],
)
def test_addresses_count_in_groups(address: str, group: str) -> None:
    assert address_group(address) == group


def test_of_the_heaviest_group_the_oldest_unfinished_head_gives_way() -> None:
    site = Site(connections=5)
    site.must("owner's", "192.0.2.1")
    site.must("idle", "192.0.2.9", ConnectionStage.IDLE)
    site.must("first", "192.0.2.9")
    site.must("second", "192.0.2.9")
    site.must("working", "192.0.2.9", ConnectionStage.WORK)
    for name in ("a", "b", "c"):
        site.must(name, "192.0.2.2")
    # Oldest first; by the third, both groups weigh the same, and a head goes before an idle one.
    assert site.cut == ["first", "second", "a"]


@pytest.mark.parametrize(
    ("stages", "victim"),
    [
        (
            (
                ConnectionStage.WORK,
                ConnectionStage.UNREAD,
                ConnectionStage.BODY,
                ConnectionStage.IDLE,
                ConnectionStage.HEAD,
            ),
            4,
        ),
        (
            (
                ConnectionStage.WORK,
                ConnectionStage.UNREAD,
                ConnectionStage.BODY,
                ConnectionStage.IDLE,
                ConnectionStage.WORK,
            ),
            3,
        ),
        (
            (
                ConnectionStage.WORK,
                ConnectionStage.UNREAD,
                ConnectionStage.BODY,
                ConnectionStage.WORK,
                ConnectionStage.WORK,
            ),
            2,
        ),
        (
            (
                ConnectionStage.WORK,
                ConnectionStage.UNREAD,
                ConnectionStage.WORK,
                ConnectionStage.WORK,
                ConnectionStage.WORK,
            ),
            1,
        ),
    ],
)
def test_stages_give_way_in_their_order(stages: tuple[ConnectionStage, ...], victim: int) -> None:
    site = Site(connections=5)
    for number, stage in enumerate(stages):
        site.must(str(number), "192.0.2.1", stage)
    site.must("new", "192.0.2.2")
    assert site.cut == [str(victim)]
    assert len(site.table) == 5


def test_what_waits_for_its_answer_is_not_cut() -> None:
    site = Site(connections=3)
    for number in range(3):
        site.must(str(number), f"192.0.2.{number}", ConnectionStage.WORK)
    assert site.open("new", "192.0.2.9") is None
    assert site.cut == []


def test_one_address_gives_way_to_itself_before_it_is_full() -> None:
    """Whoever shares an address with an attacker gets in all the same."""
    site = Site(connections=100, connections_per_address=3)
    for number in range(3):
        site.must(f"held {number}", "192.0.2.1")
    site.must("the owner behind it", "192.0.2.1")
    assert site.cut == ["held 0"]
    prefix = Site(connections=100, connections_per_address=3)
    for number in range(9):
        prefix.must(str(number), f"2001:db8::{number:x}:1")
    assert len(prefix.table) == 3
    assert prefix.open("beside", "2001:db8:0:1::1") is not None
    assert len(prefix.table) == 4


def test_one_that_shows_who_it_is_has_a_slot_that_nobody_takes() -> None:
    site = Site(connections=2, connections_per_caller=2)
    mine = [site.must(f"owner {number}", "192.0.2.1") for number in range(2)]
    for entry in mine:
        entry.admit("owner hospital-a")
    for number in range(50):
        site.must(str(number), f"198.51.100.{number}")
    assert not {"owner 0", "owner 1"} & set(site.cut)
    assert len(site.table) == 4
    # So many and no more: a third of this account is anybody's.
    third = site.must("owner 2", "192.0.2.1")
    third.admit("owner hospital-a")
    assert third.caller is None
    # Answered, its connection is anybody's again.
    mine[0].finish_request()
    third.admit("owner hospital-a")
    assert third.caller == "owner hospital-a"


def test_a_proxy_weighs_as_one() -> None:
    site = Site(connections=6, connections_per_address=2, exempt=("192.0.2.200",))
    for number in range(4):
        site.must(f"proxied {number}", "192.0.2.200")
    site.must("a", "192.0.2.1")
    site.must("b", "192.0.2.1")
    site.must("new", "192.0.2.7")
    assert site.cut == ["a"]


def test_bodies_that_are_on_their_way_have_so_much_memory() -> None:
    site = Site(connections=10, body_bytes=100)
    slow = [site.must(f"slow {number}", "192.0.2.9", ConnectionStage.BODY) for number in range(2)]
    for client in slow:
        client.hold(45)
    mine = site.must("quick", "192.0.2.1", ConnectionStage.BODY)
    mine.hold(50)
    assert site.cut == ["slow 0"]
    # Where nothing gives way, the one that asks for more is refused.
    alone = Site(connections=10, body_bytes=100)
    waiting = alone.must("waiting", "192.0.2.9", ConnectionStage.BODY)
    waiting.hold(90)
    waiting.stage = ConnectionStage.WORK
    with pytest.raises(TooManyRequests):
        alone.must("more", "192.0.2.1", ConnectionStage.BODY).hold(20)
    # What an owner sends counts apart.
    owners = alone.must("owner's", "192.0.2.1", ConnectionStage.BODY)
    owners.admit("owner hospital-a")
    owners.hold(1000)
    assert alone.cut == []


def test_a_connection_that_ended_makes_room() -> None:
    site = Site(connections=2)
    first, _ = site.must("a", "192.0.2.1"), site.must("b", "192.0.2.2")
    site.table.close(first)
    site.table.close(first)
    site.must("c", "192.0.2.3")
    assert site.cut == []


def test_one_that_is_served_gives_way_only_where_its_group_has_more_than_its_share() -> None:
    site = Site(connections=4)
    for number in range(3):
        site.must(f"many {number}", "192.0.2.9", ConnectionStage.SERVED)
    site.must("one", "192.0.2.1", ConnectionStage.SERVED)
    site.must("second", "192.0.2.2", ConnectionStage.SERVED)
    assert site.cut == ["many 0"]
    # Two of four are a fair share for one of three groups that would have two each.
    assert site.open("another of one", "192.0.2.1") is None
    site.must("third", "192.0.2.3", ConnectionStage.SERVED)
    assert site.cut == ["many 0", "many 1"]
    assert site.open("fourth", "192.0.2.4") is None
    assert len(site.table) == 4


def test_any_that_has_proven_nothing_goes_before_one_that_is_served() -> None:
    site = Site(connections=4)
    for number in range(3):
        site.must(f"many {number}", "192.0.2.9", ConnectionStage.SERVED)
    site.must("silent", "192.0.2.1")
    site.must("new", "192.0.2.2")
    assert site.cut == ["silent"]


def test_memory_is_given_up_by_the_group_that_holds_most_bytes() -> None:
    site = Site(connections=10, body_bytes=100)
    site.must("big", "192.0.2.9", ConnectionStage.SERVED).hold(90)
    for number in range(2):
        site.must(f"small {number}", "192.0.2.1", ConnectionStage.BODY).hold(4)
    mine = site.must("mine", "192.0.2.2", ConnectionStage.BODY)
    mine.hold(20)
    assert site.cut == ["big"]
    with pytest.raises(TooManyRequests):
        site.must("most", "192.0.2.3", ConnectionStage.SERVED).hold(200)


def test_caps_of_a_small_server_are_those_of_the_table() -> None:
    table = Connections(Caps(connections=2, connections_per_address=1, body_bytes=10))
    cut: list[int] = []
    for number in range(3):
        made = table.open("192.0.2.1", lambda number=number: cut.append(number))  # type: ignore[misc]
        assert made is not None
    assert cut == [0, 1]


@pytest.mark.claim("C551")
def test_a_connection_that_was_cut_for_another_has_no_place_left() -> None:
    table = Connections(Caps(connections=2, connections_per_address=2, body_bytes=10))
    first, second, third = (table.open("192.0.2.1", lambda: None) for _ in range(3))
    assert first is not None
    assert second is not None
    assert third is not None
    assert [table.close(value) for value in (first, second, third, third)] == [
        False,
        True,
        True,
        False,
    ]


@pytest.mark.claim("C551")
@pytest.mark.parametrize("failure", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ECONNABORTED])
def test_a_server_whose_accept_failed_goes_on_listening_while_it_is_open(failure: int) -> None:
    assert not listener_ended(OSError(failure, "failed"))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
    with pytest.raises(OSError) as closed:
        listener.accept()
    assert listener_ended(closed.value)
