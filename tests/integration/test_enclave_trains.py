"""A small training in an enclave: keys from a broker outside, a manifest that both verifiers take.

The image file of ``guest-cpu`` boots as in ``test_enclave_boots``, of a document of platform
``simulator``: its evidence is of kind ``test-nitro``. The broker's policy names the test root and
the registers that ``image measure --eif`` prints. Everything that the guest reaches, it reaches
through the parent's tunnels.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from contained import OWNERS, RECIPE, broker, locked, run, sealed, served
from enclave_boot import STARTS_WITHIN, PlayedParent, image_file
from nitro_world import PKI
from private_network import Authority
from second_verifier import Question, compare
from tls_front import secured

from sealtrain.attest.nitro.parse import parse_document
from sealtrain.attest.nitro.verify import compose_register
from sealtrain.attest.policy import policy_from_dict
from sealtrain.attest.presets import insecure_simulator_policy
from sealtrain.base.clock import system_clock
from sealtrain.base.digests import sha256_hex
from sealtrain.base.encoding import from_base64
from sealtrain.base.yamltext import yaml_text
from sealtrain.client.ticket import load_ticket
from sealtrain.guest.enclave.launch import plan_launch
from sealtrain.guest.enclave.parent import EnclaveStage, Parent, ParentMachine
from sealtrain.guest.enclave.tunnels import Tunnels
from sealtrain.image.machine.enclavefile import measure_enclave
from sealtrain.manifest.trust import load_trust
from sealtrain.recipe.document import frame_of
from sealtrain_rehearsal.rehearsed_store import store_served

pytestmark = [
    pytest.mark.long,
    pytest.mark.nightly,
    pytest.mark.claim("C756"),
    pytest.mark.timeout(3600),
]

CACHE = os.environ.get("SEALTRAIN_ENCLAVE")
STEPS = 3
LOOP = """
import torch
import sealtrain

for place in ("/dev/nsm", "/run/sealtrain/ticket.json", "/var/run/dstack.sock"):
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


@pytest.fixture(scope="module")
def cache() -> Path:
    if CACHE is None:
        pytest.skip("no enclave boots here: make enclave-boot fetches QEMU and a kernel")
    return Path(CACHE)


@pytest.fixture
def fronts(tmp_path: Path) -> Iterator[Any]:
    """Plain server of this machine, name → its ``https`` URL inside the enclave."""
    authority = Authority(tmp_path / "authority")
    with ExitStack() as open_fronts:

        def front(url: str, name: str) -> str:
            certificate = authority.server(name)
            port = open_fronts.enter_context(secured(int(url.rpartition(":")[2]), certificate))
            return f"https://{name}:{port}"

        yield front


def guests_policy(measured: dict[int, str]) -> dict[str, Any]:
    """What the broker and the verifiers ask of the enclave."""
    policy = insecure_simulator_policy(PKI.root_der, tee="test-nitro").to_dict()
    rules = {
        "tee": "test-nitro",
        "images": [{f"pcr{index}": measured[index] for index in (0, 1, 2)}],
        "max_age_s": 600,
    }
    return policy_from_dict({**policy, "cpu": rules}).to_dict()


def test_a_small_training_in_an_enclave_ends_in_a_manifest_that_verifies(
    tmp_path: Path, cache: Path, fronts: Any
) -> None:
    folder, layout = tmp_path, cache / "images/guest-cpu"
    eif = image_file(cache, "guest-cpu")
    measured = measure_enclave(eif)
    recipe = RECIPE | {
        "name": "enclave",
        "scripts": ["loop.py"],
        "trainer": RECIPE["trainer"] | {"max_steps": STEPS, "save_steps": STEPS},
        "hardware": RECIPE["hardware"] | {"tier": "cloud"},
        "release_policy": RECIPE["release_policy"] | {"logs": "structured"},
    }
    (folder / "loop.py").write_text(LOOP)
    stages: list[EnclaveStage] = []
    guests = yaml_text(guests_policy(measured))
    with (
        broker(folder, None, guests=guests) as part,
        store_served(folder / "store") as store,
    ):
        document = locked(folder, layout, recipe)
        sealed(folder, document)
        with served(folder / "sealed") as url:
            plain = (folder / "broker.yaml").read_text()
            (at,) = [line.split()[1] for line in plain.splitlines() if line.startswith("url:")]
            there = plain.replace(at, fronts(at, "broker.example"))
            (folder / "guests-broker.yaml").write_text(there)
            reached, kept = fronts(url, "data.example"), fronts(store, "store.example")
            data = [w for owner in OWNERS for w in ("--data", f"{reached}/{owner}.notes.sealed")]
            run(folder, "deploy", "ticket", "--role", "train", "--broker", "guests-broker.yaml",
                *data, "--store", f"{kept}/run", "--wait", "600",
                "--ca-file", folder / "authority/Bank CA.pem", "--out", "ticket.json")  # fmt: skip
            launch = plan_launch(
                Path("image.eif"),
                eif,
                document.read_bytes(),
                frame_of(document.read_bytes()),
                load_ticket((folder / "ticket.json").absolute()),
                config=None,
            )
            (folder / "vm").mkdir()
            played = PlayedParent(folder / "vm", eif, cache / "trixie-backports/files")
            del eif

            def tell(stage: EnclaveStage) -> None:
                stages.append(stage)
                played.say(f"{stage.stage} {stage.code or ''}")

            def reach(address: tuple[str, int]) -> socket.socket:
                played.say(f"a tunnel to {address[0]}")
                return reach_here(address)

            machine = ParentMachine(
                cli=played.cli,
                vsock=played,
                tunnels=Tunnels(launch.servers, reach=reach, on_refusal=played.say),
                publish=None,
            )
            parent = Parent(launch, machine, on_stage=tell, hand_in_seconds=STARTS_WITHIN)
            try:
                ended = parent.run()
            finally:
                played.enclave.__exit__(None, None, None)
                print(*played.enclave.console, sep="\n")
                print((folder / "broker-part.log").read_text())
                show_times(folder / "store", played.began_at)
        assert (ended.status, ended.code) == (0, "ended")
        assert [stage.stage for stage in stages] == ["measured", "started", "ended"]
        manifest = folder / "store/run/manifest.json"
        require_registers(manifest, measured, document.read_bytes())
        words = ["--policy", "guests.yaml", "--broker", "broker.yaml", "--out", "trust.yaml"]
        run(folder, "trust", "new", "--consortium", "consortium.json", "--deployment", document,
            *words)  # fmt: skip
        report = run(folder, "verify", manifest, "--trust", "trust.yaml")
        assert report["accepted"] is True
        assert report["simulated"] is True
        trust = load_trust(folder / "trust.yaml")
        question = Question(
            label="of an enclave", manifest=manifest.read_bytes(), trust=trust, artefacts=None,
            now=system_clock(),
        )  # fmt: skip
        found = compare([question])
        assert found.verdicts == {"verified": 1}
        assert not found.disagreements
        part.end()


def reach_here(address: tuple[str, int]) -> socket.socket:
    """Every name is this machine's."""
    return socket.create_connection(("127.0.0.1", address[1]), timeout=30)


def show_times(store: Path, began: float) -> None:
    """Say when each file came into the store."""
    came = sorted((path.stat().st_mtime - began, path) for path in store.rglob("*"))
    print(*(f"{seconds:7.1f} s  {path.relative_to(store)}" for seconds, path in came), sep="\n")


def require_registers(manifest: Path, measured: dict[int, str], document: bytes) -> None:
    """The enclave's document in the manifest shows the image file and the deployment document."""
    envelope = json.loads(manifest.read_bytes())["evidence"]
    cpu = json.loads(from_base64(envelope["payload"]))["cpu"]
    assert cpu["tee"] == "test-nitro"
    shown = {
        n: value.hex() for n, value in parse_document(from_base64(cpu["document"])).pcrs.items()
    }
    expected = {**measured, 16: compose_register(sha256_hex(document)).hex()}
    for number, value in expected.items():
        print(f"PCR {number:>2}  predicted {value}\n        read      {shown.get(number)}")
    assert expected.items() <= shown.items()
