"""A program takes its files out of the measured document, whatever lies where it keeps things."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from carrying import carries
from lock_mutants import locks
from world import founded

from sealtrain.attest.presets import insecure_simulator_policy
from sealtrain.base.canonical import canonical_json
from sealtrain.base.clock import system_clock
from sealtrain.broker.config import BrokerConfig
from sealtrain.broker.service.deployment import document_of
from sealtrain.cli.document_files import lay_out
from sealtrain.cli.programs import SideProgram
from sealtrain.client.broker_api import BrokerClient
from sealtrain.errors import Unreachable
from sealtrain.recipe.compose import build_compose
from sealtrain.recipe.document import FROM_DOCUMENT
from sealtrain.recipe.errors import LockInvalid
from sealtrain.recipe.lockfile import parse_lock
from sealtrain_rehearsal.simulator.state import ensure

pytestmark = pytest.mark.claim("C131")

LOCK = Path(f"{FROM_DOCUMENT}recipe.lock.json")


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, bytes]:
    """A document with an image, and the lock in it, with a dollar in a text."""
    lock = locks(tmp_path_factory.mktemp("locks"))["image"]
    lock["recipe"]["description"] = "$HOME costs $$ 5"
    read = parse_lock(canonical_json(lock))
    return build_compose(read), read.to_bytes()


def test_a_file_has_the_bytes_that_were_measured(
    document: tuple[bytes, bytes], tmp_path: Path
) -> None:
    place = lay_out(LOCK, lambda: document[0], tmp_path)
    assert place.read_bytes() == document[1]
    assert place.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    "prepare",
    [
        lambda place, outside: place.write_bytes(b"{}"),
        lambda place, outside: place.symlink_to(outside),
    ],
    ids=["another file", "a link"],
)
def test_what_an_operator_left_there_is_not_read(
    document: tuple[bytes, bytes], tmp_path: Path, prepare: Callable[[Path, Path], Any]
) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"another lock")
    (tmp_path / "document").mkdir()
    prepare(tmp_path / "document/recipe.lock.json", outside)
    place = lay_out(LOCK, lambda: document[0], tmp_path)
    assert place.read_bytes() == document[1]
    assert not place.is_symlink()
    assert outside.read_bytes() == b"another lock"


def test_a_folder_that_leads_elsewhere_is_refused(
    document: tuple[bytes, bytes], tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/document").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LockInvalid, check=carries(check="document")):
        lay_out(LOCK, lambda: document[0], tmp_path / "kept")
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize("name", ["policy.json", "../recipe.lock.json/..", "recipe.lock.jso", ""])
def test_a_file_that_is_not_in_the_document_is_refused(
    document: tuple[bytes, bytes], tmp_path: Path, name: str
) -> None:
    with pytest.raises(LockInvalid, check=carries(check="document")):
        lay_out(Path(f"{FROM_DOCUMENT}{name}"), lambda: document[0], tmp_path / "kept")
    assert not (tmp_path / "kept").exists()


@pytest.mark.parametrize(
    "edit",
    [
        lambda compose: compose["services"]["guest"]["labels"].update({"sealtrain.document": "2"}),
        lambda compose: compose["configs"]["recipe.lock.json"].update(content="${HOME}"),
        lambda compose: compose["services"].update(more={}),
    ],
    ids=["template", "a variable", "a second service"],
)
def test_a_document_of_another_frame_gives_no_file(
    document: tuple[bytes, bytes], tmp_path: Path, edit: Callable[[dict[str, Any]], Any]
) -> None:
    changed = json.loads(document[0])
    compose = json.loads(changed["docker_compose_file"])
    edit(compose)
    changed["docker_compose_file"] = canonical_json(compose).decode()
    with pytest.raises(LockInvalid):
        lay_out(LOCK, lambda: canonical_json(changed), tmp_path)


def test_an_ordinary_path_stays_and_asks_no_guest(tmp_path: Path) -> None:
    def unasked() -> bytes:
        raise AssertionError

    for path in (tmp_path / "recipe.lock.json", Path("recipe.lock.json")):
        assert lay_out(path, unasked, tmp_path) == path


@pytest.fixture
def measured(tmp_path: Path) -> tuple[str, ...]:
    """Words of a broker, but for its policy; a guest shows the document that names them."""
    root = ensure(tmp_path / "root", system_clock()).root_path.read_bytes()
    policy = insecure_simulator_policy(root).to_dict()
    (tmp_path / "policy.yaml").write_text(yaml.safe_dump(policy))
    laxer = policy | {"cpu": policy["cpu"] | {"tcb_status": ["UpToDate", "OutOfDate"]}}
    (tmp_path / "laxer.yaml").write_text(yaml.safe_dump(laxer))
    (tmp_path / "consortium.json").write_bytes(founded("three").to_bytes())
    config = BrokerConfig(
        consortium=tmp_path / "consortium.json",
        policy=tmp_path / "policy.yaml",
        root_secret=f"dstack:{tmp_path / 'guest.sock'}?path=sealtrain/broker-root/v1",
        state=Path("state"),
        guest="",
        collateral=None,
        platform="simulator",
    )
    document = document_of(config, image=f"registry.example/broker@sha256:{'5a' * 32}")
    (tmp_path / "document.json").write_bytes(document.to_bytes())
    # An operator's own files, where the broker keeps those of its document.
    (tmp_path / "kept/document").mkdir(parents=True)
    (tmp_path / "kept/document/policy.json").write_bytes((tmp_path / "laxer.yaml").read_bytes())
    return (
        *("broker", "serve", "--consortium", f"{FROM_DOCUMENT}consortium.json"),
        *("--root-secret", config.root_secret, "--state", str(tmp_path / "kept/state")),
        *("--guest", str(tmp_path / "guest.sock"), "--platform", "simulator"),
        *("--collateral", f"file:{tmp_path / 'root/collateral.json'}", "--port", "0"),
    )


@pytest.mark.slow
def test_a_broker_serves_the_files_that_its_guest_shows_and_no_others(
    measured: tuple[str, ...], tmp_path: Path
) -> None:
    agent = ("--deployment", tmp_path / "document.json", "--simulator", tmp_path / "root")
    socket = ("--socket", tmp_path / "guest.sock")
    with SideProgram(
        "agent", tmp_path, ("simulator", "serve", *agent, *socket), answers=False
    ) as guest:
        guest.place("guest API", within=60)
        words = (*measured, "--policy", f"{FROM_DOCUMENT}policy.json")
        with SideProgram("broker", tmp_path, words, answers=False) as broker:
            url = broker.place("broker ready", within=60)
            with BrokerClient(url.rpartition(" ")[2]) as client:
                client.health()
        kept = tmp_path / "kept/document"
        assert yaml.safe_load((kept / "policy.json").read_bytes()) == yaml.safe_load(
            (tmp_path / "policy.yaml").read_bytes()
        )
        words = (*measured, "--policy", tmp_path / "laxer.yaml")
        with (
            SideProgram("other", tmp_path, words, answers=False) as other,
            pytest.raises(Unreachable),
        ):
            other.place("broker ready", within=60)
        assert "document-mismatch" in (tmp_path / "other.log").read_text()
