"""A recipe's code asks no device of evidence: what it signs is believed to be the guest's word.

Found by a script in a booted enclave that opened ``/dev/nsm``, which Linux offers to every user.
"""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from enclave_world import Enclave
from programs import need
from toy_container import containers_start

from sealtrain.attest.registry import TEES
from sealtrain.guest.enclave.plan import USER
from sealtrain.guest.sandbox.files import PlaceRefused, devices, evidence_devices
from sealtrain.guest.sandbox.network import confine_to

pytestmark = pytest.mark.claim("C766")

DEVICES = sorted(f"/{tee.device.path}" for tee in TEES if tee.device is not None)
WAYS = {"reading": os.O_RDONLY, "writing": os.O_RDWR}
INSIDE = """
import json, os, sys
from pathlib import Path
from sealtrain.guest.sandbox.files import evidence_devices
from sealtrain.guest.sandbox.landlock import restrict

kept = evidence_devices() if sys.argv[1] == "keeper" else []
version = restrict(kept, connect=(), readable=[Path("/usr")])
found = {}
for name, flags in (("reading", os.O_RDONLY), ("writing", os.O_RDWR)):
    try:
        os.close(os.open("/dev/nsm", flags | os.O_NOCTTY))
        found[name] = 0
    except OSError as error:
        found[name] = error.errno
print(json.dumps([version, found]))
"""


def test_the_devices_are_those_that_collectors_open() -> None:
    assert "/dev/nsm" in DEVICES
    assert {str(path) for path in evidence_devices()} <= set(DEVICES)
    assert not set(map(str, devices())) & set(DEVICES)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("way", WAYS)
def test_python_of_a_recipe_opens_none(device: str, way: str, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(device)
    with confine_to("http://127.0.0.1:1", writable=[tmp_path]):
        for name in (device, str(tmp_path / "link"), f"/dev/../{device}"):
            with pytest.raises(PlaceRefused):
                os.open(name, WAYS[way])
        if way == "reading":
            with pytest.raises(PlaceRefused):
                Path(device).read_bytes()


@pytest.mark.parametrize("device", DEVICES)
def test_a_keeper_opens_its_own(device: str, tmp_path: Path) -> None:
    with confine_to("http://127.0.0.1:1", writable=[tmp_path, Path(device)]):
        try:
            os.close(os.open(device, os.O_RDONLY))
        except PlaceRefused:
            raise
        except OSError:  # this machine has none, or root's alone
            return


@pytest.mark.parametrize("process", ["workload", "keeper"])
def test_native_code_of_a_recipe_opens_none(process: str) -> None:
    """A terminal in the module's place, so that the kernel has a device to judge."""
    if not containers_start():
        pytest.skip("no namespaces here")
    bwrap = need("bubblewrap")["bwrap"]
    places = ("--bind", "/", "/", "--dev", "/dev", "--dev-bind", "/dev/tty", "/dev/nsm")
    done = subprocess.run(
        [bwrap, *places, "--", sys.executable, "-c", INSIDE, process],
        capture_output=True, check=True, text=True,
    )  # fmt: skip
    version, answers = json.loads(done.stdout)
    if not version:
        pytest.skip("no Landlock here")
    refused = set(answers.values()) == {errno.EACCES}
    assert refused == (process == "workload"), answers


@pytest.fixture
def enclave(tmp_path: Path) -> Iterator[Enclave]:
    made = Enclave(tmp_path)
    device = made.files / "dev/nsm"
    device.parent.mkdir(exist_ok=True)
    device.touch()
    device.chmod(0o666)  # as Linux's driver makes it
    yield made
    made.init.close()


@pytest.mark.parametrize("user", [0, USER])
def test_an_enclaves_first_process_closes_the_module(user: int, enclave: Enclave) -> None:
    enclave.init.close_module(user)
    assert (enclave.files / "dev/nsm").stat().st_mode & 0o777 == 0o600
    assert ("give", "nsm", user) in enclave.kernel.done
