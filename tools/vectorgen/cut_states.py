"""Vectors of the sealed states of a cut run, made without sealtrain and torch.

Writes ``vectors/split-cut/{owner_shares,states,notes,agreements}.json``: what each owner gives
towards the key of the states, a server's folder and what opens of it, an owner's note, and which
states of both sides agree. Everything follows from the labels below, so a second run writes the
same bytes. Run: ``python tools/vectorgen/cut_states.py [FOLDER]``.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import struct
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parties import expand, joint, lp, run_id, share
from sealed_format import Made, canonical, core_of, derive, flip

OUT = Path(__file__).resolve().parents[2] / "vectors" / "split-cut"
PURPOSE = "cut-state"
RUN, OTHER_RUN = "5a" * 16, "a5" * 16
APP = "a1" * 20
COMPOSE, OTHER_COMPOSE = "b1" * 32, "b2" * 32
OWNERS = ("clinic-a", "clinic-b")
DATASETS = {"clinic-a": ["01" * 16, "03" * 16], "clinic-b": ["02" * 16]}
STEPS = {1: 2, 2: 4, 3: 6}
STARTED = "2026-01-02T03:04:05Z"
Files = dict[str, bytes]


def seed(label: str) -> bytes:
    """32 bytes that follow from the label."""
    return hashlib.shake_256(b"sealtrain cut state vectors " + label.encode()).digest(32)


def digest(label: str) -> str:
    """A digest of nothing that is there."""
    return hashlib.sha256(label.encode()).hexdigest()


def owner_share(owner: str, run: str = RUN, compose: str = COMPOSE) -> dict[str, Any]:
    """What an owner derives from its data keys (§5), with the steps between."""
    keys = {dataset: seed(dataset) for dataset in sorted(DATASETS[owner])}
    own = run_id(run, owner)
    extracted = hmac.digest(bytes(32), b"".join(keys.values()), "sha256")
    run_key = expand(extracted, lp("sealtrain/run-key/v1", APP, compose, own, *keys))
    return {
        "owner": owner,
        "data_keys": {dataset: key.hex() for dataset, key in keys.items()},
        "app_id": APP,
        "compose_hash": compose,
        "run_id": run,
        "own_run_id": own,
        "run_key": run_key.hex(),
        "share": share(run_key, PURPOSE).hex(),
    }


def owner_shares() -> list[dict[str, Any]]:
    """Each input changes the share."""
    return [
        {"name": name} | made
        for name, made in (
            ("an owner of two datasets", owner_share(OWNERS[0])),
            ("an owner of one", owner_share(OWNERS[1])),
            ("in another run", owner_share(OWNERS[1], run=OTHER_RUN)),
            ("in another deployment", owner_share(OWNERS[1], compose=OTHER_COMPOSE)),
        )
    ]


SHARES = {owner: owner_share(owner)["share"] for owner in OWNERS}
KEY = joint({owner: bytes.fromhex(share) for owner, share in SHARES.items()}, PURPOSE, COMPOSE, RUN)


LENGTH = "fixed:512"
"""Of the plaintext of every checkpoint ([checkpoint] §2.1), which is far longer in a real run."""


def blob(
    folder: str, name: str, binding: dict[str, Any], content: bytes, padding: str = "none"
) -> Made:
    """A sealed blob of the server's folder."""
    key = derive(derive(KEY, folder), "store", RUN)
    core = core_of(
        dataset_id="", owner_id="", name=f"{RUN}/{name}", kind="blob", binding=binding,
        padding=padding,
    )  # fmt: skip
    return Made(content, key=key, core=core, salt=f"{folder} {name}")


def checkpoint_content(step: int) -> bytes:
    """A training state of one tensor and one number ([checkpoint] §2)."""
    outline = {
        "dict": [
            ["step", step],
            ["trained", {"dict": [["weight", {"tensor": "trained.weight"}]]}],
        ]
    }
    data = struct.pack("<4f", *weights(step))
    table = {
        "__metadata__": {"state": json.dumps(outline)},
        "trained.weight": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, len(data)]},
    }
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def weights(step: int) -> list[float]:
    """Numbers of the tensor, exact in float32."""
    return [step / 8, -step / 4, 0.5, 1.0 - step]


def list_arrived(counter: int) -> dict[str, Any]:
    """Which messages had come until a state."""
    return {
        "joined": {OWNERS[0]: 1767323046, OWNERS[1]: 1767323050},
        "datasets": {
            dataset: {
                "digests": {str(n): digest(f"{dataset} {n}") for n in range(counter)},
                "size": 1000 * counter,
            }
            for owner in OWNERS
            for dataset in DATASETS[owner]
        },
    }


@dataclass(frozen=True)
class State:
    """A sealed state: its name, and the files that make it."""

    named: dict[str, Any]
    journal: dict[str, Any]
    files: Files

    @property
    def paths(self) -> dict[str, str]:
        """By folder."""
        return {path.split("/")[0]: path for path in self.files}


def state(counter: int, before: list[State], *, previous: str | None = None) -> State:
    """The state after those before it."""
    step = STEPS[counter]
    chain = [logged.named for logged in before]
    follows = chain[-1]["digest"] if chain and previous is None else previous
    name = f"checkpoint-{counter:08d}-{step:010d}"
    binding = {"run_id": RUN, "counter": counter, "step": step, "previous": follows or ""}
    checkpoint = blob("checkpoints", name, binding, checkpoint_content(step), LENGTH)
    root = checkpoint.root().hex()
    named = {"counter": counter, "step": step, "digest": root, "previous": follows}
    events: list[tuple[str, dict[str, Any]]] = [
        ("cut.begun", {"layers": 2, "wire": "int8", "spf_share": 0}),
        *(
            ("checkpoint.sealed", {key: certificate[key] for key in ("counter", "step", "digest")})
            for certificate in [*chain, named]
        ),
    ]
    journal = {
        "log": [
            {"seq": place, "at": STARTED, "event": event, "fields": fields}
            for place, (event, fields) in enumerate(events, 1)
        ],
        "started_at": STARTED,
        "releases": [],
        "resumes": [],
        "history": [{"step": step, "values": {"loss": 0.5}}],
        "served": {},
        "wall_s": counter + 0.25,
    }
    parts = {
        f"checkpoints/{name}.sealed": checkpoint,
        f"arrived/arrived-{counter:08d}.sealed": came(counter, root, list_arrived(counter)),
        f"journal/journal-{counter:08d}.sealed": blob(
            "journal", f"journal-{counter:08d}", {"counter": counter}, canonical(journal), "bucket"
        ),
    }
    return State(named, journal, {path: made.file() for path, made in parts.items()})


def came(counter: int, checkpoint: str, document: dict[str, Any]) -> Made:
    """The blob of what had arrived, for a checkpoint of this digest."""
    binding = {"counter": counter, "checkpoint": checkpoint}
    return blob("arrived", f"arrived-{counter:08d}", binding, canonical(document))


def states() -> dict[str, Any]:
    """A server's folder with three states, and what becomes of it in other states of repair."""
    one = state(1, [])
    two = state(2, [one])
    three = state(3, [one, two])
    files = one.files | two.files | three.files
    branch = state(3, [one, two], previous=digest("another branch"))
    at = three.paths
    torn = files[at["checkpoints"]][:-100]
    altered = flip(files[at["checkpoints"]], 100)  # in its header
    misnamed = at["checkpoints"].replace("-0000000006", "-0000000007")
    odd = came(3, three.named["digest"], list_arrived(3) | {"left": {}}).file()
    elsewhere = came(3, two.named["digest"], list_arrived(3)).file()
    other_shares = SHARES | {OWNERS[1]: owner_share(OWNERS[1], run=OTHER_RUN)["share"]}
    cases: list[dict[str, Any]] = []

    def add(
        name: str,
        opens: State | None,
        *,
        missing: tuple[str, ...] = (),
        replaced: Files | None = None,
        **other: Any,
    ) -> None:
        cases.append({
            "name": name, "outcome": "ok", "missing": list(missing),
            "replaced": {path: base64.b64encode(data).decode()
                         for path, data in (replaced or {}).items()},
            "shares": SHARES, "run_id": RUN, "compose_hash": COMPOSE,
            "newest": None if opens is None else opens.named,
            "weights": None if opens is None else weights(opens.named["step"]),
            "arrived": None if opens is None else list_arrived(opens.named["counter"]),
            "journal": None if opens is None else opens.journal,
        } | other)  # fmt: skip

    def refuse(name: str, **given: Any) -> None:
        add(name, None, outcome="checkpoint-refused", **given)

    add("three states", three)
    add("the first state alone", one, missing=(*two.files, *three.files))
    add("no state", None, missing=tuple(files))
    add("a checkpoint without a journal", two, missing=(at["journal"],))
    add("a checkpoint alone", two, missing=(at["journal"], at["arrived"]))
    add("a torn checkpoint", two, replaced={at["checkpoints"]: torn})
    add("the first state is not kept any more", three, missing=tuple(one.files))
    add("a file of another name", three, replaced={"checkpoints/notes.sealed": b"notes"})
    refuse("the share of one owner", shares={OWNERS[0]: SHARES[OWNERS[0]]})
    refuse("an owner with another share", shares=other_shares)
    refuse("another deployment", compose_hash=OTHER_COMPOSE)
    refuse("another run", run_id=OTHER_RUN)
    refuse("an altered checkpoint", replaced={at["checkpoints"]: altered})
    refuse("nothing that arrived", missing=(at["arrived"],))
    refuse("what arrived until another checkpoint", replaced={at["arrived"]: elsewhere})
    refuse("what arrived with a field too many", replaced={at["arrived"]: odd})
    altered = flip(files[at["journal"]], len(files[at["journal"]]) // 2)
    refuse("an altered journal", replaced={at["journal"]: altered})
    refuse("the journal of another counter", replaced={at["journal"]: files[two.paths["journal"]]})
    refuse("a checkpoint of another branch", replaced=branch.files)
    refuse(
        "a checkpoint under another step",
        missing=(at["checkpoints"],),
        replaced={misnamed: files[at["checkpoints"]]},
    )
    return {
        "key": KEY.hex(),
        "files": {path: base64.b64encode(data).decode() for path, data in files.items()},
        "cases": cases,
    }


def name_state(counter: int, step: int, branch: str = "") -> dict[str, Any]:
    """A sealed state by name only."""
    previous = digest(f"state {counter - 1}") if counter > 1 else None
    return {
        "counter": counter,
        "step": step,
        "digest": digest(f"state {counter}{branch}"),
        "previous": previous,
    }


def notes() -> list[dict[str, Any]]:
    """``cut.json`` of an owner."""
    first, second = name_state(1, 2), name_state(2, 4)
    whole = {"version": 1, "run_id": RUN, "sealed": second}
    bad = "data-invalid"
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("before the first state", whole | {"sealed": None}, "ok"),
        ("the first state", whole | {"sealed": first}, "ok"),
        ("a later state", whole, "ok"),
        ("another version", whole | {"version": 2}, bad),
        ("a field too many", whole | {"owner": OWNERS[0]}, bad),
        ("half a run id", whole | {"run_id": "5a" * 8}, bad),
        ("no run id", {"version": 1, "sealed": None}, bad),
        ("no state and no null", {"version": 1, "run_id": RUN}, bad),
        ("a counter of zero", whole | {"sealed": first | {"counter": 0}}, bad),
        ("a step below zero", whole | {"sealed": first | {"step": -1}}, bad),
        ("a digest in capitals", whole | {"sealed": first | {"digest": "AB" * 32}}, bad),
        ("a state with a field too many", whole | {"sealed": first | {"run_id": RUN}}, bad),
    ]
    made = [
        {"name": name, "note": canonical(document).decode(), "outcome": outcome}
        for name, document, outcome in cases
    ]
    spaced = json.dumps(whole, sort_keys=True)
    return [*made, {"name": "not canonical", "note": spaced, "outcome": bad}]


def agreements() -> list[dict[str, Any]]:
    """What a server goes on from and what an owner noted."""
    one, two, three = name_state(1, 2), name_state(2, 4), name_state(3, 6)
    bad = "checkpoint-refused"
    cases: list[tuple[str, dict[str, Any] | None, dict[str, Any] | None, str]] = [
        ("no state on either side", None, None, "ok"),
        ("an owner without a note", three, None, "ok"),
        ("the same state", two, two, "ok"),
        ("the state after the noted one", three, two, "ok"),
        ("the first two states", two, one, "ok"),
        ("a server without a state", None, one, bad),
        ("a server with the state before", two, three, bad),
        ("a server two states ahead", three, one, bad),
        ("a server on another branch", name_state(2, 4, " of a branch"), two, bad),
        ("a server that follows another branch", three, name_state(2, 4, " of a branch"), bad),
        ("a later state of an earlier step", three | {"step": 3}, two, bad),
        ("the same digest with another step", two | {"step": 5}, two, bad),
    ]
    return [
        {"name": name, "server": server, "noted": noted, "outcome": outcome}
        for name, server, noted, outcome in cases
    ]


def main(folder: Path) -> None:
    """Write the files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (
        ("owner_shares", {"cases": owner_shares()}),
        ("states", states()),
        ("notes", {"cases": notes()}),
        ("agreements", {"cases": agreements()}),
    ):
        text = json.dumps({"spec": "spec/split-cut.md"} | content, indent=1)
        (folder / f"{name}.json").write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else OUT)
