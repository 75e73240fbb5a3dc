"""A console over a real broker and folders of runs, visited in a real Chromium."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from broker_site import BrokerSite, broker_site
from manifest_world import RUN_ID, START, World, make_world, run_log
from node_judges import node
from npm_world import AXE, node_modules
from programs import need
from storage_world import Server
from storage_world import serving as storing

from sealtrain.base.yamltext import yaml_text
from sealtrain.client.broker_api import BrokerClient
from sealtrain.sealing.datakey import DataKey
from sealtrain.sealing.store import SealedStore
from sealtrain.storage.outputs import OutputStore
from sealtrain_console.web.app import NavigationPage, console_app
from sealtrain_console.web.consortium import CONSORTIUM
from sealtrain_console.web.curves import Curves
from sealtrain_console.web.runs import RUNS
from sealtrain_console.web.serving import serving
from sealtrain_console.web.sources import Sources

DRIVER = Path(__file__).with_name("pages_in_chromium.mjs")
LIVE_ID = "7e" * 16
FORGED_ID = "bd" * 16
PAGES: tuple[NavigationPage, ...] = (CONSORTIUM, RUNS)


@dataclass(kw_only=True)
class ConsoleWorld:
    """A consortium whose console runs in this process.

    ``audited`` made the manifests; ``stores`` serves the output stores ``done`` and ``live``.
    """

    folder: Path
    site: BrokerSite
    client: BrokerClient
    sources: Sources
    url: str
    audited: World
    stores: Server

    @property
    def compose_hash(self) -> str:
        return self.site.locked.compose_hash

    def pages(self) -> list[str]:
        """Every page, whole."""
        recipe = f"/consortium/{self.compose_hash}"
        runs = [f"/runs/{name}" for name in (RUN_ID, LIVE_ID, FORGED_ID)]
        paths = ["/consortium", recipe, "/runs", *runs, compared_path(), "/nowhere"]
        return [self.url + path for path in paths]


def compared_path(*run_ids: str) -> str:
    """The page of runs side by side: a verified and a refused one where none is named."""
    return "/runs/compared?" + "&".join(f"run={name}" for name in run_ids or (RUN_ID, FORGED_ID))


def visited(
    visits: Sequence[Mapping[str, Any]], *, judged: bool = False, authenticator: bool = False
) -> list[dict[str, Any]]:
    """What Chromium found on each visit; skips the test where there is no Chromium."""
    chromium = need("chromium")["chromium"]
    axe = str(node_modules(AXE) / "axe-core/axe.min.js") if judged else None
    job = {"axe": axe, "authenticator": authenticator, "visits": list(visits)}
    done = subprocess.run(
        [node(), str(DRIVER), chromium],
        input=json.dumps(job),
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answers: list[dict[str, Any]] = json.loads(done.stdout)["visits"]
    return answers


def live_run(folder: Path, *, points: int = 300, run_id: str = LIVE_ID) -> Path:
    """A run's folder as a guest leaves it while it trains."""
    folder.mkdir(parents=True)
    run = {
        "version": 1,
        "run_id": run_id,
        "lock": "recipe.lock.json",
        "platform": "simulator",
        "guest": "guest.sock",
        "collateral": None,
        "gpu_collateral": None,
        "brokers": [],
        "data": [],
        "base": ".",
    }
    (folder / "run.json").write_text(json.dumps(run))
    lock = {"recipe": {"trainer": {"max_steps": 2 * points}}}  # no whole one: steps are read of it
    (folder / "recipe.lock.json").write_text(json.dumps(lock))
    with (folder / "metrics.jsonl").open("w") as file:
        for step in range(1, points + 1):
            file.write(json.dumps({"step": step, "values": measured(step)}) + "\n")
    (folder / "alerts.jsonl").write_text(
        json.dumps({"alert": "loss-diverges", "step": 120, "threshold": 2.0}) + "\n"
    )
    return folder


def measured(step: int) -> dict[str, float]:
    loss = 2 / math.sqrt(step) + 0.1 * math.sin(step / 9)
    return {
        "loss": round(loss, 4),
        "accuracy": round(1 - loss / 3, 4),
        "memory_bytes": 2.1e9,
        "tokens_per_second": 1800.0 + step % 40,
    }


def completed_run(folder: Path, audited: World, manifest: bytes | None = None) -> Path:
    """A run's folder as it is left: the sealed model, and the manifest or another one."""
    shutil.copytree(audited.artefacts, folder)
    (folder / "manifest.json").write_bytes(audited.manifest() if manifest is None else manifest)
    return folder


def forged(audited: World) -> bytes:
    """A manifest, signed and quoted, whose releases are another run's."""

    def change(document: dict[str, Any]) -> None:
        document["run"]["run_id"] = FORGED_ID
        document["run_log"] = run_log(FORGED_ID)

    return audited.manifest(change)


def leave_live(store: Server, name: str, out: Path, compose_hash: str) -> None:
    """Two sealed checkpoints of the live run, in a store."""
    key = DataKey(bytes(32))
    for number in (1, 2):
        for part, file in (
            ("checkpoints", f"checkpoint-{number:08d}-{number * 100:010d}"),
            ("journal", f"journal-{number:08d}"),
        ):
            with SealedStore(out / part, key, label=part).write(file, {}) as sealed:
                sealed.write(bytes(4000 * number))
            os.utime(out / part / f"{file}.sealed", (START + number * 60,) * 2)
    OutputStore(store.folder(name), compose_hash).leave(
        out, run_id=LIVE_ID, state="checkpointed", attempts=1
    )


@contextmanager
def console_world(folder: Path, **changed: Any) -> Iterator[ConsoleWorld]:
    """A console whose broker has one approval; runs are a completed, a live and a forged one."""
    with ExitStack() as stack:
        site = stack.enter_context(broker_site(folder / "site"))
        client = stack.enter_context(site.serving("state"))
        site.decide(client, "hospital-a")
        runs = folder / "runs"
        live_run(runs / "live")
        audited = make_world(folder / "manifests")
        done = completed_run(runs / "completed", audited)
        completed_run(runs / "forged", audited, forged(audited))
        trust = folder / "trust.yaml"
        trust.write_text(yaml_text(audited.trust_document()))
        stores = stack.enter_context(storing(folder / "stores"))
        compose_hash = audited.locked.compose_hash
        OutputStore(stores.folder("done"), compose_hash).leave(
            done, run_id=RUN_ID, state="completed", attempts=1
        )
        leave_live(stores, "live", folder / "left", compose_hash)
        given: dict[str, Any] = {
            "consortium": site.folder / "consortium.json",
            "brokers": (site.broker_file(client),),
            "deployments": (site.deployment,),
            "runs": (runs,),
            "stores": (f"{stores.url}/done", f"{stores.url}/live"),
            "trusts": (trust,),
        }
        sources = Sources(**{**given, **changed})
        app = console_app(PAGES, {"sources": sources, "curves": Curves()})
        url = stack.enter_context(serving(app))
        yield ConsoleWorld(
            folder=folder,
            site=site,
            client=client,
            sources=sources,
            url=url,
            audited=audited,
            stores=stores,
        )
