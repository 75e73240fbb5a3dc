"""Kill every role of a run together at random moments, let it go on, and list what came of it.

    python examples/killed_together.py [--kind KIND] [--out DIR] [--seed N] [--json]

``--kind`` is ``federated``, or ``travelling``, ``pads`` or ``cut``, whose roles are in
``collaboration/killed_travel.py`` and ``killed_split.py``. What follows is of ``federated``.

The story of ``sealtrain federate demo`` on the simulator, with Flower's own processes: the lead,
each hospital's guest, a SuperNode and the SuperLink are ended with SIGKILL, each once, in a random
order and at a random moment after another round. Guests are started again in the folder that they
began in; Flower's processes have a supervisor, and the SuperLink comes back at another address.
The manifest is verified and the model opened. Exits with 1 unless every round was merged of enough
hospitals and the run log shows each loss as ``peer-unreachable``, never as an attack.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from collaboration.federate_story import HOSPITALS, RECIPE, Stage, records
from sealtrain.cli.programs import SideProgram
from sealtrain.errors import Unreachable
from sealtrain_rehearsal.rehearsal import run_log

WITHIN_S = 600.0
POLL_S = 0.1
LEAD = "lead"
LINK = "superlink"
NODE = "supernode"
MERGED = "round.merged"
KINDS = ("federated", "travelling", "pads", "cut")
ROUNDS = len(HOSPITALS) + 4


class Killed(Stage):
    """A federation whose roles are killed, one after the other.

    Args:
        out: New folder for everything that is made.
        drawn: Draws order and moments.
    """

    def __init__(self, out: Path, drawn: random.Random) -> None:
        super().__init__(out, lambda line: print(line, file=sys.stderr))
        self._drawn = drawn
        self.seen: list[dict[str, Any]] = []

    def _train(self, path: Path) -> dict[str, Any]:
        from sealtrain_together.federated.flower import Flower

        flower = self._stack.enter_context(Flower(self.out / "flower"))
        flower.open_link()
        for hospital in HOSPITALS:
            flower.add_node(hospital, self._relay(hospital))
        ticket = self._ticket(LEAD, LEAD, *self._brokers, "--base", path.resolve().parent)
        self._lead_words = self._prepare_start(LEAD, ticket)
        self._path = path
        parts = {LEAD: self._part("lead-0", *self._lead_words)}
        self._run_id = parts[LEAD].place("federation ready", within=WITHIN_S)
        for hospital in HOSPITALS:
            parts[hospital] = self._again(hospital, 0)
        flower.run_app(self._relay(LEAD))
        flower.watch()
        roles = [LEAD, *HOSPITALS, NODE, LINK]
        self._drawn.shuffle(roles)
        for number, role in enumerate(roles, 1):
            told = self._told(parts[LEAD], number)
            self._say(f"round {told} was merged")
            time.sleep(self._drawn.uniform(0.0, 2.0))
            gone = parts[LEAD if role in (NODE, LINK) else role].gone
            before = time.monotonic()
            if role == LINK:
                flower.kill_link(moves=True)
            elif role == NODE:
                flower.kill_node(self._drawn.choice(HOSPITALS))
            else:
                parts[role].kill()
                parts[role] = self._again(role, number)
                ready = "federation ready" if role == LEAD else "party ready"
                parts[role].line(ready, within=WITHIN_S)
            seen = {
                "role": role,
                "after_round": told,
                "over_already": gone,
                "back_after_s": round(time.monotonic() - before, 1),
            }
            self._say(f"killed {role} after round {told}; seen after {seen['back_after_s']} s")
            self.seen.append(seen)
        return {"trained": parts[LEAD].wait_for_end(within=WITHIN_S)}

    def _again(self, role: str, number: int) -> SideProgram:
        if role == LEAD:
            return self._part(f"lead-{number}", *self._lead_words)
        return self._joined(self._path, f"{role}-{number}", role, self._run_id)

    def _told(self, lead: SideProgram, least: int) -> int:
        """The newest round that a lead told of, once it is so far; of what another lead told, 0."""
        until = time.monotonic() + WITHIN_S
        while time.monotonic() < until:
            gone = lead.gone
            words = [line.split() for line in lead.read_stderr() if line.startswith("round ")]
            newest = max((int(word[1]) for word in words), default=0)
            if newest >= least or gone:
                return newest
            time.sleep(POLL_S)
        raise Unreachable("the lead tells of no further round", hint=f"see {lead.log}")


def saw(log: Sequence[Mapping[str, Any]], after: int, until: int) -> str:
    """What the run log tells between two rounds, the first of which a role was killed after.

    Args:
        log: The run log.
        after: The round that was merged last before the kill.
        until: A later round, which another kill came after; the last one.
    """
    ends = {
        entry["fields"]["round"]: at for at, entry in enumerate(log) if entry["event"] == MERGED
    }
    told = []
    for entry in log[ends.get(after, 0) : ends.get(until, len(log))]:
        fields = entry["fields"]
        if entry["event"] == "party.left":
            told.append(f"{fields['party']} left [{fields['code']}]")
        elif entry["event"] == "party.joined":
            told.append(f"{fields['party']} came back")
        elif entry["event"] == "run.resumed":
            told.append("the lead went on from its sealed state")
    return ", ".join(told) or "nothing: the rounds went on"


def played(kind: str, out: Path, drawn: random.Random, as_json: bool) -> bool:
    """Play another kind than ``federated``, and list it; whether it held."""
    sys.path.insert(0, str(Path(__file__).parent / "collaboration"))
    from killed_split import play_cut, play_pads
    from killed_travel import play as play_travel

    play = {"travelling": play_travel, "pads": play_pads, "cut": play_cut}[kind]
    told = play(out, drawn, lambda line: print(line, file=sys.stderr))
    if as_json:
        print(json.dumps({"simulated": True, **told}, indent=2))
    else:
        for killed in told["killed"]:
            print(f"{killed['kind']:12}{killed['role']:24}{killed['saw']}")
        print(f"verified    {told['checks']} checks passed")
    return bool(told["held"])


def main() -> None:
    """Play it."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--kind", choices=KINDS, default=KINDS[0])
    parser.add_argument("--out", type=Path, default=Path("killed-together"))
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--seed", type=int, default=None, help="of order and moments; default: any")
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if given.kind != KINDS[0]:
        if not played(given.kind, given.out, random.Random(given.seed), given.json):  # noqa: S311
            raise SystemExit(1)
        return
    steps = RECIPE["collaboration"]["local_steps"]
    recipe = RECIPE | {
        "trainer": RECIPE["trainer"] | {"max_steps": ROUNDS * steps},
        "collaboration": RECIPE["collaboration"] | {"rounds": ROUNDS, "joining_days": 1},
    }
    with Killed(given.out, random.Random(given.seed)) as stage:  # noqa: S311 - no secret
        done = stage.play_recipe(recipe, records(stage.out / "records"))
        seen = stage.seen
    log = run_log(done)
    merged = [entry["fields"]["parties"] for entry in log if entry["event"] == MERGED]
    for event in seen:  # kills after one round share what was told until the next one's
        later = [
            other["after_round"] for other in seen if other["after_round"] > event["after_round"]
        ]
        event["saw"] = saw(log, event["after_round"], min([*later, ROUNDS]))
    codes = sorted({entry["fields"]["code"] for entry in log if entry["event"] == "party.left"})
    resumes = sum(entry["event"] == "run.resumed" for entry in log)
    checks = sum(check["outcome"] == "passed" for check in done["verified"]["checks"])
    held = len(merged) == ROUNDS and set(codes) <= {"peer-unreachable"}
    if given.json:
        answer = {"simulated": True, "killed": seen, "merged": merged, "codes": codes}
        print(json.dumps(answer | {"resumes": resumes, "checks": checks, "held": held}, indent=2))
    else:
        for killed in seen:
            print(f"{killed['role']:12}killed after round {killed['after_round']}, back in "
                  f"{killed['back_after_s']} s: {killed['saw']}")  # fmt: skip
        for number, parties in enumerate(merged, 1):
            print(f"round {number}     merged of {', '.join(parties)}")
        print(f"lost as     {', '.join(codes)}; the lead was resumed {resumes} times")
        print(f"verified    {checks} checks passed")
    if not held:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
