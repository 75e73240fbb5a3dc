"""``up``: broker and simulated guests for one consortium, for as long as the command runs.

A rehearsal by hand: a person types the commands of every role against it. Nothing is attested.

1. policy and root of trust of the simulator, and the broker's document, unless they are there;
2. each broker in a simulated guest of its own, and its broker file;
3. for each recipe the guest API of its guest and a trust file, once there is a deployment, and
   anew when it changes. Recipes have sockets and trust files of their own.

Every server is tied to this process: the kernel ends it when this one ends, by ``kill -9`` too. And
this process ends when a broker does, or a guest that served: without them every command fails.
"""

from __future__ import annotations

import shlex
import shutil
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Annotated, Final

import typer

from sealtrain.base.extras import require_extras
from sealtrain.base.filenames import slug
from sealtrain.base.files import atomic_write, make_folder, read_bounded
from sealtrain.base.limits import MAX_DEPLOYMENT_BYTES
from sealtrain.base.stages import say_stages
from sealtrain.cli.machineoptions import SimulatedMachineOptions
from sealtrain.cli.output import Json, emit, near, quote_path, say
from sealtrain.cli.programs import SideProgram, ran, start_tied
from sealtrain.cli.project import find_project
from sealtrain.errors import AlreadyExists, DataInvalid, SealtrainError, Unreachable, UsageError
from sealtrain_rehearsal.simulator_commands import make_machine

CONSORTIUM: Final = Path("consortium.json")
"""Where commands look for the consortium's file, if neither project nor option names another."""
_STARTS_WITHIN_S: Final = 120
_LOOKS_EVERY_S: Final = 0.5


def up(
    machine: SimulatedMachineOptions,
    consortium: Annotated[Path, typer.Option(help="The consortium file.")] = CONSORTIUM,
    deployment: Annotated[
        Path, typer.Option(help="app-compose.json of the recipe, now or once it is locked.")
    ] = Path("locked/app-compose.json"),
    also: Annotated[
        list[Path] | None,
        typer.Option(help="app-compose.json of a further recipe, now or later; repeat."),
    ] = None,
    brokers: Annotated[
        int, typer.Option(min=1, max=16, help="So many brokers; several hold a share each.")
    ] = 1,
    port: Annotated[
        int, typer.Option(min=1, max=65000, help="Port of the first broker; the next follow it.")
    ] = 8470,
    out: Annotated[
        Path, typer.Option(help="Folder for all of it; run again, it continues there.")
    ] = Path("up"),
    as_json: Json = False,
) -> None:
    """Play broker and hardware on this machine, until Ctrl-C, to rehearse every role by hand.

    SIMULATED — NOT ATTESTED: use data you may show. It writes broker files and a policy, and serves
    a guest for `sealtrain train` as soon as the recipe is locked. Of several recipes, each further
    one has a guest and a trust file by the name of its document's folder.
    """
    require_extras("a rehearsal", "broker", "simulator")
    make_machine(machine)  # a TEE that there is not is refused before anything is written
    say("SIMULATED — NOT ATTESTED: use data you may show")
    site = Site(out=out, words=machine.words, brokers=brokers, port=port)
    recipes = site.recipes([deployment, *(also or ())])
    told: list[int] = []

    def end(number: int, frame: FrameType | None) -> None:
        told.append(number)  # Python drops what is raised while it collects garbage; this stays
        raise KeyboardInterrupt

    # A shell has what it starts in the background ignore Ctrl-C; this one ends by it anyway.
    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with ExitStack() as parts:
            try:
                with say_stages(say)("starting broker and simulated hardware"):
                    served = site.open(consortium, parts)
                emit(
                    as_json,
                    {"brokers": [str(file) for file in site.files], "policy": str(site.policy)},
                )
                for number, recipe in enumerate(recipes):
                    for line in site.lines(consortium, recipe, first=number == 0):
                        say(line)
                say("Ctrl-C ends it")
                site.attend(consortium, recipes, parts, served, told)
            finally:
                for number in before:  # nothing interrupts the ending
                    signal.signal(number, signal.SIG_IGN)
    except KeyboardInterrupt:
        say("ended: broker and guest run no more; the same command continues")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass(slots=True, kw_only=True)
class HostedRecipe:
    """A recipe whose guest is played.

    Attributes:
        name: Of the guest's log.
        deployment: Its document, which may not be there yet.
        socket: Where its guest answers.
        trust: What verifies its runs.
        measured: The document that the guest was started with.
        guest: The guest, once started.
        serves: Whether the guest said that it serves.
    """

    name: str
    deployment: Path
    socket: Path
    trust: Path
    measured: bytes | None = None
    guest: SideProgram | None = None
    serves: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The folder of a rehearsal by hand.

    Attributes:
        out: The folder.
        words: Options that say which machine every guest is on.
        brokers: How many.
        port: Of the first broker.
    """

    out: Path
    words: tuple[str, ...]
    brokers: int
    port: int

    @property
    def policy(self) -> Path:
        """Appraisal policy that trusts this simulator."""
        return self.out / "policy.yaml"

    @property
    def root(self) -> Path:
        """The simulated root of trust."""
        return self.out / "simulated-root"

    def recipes(self, deployments: Sequence[Path]) -> list[HostedRecipe]:
        """The recipes to play guests of, each with a socket and a trust file of its own.

        Args:
            deployments: A document each; the first has the plain names.

        Raises:
            UsageError: Two would have one name.
        """
        found: list[HostedRecipe] = []
        for deployment in deployments:
            mark = f"-{slug(deployment.absolute().parent.name, 'recipe')}" if found else ""
            found.append(
                HostedRecipe(
                    name=f"guest{mark}",
                    deployment=deployment,
                    socket=self.out / f"guest{mark}.sock",
                    trust=self.out / f"trust{mark}.yaml",
                )
            )
        names = [recipe.name for recipe in found]
        if len(set(names)) != len(names):
            raise UsageError(
                "two recipes would have one guest",
                check="--also",
                got=", ".join(str(path) for path in deployments)[:400],
                expected="documents in folders of different names",
            )
        return found

    @property
    def _scratch(self) -> Path:
        return self.out / ".scratch"

    @property
    def files(self) -> list[Path]:
        """The broker files."""
        if self.brokers == 1:
            return [self.out / "broker.yaml"]
        return [self.out / f"broker-{place + 1}.yaml" for place in range(self.brokers)]

    def open(self, consortium: Path, parts: ExitStack) -> list[SideProgram]:
        """Start the brokers and pin them.

        Args:
            consortium: Its file.
            parts: Ends the servers; then folders that are empty go.

        Returns:
            The brokers, which run.

        Raises:
            AlreadyExists: The folder's broker serves another consortium.
            UsageError: Another program listens on a port.
            SealtrainError: A step refused.
        """
        for place in range(self.brokers):
            _expect_free(self.port + place)
        parts.enter_context(make_folder(self.out))
        parts.enter_context(self._empty_scratch())
        if not self.policy.exists():
            ran(
                "simulator", "serve", "--simulator", self.root, "--write-policy", self.policy,
                *self.words,
            )  # fmt: skip
        compose = self._document(consortium)
        brokers = []
        for place, file in enumerate(self.files):
            listen = f"127.0.0.1:{self.port + place}"
            ticket = self.out / f"{file.stem}.ticket.json"
            ran("deploy", "ticket", "--role", "broker", "--listen", listen, "--out", ticket)
            started = SideProgram(
                f"{file.stem}-guest", self.out,
                ("deploy", "run", "--deployment", compose, "--ticket", ticket,
                 "--simulator", self.root, "--folder", self.out / f"{file.stem}-guest",
                 *self.words),
                answers=False, start=start_tied,
            )  # fmt: skip
            broker = parts.enter_context(started)
            url = broker.place("broker ready", within=_STARTS_WITHIN_S)
            self._pin(url, compose, file)
            say(f"broker {url}: {file}")
            brokers.append(broker)
        return brokers

    def lines(self, consortium: Path, recipe: HostedRecipe, *, first: bool) -> list[str]:
        """What to type next, in this folder, with what neither project nor default says."""
        deployment = recipe.deployment
        project = find_project()
        known = {} if project is None else project.values
        files = tuple(file.absolute() for file in self.files)
        named = "" if known.get("brokers") == files else _words("--broker", *self.files)
        members = known.get("consortium", CONSORTIUM.absolute()) == consortium.absolute()
        group = "" if members else _words("--consortium", consortium)
        same = known.get("deployment") == deployment.absolute()
        document = "" if same else _words("--deployment", deployment)
        lock = "" if same else f" {quote_path(deployment.parent / 'recipe.lock.json')}"
        identity = " --identity FILE"
        collateral = shlex.quote(f"file:{self.root}/collateral.json")
        return [
            "in another terminal, for each role:"
            if first
            else f"for the recipe of {near(deployment)}:",
            f"  sealtrain lock recipe.yaml{group}{named} --out {quote_path(deployment.parent)}",
            "  sealtrain seal FILE --name NAME --out sealed/OWNER.sealed --and-approve"
            f"{identity}{document}{group}{named}",
            f"  sealtrain status{document}{named}",
            f"  sealtrain train{lock} --platform simulator --guest {quote_path(recipe.socket)}"
            f" --collateral {collateral}{named} --data sealed --out run",
            f"  sealtrain open run{identity} --trust {quote_path(recipe.trust)} --out model",
        ]

    def attend(
        self,
        consortium: Path,
        recipes: Sequence[HostedRecipe],
        parts: ExitStack,
        brokers: list[SideProgram],
        told: Sequence[int],
    ) -> None:
        """Serve each recipe's guest, anew for each new document.

        Args:
            consortium: Its file.
            recipes: From ``recipes``.
            parts: Ends the servers.
            brokers: That run.
            told: Signals that it was told to end by so far.

        Raises:
            KeyboardInterrupt: It was told to end.
            Unreachable: A broker ended, or a guest did.
        """
        while not told:
            for recipe in recipes:
                found = _read(recipe.deployment)
                if found is not None and found != recipe.measured:
                    recipe.measured = found
                    self._serve(consortium, recipe, parts)
            served = [
                recipe.guest for recipe in recipes if recipe.guest is not None and recipe.serves
            ]
            _expect_running([*brokers, *served])
            time.sleep(_LOOKS_EVERY_S)
        raise KeyboardInterrupt

    def _serve(self, consortium: Path, recipe: HostedRecipe, parts: ExitStack) -> None:
        """Start a recipe's guest in the place of the one before."""
        if recipe.guest is not None:
            recipe.guest.end()
        recipe.socket.unlink(missing_ok=True)
        recipe.serves = False
        part = SideProgram(
            recipe.name, self.out,
            ("simulator", "serve", "--deployment", recipe.deployment, "--socket", recipe.socket,
             "--simulator", self.root, *self.words),
            answers=False, start=start_tied,
        )  # fmt: skip
        recipe.guest = parts.enter_context(part)
        place = near(recipe.deployment)
        try:
            part.line("guest API", within=_STARTS_WITHIN_S)
            recipe.serves = True
            say(f"guest of {place}: {recipe.socket}")
            self._write_trust(consortium, recipe)
            say(f"its runs verify with --trust {recipe.trust}")
        except SealtrainError as error:
            say(f"not ready for {place}: {error.message}")
            if error.hint:
                say(f"  hint: {error.hint}")

    @contextmanager
    def _empty_scratch(self) -> Iterator[None]:
        """The folder of files that are not finished yet; one that was left behind goes, too."""
        shutil.rmtree(self._scratch, ignore_errors=True)
        self._scratch.mkdir()
        try:
            yield
        finally:
            shutil.rmtree(self._scratch, ignore_errors=True)

    def _fresh(self, name: str) -> Path:
        """Where a command writes a file that is moved into its place afterwards."""
        path = self._scratch / name
        path.unlink(missing_ok=True)
        return path

    def _document(self, consortium: Path) -> Path:
        """The brokers' document; one that is there must be of this consortium and policy."""
        compose = self.out / "broker-compose.json"
        fresh = self._fresh(compose.name)
        ran(
            "broker", "deployment", "--consortium", consortium, "--policy", self.policy,
            "--out", fresh,
        )  # fmt: skip
        data = fresh.read_bytes()
        if not compose.exists():
            atomic_write(compose, data)
        elif read_bounded(compose, MAX_DEPLOYMENT_BYTES) != data:
            raise AlreadyExists(
                f"the broker in {self.out} serves another consortium",
                got=str(consortium),
                hint="choose another --out, or remove the folder",
            )
        return compose

    def _pin(self, url: str, compose: Path, file: Path) -> None:
        fresh = self._fresh(file.name)
        ran(
            "broker", "pin", "--url", url, "--broker-deployment", compose,
            "--policy", self.policy, "--out", fresh,
        )  # fmt: skip
        atomic_write(file, fresh.read_bytes(), overwrite=True)

    def _write_trust(self, consortium: Path, recipe: HostedRecipe) -> None:
        fresh = self._fresh(recipe.trust.name)
        # With several brokers, as many as a dataset's shares need is for its owner to say.
        count = ("--threshold", "1") if self.brokers > 1 else ()
        named = [word for file in self.files for word in ("--broker", file)]
        ran(
            "trust", "new", "--consortium", consortium, "--deployment", recipe.deployment,
            "--policy", self.policy, *named, *count, "--out", fresh,
        )  # fmt: skip
        atomic_write(recipe.trust, fresh.read_bytes(), overwrite=True)


def _expect_running(parts: list[SideProgram]) -> None:
    """Refuse to go on without a server that did run."""
    for part in parts:
        if part.gone:
            raise Unreachable(
                f"{part.name} ended",
                check=part.name,
                hint=f"see {near(part.log)}; the same command starts it again",
            )


def _expect_free(port: int) -> None:
    """Refuse a port that is taken, before anything starts; the broker itself says it in its log."""
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("127.0.0.1", port))
        except OSError as error:
            raise UsageError(
                f"cannot listen on 127.0.0.1:{port}: {error.strerror}",
                check="--port",
                hint="end the other sealtrain up, or choose another --port",
            ) from None


def _words(option: str, *values: Path) -> str:
    return "".join(f" {option} {quote_path(value)}" for value in values)


def _read(deployment: Path) -> bytes | None:
    with suppress(DataInvalid):
        return read_bounded(deployment, MAX_DEPLOYMENT_BYTES)
    return None
