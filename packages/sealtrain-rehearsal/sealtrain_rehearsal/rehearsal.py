"""The stage of a rehearsal: folders, servers, and sealtrain commands as processes of their own."""

from __future__ import annotations

import secrets
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from sealtrain.base.files import atomic_write, make_folder
from sealtrain.base.yamltext import yaml_text
from sealtrain.cli.learnable_records import judge_data
from sealtrain.cli.output import require_text, say
from sealtrain.cli.programs import SideProgram, ran, start_tied
from sealtrain.cli.runoptions import ANYWHERE
from sealtrain.cli.signals import Ending
from sealtrain.errors import AlreadyExists, UsageError
from sealtrain.guest.sandbox.rehearsal import INSECURE_SHOW
from sealtrain.keys.shares import check_threshold
from sealtrain.manifest import form
from sealtrain.owner.data_fitness import layout_words, seal_words
from sealtrain.recipe.backends import guests_of
from sealtrain.recipe.fitness import require_fitness
from sealtrain.recipe.records import dataset_of
from sealtrain.recipe.schema import load_recipe
from sealtrain.recipe.terms import expect_data
from sealtrain.sealing.trainedmodel import RUN_MANIFEST
from sealtrain.training.basefiles import BASE_FILES

if TYPE_CHECKING:
    from sealtrain.recipe.recipe import PhaseRecipe

_STARTS_WITHIN_S: Final = 180
_JOINS_WITHIN: Final = "10m"
_TRIES: Final = 64
_LOWEST_PORT: Final = 10_000
_NO_PORT: Final = 1 << 16
_CHOSEN_BY_KERNEL: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LINUX_CHOOSES_FROM: Final = 32_768

ON_SIMULATOR: Final[dict[str, Any]] = {
    "version": 1,
    "privacy": {"dp": "none"},
    "hardware": {
        "platforms": ["simulator"],
        "tier": "processor",
        "image": None,
        "key_provider": "none",
        "key_provider_id": None,
    },
}
"""What the recipes of all demos have in common."""


_MARK: Final = ".rehearsal"
"""A file that says who made the folder: --force removes no other."""
_MARK_TEXT: Final = b"made by a rehearsal of sealtrain\n"


def _require_own(out: Path, *, force: bool) -> None:
    """Refuse a folder that is to stay.

    Raises:
        AlreadyExists: No rehearsal made it, or it is not to be removed.
    """
    made = not out.is_symlink() and (out / _MARK).is_file()
    if force and made:
        return
    raise AlreadyExists(
        f"{out} is not empty",
        got="an earlier rehearsal" if made else "a folder that no rehearsal made",
        hint="remove it first: --force, or choose another --out"
        if made
        else "choose another --out, or remove it",
    )


def _unmark(out: Path) -> None:
    """Remove the mark from a folder that holds nothing else, so that the folder goes, too."""
    with suppress(FileNotFoundError):
        if [path.name for path in out.iterdir()] == [_MARK]:
            (out / _MARK).unlink()


class Rehearsal:
    """Plays owners, engineer, broker, guest and auditor in one folder."""

    def __init__(
        self,
        out: Path,
        say: Callable[[str], None],
        machine: tuple[str, ...] = (),
        *,
        brokers: int = 1,
        threshold: int | None = None,
        insecure_shown: bool = False,
        force: bool = False,
    ) -> None:
        """Prepare a stage.

        Args:
            out: New folder for everything that is made.
            say: Called with a line for each step.
            machine: Options of ``sealtrain simulator`` that say what every guest plays.
            brokers: How many brokers there are; each holds a share where there are several.
            threshold: How many of several open the data.
            insecure_shown: Training shows what libraries and scripts print, and whole tracebacks:
                for data that may be shown.
            force: Remove ``out`` first, where an earlier rehearsal made it.

        Raises:
            AlreadyExists: ``out`` is there and not empty, and no rehearsal made it or ``force`` is
                false.
            UsageError: Brokers and threshold do not go together.
        """
        if threshold is not None or brokers > 1:
            check_threshold(threshold or 0, brokers)
        require_text(out, "--out")  # its paths go into documents
        self._count = brokers
        self._threshold = threshold
        self._open = insecure_shown
        self.out = out.resolve()
        self._deployment = self.out / "engineer" / "app-compose.json"
        self._sealed = self.out / "sealed"
        self._say = say
        self._machine = machine
        self._stack = ExitStack()
        if self.out.exists() and any(self.out.iterdir()):
            _require_own(out, force=force)
            shutil.rmtree(self.out)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            # SIGTERM ends it as Ctrl-C does, its servers and its sockets with it.
            self._ending = stack.enter_context(Ending())
            stack.enter_context(make_folder(self.out))  # a refusal leaves no empty one
            stack.callback(_unmark, self.out)
            atomic_write(self.out / _MARK, _MARK_TEXT)
            # A socket's path has at most 107 characters, wherever the rehearsal lies.
            sockets = tempfile.TemporaryDirectory(prefix="sealtrain-")
            self._sockets = Path(stack.enter_context(sockets))
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ending.calm()
        self._stack.__exit__(kind, error, traceback)

    def play(
        self,
        path: Path,
        recipe: PhaseRecipe,
        data: Mapping[str, str],
        seal_as: Mapping[str, str],
        *,
        on_records: Callable[[str, list[dict[str, Any]]], None] | None = None,
    ) -> dict[str, Any]:
        """Everything from founding to verification.

        Args:
            path: The recipe's file.
            recipe: What is in it.
            data: ``owner.name`` → file or folder to seal.
            seal_as: ``owner.name`` → further words for ``sealtrain seal``.
            on_records: Called with ``owner.name`` and the first records of data that fit, before
                anything is made.

        Returns:
            Answers of ``train`` and ``verify``, and paths of report and opened model.

        Raises:
            UsageError: ``data`` does not fit the recipe's datasets.
            SealtrainError: Whatever a step refused.
        """
        wanted = expect_data(recipe.datasets, data)
        if not set(seal_as) <= set(wanted):
            raise UsageError("options for a dataset the recipe does not name", got=min(seal_as))
        if not recipe.release_policy.model.recipients:
            raise UsageError(
                "a rehearsal opens the model in the end, and no owner can open one handed on",
                check="release_policy.model",
                hint="rehearse the recipe with recipients in place of handed_on",
            )
        people = sorted({*recipe.owners, *recipe.release_policy.model.recipients})
        self._say("checking recipe and data")
        require_fitness(recipe, path.parent, people)
        for key in wanted:
            owner, _, name = key.partition(".")
            if dataset_of(recipe, owner, name).role != "model":
                chosen = layout_words(seal_words(seal_as.get(key, "")))
                found = judge_data(recipe, path.parent, owner, name, Path(data[key]), chosen)
                if found.lessons.tally.trained < found.lessons.tally.records:
                    self._say(f"{key}: {found.lessons.words}")
                if on_records is not None and found.first:
                    on_records(key, found.first)
        self._found_consortium(people)
        self._trust_machines()
        self._open_brokers()
        self._lock(path, recipe.name)
        for key in wanted:
            self._seal(key, Path(data[key]), seal_words(seal_as.get(key, "")))
        for owner in recipe.owners:
            self._approve(owner)
        trained = self._train(path)
        run = Path(trained["trained"]["manifest"]).parent
        return trained | self._verify(recipe.release_policy.model.recipients[0], run)

    def play_recipe(
        self,
        recipe: Mapping[str, Any],
        data: Mapping[str, Path],
        seal_as: Mapping[str, str] = MappingProxyType({}),
    ) -> dict[str, Any]:
        """As ``play``, with a recipe that is written to ``recipe_file`` first."""
        self.recipe_file.write_text(yaml_text(dict(recipe)))
        files = {key: str(path) for key, path in data.items()}
        return self.play(self.recipe_file, load_recipe(self.recipe_file), files, seal_as)

    @property
    def recipe_file(self) -> Path:
        """Where ``play_recipe`` writes its recipe."""
        return self.out / "recipe.yaml"

    def _found_consortium(self, people: list[str]) -> None:
        self._say(f"founding a consortium of {len(people)}; all must approve")
        publics: list[str | Path] = []
        for name in people:
            self._run("keygen", name, "--out", self.out / name)
            publics += ["--owner", self.out / name / f"{name}.public.json"]
        self._run(
            "consortium", "create", "rehearsal", *publics, "--approve", str(len(people)),
            "--out", self._consortium,
        )  # fmt: skip

    def _trust_machines(self) -> None:
        """The policy of every part, before the lock: a recipe may name it."""
        self._run(
            "simulator",
            "serve",
            "--simulator",
            self._root,
            "--write-policy",
            self._policy,
            *self._machine,
        )

    def _lock(self, path: Path, name: str) -> None:
        self._say(f"locking recipe {name}")
        self._run(
            "lock", path, "--consortium", self._consortium, *self._brokers,
            "--out", self.out / "engineer",
        )  # fmt: skip

    def _open_brokers(self) -> None:
        named = "a broker" if self._count == 1 else f"{self._count} brokers"
        self._say(f"starting {named} in a simulated guest")
        policy, compose = self._policy, self.out / "broker-compose.json"
        self._run(
            "broker", "deployment", "--consortium", self._consortium, "--policy", policy,
            "--out", compose,
        )  # fmt: skip
        ticket = self._ticket("broker", "broker", "--listen", ANYWHERE, *self._controllers())
        for file in self._broker_files:
            url = self.serve(
                "broker ready", *self._prepare_start(f"{file.stem}-guest", ticket, document=compose)
            )
            self._run(
                "broker", "pin", "--url", url, "--broker-deployment", compose, "--policy", policy,
                "--out", file,
            )  # fmt: skip

    def _controllers(self) -> tuple[str, ...]:
        """Words for the brokers' ticket that name runners."""
        return ()

    def _seal(self, key: str, source: Path, words: list[str]) -> None:
        owner, _, name = key.partition(".")
        self._say(f"sealing {name} of {owner}")
        self._sealed.mkdir(exist_ok=True)
        self._run(
            "seal", source, "--name", name, "--identity", self._identity(owner),
            "--deployment", self._deployment, *self._brokers, *self._at_least,
            "--out", self._sealed / f"{key}.sealed", *words,
        )  # fmt: skip

    def _approve(self, owner: str) -> None:
        self._say(f"{owner} approves")
        pins: list[str | Path] = []
        for folder in sorted(self._sealed.glob(f"{owner}.*.sealed")):
            pins += ["--data", folder]
        self._run(
            "approve", "--deployment", self._deployment, "--identity", self._identity(owner),
            *self._brokers, "--consortium", self._consortium, *pins, "--yes",
        )  # fmt: skip

    def _train(self, path: Path) -> dict[str, Any]:
        ticket = self._training(path, *self._nodes(path))
        self._say("training")
        return {"trained": self._run(*self._prepare_start("guest", ticket), shown=True)}

    def _nodes(self, path: Path) -> tuple[str, ...]:
        """Start the other nodes, where the recipe has several; the words that let them join."""
        count = guests_of(load_recipe(path))
        if count == 1:
            return ()
        place = f"127.0.0.1:{free_ports(1 + load_recipe(path).backend.ranks)}"
        for node in range(1, count):
            name = f"node-{node}"
            ticket = self._ticket(
                name, "node", "--node", str(node), "--peer", f"lead={place}", *self._brokers,
                "--data", self._sealed, "--base", path.resolve().parent, "--wait", _JOINS_WITHIN,
            )  # fmt: skip
            self._part(name, *self._prepare_start(name, ticket))
        return ("--listen", place)

    def _training(self, path: Path, *peers: str) -> Path:
        """The ticket of the guest that trains.

        Args:
            path: The recipe.
            peers: Words that name its helpers; helpers are started where there are none.
        """
        return self._ticket(
            "guest", "train" if load_recipe(path).phase != "evaluate" else "evaluate",
            *self._brokers, "--data", self._sealed, "--base", path.resolve().parent,
            *(peers or self._helpers(path)),
        )  # fmt: skip

    def _helpers(self, path: Path) -> tuple[str, ...]:
        """Start accelerator and dealer, where the recipe has pads; the words that name them."""
        how = load_recipe(path).collaboration
        helpers = () if how is None else how.helpers
        words: list[str] = []
        if "accelerator" in helpers:
            words += ["--peer", f"accelerator={self._accelerator()}"]
        if "dealer" in helpers:
            words += ["--peer", f"dealer={self._dealer(path)}"]
        return tuple(words)

    def _accelerator(self, *words: str) -> str:
        return self.serve("accelerator ready", "split", "accelerator", *words)

    def _dealer(self, path: Path) -> str:
        ticket = self._ticket("dealer", "dealer", "--base", path.resolve().parent)
        return self.serve("dealer ready", *self._prepare_start("dealer", ticket))

    def _ticket(self, name: str, role: str, *words: str | Path) -> Path:
        """Write a run ticket."""
        out = self.out / f"{name}.ticket.json"
        self._run("deploy", "ticket", "--role", role, *words, "--out", out)
        return out

    def _prepare_start(
        self, name: str, ticket: Path, *, document: Path | None = None
    ) -> tuple[str | Path, ...]:
        """The words that start a document in a guest of its own, with a folder of that name."""
        return (
            "deploy", "run", "--deployment", document or self._deployment, "--ticket", ticket,
            "--folder", self.out / name, "--simulator", self._root, *self._machine,
        )  # fmt: skip

    def _verify(self, recipient: str, run: Path) -> dict[str, Any]:
        self._say("verifying the manifest, opening the model")
        trust, manifest = self.out / "trust.yaml", run / RUN_MANIFEST
        self._run(
            "trust", "new", "--consortium", self._consortium, "--deployment", self._deployment,
            "--policy", self._policy, *self._brokers, *self._at_least, "--out", trust,
        )  # fmt: skip
        verified = self._run("verify", manifest, "--trust", trust)
        report, model = self.out / "report.html", self.out / recipient / "model"
        self._run(
            "open", run / "model", "--identity", self._identity(recipient),
            "--trust", trust, "--out", model,
        )  # fmt: skip
        base: list[str | Path] = []
        if (model / BASE_FILES).is_file():
            base = ["--opened", model]
        self._run("report", manifest, "--trust", trust, "--out", report, *base)
        return {"verified": verified, "report": str(report), "model": str(model)}

    @property
    def _root(self) -> Path:
        return self.out / "simulated-root"

    @property
    def _policy(self) -> Path:
        return self.out / "policy.yaml"

    @property
    def _consortium(self) -> Path:
        return self.out / "consortium.json"

    @property
    def _broker_files(self) -> list[Path]:
        if self._count == 1:
            return [self.out / "broker.yaml"]
        return [self.out / f"broker-{place + 1}.yaml" for place in range(self._count)]

    @property
    def _brokers(self) -> tuple[str | Path, ...]:
        return tuple(word for file in self._broker_files for word in ("--broker", file))

    @property
    def _at_least(self) -> tuple[str, ...]:
        return () if self._threshold is None else ("--threshold", str(self._threshold))

    def _identity(self, owner: str) -> Path:
        return self.out / owner / f"{owner}.identity.json"

    def _run(self, *words: str | Path, shown: bool = False) -> dict[str, Any]:
        """Run a command; its refusal is raised here."""
        variables = INSECURE_SHOW if shown and self._open else {}
        return ran(*words, shown=shown, variables=variables)

    def serve(self, ready: str, *words: str | Path) -> str:
        """Start a server for the length of the rehearsal; the last word of the line ``ready``."""
        name = f"server-{len(list(self.out.glob('server-*.log'))) + 1}"
        return self._part(name, *words, answers=False).place(ready, within=_STARTS_WITHIN_S)

    def _part(self, name: str, *words: str | Path, answers: bool = True) -> SideProgram:
        """Start a command that runs beside the others, to the end of the rehearsal at most."""
        return self._stack.enter_context(
            SideProgram(name, self.out, words, answers=answers, start=start_tied)
        )


@contextmanager
def leftovers_named(out: Path) -> Iterator[None]:
    """Name the folder of a rehearsal that fails or is interrupted: the next one needs a new one.

    Args:
        out: The rehearsal makes it in the block.
    """
    before = _holds_something(out)
    try:
        yield
    except BaseException:
        if not before and _holds_something(out):
            say(f"{out} keeps what was made so far: remove it first, or choose another --out")
        raise


def _holds_something(folder: Path) -> bool:
    try:
        return any(folder.iterdir())
    except (OSError, ValueError):  # it is not there, or no path at all
        return False


def free_ports(count: int) -> int:
    """The first of so many free ports of loopback in a row.

    They lie below those that the kernel takes for outgoing connections and for servers that leave
    the choice to it: none of these has such a port by the time its server listens.
    """
    above = _first_for_connections()
    if above < 2 * _LOWEST_PORT:  # too few are left below
        above = _NO_PORT
    for _ in range(_TRIES):
        first = _LOWEST_PORT + secrets.randbelow(above - _LOWEST_PORT - count)
        with ExitStack() as taken, suppress(OSError):
            for port in range(first, first + count):
                taken.enter_context(socket.create_server(("127.0.0.1", port)))
            return first
    raise UsageError("no free ports in a row", check="ports", expected=count)


def _first_for_connections() -> int:
    """The first port that the kernel chooses by itself."""
    try:
        return int(_CHOSEN_BY_KERNEL.read_text("ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return _LINUX_CHOOSES_FROM


def result_lines(done: Mapping[str, Any]) -> list[str]:
    """The results of a rehearsal, as lines of text."""
    passed = sum(check["outcome"] == "passed" for check in done["verified"]["checks"])
    return [
        f"verified     {passed} checks passed",
        f"manifest     {done['trained']['manifest']}",
        f"report       {done['report']}",
        f"model        {done['model']}",
    ]


def run_log(done: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    """The run log in the manifest that a rehearsal left."""
    manifest = Path(done["trained"]["manifest"])
    return form.read(manifest.read_bytes()).predicate.run_log.entries
