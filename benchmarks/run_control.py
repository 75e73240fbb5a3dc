"""How soon does a broker with 100,000 entries answer about runs, and a command that asks it?

A broker in a process of its own, its ledger in a file, filled with refusals of many runs. Asked
over HTTP on loopback: ``run list``'s page, a submission, and entries of a run, a submission, a
document and a kind. Then the commands, as a person types them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from broker_site import BrokerSite, broker_site
from world import identity

from measured_on import machine
from sealtrain.base.clock import system_clock, to_rfc3339
from sealtrain.cli.programs import ran
from sealtrain.client.broker_api import BrokerClient
from sealtrain.client.ticket import RunTicket
from sealtrain.consortium.submissions import Submission, sign_control
from sealtrain.keys.derive import signing_key
from sealtrain.keys.uris import root_secret
from sealtrain.ledger.ledger import Ledger
from sealtrain.recipe.lock import LockedRecipe
from sealtrain.release.messages import ledger_origin

OWNER: Final = "hospital-a"
BARS: Final = {"query": 0.05, "submit": 1.0, "list": 0.5}


def filled(site: BrokerSite, entries: int) -> str:
    """A ledger of so many entries in the folder ``state``; a run's id that many of them name."""
    site.state("state").mkdir()
    key = signing_key(root_secret(site.fields["root_secret"]), "broker")
    origin = ledger_origin(site.consortium.consortium_id)
    runs = [os.urandom(16).hex() for _ in range(500)]
    target = site.target.to_dict()
    with Ledger.open(
        site.state("state") / "ledger.sqlite", origin=origin, signer=key, clock=system_clock
    ) as ledger:
        for start in range(0, entries, 5000):
            ledger.append_all(
                (
                    "refusal",
                    {
                        "action": "renewal",
                        "code": "approvals-missing",
                        "check": "approvals",
                        "run_id": runs[(start + place) % len(runs)],
                        **target,
                        "transcript_digest": os.urandom(32).hex(),
                    },
                )
                for place in range(min(5000, entries - start))
            )
    return runs[0]


def submissions(client: BrokerClient, site: BrokerSite, count: int) -> str:
    """Submit so many; the last one's id."""
    signer, now, last = identity(OWNER).signer, system_clock(), ""
    pin = site.pin.to_dict() | {"url": client.url}
    ticket = {"version": 1, "role": "train", "brokers": [pin], "data": ["/sealed"]}
    for number in range(count):
        made = Submission.of(
            consortium_id=site.consortium.consortium_id,
            target=site.target,
            name=f"run-{number}",
            ticket=ticket,
            submitter=signer.key_id,
            signed_at=now,
            not_after=now + 3600,
        )
        last = client.post_control(Submission, sign_control(made, signer)).submission_id
    return last


def timed(act: Callable[[], Any], rounds: int) -> list[float]:
    """Seconds of each round, after one that does not count."""
    act()
    found = []
    for _ in range(rounds):
        began = time.perf_counter()
        act()
        found.append(time.perf_counter() - began)
    return found


def measured(entries: int, rounds: int) -> dict[str, Any]:
    """Seconds by what was asked."""
    with tempfile.TemporaryDirectory() as place, broker_site(Path(place)) as site:
        run_id = filled(site, entries)
        with site.broker("state") as client, site.owner(client, OWNER) as owner:
            submission_id = submissions(owner, site, 100)
            compose = site.target.compose_hash
            asked: dict[str, Callable[[], Any]] = {
                "page of submissions": lambda: client.submissions(),
                "open submissions": lambda: client.submissions(open_only=True),
                "submission by name": lambda: client.submissions(name="run-50"),
                "one submission": lambda: client.submission(submission_id),
                "entries of a run": lambda: client.ledger_search(run_id=run_id),
                "of a run and a kind": lambda: client.ledger_search(run_id=run_id, kind="refusal"),
                "of a submission": lambda: client.ledger_search(submission_id=submission_id),
                "of a document": lambda: client.ledger_search(compose_hash=compose),
                "of a document, from the middle": lambda: client.ledger_search(
                    compose_hash=compose, start=entries // 2
                ),
                "of a kind": lambda: client.ledger_search(kind="submission"),
            }
            queries = {name: timed(act, rounds) for name, act in asked.items()}
            return {
                "entries": entries + 100,
                "queries": {name: _summary(each) for name, each in queries.items()},
                "commands": _commands(site, client, max(3, rounds // 8)),
            }


def _commands(site: BrokerSite, client: BrokerClient, rounds: int) -> dict[str, Any]:
    folder = site.folder
    ticket = folder / "guest.ticket.json"
    given = RunTicket(
        version=1, role="train", data=("/sealed",),
        brokers=(site.pin.model_copy(update={"url": client.url}),),
    )  # fmt: skip
    ticket.write_bytes(given.to_bytes())
    broker = site.broker_file(client)
    names = iter(f"typed-{number}" for number in range(1000))
    _ = LockedRecipe.load(site.deployment)

    def submit() -> None:
        ran(
            "run", "submit", next(names), "--ticket", ticket, "--deployment", site.deployment,
            "--broker", broker, "--identity", folder / f"{OWNER}.identity.json",
        )  # fmt: skip

    return {
        "run submit": _summary(timed(submit, rounds)),
        "run list": _summary(timed(lambda: ran("run", "list", "--broker", broker), rounds)),
    }


def _summary(seconds: list[float]) -> dict[str, float]:
    return {"median": statistics.median(seconds), "most": max(seconds)}


def main() -> None:
    """Measure and print; exits 1 where a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--entries", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--json", action="store_true")
    words = parser.parse_args()
    found = measured(words.entries, words.rounds)
    found = {"machine": machine(), "measured_at": to_rfc3339(system_clock()), **found}
    if words.json:
        print(json.dumps(found, indent=2))
    else:
        print(f"{found['entries']} entries")
        for group in ("queries", "commands"):
            for name, each in found[group].items():
                print(f"{name:<32} {each['median'] * 1000:8.1f} ms  {each['most'] * 1000:8.1f} ms")
    late = [name for name, each in found["queries"].items() if each["median"] > BARS["query"]]
    late += [name for name, bar in (("run submit", "submit"), ("run list", "list"))
             if found["commands"][name]["median"] > BARS[bar]]  # fmt: skip
    sys.exit(f"too slow: {', '.join(late)}" if late else 0)


if __name__ == "__main__":
    main()
