"""A recipe pins the core and its kind's rooms; what it does not pin changes nothing of it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest
from lock_mutants import lock_with

from sealtrain.base.canonical import canonical_json
from sealtrain.base.distributions import CORE, DISTRIBUTIONS, load
from sealtrain.base.version import own_folders
from sealtrain.errors import ExtraMissing
from sealtrain.guest.sandbox.files import readable_places
from sealtrain.guest.sandbox.imports import PinnedFinder
from sealtrain.recipe.errors import LockInvalid
from sealtrain.recipe.importable import Importable
from sealtrain.recipe.kinds import KINDS, distributions_of, workload_distributions
from sealtrain.recipe.lock import parse_lock

pytestmark = pytest.mark.long

REPOSITORY = Path(__file__).resolve().parents[2]
ROOMS = sorted({DISTRIBUTIONS[room] for kind in KINDS.values() for room in kind.rooms})
REHEARSAL = "sealtrain-rehearsal"
LOCK_AGAIN = """
import json, sys
sys.path.insert(0, sys.argv[1])
from sealtrain.recipe.compose import build_compose, compose_hash
from sealtrain.recipe.installation import measure_code
from sealtrain.recipe.kinds import distributions_of
from sealtrain.recipe.lock import parse_lock
from sealtrain.base.canonical import canonical_json
told = {}
for name, lock in json.load(sys.stdin).items():
    collaboration = parse_lock(canonical_json(lock)).recipe.collaboration
    lock["code"] = [pin.to_dict() for pin in measure_code(distributions_of(collaboration))]
    lock = parse_lock(canonical_json(lock))
    told[name] = [lock.recipe_hash, compose_hash(build_compose(lock))]
json.dump(told, sys.stdout)
"""


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A lock of a recipe for one guest, and one of each kind of collaboration."""
    folder = tmp_path_factory.mktemp("locks")
    return {"sft": lock_with(folder, None)} | {kind: lock_with(folder, kind) for kind in KINDS}


def hashes(source: Path, valid: dict[str, Any]) -> dict[str, list[str]]:
    """Hash of each lock and of its document, as the sealtrain in a folder would lock it."""
    done = subprocess.run(
        [sys.executable, "-c", LOCK_AGAIN, str(source)],
        input=json.dumps(valid),
        capture_output=True,
        text=True,
        check=True,
    )
    told: dict[str, list[str]] = json.loads(done.stdout)
    return told


@pytest.mark.claim("C643")
def test_an_edit_changes_the_documents_of_recipes_that_pin_it(
    valid: dict[str, Any], tmp_path: Path
) -> None:
    for name, folder in own_folders().items():
        shutil.copytree(folder, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    before = hashes(tmp_path, valid)
    for number, package in enumerate((*ROOMS, CORE)):
        others = () if number else (DISTRIBUTIONS["sealtrain-chain"], DISTRIBUTIONS[REHEARSAL])
        for edited in (package, *others):
            with (tmp_path / edited / "__init__.py").open("a") as file:
                file.write("# another line\n")
        after = hashes(tmp_path, valid)
        pinned = {
            name
            for name in valid
            if package == CORE
            or (name != "sft" and package in {DISTRIBUTIONS[room] for room in KINDS[name].rooms})
        }
        assert {name for name in valid if after[name][0] != before[name][0]} == pinned, package
        assert {name for name in valid if after[name][1] != before[name][1]} == pinned, package
        before = after


@pytest.mark.claim("C644")
def test_a_lock_that_pins_other_code_than_its_guests_need_is_refused(valid: dict[str, Any]) -> None:
    for name, lock in valid.items():
        needed = distributions_of(parse_lock(canonical_json(lock)).recipe.collaboration)
        assert tuple(pin["name"] for pin in lock["code"]) == needed, name
        pin = {"version": "0.1.0", "sha256": "11" * 32}
        every = [{**pin, "name": distribution} for distribution in DISTRIBUTIONS]
        again = [*lock["code"], {**lock["code"][-1]}]
        for other in (every, again, lock["code"][::-1], lock["code"][1:], lock["code"][:-1]):
            if other == lock["code"]:
                continue
            with pytest.raises(LockInvalid):
                parse_lock(canonical_json(lock | {"code": other}))


def found(spec: ModuleSpec | None) -> bool:
    return spec is not None


@pytest.mark.claim("C644")
@pytest.mark.parametrize("package", ROOMS)
def test_a_guest_finds_no_room_that_its_lock_does_not_pin(package: str, tmp_path: Path) -> None:
    planted = tmp_path / "site-packages" / package
    planted.mkdir(parents=True)
    (planted / "__init__.py").write_text("")
    alone = PinnedFinder(Importable())
    room = own_folders()[package]
    assert not found(alone.find_spec(package))
    for place in (str(room), str(planted), str(room.parent)):
        assert not found(alone.find_spec(f"{package}.cli", [place]))
    for name in DISTRIBUTIONS.values():
        assert found(alone.find_spec(name)) == (name == CORE)
    rooms = [name for name, its in DISTRIBUTIONS.items() if its == package]
    both = PinnedFinder(Importable(own=(CORE, *rooms)))
    spec = both.find_spec(package)
    assert spec is not None
    assert spec.origin == str(room / "__init__.py")


@pytest.mark.claim("C644")
@pytest.mark.parametrize("package", ROOMS)
def test_a_process_that_loaded_a_room_before_is_refused(package: str) -> None:
    program = (
        f"import sys, {package}\n"
        "from sealtrain.guest.errors import ImportRefused\n"
        "from sealtrain.guest.sandbox.imports import import_only_pinned\n"
        "from sealtrain.recipe.importable import Importable\n"
        "listed = [name for name in sys.modules if 'site-packages' in str(\n"
        "    getattr(sys.modules[name], '__file__', None))]\n"
        "for name in listed: del sys.modules[name]\n"
        "try: import_only_pinned(Importable())\n"
        "except ImportRefused as refused: print(refused.got)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == package, done.stderr


OF_WORKLOADS = {
    "sft": {CORE},
    "nodes": {CORE, "sealtrain-nodes"},
    "pads": {CORE, "sealtrain-together"},
}
"""What of sealtrain the process that trains may import, by the recipe's kind."""
IN_A_WORKLOAD = """
import importlib, importlib.util, json, sys
from sealtrain.guest.sandbox.imports import import_only_pinned
from sealtrain.recipe.importable import Importable
own, tried, places = json.loads(sys.argv[1])
for name, module in list(sys.modules.items()):
    if "site-packages" in str(getattr(module, "__file__", None)):  # Python's start-up files
        del sys.modules[name]
import_only_pinned(Importable(own=own))
sys.path[:0] = places
told = {}
for name in tried:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        told[name] = False
    else:
        told[name] = True
json.dump(told, sys.stdout)
"""


@pytest.mark.claim("C644")
@pytest.mark.parametrize("kind", OF_WORKLOADS)
def test_a_workload_imports_no_room_but_the_one_that_works_in_it(
    kind: str, valid: dict[str, Any], tmp_path: Path
) -> None:
    """Neither the wire for a recipe of one guest, nor channels of parties for one of nodes."""
    collaboration = parse_lock(canonical_json(valid[kind])).recipe.collaboration
    own = workload_distributions(collaboration)
    assert set(own) == OF_WORKLOADS[kind]
    assert set(own) <= set(distributions_of(collaboration))
    others = [package for name, package in DISTRIBUTIONS.items() if name not in own]
    within = ["sealtrain_nodes.wire.openfiles", "sealtrain_together.errors"]
    places = [str(folder.parent) for folder in own_folders().values()]
    done = subprocess.run(
        [sys.executable, "-c", IN_A_WORKLOAD, json.dumps([own, others + within, places])],
        capture_output=True,
        text=True,
        check=True,
    )
    packages = {DISTRIBUTIONS[name] for name in own}
    assert json.loads(done.stdout) == dict.fromkeys(others, False) | {
        name: name.partition(".")[0] in packages for name in within
    }
    readable = readable_places((), tmp_path, own)
    for package, folder in own_folders().items():
        assert (folder.resolve() in readable) == (package in packages)


def test_a_room_that_is_not_installed_is_named() -> None:
    with pytest.raises(ModuleNotFoundError):
        load("sealtrain.no_such_module:name")


OF_AN_AUDITOR = ("consortium", "ledger", "manifest", "recipe", "release", "sealing", "signing")
OF_THE_CORE = ("attest", "base", "guest", "image", "keys", "storage")


@pytest.mark.claim("C645")
@pytest.mark.parametrize(
    "parts", [OF_AN_AUDITOR, pytest.param(OF_THE_CORE, marks=pytest.mark.nightly)]
)
def test_the_core_works_where_no_room_can_be_imported(parts: tuple[str, ...]) -> None:
    """Every module is imported, and every kind's settings and rules are there."""
    program = """
import importlib, json, pkgutil, sys
from pathlib import Path

class Refusing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in refused:
            raise ModuleNotFoundError(f"no {name}", name=name.partition(".")[0])

from sealtrain.base.distributions import CORE, DISTRIBUTIONS, load
from sealtrain.errors import ExtraMissing
refused = set(DISTRIBUTIONS.values()) - {CORE}
sys.meta_path.insert(0, Refusing())
for part in sys.argv[1:]:
    package = importlib.import_module(f"sealtrain.{part}")
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)
from sealtrain.recipe.kinds import KINDS
for kind in KINDS.values():
    for place in (kind.settings, kind.rule, kind.summary, kind.guests, kind.stays):
        if place is not None:
            load(place)
    for place in kind.roles.values():
        try:
            load(place)
        except ExtraMissing as missing:
            print(missing.expected)
"""
    done = subprocess.run([sys.executable, "-c", program, *parts], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rooms = {room for kind in KINDS.values() for room in kind.rooms}
    assert set(done.stdout.split()) <= rooms
    assert len(done.stdout.split()) == sum(len(kind.roles) for kind in KINDS.values())
    assert ExtraMissing.exit_code != 0


def test_the_core_names_the_kinds_rooms_in_its_table_alone() -> None:
    core = REPOSITORY / "src" / CORE
    table = core / "base" / "distributions.py"
    for path in core.rglob("*.py"):
        if path not in (table, core / "error_homes.py"):  # written by tools/error_reference.py
            text = path.read_text("utf-8")
            assert not [name for name in ROOMS if name in text], path
