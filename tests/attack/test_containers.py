"""Attacks on containers that a document starts: other images, changed files, a way out."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from polling import wait_until
from stage import interpreter
from toy_container import ENDS_WITH, containers_start, make_toy
from world import founded

from sealtrain.attest.errors import SimulatedEvidence
from sealtrain.attest.guest import open_guest, platform_of
from sealtrain.attest.policy import load_policy
from sealtrain.attest.presets import PRESETS, insecure_simulator_policy, preset
from sealtrain.attest.report_data import Binding
from sealtrain.attest.verify import verify
from sealtrain.base.canonical import canonical_json, parse_json
from sealtrain.base.clock import system_clock
from sealtrain.broker.config import BrokerConfig
from sealtrain.broker.service.deployment import document_of
from sealtrain.cli.container import ContainerPaths, container
from sealtrain.cli.programs import SideProgram
from sealtrain.errors import EvidenceRefused
from sealtrain.image.own_files import CONFIG
from sealtrain.image.unpack import unpack_image
from sealtrain.recipe.compose import compose_hash
from sealtrain.recipe.document import frame_of
from sealtrain.recipe.errors import LockInvalid
from sealtrain_rehearsal.simulator.state import ensure

pytestmark = [
    pytest.mark.long,
    pytest.mark.claim("C128"),
    pytest.mark.needs("bubblewrap"),
    pytest.mark.skipif(not containers_start(), reason="bubblewrap makes no namespaces here"),
]
CANARY = "canary-3f9a"
SECONDS = 60
WHERE = "registry.example/toy"


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    layout = tmp_path_factory.mktemp("toy") / "toy"
    return layout, make_toy(layout)


@pytest.fixture
def config(tmp_path: Path) -> BrokerConfig:
    state = ensure(tmp_path / "root", system_clock())
    policy = insecure_simulator_policy(state.root_path.read_bytes())
    (tmp_path / "policy.yaml").write_text(yaml.safe_dump(policy.to_dict()))
    (tmp_path / "consortium.json").write_bytes(founded("three").to_bytes())
    return BrokerConfig(
        consortium=tmp_path / "consortium.json",
        policy=tmp_path / "policy.yaml",
        root_secret="dstack:/var/run/dstack.sock?path=sealtrain/broker-root/v1",
        state=Path("state"),
        guest="",
        collateral=None,
        platform="simulator",
    )


@pytest.fixture
def site(tmp_path: Path, config: BrokerConfig, toy: tuple[Path, str]) -> Path:
    """A folder with the document of a broker in the toy image, and a ticket."""
    document = document_of(config, image=f"{WHERE}@{toy[1]}").to_bytes()
    (tmp_path / "document.json").write_bytes(document)
    (tmp_path / "ticket.json").write_text('{"version":1,"role":"broker","listen":"127.0.0.1:0"}')
    return tmp_path


def words(site: Path, image: Path | None, document: str = "document.json") -> list[str]:
    named = [] if image is None else ["--image", str(image)]
    return [
        "deploy", "run", "--deployment", str(site / document), *named, "--ticket",
        str(site / "ticket.json"),
        "--folder", str(site / "guest"), "--simulator", str(site / "root"),
    ]  # fmt: skip


def ran(site: Path, *given: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [interpreter(trains=False), "-m", "sealtrain", *words(site, *given), "--json"],
        capture_output=True, text=True, timeout=SECONDS, cwd=site,
        env=os.environ | {"CANARY": CANARY},
    )  # fmt: skip


def refused(site: Path, *given: Any) -> tuple[str, str | None]:
    done = ran(site, *given)
    assert done.returncode in (2, 3), done.stderr
    error = json.loads(done.stdout)["error"]
    return error["code"], error.get("check")


def test_it_starts_exactly_what_the_document_says(site: Path, toy: tuple[Path, str]) -> None:
    done = ran(site, toy[0])
    assert done.returncode == ENDS_WITH, done.stderr
    found = json.loads(done.stdout)
    data = (site / "document.json").read_bytes()
    compose = json.loads(json.loads(data)["docker_compose_file"])
    service = compose["services"]["broker"]
    assert found["words"] == service["command"]
    assert found["folder"] == service["working_dir"] == "/run-data"
    # Python sets LC_CTYPE itself, and a shell's PWD is not there.
    assert found["environment"].items() - {("LC_CTYPE", "C.UTF-8"), ("PWD", "/run-data")} == {
        ("PATH", "/usr/local/bin:/usr/bin"),
        ("LANG", "C.UTF-8"),
        ("PYTHONDONTWRITEBYTECODE", "1"),
        ("HOME", "/run-data"),
    }
    # The program reads the document's files out of the document that its guest shows.
    assert found["files"].keys() == {"ticket.json"}
    assert json.loads(found["files"]["ticket.json"])["listen"] == "127.0.0.1:0"
    assert json.loads(found["guest"])["tcb_info"]
    assert compose_hash(data) in found["guest"]
    assert compose_hash(data) in done.stderr
    assert found["shared"] == 8 << 30


def test_it_sees_nothing_else_and_writes_nowhere_else(site: Path, toy: tuple[Path, str]) -> None:
    done = ran(site, toy[0])
    found = json.loads(done.stdout)
    assert CANARY not in done.stdout
    assert found["ids"] == [1, 65532, 65532]
    assert found["processes"] == ["1"]
    assert found["descriptors"] == [0, 1, 2, 3]  # the last reads the folder of them
    assert found["capabilities"] == ["0" * 16] * 3 + ["1"]
    image = {path.name for path in (site / "guest/image/root").iterdir()}
    assert set(found["top"]) == image
    assert set(found["etc"]) <= {"passwd", "hosts", "resolv.conf"}
    assert set(found["run"]) == {
        "dstack.sock", "sealtrain", "ticket.json"
    }  # fmt: skip
    made = found["made"]
    assert {place for place, result in made.items() if result == "done"} == {
        "/tmp", "/run-data", "/dev/shm"  # noqa: S108  # in the container
    }  # fmt: skip
    assert not {"done"} & set(found["changed"].values())
    assert found["mounted"] == "EPERM"
    assert [path.name for path in (site / "guest/run-data").iterdir() if path.name == "made"]
    assert not list((site / "guest/image").rglob("made"))


def _swap(path: Path, at: int = -3000) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(bytes(data))


def test_a_layout_with_one_other_byte_starts_nothing(
    site: Path, toy: tuple[Path, str], tmp_path: Path
) -> None:
    blobs = sorted((toy[0] / "blobs/sha256").iterdir(), key=lambda path: path.stat().st_size)
    for number, blob in enumerate(blobs):
        layout = shutil.copytree(toy[0], tmp_path / f"changed-{number}")
        _swap(layout / "blobs/sha256" / blob.name, at=blob.stat().st_size // 2)
        assert refused(site, layout)[0] == "image-refused"
        assert not (site / "guest/image").exists()
        assert not (site / "guest/guest.sock").exists()


def test_another_image_than_the_documents_is_refused(
    site: Path, config: BrokerConfig, toy: tuple[Path, str]
) -> None:
    other = toy[1][:-1] + ("0" if toy[1][-1] != "0" else "1")
    document = document_of(config, image=f"{WHERE}@{other}").to_bytes()
    (site / "other.json").write_bytes(document)
    assert refused(site, toy[0], "other.json") == ("image-refused", "digest")
    assert not (site / "guest/image").exists()


CHANGES: dict[str, Callable[[Path], Any]] = {
    "a byte": lambda root: _swap(root / "usr/local/bin/sealtrain", at=-20),
    "a file more": lambda root: (root / "usr/local/bin/more").write_text("more"),
    "a folder more": lambda root: (root / "usr/more").mkdir(),
    "a file less": lambda root: (root / "etc/passwd").unlink(),
    "a mode": lambda root: (root / "etc/passwd").chmod(0o755),
    "a set-user-id bit": lambda root: (root / "usr/local/bin/sealtrain").chmod(0o4755),
    "a link": lambda root: ((root / "var/run").unlink(), (root / "var/run").symlink_to("/tmp")),  # noqa: S108
    "a link for a file": lambda root: (
        (root / "etc/passwd").rename(root.parent / "elsewhere"),
        (root / "etc/passwd").symlink_to(root.parent / "elsewhere"),
    ),
    "a pipe": lambda root: os.mkfifo(root / "pipe"),
    "the names": lambda root: _swap(root.parent / "layers.json", at=40),
    "no names": lambda root: (root.parent / "layers.json").unlink(),
    "names in two layers": lambda root: (root.parent / "layers.json").write_text(
        (root.parent / "layers.json").read_text().replace("]]", '],["etc/passwd"]]')
    ),
}
EACH_TIME = ("a byte", "a file more", "a mode", "a link", "the names")
"""Changes that are tried for each change of ours; the others at night."""


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory, toy: tuple[Path, str]) -> Path:
    """What an earlier start unpacked."""
    folder = tmp_path_factory.mktemp("kept") / "image"
    unpack_image(*toy, folder)
    return folder


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(change, id=name, marks=[] if name in EACH_TIME else pytest.mark.nightly)
        for name, change in CHANGES.items()
    ],
)
def test_a_change_of_what_was_unpacked_starts_nothing(
    site: Path, toy: tuple[Path, str], kept: Path, change: Callable[[Path], Any]
) -> None:
    (site / "guest").mkdir()
    shutil.copytree(kept, site / "guest/image", symlinks=True)
    change(site / "guest/image/root")
    assert refused(site, toy[0]) == ("image-refused", "root")
    assert not (site / "guest/guest.sock").exists()


def test_what_was_unpacked_runs_again(site: Path, toy: tuple[Path, str]) -> None:
    assert ran(site, toy[0]).returncode == ENDS_WITH
    layer = max((toy[0] / "blobs/sha256").iterdir(), key=lambda path: path.stat().st_size)
    away = layer.rename(layer.with_suffix(".away"))
    try:
        assert ran(site, toy[0]).returncode == ENDS_WITH
    finally:
        away.rename(layer)


def test_two_first_starts_unpack_one_image(tmp_path: Path, toy: tuple[Path, str]) -> None:
    with ThreadPoolExecutor(2) as threads:
        starts = [threads.submit(unpack_image, *toy, tmp_path / "image") for _ in range(2)]
    assert {start.result()[0] for start in starts} == {tmp_path / "image/root"}
    assert [path.name for path in tmp_path.iterdir()] == ["image"]


def test_a_document_for_hardware_is_never_started_with_simulated_evidence(
    site: Path, config: BrokerConfig, toy: tuple[Path, str]
) -> None:
    hardware = document_of(replace(config, platform="dstack"), image=f"{WHERE}@{toy[1]}")
    (site / "hardware.json").write_bytes(hardware.to_bytes())
    assert refused(site, toy[0], "hardware.json") == ("usage", "platform")
    assert refused(site, None, "hardware.json") == ("usage", "platform")
    assert not (site / "guest/image").exists()


def test_no_policy_for_hardware_accepts_a_containers_evidence(
    site: Path, toy: tuple[Path, str], config: BrokerConfig
) -> None:
    (site / "guest/run-data").mkdir(parents=True)
    (site / "guest/run-data/wait").touch()
    binding = Binding("release", {"challenge": "attack"})
    measured = compose_hash((site / "document.json").read_bytes())
    with SideProgram("executor", site, words(site, toy[0]), answers=False) as part:
        part.line("waiting", within=SECONDS)
        collateral = f"file:{site / 'root/collateral.json'}"
        for claimed in ("simulator", "dstack"):
            guest = open_guest(
                platform_of(claimed), str(site / "guest/guest.sock"), collateral=collateral
            )
            evidence = guest.evidence(binding)
            now = system_clock()
            for name in PRESETS:
                with pytest.raises(EvidenceRefused):
                    verify(evidence, preset(name), now, binding=binding)
            if claimed == "simulator":
                policy = load_policy(config.policy)
                verified = verify(evidence, policy, now, binding=binding)
                assert verified.simulated
                assert verified.compose_hash == measured
            else:
                with pytest.raises(SimulatedEvidence):
                    verify(evidence, preset("dstack-h100"), now, binding=binding)


def test_an_image_and_a_document_belong_together(
    site: Path, config: BrokerConfig, toy: tuple[Path, str]
) -> None:
    assert refused(site, None) == ("usage", "image")
    script = replace(config, root_secret="file:root.secret")
    (site / "script.json").write_bytes(document_of(script).to_bytes())
    assert refused(site, toy[0], "script.json") == ("usage", "image")
    assert refused(site, site / "nothing") == ("usage", None)
    assert not (site / "guest/image").exists()


ASKS: dict[str, dict[str, Any]] = {
    "privileged": {"privileged": True},
    "device": {"devices": ["/dev/kmsg:/dev/kmsg"]},
    "variable": {"environment": {"LD_PRELOAD": "evil"}},
    "network": {"network_mode": "host"},
    "user": {"user": "0:0"},
    "GPU": {"deploy": {"resources": {"reservations": {"devices": [{"driver": "nvidia"}]}}}},
    "mount": {"volumes": ["/:/run-data"]},
    "volume": {"volumes": ["other:/run-data"]},
    "writable": {"read_only": False},
    "capability": {"cap_drop": []},
    "more memory": {"shm_size": "64gb"},
    "a file elsewhere": {"tmpfs": ["/usr:exec"]},
}


@pytest.mark.parametrize("asked", ASKS.values(), ids=ASKS)
def test_what_the_executor_does_not_know_is_refused(site: Path, asked: dict[str, Any]) -> None:
    document: Any = parse_json((site / "document.json").read_bytes())
    compose: Any = parse_json(document["docker_compose_file"].encode())
    compose["services"]["broker"].update(asked)
    document["docker_compose_file"] = canonical_json(compose).decode()
    data = canonical_json(document)
    (site / "altered.json").write_bytes(data)
    assert refused(site, site / "none", "altered.json")[0] == "lock-invalid"
    # The container's own reader refuses it as well, if the document's should let it pass.
    place = ContainerPaths(root=site, sources={}, volumes={})
    with pytest.raises(LockInvalid):
        container(frame_of(data), CONFIG, place)


def test_signals_reach_the_program_and_it_ends_with_its_executor(
    site: Path, toy: tuple[Path, str]
) -> None:
    (site / "guest/run-data").mkdir(parents=True)
    (site / "guest/run-data/wait").touch()
    with SideProgram("first", site, words(site, toy[0]), answers=False) as part:
        part.line("waiting", within=SECONDS)
        assert part.end(signal.SIGTERM) == 7
    with SideProgram("second", site, words(site, toy[0]), answers=False) as part:
        part.line("waiting", within=SECONDS)
        held = f"{site}/guest/image/root".encode()
        assert _running(held)
        part.kill()
        wait_until(lambda: not _running(held), 20)


def _running(word: bytes) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if word in path.read_bytes():
                found.append(path.parent.name)
        except OSError:
            continue
    return found
