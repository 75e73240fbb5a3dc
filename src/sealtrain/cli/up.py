"""``up``: broker and simulated guests for one consortium, for as long as the command runs.

A rehearsal by hand: a person types the commands of every role against it. Nothing is attested.

1. policy and root of trust of the simulator, and the broker's document, unless they are there;
2. each broker in a simulated guest of its own, and its broker file;
3. the guest API of the recipe's guest and a trust file, once there is a deployment, and anew when
   it changes.

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
from sealtrain.base.files import atomic_write, made_folder, read_bounded
from sealtrain.base.limits import MAX_DEPLOYMENT_BYTES
from sealtrain.base.stages import say_stages
from sealtrain.cli.output import Json, emit, near, say, typed
from sealtrain.cli.programs import SideProgram, ran, tied
from sealtrain.cli.project import found_project
from sealtrain.cli.simulator import SimulatedMachineOptions
from sealtrain.errors import AlreadyExists, DataInvalid, SealtrainError, Unreachable, UsageError

__all__ = ["CONSORTIUM", "Site", "up"]

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
    a guest for `sealtrain train` as soon as the recipe is locked.
    """
    require_extras("a rehearsal", "broker", "simulator")
    machine.make()  # a TEE that there is not is refused before anything is written
    say("SIMULATED — NOT ATTESTED: use data you may show")
    site = Site(out=out, words=machine.words, brokers=brokers, port=port)
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
                for line in site.lines(consortium, deployment):
                    say(line)
                site.attend(consortium, deployment, parts, served, told)
            finally:
                for number in before:  # nothing interrupts the ending
                    signal.signal(number, signal.SIG_IGN)
    except KeyboardInterrupt:
        say("ended: broker and guest run no more; the same command continues")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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

    @property
    def trust(self) -> Path:
        """What verifies the runs of this rehearsal."""
        return self.out / "trust.yaml"

    @property
    def socket(self) -> Path:
        """Where the recipe's guest answers."""
        return self.out / "guest.sock"

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
        parts.enter_context(made_folder(self.out))
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
                answers=False, start=tied,
            )  # fmt: skip
            broker = parts.enter_context(started)
            url = broker.place("broker ready", within=_STARTS_WITHIN_S)
            self._pin(url, compose, file)
            say(f"broker {url}: {file}")
            brokers.append(broker)
        return brokers

    def lines(self, consortium: Path, deployment: Path) -> list[str]:
        """What to type next, in this folder, with what neither project nor default says."""
        project = found_project()
        known = {} if project is None else project.values
        files = tuple(file.absolute() for file in self.files)
        named = "" if known.get("brokers") == files else _words("--broker", *self.files)
        members = known.get("consortium", CONSORTIUM.absolute()) == consortium.absolute()
        group = "" if members else _words("--consortium", consortium)
        same = known.get("deployment") == deployment.absolute()
        document = "" if same else _words("--deployment", deployment)
        lock = "" if same else f" {typed(deployment.parent / 'recipe.lock.json')}"
        identity = " --identity FILE"
        collateral = shlex.quote(f"file:{self.root}/collateral.json")
        return [
            "in another terminal, for each role:",
            f"  sealtrain lock recipe.yaml{group}{named} --out {typed(deployment.parent)}",
            "  sealtrain seal FILE --name NAME --out sealed/OWNER.sealed --and-approve"
            f"{identity}{document}{group}{named}",
            f"  sealtrain status{document}{named}",
            f"  sealtrain train{lock} --platform simulator --guest {typed(self.socket)}"
            f" --collateral {collateral}{named} --data sealed --out run",
            f"  sealtrain open run{identity} --trust {typed(self.trust)} --out model",
            "Ctrl-C ends it",
        ]

    def attend(
        self,
        consortium: Path,
        deployment: Path,
        parts: ExitStack,
        brokers: list[SideProgram],
        told: Sequence[int],
    ) -> None:
        """Serve the recipe's guest, anew for each new document.

        Args:
            consortium: Its file.
            deployment: The document, which may not be there yet.
            parts: Ends the servers.
            brokers: That run.
            told: Signals that it was told to end by so far.

        Raises:
            KeyboardInterrupt: It was told to end.
            Unreachable: A broker ended, or the guest did.
        """
        measured: bytes | None = None
        guest: SideProgram | None = None
        served: list[SideProgram] = []
        while not told:
            found = _read(deployment)
            if found is not None and found != measured:
                if guest is not None:
                    guest.end()
                self.socket.unlink(missing_ok=True)
                measured, served = found, []
                part = SideProgram(
                    "guest", self.out,
                    ("simulator", "serve", "--deployment", deployment, "--socket", self.socket,
                     "--simulator", self.root, *self.words),
                    answers=False, start=tied,
                )  # fmt: skip
                guest = parts.enter_context(part)
                try:
                    guest.line("guest API", within=_STARTS_WITHIN_S)
                    served = [guest]
                    say(f"guest of {near(deployment)}: {self.socket}")
                    self._write_trust(consortium, deployment)
                    say(f"its runs verify with --trust {self.trust}")
                except SealtrainError as error:
                    say(f"not ready for {near(deployment)}: {error.message}")
                    if error.hint:
                        say(f"  hint: {error.hint}")
            _expect_running([*brokers, *served])
            time.sleep(_LOOKS_EVERY_S)
        raise KeyboardInterrupt

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

    def _write_trust(self, consortium: Path, deployment: Path) -> None:
        fresh = self._fresh(self.trust.name)
        # With several brokers, as many as a dataset's shares need is for its owner to say.
        count = ("--threshold", "1") if self.brokers > 1 else ()
        named = [word for file in self.files for word in ("--broker", file)]
        ran(
            "trust", "new", "--consortium", consortium, "--deployment", deployment,
            "--policy", self.policy, *named, *count, "--out", fresh,
        )  # fmt: skip
        atomic_write(self.trust, fresh.read_bytes(), overwrite=True)


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
    return "".join(f" {option} {typed(value)}" for value in values)


def _read(deployment: Path) -> bytes | None:
    with suppress(DataInvalid):
        return read_bounded(deployment, MAX_DEPLOYMENT_BYTES)
    return None
