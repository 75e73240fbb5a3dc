"""A run whose pads a dealer makes, through the commands, against one who recorded all of it."""

from __future__ import annotations

import os
import re
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from collecting import COLLECTING
from polling import wait_until
from relays import answered, expect_only_a_handshake
from stage import MACHINE, OWNERS, RECIPE, Stage, stage
from variants import variants

from sealtrain.base.hostport import host_and_port, write_host_and_port

if not COLLECTING:
    from pads_world import recording

pytestmark = pytest.mark.long

once = pytest.mark.claim("C85")
SIDE = 64
ZERO = struct.pack(">II", SIDE, SIDE) + bytes(SIDE * SIDE)
HEAD = struct.Struct(">BI")


@dataclass
class Look:
    """The processes that hold a connection at one moment.

    Attributes:
        held: By number, where their descriptors lead.
        parents: Numbers of their parents.
    """

    held: dict[int, list[str]] = field(default_factory=dict)
    parents: set[int] = field(default_factory=set)


@contextmanager
def looking(port: int) -> Iterator[list[Look]]:
    """Look again and again at the processes that hold a connection to a port."""
    looks: list[Look] = []
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.05):
            found = look_at(port)
            if found.held:
                looks.append(found)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield looks
    finally:
        over.set()
        thread.join()


def look_at(port: int) -> Look:
    found = Look()
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    inodes = {line[9] for line in lines if line[2].endswith(f":{port:04X}")} - {"0"}
    wanted = {f"socket:[{inode}]" for inode in inodes}
    for folder in Path("/proc").glob("[0-9]*/fd") if wanted else ():
        with suppress(OSError):  # it ended, or is another user's
            held = [str(place.readlink()) for place in folder.iterdir()]
            if wanted.intersection(held):
                status = folder.with_name("status").read_text()
                found.held[int(folder.parent.name)] = held
                found.parents.add(int(re.findall(r"PPid:\t(\d+)", status)[0]))
    return found


@dataclass
class Played:
    """A run that is over.

    Attributes:
        world: Its consortium.
        accelerator: Where its accelerator still listens.
        dealer: Where its dealer still listens.
        said: What the guest said to the dealer, by connection.
        looks: Looks at the processes that held the connection to the dealer.
    """

    world: Stage
    accelerator: str
    dealer: tuple[str, int]
    said: list[bytes]
    looks: list[Look]

    def logs(self) -> list[Path]:
        """Of the accelerator and of every dealer."""
        return [
            *self.world.folder.glob("part-split-*.log"),
            *self.world.folder.glob("part-guest-*.log"),
        ]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    # A short path: unix sockets allow about a hundred characters.
    with stage(tmp_path_factory.mktemp("dealt")) as world:
        lora = {"method": "lora", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}
        how = {"kind": "pads", "pads": "dealer", "checks": 1, "policy": "policy.yaml"}
        trainer = RECIPE["trainer"] | {"max_steps": 2}
        recipe = RECIPE | {"collaboration": how, "peft": lora, "trainer": trainer}
        policy = {"policy.yaml": (world.folder / "policy.yaml").read_text()}
        folder = world.propose("engineer", recipe, policy)
        world.approve(folder, *OWNERS)
        accelerator = world.serve("accelerator ready", "split", "accelerator")
        dealer = host_and_port(dealing(world, folder, "dealer.sock"))
        with (
            recording(dealer) as (place, said),
            looking(host_and_port(place)[1]) as looks,
        ):
            world.run(*training(world, "run", accelerator=accelerator, dealer=place))
        assert (world.folder / "run" / "manifest.json").exists()
        yield Played(world, accelerator, dealer, [bytes(value) for value in said], looks)


def training(world: Stage, out: str, **peers: str) -> list[str | Path]:
    """The words that start the guest that trains."""
    folder = world.folder / "engineer"
    sealed = (str(folder / "sealed"),)
    return world.guest_words(
        folder, world.folder / out, "train", brokers=[world.broker], data=sealed, peers=peers
    )


def dealing(world: Stage, folder: Path, guest: str) -> str:
    """Start a dealer in a guest of its own; where it listens."""
    world.serve(
        "guest API", "simulator", "serve", "--deployment", folder / "app-compose.json",
        "--socket", guest, "--simulator", "root", *MACHINE,
    )  # fmt: skip
    out = world.folder / f"at-{guest}"
    return world.serve("dealer ready", *world.guest_words(folder, out, "dealer", guest))


def with_a_zero_matrix(said: bytes) -> bytes:
    """The first frame that is no handshake, and rows for a matrix of zeros: bare keystream."""
    kind, length = HEAD.unpack_from(said)
    begin = said[: HEAD.size + length] if kind else b""
    from hashlib import sha256

    digest = sha256(b"sealtrain/otp-matrix/v1" + ZERO).digest()
    rows = struct.pack(">32sIQI", digest, 0, 0, 9)
    return begin + HEAD.pack(1, len(ZERO)) + ZERO + HEAD.pack(4, len(rows)) + rows


@pytest.mark.slow
@once
def test_what_was_recorded_of_a_run_gets_nothing_out_of_its_dealer(played: Played) -> None:
    assert played.said
    for said in played.said:
        expect_only_a_handshake(answered(played.dealer, said))
        expect_only_a_handshake(answered(played.dealer, with_a_zero_matrix(said)))
    # And its operator sees that it happened: a line is written after the connection is closed.
    wait_until(lambda: any("guests: ended [" in log.read_text() for log in played.logs()))


@pytest.mark.slow
@once
def test_what_was_recorded_of_a_run_gets_nothing_out_of_a_dealer_that_was_started_again(
    played: Played,
) -> None:
    folder = played.world.folder / "engineer"
    again = host_and_port(dealing(played.world, folder, "again.sock"))
    for said in played.said:
        expect_only_a_handshake(answered(again, said))
        expect_only_a_handshake(answered(again, with_a_zero_matrix(said)))


@pytest.mark.slow
@pytest.mark.parametrize("gone", variants(["accelerator", "dealer"], each_time=["dealer"]))
def test_a_run_names_the_machine_that_is_gone(played: Played, gone: str) -> None:
    """By its code, which is all that leaves a run: its messages could quote a record."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        nowhere = write_host_and_port(*listener.getsockname())
    places = {"accelerator": played.accelerator, "dealer": write_host_and_port(*played.dealer)}
    words = training(played.world, f"no-{gone}", **(places | {gone: nowhere}))
    answer = played.world.try_run(*words)
    assert (answer.code, answer.error) == (4, f"{gone}-unreachable")


@pytest.mark.slow
@pytest.mark.claim("C655")
def test_a_recipe_whose_guests_have_roles_begins_and_goes_on_by_tickets_alone(
    played: Played,
) -> None:
    world = played.world
    by_hand = world.train_words(world.folder / "engineer", "by-hand")
    for words in (by_hand, ["resume", world.folder / "run"]):
        answer = world.try_run(*words)
        assert (answer.code, answer.error) == (2, "usage")
        assert answer.data["error"]["check"] == "collaboration"
    assert not (world.folder / "by-hand").exists()


@pytest.mark.slow
@pytest.mark.claim("C610")
def test_one_process_holds_the_session_and_nothing_of_the_run(played: Played) -> None:
    if os.geteuid():
        pytest.skip("only root looks into a process that is closed to debuggers")
    last = played.looks[-1]
    (held,) = last.held.values()
    assert not last.parents & set(last.held)
    assert sum(place.startswith("socket:") for place in held) == 5
    below = str(played.world.folder)
    others = {place for place in held if not place.startswith("socket:")}
    assert not [place for place in others if place.startswith(below)]
    kinds = r"/dev/null|pipe:\[\d+\]|/memfd:\S+ \(deleted\)|/dev/shm/\S+|anon_inode:\S+"
    assert [place for place in others if not re.fullmatch(kinds, place)] == []
