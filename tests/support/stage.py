"""A whole consortium of real processes: the command line as people type it, servers on loopback.

Everything lies under one folder, home and temporary folders of the processes included, so a test
can look at every byte that was written.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import yaml
from polling import wait_until
from ticketed import guest_words
from warm import CLOSED, STARTING, WARM, Warm, heavy, light, python_for
from world import RECIPE as BIOPSIES

from sealtrain.base.clock import system_clock
from sealtrain.base.yamltext import yaml_text
from sealtrain.cli.programs import Process, SideProgram
from sealtrain.client.broker_api import BrokerClient
from sealtrain.client.pin import load_pin
from sealtrain.consortium.approvals import Decision, sign_decision
from sealtrain.consortium.datasets import load_dataset_manifest
from sealtrain.consortium.decisions import DatasetPin
from sealtrain.errors import Unreachable
from sealtrain.keys.identity import Identity
from sealtrain.recipe.lock import LockedRecipe
from sealtrain.recipe.needs import needs_of

OWNERS = ("clinic-a", "clinic-b", "clinic-c")
CANARY = "canary-7d1f0c55e2"
DEADLINE_SECONDS = 120
MACHINE = ("--gpus", "2")
"""What every guest of a stage plays unless told: TDX with two accelerators."""
COLLATERAL = (
    "--collateral", "file:root/collateral.json",
    "--gpu-collateral", "file:root/gpu-collateral.json",
)  # fmt: skip

RECIPE: dict[str, Any] = BIOPSIES | {
    "name": "stage",
    "model": {
        "config": {
            "model_type": "llama",
            "vocab_size": 259,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "max_position_embeddings": 128,
        },
        "init_seed": 1,
        "tokenizer": {"kind": "bytes"},
    },
    "datasets": [
        *({"owner": owner, "name": "notes", "role": "train"} for owner in OWNERS),
        {"owner": "clinic-a", "name": "check", "role": "test"},
    ],
    "trainer": {
        "max_steps": 40,
        "per_device_train_batch_size": 4,
        "learning_rate": 0.003,
        "logging_steps": 5,
        "save_steps": 5,
        "max_length": 64,
        "seed": 3,
    },
    "peft": None,
    "release_policy": {
        "metrics": ["loss", "accuracy"],
        "round_to": 4,
        "model": {"recipients": ["clinic-a", "clinic-b"]},
    },
}


@dataclass
class Answer:
    """What a command said and how it ended."""

    code: int
    stdout: str
    stderr: str

    @property
    def data(self) -> Any:
        return json.loads(self.stdout)

    @property
    def error(self) -> str:
        return str(self.data["error"]["code"])


@dataclass
class Stage:
    """Folders, servers and commands of one consortium.

    Attributes:
        machine: What every guest plays.
        policy: The simulator's policy → the one that the broker is given.
        variables: Further ones of every process's environment.
        submitters: Who may submit runs besides the owners; they get identities.
        runners: Who may run them; the same.
        warm: Commands are forked from a process that has imported what they need.
        anew: Closed commands are not: they fork ranks before PyTorch is loaded, or need other
            packages than that process has.
        lease_seconds: How long the broker lends keys; its own default when ``None``.
    """

    folder: Path
    machine: Sequence[str] = MACHINE
    policy: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    variables: dict[str, str] = field(default_factory=dict)
    submitters: Sequence[str] = ()
    runners: Sequence[str] = ()
    warm: bool = WARM
    anew: bool = False
    lease_seconds: int | None = None
    stack: ExitStack = field(default_factory=ExitStack)

    @property
    def inputs(self) -> Path:
        return self.folder / "inputs"

    @property
    def deployment(self) -> Path:
        return self.folder / "engineer" / "app-compose.json"

    @property
    def lock(self) -> Path:
        return self.folder / "engineer" / "recipe.lock.json"

    @property
    def broker(self) -> Path:
        return self.folder / "broker.yaml"

    @property
    def trust(self) -> Path:
        return self.folder / "trust.yaml"

    @property
    def collateral(self) -> tuple[str, ...]:
        return COLLATERAL if "--gpus" in self.machine else COLLATERAL[:2]

    def identity(self, owner: str) -> Path:
        return self.folder / owner / f"{owner}.identity.json"

    def environment(self) -> dict[str, str]:
        """Nothing outside the stage may be written to."""
        for name in ("home", "tmp"):
            (self.folder / name).mkdir(exist_ok=True)
        home = str(self.folder / "home")
        return os.environ | {
            "HOME": home,
            "XDG_CACHE_HOME": home,
            "HF_HOME": home,
            "TMPDIR": str(self.folder / "tmp"),
            "OMP_NUM_THREADS": "1",
            **self.variables,
        }

    def command(self, *words: str | Path) -> list[str]:
        return [sys.executable, "-m", "sealtrain", *map(str, words)]

    def try_run(self, *words: str | Path) -> Answer:
        asked = [*map(str, words), "--json"]
        if self.forks(asked):
            done = self._warm(asked).run(
                asked,
                env=self.environment(),
                cwd=self.folder,
                timeout=DEADLINE_SECONDS,
                python=self._python(asked),
            )
        else:
            done = subprocess.run(
                self.command(*asked),
                capture_output=True,
                text=True,
                env=self.environment(),
                cwd=self.folder,
                timeout=DEADLINE_SECONDS,
            )
        return Answer(done.returncode, done.stdout, done.stderr)

    def start(
        self,
        words: Sequence[str],
        stdout: IO[bytes],
        stderr: IO[bytes],
        cwd: Path | None = None,
    ) -> Process:
        """Start a command in the stage's environment, as ``programs.Start``, and its folder."""
        where: dict[str, Any] = {"env": self.environment(), "cwd": cwd or self.folder}
        if self.forks(words):
            where["python"] = self._python(words)
            return self._warm(words).start(words, stdout=stdout, stderr=stderr, **where)
        return subprocess.Popen(self.command(*words), stdout=stdout, stderr=stderr, **where)

    def forks(self, words: Sequence[str]) -> bool:
        """Whether a command is forked from a warm process."""
        return self.warm and not (self.anew and _is_closed(words))

    def _warm(self, words: Sequence[str]) -> Warm:
        plain = not self.variables  # libraries read some of them when they are loaded
        return heavy(json.dumps(RECIPE)) if plain and _is_closed(words) else light()

    def _python(self, words: Sequence[str]) -> Path | None:
        """What a command that starts others starts them with."""
        if self.variables or self.anew or not {words[0], " ".join(words[:2])} & set(STARTING):
            return None
        recipe = json.dumps(RECIPE)
        if words[0] != "up" and "broker-compose.json" not in words:  # these train nothing
            heavy(recipe)
        return python_for(recipe)

    def run(self, *words: str | Path) -> Any:
        answer = self.try_run(*words)
        assert answer.code == 0, f"{words}: exit {answer.code}\n{answer.stdout}\n{answer.stderr}"
        return answer.data

    def serve(self, ready: str, *words: str | Path) -> str:
        """Start a server; return the last word of the line that says it is ready."""
        part = self.stack.enter_context(self.part(*words, answers=False))
        try:
            return part.place(ready, within=DEADLINE_SECONDS)
        except Unreachable as error:
            raise AssertionError("\n".join(part.read_stderr())) from error

    def part(self, *words: str | Path, answers: bool = True) -> SideProgram:
        """Start a command that runs beside the test. Use as a context: it is ended."""
        name = f"part-{words[0]}-{time.monotonic_ns()}"
        return SideProgram(name, self.folder, words, answers=answers, start=self.start)

    def found(self) -> None:
        """Identities, consortium, policy, broker and its guest."""
        self.meet()
        lease = [] if self.lease_seconds is None else ["--lease-seconds", str(self.lease_seconds)]
        self.run(
            "broker", "deployment", "--consortium", "consortium.json",
            "--policy", "policy.yaml", *lease,
        )  # fmt: skip
        self.run(
            "deploy", "ticket", "--role", "broker", "--listen", "127.0.0.1:0",
            "--out", "broker.ticket.json", *self._controllers(),
        )  # fmt: skip
        self.open_broker("broker")

    def meet(self) -> None:
        """Identities, consortium and policy."""
        for owner in OWNERS:
            self.run("keygen", owner, "--out", self.folder / owner)
        publics = [self.folder / owner / f"{owner}.public.json" for owner in OWNERS]
        self.run(
            "consortium", "create", "stage",
            *(word for path in publics for word in ("--owner", path)),
            "--approve", "2", "--out", self.folder / "consortium.json",
        )  # fmt: skip
        self.run(
            "simulator",
            "serve",
            "--simulator",
            "root",
            "--write-policy",
            "policy.yaml",
            *self.machine,
        )
        if self.policy is not None:
            path = self.folder / "policy.yaml"
            path.write_text(yaml_text(self.policy(yaml.safe_load(path.read_text()))))

    def _controllers(self) -> list[str]:
        words: list[str] = []
        for option, names in (("--submitter", self.submitters), ("--runner", self.runners)):
            for name in names:
                if not (self.folder / name).exists():  # one key may stand in both lists
                    self.run("keygen", name, "--out", self.folder / name)
                public = json.loads((self.folder / name / f"{name}.public.json").read_bytes())
                words += [option, f"{name}={public['signing_key']}"]
        return words

    def open_broker(self, name: str) -> dict[str, Any]:
        """A broker that its measured document starts, with a root secret of its own.

        Its state lies in the folder ``name``, and ``name.yaml`` pins it.
        """
        url = self.serve(
            "broker ready", "deploy", "run", "--deployment", "broker-compose.json",
            "--ticket", "broker.ticket.json", "--folder", name, "--simulator", "root",
            *self.machine,
        )  # fmt: skip
        pinned: dict[str, Any] = self.run(
            "broker", "pin", "--url", url, "--broker-deployment", "broker-compose.json",
            "--policy", "policy.yaml", "--out", f"{name}.yaml",
        )  # fmt: skip
        return pinned

    def boot(self, folder: Path) -> None:
        """A guest that measured the recipe of a folder, for ``train_words``."""
        self.serve(
            "guest API", "simulator", "serve", "--deployment", folder / "app-compose.json",
            "--socket", f"{folder.name}.sock", "--simulator", "root", *self.machine,
        )  # fmt: skip

    def propose(
        self,
        name: str,
        recipe: dict[str, Any],
        files: Mapping[str, str | bytes] | None = None,
        sources: dict[str, Path] | None = None,
    ) -> Path:
        """Lock a recipe in its own folder, boot a guest for it, seal and register the data.

        ``sources`` are sealed in place of records, by ``owner.name``.
        """
        folder = self.folder / name
        folder.mkdir()
        (folder / "recipe.yaml").write_text(yaml_text(recipe))
        for path, text in (files or {}).items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(text.encode() if isinstance(text, str) else text)
        self.run("lock", folder / "recipe.yaml", "--broker", self.broker, "--out", folder)
        self.boot(folder)
        self.inputs.mkdir(exist_ok=True)
        (folder / "sealed").mkdir()
        for dataset in recipe["datasets"]:
            owner, dataset_name = dataset["owner"], dataset["name"]
            source = (sources or {}).get(f"{owner}.{dataset_name}")
            if source is None:
                source = self.inputs / f"{owner}.{dataset_name}.jsonl"
                source.write_text(records(owner))
            self.run(
                "seal", source, "--name", dataset_name, "--identity", self.identity(owner),
                "--deployment", folder / "app-compose.json", "--broker", self.broker,
                "--out", folder / "sealed" / f"{owner}.{dataset_name}.sealed",
            )  # fmt: skip
        return folder

    def approve(self, folder: Path, *owners: str) -> None:
        for owner in owners:
            sealed = sorted((folder / "sealed").glob(f"{owner}.*"))
            self.run(
                "approve", "--deployment", folder / "app-compose.json",
                "--identity", self.identity(owner), "--broker", self.broker, "--yes",
                *(word for path in sealed for word in ("--data", path)),
            )  # fmt: skip

    def approve_until(self, folder: Path, owner: str, *, seconds: int) -> None:
        """An approval that is over soon, as the command line makes none."""
        locked = LockedRecipe.load(folder / "app-compose.json")
        lock, target = locked.lock, locked.target
        me = Identity.load(self.identity(owner))
        sealed = sorted((folder / "sealed").glob(f"{owner}.*"))
        manifests = [load_dataset_manifest(dataset, me.public) for dataset in sealed]
        now = system_clock()
        decision = Decision.approve(
            consortium_id=lock.consortium_id,
            brokers=lock.brokers,
            target=target,
            needs=needs_of(lock.recipe),
            datasets=[
                DatasetPin(dataset_id=manifest.dataset_id, root=manifest.root)
                for manifest in manifests
            ],
            signed_at=now,
            not_after=now + seconds,
        )
        pin = load_pin(self.broker)
        with BrokerClient(pin.url, signer=me.signer, broker=pin.broker_id) as client:
            client.hand_in("approval", sign_decision(decision, me.signer))

    def train_words(self, folder: Path, out: str, guest: str = "") -> list[str | Path]:
        return [
            "train", folder / "recipe.lock.json", "--platform", "simulator",
            "--guest", guest or f"{folder.name}.sock", *self.collateral,
            "--broker", self.broker, "--data", folder / "sealed", "--out", self.folder / out,
        ]  # fmt: skip

    def guest_words(
        self, folder: Path, out: Path, role: str, guest: str = "", **ticket: Any
    ) -> list[str | Path]:
        """The words that start a guest of a recipe's folder in a role.

        Args:
            folder: The recipe's.
            out: The guest's folder.
            role: Of its ticket.
            guest: Socket of its guest API, where it is another than the folder's.
            ticket: Further fields, as ``RunTicket`` has them.
        """
        socket = guest or f"{folder.name}.sock"
        return guest_words(
            folder / "recipe.lock.json", socket, out, *self.collateral, role=role, **ticket
        )

    def train_and_kill(self, folder: Path, out: str, when: Callable[[], bool]) -> None:
        """Start training and end it with SIGKILL as soon as ``when`` holds."""
        with self.part(*self.train_words(folder, out)) as training:
            wait_until(lambda: when() or training.gone)
            status = training.kill()
        assert status == -signal.SIGKILL, "training ended before it could be killed"


@contextmanager
def stage(
    folder: Path,
    *,
    machine: Sequence[str] = MACHINE,
    policy: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    submitters: Sequence[str] = (),
    runners: Sequence[str] = (),
    lease_seconds: int | None = None,
) -> Iterator[Stage]:
    made = Stage(
        folder,
        machine,
        policy,
        submitters=submitters,
        runners=runners,
        lease_seconds=lease_seconds,
    )
    with made.stack:
        made.found()
        yield made


def _is_closed(words: Sequence[str]) -> bool:
    return words[0] in CLOSED and words[1:2] != ["demo"]


def interpreter(*, trains: bool = True) -> str:
    """What tests start Python with: where they are warm, commands of sealtrain are forked then.

    Args:
        trains: Whether a command trains that is started so, or that such a command starts.
    """
    if not WARM:
        return sys.executable
    recipe = json.dumps(RECIPE)
    if trains:
        heavy(recipe)
    return str(python_for(recipe))


def records(owner: str) -> str:
    """Forty records of one owner, each with the canary."""
    rows = (
        {"prompt": f"{CANARY} {owner} {number % 8}:", "completion": f" {'ab'[number % 2]}"}
        for number in range(40)
    )
    return "".join(json.dumps(row) + "\n" for row in rows)
