"""An enclave image file of this source boots, and a broker in it proves what it is.

QEMU's ``microvm`` is the enclave, under TCG; Linux's own drivers see a vsock and a security module
whose other ends are here. The parent is the product's, nitro-cli a stand-in. ``make enclave-boot``
fetches what is needed and plays this; without it, the test is skipped.
"""

from __future__ import annotations

import hashlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from enclave_boot import STARTS_WITHIN, PlayedParent, image_file
from nitro_world import PKI
from world import founded, simulated_policy

from sealtrain.attest.nitro.verify import compose_register, verify_document
from sealtrain.attest.report_data import Binding
from sealtrain.base.clock import system_clock
from sealtrain.base.digests import sha256_hex
from sealtrain.client.broker_api import BrokerClient
from sealtrain.client.ticket import parse_ticket
from sealtrain.errors import EvidenceRefused
from sealtrain.guest.enclave.launch import EnclaveLaunch, plan_launch
from sealtrain.guest.enclave.parent import EnclaveStage, Parent, ParentMachine
from sealtrain.guest.enclave.tunnels import Tunnels
from sealtrain.image.machine.enclavefile import measure_enclave
from sealtrain.recipe.document import frame_of
from sealtrain.release.messages import IDENTITY_PURPOSE

pytestmark = [
    pytest.mark.long,
    pytest.mark.nightly,
    pytest.mark.claim("C674"),
    pytest.mark.timeout(3600),
]

CACHE = os.environ.get("SEALTRAIN_ENCLAVE")


@pytest.fixture(scope="module")
def cache() -> Path:
    if CACHE is None:
        pytest.skip("no enclave boots here: make enclave-boot fetches QEMU and a kernel")
    return Path(CACHE)


@pytest.fixture(scope="module")
def eif(cache: Path) -> bytes:
    return image_file(cache, "broker")


def broker_document(image: str, folder: Path) -> bytes:
    from sealtrain.broker.config import BrokerConfig
    from sealtrain.broker.service.deployment import document_of

    (folder / "consortium.json").write_bytes(founded().to_bytes())
    (folder / "policy.yaml").write_text(yaml.safe_dump(simulated_policy().to_dict()))
    config = BrokerConfig(
        consortium=folder / "consortium.json",
        policy=folder / "policy.yaml",
        root_secret="file:/run-data/root.secret",
        state=Path("state"),
        guest="",
        collateral=None,
        platform="nitro",
    )
    return document_of(config, image=f"registry.example/broker@{image}").to_bytes()


@pytest.fixture
def started(tmp_path: Path, eif: bytes, cache: Path) -> Iterator[tuple[PlayedParent, bytes]]:
    from sealtrain.image.layout import describe_image

    played = PlayedParent(tmp_path, eif, cache / "trixie-backports/files")
    document = broker_document(describe_image(cache / "images/broker").digest, tmp_path)
    yield played, document
    played.enclave.__exit__(None, None, None)
    print(*played.enclave.console, sep="\n")


def launched(eif: bytes, document: bytes) -> EnclaveLaunch:
    return plan_launch(
        Path("image.eif"),
        eif,
        document,
        frame_of(document),
        parse_ticket(b'{"version":1,"role":"broker","collateral":"https://pccs.example"}'),
        config=None,
        files={"collateral.json": b"of no quote here"},
    )


def test_a_broker_in_an_enclave_shows_the_registers_of_its_image_file(
    started: tuple[PlayedParent, bytes], eif: bytes
) -> None:
    played, document = started
    listener = socket.create_server(("127.0.0.1", 0))
    stages: list[EnclaveStage] = []

    def told(stage: EnclaveStage) -> None:
        stages.append(stage)
        played.say(f"{stage.stage} {stage.code or ''}")

    launch = launched(eif, document)
    machine = ParentMachine(
        cli=played.cli,
        vsock=played,
        tunnels=Tunnels(launch.servers),
        publish=lambda _: listener,
    )
    parent = Parent(launch, machine, on_stage=told, hand_in_seconds=STARTS_WITHIN)
    thread = threading.Thread(target=parent.run, daemon=True)
    thread.start()
    nonce = hashlib.sha256(b"nonce").digest()
    identity = asked(f"http://127.0.0.1:{listener.getsockname()[1]}", nonce, thread)
    played.say("the broker proved itself")
    shown = identity.evidence.cpu
    found = verify_document(shown.document_bytes, simulator_root=PKI.root_der, now=system_clock())
    measured = measure_enclave(eif)
    print(*(f"PCR {n}  {measured[n]}  {found.pcrs[n]}" for n in (0, 1, 2)), sep="\n")
    assert {number: found.pcrs[number] for number in (0, 1, 2)} == measured
    assert found.pcrs[16] == compose_register(sha256_hex(document)).hex()
    assert shown.app_compose.encode() == document
    made_for = Binding(IDENTITY_PURPOSE, identity.transcript()).report_data()
    assert found.document.user_data == made_for
    assert [stage.stage for stage in stages] == ["measured", "started"]
    with pytest.raises(
        EvidenceRefused
    ):  # the root is a simulator's: no policy for hardware takes it
        verify_document(shown.document_bytes, simulator_root=None, now=system_clock())


def asked(url: str, nonce: bytes, thread: threading.Thread) -> Any:
    """The broker's identity, once it serves."""
    from sealtrain.errors import SealtrainError

    until = time.monotonic() + STARTS_WITHIN
    while True:
        try:
            with BrokerClient(url) as client:
                return client.identity(nonce.hex())
        except SealtrainError:
            assert thread.is_alive()
            if time.monotonic() > until:
                raise
            time.sleep(5)
