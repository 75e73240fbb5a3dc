"""``sealtrain up``: a broker and a guest to rehearse with by hand, and nothing left afterwards."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from carrying import carries
from polling import wait_until
from ports import free_port
from stage import DEADLINE_SECONDS, interpreter
from variants import variants

from sealtrain.base.files import TEMPORARY_SUFFIX
from sealtrain.cli.programs import SideProgram
from sealtrain.client.pin import load_pin
from sealtrain.consortium.members import Consortium
from sealtrain.errors import UsageError
from sealtrain.keys.identity import Identity
from sealtrain_rehearsal.up import Site

pytestmark = pytest.mark.long


def of_folder(folder: Path) -> list[int]:
    """Processes whose working folder or command line is in a folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().decode(errors="replace")
            place = str((process / "cwd").readlink())
        except OSError:
            continue
        if place.startswith(str(folder)) or str(folder) in words:
            found.append(int(process.name))
    return sorted(set(found) - {os.getpid()})


def wait_for_none(folder: Path) -> list[int]:
    until = time.monotonic() + 20
    while (left := of_folder(folder)) and time.monotonic() < until:
        time.sleep(0.05)
    return left


def words_of_up(consortium: Path, out: Path) -> list[str | Path]:
    """The command, at a port of its own."""
    return [
        *("up", "--consortium", consortium, "--port", str(free_port()), "--out", out),
        *("--deployment", out / "broker-compose.json"),
    ]


@pytest.fixture
def consortium(tmp_path: Path) -> Path:
    owner = Identity.generate("clinic-a").public
    founded = Consortium.found(name="rehearsal", owners=[owner])
    (tmp_path / "consortium.json").write_bytes(founded.to_bytes())
    return tmp_path / "consortium.json"


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.claim("C148")
def test_everything_ends_with_it_and_continues_with_the_next(
    tmp_path: Path, consortium: Path
) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    out = tmp_path / "up"
    words = words_of_up(consortium, out)

    def begun(name: str) -> SideProgram:
        part = SideProgram(name, logs, words, answers=True)
        assert "SIMULATED" in part.line("NOT ATTESTED", within=DEADLINE_SECONDS)
        part.line("guest of", within=DEADLINE_SECONDS)
        return part

    first = begun("first")
    answer: dict[str, Any] = json.loads(first.read_stdout())
    assert answer == {"brokers": [str(out / "broker.yaml")], "policy": str(out / "policy.yaml")}
    pinned = load_pin(out / "broker.yaml")
    assert (out / "guest.sock").is_socket()
    assert len(of_folder(tmp_path)) >= 4  # itself, the broker, its guest, the recipe's guest
    assert first.kill() == -signal.SIGKILL
    assert wait_for_none(tmp_path) == []

    for name, number in (("second", signal.SIGINT), ("third", signal.SIGTERM)):
        part = begun(name)
        assert load_pin(out / "broker.yaml") == pinned
        part.send(number)
        assert part.wait(within=DEADLINE_SECONDS) == 0
        assert wait_for_none(tmp_path) == []


@pytest.mark.slow
@pytest.mark.claim("C274")
@pytest.mark.parametrize(
    "until",
    variants(
        ["simulated-root", "broker-compose.json", "broker-guest.log", "broker.yaml"],
        each_time=[],
    ),
)
def test_sigterm_while_it_starts_leaves_nothing_behind_and_the_next_continues(
    tmp_path: Path, consortium: Path, until: str
) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    out = tmp_path / "up"
    words = words_of_up(consortium, out)
    with SideProgram("first", logs, words) as part:
        wait_until((out / until).exists)
        assert part.end(signal.SIGTERM) == 0
    assert wait_for_none(tmp_path) == []
    halves = [path for path in out.rglob("*") if TEMPORARY_SUFFIX in path.name]
    assert [*halves, *out.glob(".*")] == []
    with SideProgram("second", logs, words) as part:
        part.line("guest of", within=DEADLINE_SECONDS)
        assert part.end(signal.SIGTERM) == 0
    assert wait_for_none(tmp_path) == []


@pytest.mark.slow
@pytest.mark.claim("C148")
@pytest.mark.parametrize("killed", variants(["broker", "guest"], each_time=[]))
def test_it_ends_with_its_broker_and_with_its_guest(
    tmp_path: Path, consortium: Path, killed: str
) -> None:
    """The process that serves is killed, below what starts its machine."""
    logs = tmp_path / "logs"
    logs.mkdir()
    out = tmp_path / "up"
    words = words_of_up(consortium, out)
    with SideProgram("up", logs, words) as part:
        part.line("guest of", within=DEADLINE_SECONDS)
        words_of = {"broker": "broker", "guest": str(out / "guest.sock")}
        [serving] = serving_below(part.pid, words_of[killed])
        os.kill(serving, signal.SIGKILL)
        assert part.wait(within=30) == 4
    printed = part.read_stdout()
    _, first = json.JSONDecoder().raw_decode(printed)
    error = json.loads(printed[first:])["error"]
    assert (error["code"], error["check"]) == (
        "unreachable", "broker-guest" if killed == "broker" else "guest",
    )  # fmt: skip
    assert wait_for_none(tmp_path) == []


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.claim("C628")
def test_several_recipes_have_guests_and_trust_files_of_their_own(
    tmp_path: Path, consortium: Path
) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    out = tmp_path / "up"
    (tmp_path / "second").mkdir()
    further = tmp_path / "second/app-compose.json"
    words = [*words_of_up(consortium, out), "--also", further]
    with SideProgram("up", logs, words) as part:
        part.line("guest of", within=DEADLINE_SECONDS)
        assert not (out / "guest-second.sock").exists()
        further.write_bytes((out / "broker-compose.json").read_bytes())
        wait_until(lambda: (out / "guest-second.sock").exists() or part.gone)
        assert (out / "guest.sock").is_socket()
        assert (out / "guest-second.sock").is_socket()
        assert part.end(signal.SIGTERM) == 0
    assert wait_for_none(tmp_path) == []


@pytest.mark.claim("C628")
def test_recipes_of_one_name_are_refused_before_anything_starts(tmp_path: Path) -> None:
    site = Site(out=tmp_path / "up", words=(), brokers=1, port=1)
    places = [tmp_path / name / "app-compose.json" for name in ("a", "locked-b", "c")]
    recipes = site.recipes(places)
    assert [recipe.socket.name for recipe in recipes] == [
        "guest.sock", "guest-locked-b.sock", "guest-c.sock",
    ]  # fmt: skip
    assert len({recipe.trust for recipe in recipes} | {recipe.socket for recipe in recipes}) == 6
    with pytest.raises(UsageError, check=carries(check="--also")):
        site.recipes([*places, tmp_path / "x/locked_b/app-compose.json"])


def serving_below(pid: int, word: str) -> list[int]:
    """Processes below another one that run ``sealtrain … serve`` with this word."""
    found, below = [], {pid}
    for process in sorted(int(path.name) for path in Path("/proc").glob("[0-9]*")):
        try:
            stat = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
            words = Path(f"/proc/{process}/cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue
        if int(stat[1]) in below:
            below.add(process)
            if word in words and "serve" in words:
                found.append(process)
    return found


def test_a_port_that_is_taken_is_refused_before_anything_starts(
    tmp_path: Path, consortium: Path
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = subprocess.run(
            [interpreter(trains=False), "-m", "sealtrain", "up", "--port", port, "--json"],
            capture_output=True,
            text=True,
            cwd=tmp_path,
        )
    assert done.returncode == 2
    error = json.loads(done.stdout)["error"]
    assert (error["code"], error["check"]) == ("usage", "--port")
    assert not (tmp_path / "up").exists()


def test_another_consortium_needs_another_folder(tmp_path: Path, consortium: Path) -> None:
    out = tmp_path / "up"
    out.mkdir()
    (out / "policy.yaml").write_text("not read before the document is written\n")
    done = subprocess.run(
        [interpreter(trains=False), "-m", "sealtrain", "up", "--out", str(out), "--json"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode in {2, 5}
    assert "error" in json.loads(done.stdout)
    assert not (out / "broker-compose.json").exists()


def test_hardware_that_there_is_not_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    refused = subprocess.run(
        [interpreter(trains=False), "-m", "sealtrain", "up", "--tee", "sgx", "--json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert refused.returncode == 2
    assert json.loads(refused.stdout)["error"]["code"] == "usage"
    assert not (tmp_path / "up").exists()
