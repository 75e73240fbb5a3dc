"""Boot the guest's disk of this source in QEMU, and let it train: from measured boot to manifest.

    make guest-boot                              all of it; 40 minutes without hardware support
    python tools/vm/guest_boot.py --only boot    registers and a broken root, without a training
    python tools/vm/guest_boot.py --only quotes  keys, and a quote that is shown again; no training

1. The image ``guest-cpu`` and the disk are made, the disk twice in different folders.
2. Registers are predicted from the files, and compared with those that the TPM of the machine has.
3. A broker outside releases keys to the guest by a quote of this TPM, whose key a test root
   certified; a PyTorch loop trains; the manifest that comes out verifies.
4. Refused: a root with one bit changed, another document, another command line; the quote of this
   boot sent again, under a fresh challenge, and in a second boot's place.

Needs Debian 12 on x86-64 (tools/vm/machine.py) and some 8 GB in --cache.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools" / "debian"), str(ROOT / "tools" / "vm"),
                str(ROOT / "tests" / "support")]  # fmt: skip

from archive import missing_for_debian  # noqa: E402
from contained import (  # type: ignore[import-not-found]  # noqa: E402  # of tests/support
    OWNERS,
    RECIPE,
    broker,
    locked,
    run,
    sealed,
    served,
)
from machine import (  # noqa: E402
    HOST,
    NETWORK,
    Tools,
    boot_machine,
    config_drive,
    provision,
    registers_of,
)
from recording_front import RecordingFront, recording  # type: ignore[import-not-found]  # noqa: E402

from sealtrain.attest.policy import policy_from_dict  # noqa: E402
from sealtrain.attest.presets import insecure_simulator_policy  # noqa: E402
from sealtrain.attest.tpm.chain import MACHINE_OID  # noqa: E402
from sealtrain.base.clock import system_clock  # noqa: E402
from sealtrain.base.digests import file_sha256  # noqa: E402
from sealtrain.base.yamltext import yaml_text  # noqa: E402
from sealtrain.image.disk.partitions import read_partitions  # noqa: E402
from sealtrain.image.machine.disk import (  # noqa: E402
    GPT_BYTES,
    PartitionTable,
    document_register,
    partition_register,
)
from sealtrain.image.machine.unified import Unified, measure_unified  # noqa: E402
from sealtrain_rehearsal.rehearsed_store import store_served  # noqa: E402
from sealtrain_rehearsal.simulator.state import ensure  # noqa: E402
from sealtrain_rehearsal.simulator.tpm import SimulatedMachine  # noqa: E402

STUB = Unified(algorithm="sha256", stub_loads_kernel=True, shows_release=True)
NAMED = (4, 7, 8, 9, 11, 12)
"""Registers that a policy names of a boot."""
STEPS = 10
MEMORY_MIB = 4096
LOOP = """
import os

import torch
import sealtrain

if os.getuid() != 65531 or os.getgid() != 65531 or os.getgroups():
    raise SystemExit("the script is its keeper's user")
keeper = f"/proc/{os.getppid()}"
for place in (
    "/dev/tpm0", "/dev/tpmrm0", "/dev/vda", "/dev/dm-1", "/dev/console", "/dev/ttyS0", "/dev/kmsg",
    "/run/sealtrain/ticket.json", f"{keeper}/mem", f"{keeper}/environ", f"{keeper}/fd/0",
):
    try:
        open(place, "rb").close()
    except OSError:
        continue
    raise SystemExit("the script opens what is its keeper's")
torch.manual_seed(1)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loop = sealtrain.SealedLoop(model, optimizer)
for batch in loop.batches():
    lengths = torch.tensor([[float(len(text))] for text in batch["prompt"]])
    loss = (model(lengths / 100) - 1).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    loop.log(loss=loss)
sealtrain.sign_manifest(loop)
"""


class Story:
    """One machine and its consortium, in a folder.

    Args:
        folder: Empty.
        tools: Programs of Debian's.
        image: The guest's OCI layout.
        disk: Made of it.
    """

    def __init__(self, folder: Path, tools: Tools, image: Path, disk: Path) -> None:
        self.folder, self.tools, self.image, self.disk = folder, tools, image, disk
        self.state = ensure(folder / "root", system_clock())

    def predict(self, document: bytes, uki: bytes) -> dict[int, str]:
        """Registers of a boot, from its files alone."""
        with self.disk.open("rb") as file:
            table = PartitionTable.of_disk(file.read(GPT_BYTES))
        return {
            **measure_unified(uki, STUB),
            5: partition_register(table, "sha256"),
            8: "00" * 32,
            14: document_register(document, "sha256"),
        }

    def boot(
        self, name: str, files: Mapping[str, bytes], *, disk: Path | None = None, **words: Any
    ) -> list[str]:
        """Start a new machine with a TPM of its own; lines of its console."""
        folder = self.folder / name
        folder.mkdir()
        machine = SimulatedMachine(instance=name).der()
        provision(
            self.tools, folder / "tpm",
            lambda key: self.state.pki.certify_tpm(key, MACHINE_OID, machine),
        )  # fmt: skip
        config_drive(folder / "config", {"network": NETWORK, **files})
        began = time.monotonic()
        lines = boot_machine(self.tools, folder, self.disk if disk is None else disk, **words)
        print(f"== {name}: {time.monotonic() - began:.0f} s", flush=True)
        return lines


def disks(layout: Path, folder: Path, cache: Path) -> Path:
    """The disk, made twice; refused where a byte differs."""
    made = []
    for name in ("one", "another"):
        place = folder / name / "disk.raw"
        words = [ROOT / "tools/images/disk.py", layout, "--out", place, "--cache", cache]
        subprocess.run([sys.executable, *map(str, words)], check=True)  # noqa: S603
        made.append(place)
    digests = {file_sha256(place) for place in made}
    require("both builds of the disk are equal", len(digests) == 1)
    made[1].unlink()
    return made[0]


def require(what: str, holds: bool) -> None:
    """Say that something holds, or end."""
    print(f"{'ok' if holds else 'FAILED'}: {what}", flush=True)
    if not holds:
        raise SystemExit(1)


def compare(predicted: Mapping[int, str], read: Mapping[int, str]) -> None:
    """Show registers side by side, and end where one differs."""
    for index, value in sorted(predicted.items()):
        print(f"PCR {index:>2}  predicted {value}\n        read      {read.get(index)}")
    require("all predicted registers are those of the TPM", predicted.items() <= read.items())


def change_disk(disk: Path, out: Path, change: Any) -> Path:
    """A copy of a disk with a change: a function of the open file."""
    shutil.copyfile(disk, out)
    with out.open("r+b") as file:
        change(file)
    return out


def is_encrypted(folder: Path) -> bool:
    """Whether a guest wrote to its scratch disk, and no superblock of ext4 is on it."""
    with (folder / "scratch").open("rb") as file:
        start = file.read(4096)
    return any(start) and start[1024 + 56 : 1024 + 58] != b"\x53\xef"


def flip_root(file: Any) -> None:
    """One bit of the interpreter, which every start reads."""
    root = next(part for part in read_partitions(file) if part.name == "sealtrain-root")
    file.seek(root.start)
    at = root.start + file.read(root.size).index(b"\x7fELF")
    file.seek(at + 8)
    old = file.read(1)
    file.seek(at + 8)
    file.write(bytes([old[0] ^ 1]))


def other_line(file: Any) -> None:
    """Another command line: one word of the UKI."""
    boot = next(part for part in read_partitions(file) if part.name == "sealtrain-boot")
    file.seek(boot.start)
    at = boot.start + file.read(boot.size).index(b"quiet oops=panic")
    file.seek(at)
    file.write(b"debug oops=panic")


def boots(story: Story, seconds: int) -> None:
    """Registers, and what is refused before any key is asked for."""
    document = b'{"document": 1}'
    uki = story.disk.with_name(f"{story.disk.name}.uki").read_bytes()
    lines = story.boot("first", {"app-compose.json": document}, seconds=seconds, until="STOPPED")
    read = registers_of(lines)
    compare(story.predict(document, uki), read)
    require(
        "the kernel was locked, and started the root", any("STATE starting" in x for x in lines)
    )
    require("the scratch disk is written, and not in clear", is_encrypted(story.folder / "first"))
    broken = change_disk(story.disk, story.folder / "broken.raw", flip_root)
    lines = story.boot("broken", {"app-compose.json": document}, disk=broken, seconds=seconds)
    require("a root with one bit changed starts no program of its own", not registers_of(lines))
    require("the machine said why", any("verity" in line for line in lines))
    broken.unlink()
    line = change_disk(story.disk, story.folder / "line.raw", other_line)
    lines = story.boot(
        "line", {"app-compose.json": document + b" "}, disk=line, seconds=seconds, until="STOPPED"
    )
    other = registers_of(lines)
    require(
        "another command line has another PCR 4, 9 and 11",
        all(index in other and other[index] != read[index] for index in (4, 9, 11)),
    )
    require("another document has another PCR 14 alone", other[14] != read[14])
    line.unlink()


def trains(story: Story, seconds: int, *, whole: bool) -> None:
    """Keys by the TPM's quote, ten steps, a manifest that verifies.

    Args:
        story: Of the machine.
        seconds: At most, for each boot.
        whole: The guest may train; else it is stopped when it has its keys.
    """
    folder = story.folder
    uki = story.disk.with_name(f"{story.disk.name}.uki").read_bytes()
    policy = insecure_simulator_policy(story.state.pki.root_der, tee="test-vtpm").to_dict()
    values = story.predict(b"", uki)
    rules = {"tee": "test-vtpm", "boots": [{f"pcr{index}": values[index] for index in NAMED}]}
    guests = policy_from_dict({**policy, "cpu": rules}).to_dict()
    recipe = RECIPE | {
        "name": "guest-boot",
        "scripts": ["loop.py"],
        "trainer": RECIPE["trainer"] | {"max_steps": STEPS, "save_steps": STEPS},
        "hardware": RECIPE["hardware"] | {"tier": "cloud"},
    }
    (folder / "loop.py").write_text(LOOP)
    with broker(folder, None, guests=yaml_text(guests)) as part:
        document = locked(folder, story.image, recipe)
        sealed(folder, document)
        text = (folder / "broker.yaml").read_text().replace("127.0.0.1", HOST)
        (at,) = [line.split()[1] for line in text.splitlines() if line.startswith("url:")]
        with (
            served(folder / "sealed") as url,
            store_served(folder / "store") as store,
            recording(at.replace(HOST, "127.0.0.1")) as front,
        ):
            text = text.replace(at, front.url.replace("127.0.0.1", HOST))
            (folder / "guests-broker.yaml").write_text(text)
            reached = url.replace("127.0.0.1", HOST)
            data = [w for owner in OWNERS for w in ("--data", f"{reached}/{owner}.notes.sealed")]
            drives = {}
            for name in ("run", "other"):  # a guest that finds a run finished asks for no keys
                run(folder, "deploy", "ticket", "--role", "train", "--broker", "guests-broker.yaml",
                    *data, "--store", f"{store.replace('127.0.0.1', HOST)}/{name}", "--wait", "600",
                    "--out", f"{name}.ticket.json")  # fmt: skip
                drives[name] = {
                    "app-compose.json": document.read_bytes(),
                    "ticket.json": (folder / f"{name}.ticket.json").read_bytes(),
                }
            until = None if whole else "keys received"
            lines = story.boot(
                "training", drives["run"], seconds=seconds, memory=MEMORY_MIB, until=until
            )
            compare(story.predict(document.read_bytes(), uki), registers_of(lines))
            if whole:
                require("the guest ended its run", any("SEALTRAIN-ENDED 0" in x for x in lines))
                verifies(folder, document)
            replays(story, front, drives["other"], seconds)
        part.end()


def verifies(folder: Path, document: Path) -> None:
    """Judge the manifest that the guest left in its store."""
    words = ["--policy", "guests.yaml", "--broker", "broker.yaml", "--out", "trust.yaml"]
    run(folder, "trust", "new", "--consortium", "consortium.json", "--deployment", document,
        *words)  # fmt: skip
    report = run(folder, "verify", folder / "store/run/manifest.json", "--trust", "trust.yaml")
    require("the manifest verifies", report["accepted"] is True)
    require("it is marked as simulated", report["simulated"] is True)
    print(json.dumps(report, indent=1)[:2000], flush=True)


def replays(story: Story, front: RecordingFront, files: Mapping[str, bytes], seconds: int) -> None:
    """Show the quote of the boot that trained again, to a broker that released keys by it.

    Args:
        story: Of the machine.
        front: Has what the first boot asked.
        files: Of a second boot, with a store that has no run.
        seconds: At most, for that boot.
    """
    released = front.seen[0]
    require("the broker released keys by the first boot's quote", released.status == 200)
    again = front.post(released.request)
    print(f"the whole request again: {again.code}")
    require("the same request is refused", again.code == "challenge-replayed")
    fresh = front.challenge(released.request["consortium_id"])
    again = front.post({**released.request, "challenge": fresh})
    print(f"its quote under a fresh challenge: {again.code}")
    require("its quote answers no other challenge", again.code == "report-data-mismatch")
    quote = released.request["evidence"]
    before = len(front.seen)
    front.change = lambda request: {**request, "evidence": quote}
    story.boot("second", files, seconds=seconds, memory=MEMORY_MIB, until="SEALTRAIN-ENDED")
    codes = {seen.code for seen in front.seen[before:]}
    print(f"its quote in a second boot's place: {codes}")
    require("the first boot's quote is none of a second", codes == {"report-data-mismatch"})


def main() -> int:
    """Play the story."""
    words = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    words.add_argument("--only", choices=("boot", "train", "quotes"))
    words.add_argument("--image", help="image of deploy/images", default="guest-cpu")
    words.add_argument("--layout", type=Path, help="its OCI layout; made where it is left out")
    words.add_argument("--disk", type=Path, help="made of it; made twice where it is left out")
    words.add_argument("--cache", type=Path, default=ROOT / ".venv-vm")
    words.add_argument("--images", type=Path, default=ROOT / ".images", help="cache of packages")
    words.add_argument("--minutes", type=int, default=20, help="at most, for each boot")
    given = words.parse_args()
    problem = missing_for_debian()
    if problem is not None:
        words.error(problem)
    given.cache.mkdir(parents=True, exist_ok=True)
    tools = Tools.fetch(given.cache.resolve())
    with TemporaryDirectory(dir=given.cache) as place:
        folder = Path(place).resolve()
        layout = given.layout
        if layout is None:
            build = [ROOT / "tools/images/build.py", given.image, "--out", folder / "images"]
            build += ["--cache", given.images]
            subprocess.run([sys.executable, *map(str, build)], check=True)  # noqa: S603
            layout = folder / "images" / given.image
        disk = disks(layout.resolve(), folder, given.images) if given.disk is None else given.disk
        print(f"disk sha256:{file_sha256(disk)}", flush=True)
        (folder / "story").mkdir()
        story = Story(folder / "story", tools, layout.resolve(), disk.resolve())
        if given.only != "boot":
            trains(story, 60 * given.minutes, whole=given.only != "quotes")
        if given.only in (None, "boot"):
            boots(story, 60 * given.minutes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
