"""A server's guest as a process and three owners' clients: from consents to a verified manifest."""

from __future__ import annotations

import json
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from collecting import COLLECTING
from joint_site import JointSite, joint_site
from polling import wait_until
from stage import RECIPE as SHARED
from warm import starting
from world import OWNERS, RECIPE

from sealtrain.base.clock import system_clock
from sealtrain.base.hostport import host_and_port
from sealtrain.cli.programs import SideProgram
from sealtrain.client.connection import own_key
from sealtrain.errors import SealtrainError
from sealtrain.keys.identity import Identity
from sealtrain.manifest import form
from sealtrain.manifest.verify import verify_manifest
from sealtrain_together.cut.guest.send import Sending, Sent, send

if not COLLECTING:
    from cut_world import DECODER_CONFIG

pytestmark = [
    pytest.mark.long,
    pytest.mark.slow,
    pytest.mark.timeout(280),
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),
    pytest.mark.usefixtures("one_thread"),
]
WITHIN_S = 240.0
CUT = {"kind": "cut", "policy": "policy.yaml", "layers": 2, "spf_share": 0.05, "wire": "int8"}


def serving(at: JointSite) -> SideProgram:
    words = at.guest_words("run", "server", brokers=[at.broker])
    return SideProgram("server", at.folder, words, start=starting(SHARED))


def sending(at: JointSite, owner: str, server: tuple[str, int], **changed: Any) -> Sending:
    me = Identity.load(at.folder / f"{owner}.identity.json")
    values: dict[str, Any] = {
        "deployment": at.folder / "app-compose.json",
        "server": server,
        "me": me,
        "consortium": at.site.consortium,
        "data": (at.folder / "sealed",),
        "base": at.folder,
        "out": at.folder / f"{owner}-run",
        "key_of": lambda folder: own_key(folder, me),
        "patience": 120.0,
        "wait": 120.0,
    }
    return Sending(**values | changed)


def test_a_cut_run_ends_in_a_manifest_that_every_owner_holds_and_verifies(tmp_path: Path) -> None:
    recipe: dict[str, Any] = {
        "model": RECIPE["model"] | {"config": DECODER_CONFIG},
        "trainer": {"max_steps": 4, "per_device_train_batch_size": 4, "max_length": 32},
        "collaboration": CUT,
        "release_policy": RECIPE["release_policy"] | {"logs": "structured"},
    }
    with joint_site(tmp_path, **recipe) as at:
        with serving(at) as server:
            address = host_and_port(server.place("cut server ready", within=WITHIN_S))
            done: dict[str, Sent | SealtrainError] = {}

            def serve(owner: str) -> None:
                try:
                    done[owner] = send(
                        sending(at, owner, address), ready=lambda: None, on_sent=lambda _size: None
                    )
                except SealtrainError as error:
                    done[owner] = error

            threads = [
                threading.Thread(target=serve, args=(owner,), daemon=True) for owner in OWNERS
            ]
            for thread in threads:
                thread.start()
            answer = server.wait_for_end(within=WITHIN_S)
            for thread in threads:
                thread.join(WITHIN_S)
        manifest = (tmp_path / "run" / "manifest.json").read_bytes()
        report = verify_manifest(
            manifest, at.trust(), artefacts=tmp_path / "run", now=system_clock()
        )
        sent = {owner: answer for owner, answer in done.items() if isinstance(answer, Sent)}
        assert sorted(sent) == list(OWNERS), done
        assert all(
            answer.manifest.read_bytes() == manifest and answer.bytes for answer in sent.values()
        )
        assert all(run.run_id == answer["run_id"] for run in sent.values())
    outcomes = {check.name: check.outcome for check in report.checks}
    assert set(outcomes.values()) == {"passed"}
    predicate = form.read(manifest).predicate
    assert predicate.collaboration is not None
    assert [party.name for party in predicate.collaboration.parties] == list(OWNERS)
    assert not predicate.releases
    limits = {limit.id for limit in predicate.limits}
    assert {"activations-reveal", "clients-word"} <= limits
    assert "records-not-counted" not in limits
    entries = [(entry["event"], entry["fields"]) for entry in predicate.run_log.entries]
    (counted,) = [fields for event, fields in entries if event == "data.counted"]
    sent = {
        fields["dataset_id"]: fields["rows"] for event, fields in entries if event == "cut.received"
    }
    assert set(counted) <= set(sent)
    for dataset_id, item in counted.items():
        assert sent[dataset_id] <= item["whole"] + item["truncated"] <= item["records"]
    files = {file.name for file in predicate.outputs.files}
    assert {"model/adapter_model.safetensors.sealed", "model/sparse.safetensors.sealed"} <= files


@pytest.mark.nightly
def test_a_server_under_its_supervisor_outlives_a_kill(tmp_path: Path) -> None:
    recipe: dict[str, Any] = {
        "model": RECIPE["model"] | {"config": DECODER_CONFIG},
        "trainer": {"max_steps": 4, "per_device_train_batch_size": 4, "max_length": 32},
        "collaboration": CUT,
    }
    with joint_site(tmp_path, **recipe) as at:
        words = at.guest_words("run", "server", brokers=[at.broker], restarts=1)
        with SideProgram("server", at.folder, words, start=starting(SHARED)) as server:
            _, port = host_and_port(server.place("cut server ready", within=WITHIN_S))
            inside = psutil.Process(server.pid).children(recursive=True)
            (run,) = (process for process in inside if port in listening(process))
            run.kill()
            server.line("paused [rank-lost]", within=WITHIN_S)
            wait_until(
                lambda: sum("cut server ready" in line for line in server.read_stderr()) >= 2,
                WITHIN_S,
            )
            status = json.loads((tmp_path / "status.json").read_bytes())
            assert (status["state"], status["attempts"]) == ("started", 2)


def listening(process: psutil.Process) -> set[int]:
    with suppress(psutil.NoSuchProcess):  # short-lived ones come and go around a run
        return {
            connection.laddr.port
            for connection in process.net_connections()
            if connection.status == "LISTEN"
        }
    return set()
