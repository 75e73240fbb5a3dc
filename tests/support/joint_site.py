"""A broker, a simulated guest and three owners' sealed records for a recipe of several parties.

What owners type goes through the command line in this process; brokers and guest API are threads.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

from broker_site import BrokerSite, broker_site
from manifest_world import FEDERATED
from ticketed import guest_words
from typer.testing import CliRunner
from world import OWNERS, RECIPE

from sealtrain.base.encoding import to_base64
from sealtrain.base.yamltext import yaml_text
from sealtrain.cli import app
from sealtrain.client.broker_api import BrokerClient
from sealtrain.guest.settings import RunSettings
from sealtrain.manifest.trust import Trust, parse_trust
from sealtrain.recipe.lock import LockedRecipe, lock_recipe, measure_installation
from sealtrain.recipe.schema import load_recipe
from sealtrain_rehearsal.simulator.server import running as simulated_guest


@dataclass(kw_only=True)
class JointSite:
    """Where parties and lead find what they need."""

    site: BrokerSite
    client: BrokerClient
    broker: Path
    locked: LockedRecipe

    @property
    def folder(self) -> Path:
        return self.site.folder

    def settings(self, out: str) -> RunSettings:
        return RunSettings(
            lock=self.folder / "recipe.lock.json",
            platform="simulator",
            guest=str(self.folder / "joint.sock"),
            collateral=f"file:{self.folder / 'simulator' / 'collateral.json'}",
            brokers=(self.broker,),
            data=(self.folder / "sealed",),
            base=self.folder,
            out=self.folder / out,
        )

    def guest_words(self, name: str, role: str, **ticket: Any) -> list[str | Path]:
        """The words that start the guest of a folder in a role.

        Args:
            name: The guest's folder.
            role: Of its ticket.
            ticket: Further fields, as ``RunTicket`` has them.
        """
        settings = self.settings(name)
        return guest_words(
            settings.lock, settings.guest, settings.out,
            "--collateral", str(settings.collateral), "--base", settings.base,
            role=role, **ticket,
        )  # fmt: skip

    def trust(self) -> Trust:
        key = self.site.key(self.client)()
        keys = {"signing_keys": [to_base64(key)], "threshold": 1, "datasets": "all"}
        appraisal = self.site.pin.appraisal.to_dict()
        return parse_trust(self.site.trusting(brokers=keys, appraisal=appraisal))


def records(owner: str) -> str:
    """Six records of one owner, each with its name."""
    rows = ({"prompt": f"{owner} {number}:", "completion": " a"} for number in range(6))
    return "".join(json.dumps(row) + "\n" for row in rows)


@contextmanager
def joint_site(
    folder: Path, *, rows: Callable[[str], str] = records, **recipe: Any
) -> Iterator[JointSite]:
    """All approved; every party may begin. ``rows`` makes an owner's records, JSON lines."""
    # Each guest measures this installation: once is enough for all that are in this process.
    measured = cache(lambda: measure_installation(load_recipe(folder / "recipe.yaml")))
    once = patch("sealtrain.recipe.measure.measure_installation", lambda _recipe: measured())
    with once, broker_site(folder) as site, site.serving("state") as client:
        document = RECIPE | {"collaboration": FEDERATED} | recipe
        (folder / "recipe.yaml").write_text(yaml_text(document))
        locked = lock_recipe(
            folder / "recipe.yaml",
            consortium_id=site.consortium.consortium_id,
            brokers=[site.pin.broker_id],
        )
        locked.write(folder, overwrite=True)
        site.locked = locked
        broker = site.broker_file(client)
        (folder / "sealed").mkdir()
        for dataset in locked.lock.recipe.datasets:
            source = folder / f"{dataset.owner}.{dataset.name}.jsonl"
            source.write_text(rows(dataset.owner))
            typed(
                "seal", source, "--name", dataset.name,
                "--identity", folder / f"{dataset.owner}.identity.json",
                "--deployment", folder / "app-compose.json", "--broker", broker,
                "--out", folder / "sealed" / f"{dataset.owner}.{dataset.name}.sealed",
            )  # fmt: skip
        for owner in OWNERS[:2]:
            site.decide(client, owner)
        with simulated_guest(
            folder / "joint.sock", folder / "app-compose.json", folder / "simulator"
        ):
            yield JointSite(site=site, client=client, broker=broker, locked=locked)


def typed(*words: str | Path) -> Any:
    """A command of ours in this process."""
    done = CliRunner().invoke(app, [*map(str, words), "--json"])
    assert done.exit_code == 0, done.exception or done.output
    return json.loads(done.stdout)
