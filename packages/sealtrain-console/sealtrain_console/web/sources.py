"""What the pages read: files on this machine and brokers, anew for each request.

The console keeps nothing of it. Its time for a broker is bounded, so that a page says that a broker
stalls instead of stalling itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from sealtrain.base.clock import Clock, system_clock
from sealtrain.base.files import read_bounded
from sealtrain.base.models import StrictModel
from sealtrain.client.broker_api import BrokerClient
from sealtrain.client.errors import BrokerUnreachable
from sealtrain.client.pin import load_pin
from sealtrain.client.ticket import MAX_TICKET_BYTES, parse_ticket
from sealtrain.client.transport import Transport
from sealtrain.consortium.members import Consortium
from sealtrain.errors import SealtrainError, UsageError
from sealtrain.manifest.comparison import Comparison, compare_runs
from sealtrain.manifest.trust import load_trust
from sealtrain.recipe.lock import LockedRecipe
from sealtrain_console.web.errors import PageUnknown
from sealtrain_console.web.outputstores import OutputStores, StoreContents
from sealtrain_console.web.progress import Progresses
from sealtrain_console.web.runreader import RunReader
from sealtrain_console.web.verified_manifests import Examinations, ManifestVerdict

if TYPE_CHECKING:
    from starlette.requests import Request

    from sealtrain.client.pin import BrokerPin
    from sealtrain.manifest.form import Manifest

Answer = TypeVar("Answer")
Message = TypeVar("Message", bound=StrictModel)
_EXCHANGE_SECONDS: Final = 4.0
_BROKER_SECONDS: Final = 5.0
"""For all that one page asks of one broker; one exchange may go on a little longer."""
_MAX_BROKERS: Final = 16
_MAX_STORES: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownDocument:
    """A deployment document, or why it cannot be read.

    Attributes:
        path: Of its file.
        locked: The recipe in it.
        error: Of reading it.
    """

    path: Path
    locked: LockedRecipe | None = None
    error: SealtrainError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerAnswer(Generic[Answer]):
    """What came of asking one broker.

    Attributes:
        url: Of the broker, or its file where that cannot be read.
        answer: What was asked for.
        error: Why there is no answer.
    """

    url: str
    answer: Answer | None = None
    error: SealtrainError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Where the pages read.

    Attributes:
        consortium: The consortium file.
        brokers: Broker files.
        deployments: Deployment documents of the recipes that are shown.
        verified: Records of owners who verified images.
        runs: Folders of runs, and manifests.
        stores: URLs of output stores.
        ticket: A run ticket, whose output store is read too.
        trusts: Trust files that manifests are verified against; without one there is no verdict.
        agent: Socket of the owner's agent; ``None`` where none signs.
        clock: Source of the time.
        exchange_seconds: For one exchange with a broker.
        broker_seconds: For all exchanges of one page with a broker, or with a store.
        examinations: Verdicts so far; nothing of them outlives the process.
        output_stores: Questions to stores that are not answered yet.
        reader: What was read of runs on this machine.
        progresses: How far runs that go on have come.
    """

    consortium: Path
    brokers: tuple[Path, ...] = ()
    deployments: tuple[Path, ...] = ()
    verified: tuple[Path, ...] = ()
    runs: tuple[Path, ...] = ()
    stores: tuple[str, ...] = ()
    ticket: Path | None = None
    trusts: tuple[Path, ...] = ()
    agent: Path | None = None
    clock: Clock = field(default=system_clock)
    exchange_seconds: float = _EXCHANGE_SECONDS
    broker_seconds: float = _BROKER_SECONDS
    examinations: Examinations = field(default_factory=Examinations, repr=False)
    output_stores: OutputStores = field(default_factory=OutputStores, repr=False)
    reader: RunReader = field(default_factory=RunReader, repr=False)
    progresses: Progresses = field(default_factory=Progresses, repr=False)

    def __post_init__(self) -> None:
        if len(self.brokers) > _MAX_BROKERS:
            raise UsageError(
                "the console reads from so many brokers at most",
                check="--broker",
                got=len(self.brokers),
                expected=_MAX_BROKERS,
            )
        if len(self.stores) > _MAX_STORES:
            raise UsageError(
                "the console reads from so many output stores at most",
                check="--store",
                got=len(self.stores),
                expected=_MAX_STORES,
            )

    @property
    def reads_stores(self) -> bool:
        """Whether an output store was named, by itself or by a ticket."""
        return bool(self.stores) or self.ticket is not None

    def members(self) -> Consortium:
        """The consortium as this machine holds it.

        Raises:
            ConsortiumInvalid: The file is no consortium.
        """
        return Consortium.load(self.consortium)

    def documents(self) -> list[ShownDocument]:
        """Every deployment document; what cannot be read is among them with its error."""
        found = []
        for path in self.deployments:
            try:
                found.append(ShownDocument(path=path, locked=LockedRecipe.load(path)))
            except SealtrainError as error:
                found.append(ShownDocument(path=path, error=error))
        return found

    def document(self, compose_hash: str) -> LockedRecipe:
        """The deployment document of a hash.

        Raises:
            PageUnknown: The console was started without it.
        """
        for found in self.documents():
            if found.locked is not None and found.locked.compose_hash == compose_hash:
                return found.locked
        raise PageUnknown(
            "the console was not started with this deployment document",
            check="--deployment",
            got=compose_hash[:64],
            hint="start it with --deployment app-compose.json",
        )

    def ask(
        self, act: Callable[[BrokerClient, BrokerPin], Answer], *, brokers: Sequence[Path] = ()
    ) -> list[BrokerAnswer[Answer]]:
        """Ask every broker, all at once and each for a bounded time.

        Args:
            act: Asks one.
            brokers: Their files; all where none is named.
        """
        files = tuple(brokers) or self.brokers
        if not files:
            return []
        with ThreadPoolExecutor(max_workers=len(files)) as pool:
            return list(pool.map(lambda file: self._ask_one(file, act), files))

    def list_contents(self) -> list[StoreContents]:
        """What the output stores hold, each asked for a bounded time."""
        named, problems = list(self.stores), []
        if self.ticket is not None:
            try:
                there = parse_ticket(read_bounded(self.ticket, MAX_TICKET_BYTES)).store
                named += [] if there is None or there in named else [there]
            except SealtrainError as error:
                problems.append(StoreContents(url=self.ticket.name, problems=(error,)))
        return problems + self.output_stores.ask(named, self.broker_seconds)

    def judge(self, data: bytes, manifest: Manifest, folder: Path | None) -> ManifestVerdict:
        """The verdict about a manifest that lies in a folder, or in none of this machine."""
        return self.examinations.of(data, manifest, self.trusts, folder, self.clock())

    def compare(self, paths: Sequence[Path]) -> Comparison:
        """Runs of this machine side by side, as ``sealtrain run compare`` has them.

        A run whose recipe no trust file names is not verified, as on its own page.

        Raises:
            TrustInvalid: A trust file is none.
            UsageError: As of ``compare_runs``.
        """
        trusts = [load_trust(path) for path in self.trusts]
        with self.examinations.turn():
            return compare_runs(paths, trusts, now=self.clock(), foreign="not-verified")

    def _ask_one(
        self, file: Path, act: Callable[[BrokerClient, BrokerPin], Answer]
    ) -> BrokerAnswer[Answer]:
        url = file.name
        try:
            pin = load_pin(file)
            url = pin.url
            with _Hurried(pin, self.exchange_seconds, self.broker_seconds) as client:
                return BrokerAnswer(url=url, answer=act(client, pin))
        except SealtrainError as error:
            return BrokerAnswer(url=url, error=error)


class _Hurried(BrokerClient):
    """A client of a broker that asks nothing further once its time is over."""

    def __init__(self, pin: BrokerPin, exchange: float, total: float) -> None:
        super().__init__(pin.url)
        self._transport.close()
        self._transport = _InTime(pin, exchange, total)


class _InTime(Transport):
    """Exchanges that begin within a time, and each of which ends in one."""

    def __init__(self, pin: BrokerPin, exchange: float, total: float) -> None:
        super().__init__(pin.url, exchange, total=exchange, authorities=pin.trusted)
        self._until = time.monotonic() + total
        self._allowed = total

    def get(
        self,
        path: str,
        cls: type[Message],
        *,
        bearer: str | None = None,
        **query: str | int | Sequence[str],
    ) -> Message:
        """As ``Transport.get``.

        Raises:
            BrokerUnreachable: The time is over.
        """
        if time.monotonic() > self._until:
            raise BrokerUnreachable(
                "the broker did not tell all that a page needs in the time that a page has",
                check="time",
                expected=f"within {self._allowed:g} s",
                hint="sealtrain status and sealtrain log wait longer",
            )
        return super().get(path, cls, bearer=bearer, **query)


def sources_of(request: Request) -> Sources:
    """The sources that the application of a request was made with."""
    found = request.app.state.sources
    if not isinstance(found, Sources):
        raise TypeError("the console was made without sources")
    return found
