"""The brokers of one run: ask all at once, combine their parts (spec/key-release.md §5.2).

One broker is the case n = 1. A broker that does not answer, refuses or hands out a wrong share is
told of and left out while the others suffice. Where they do not suffice the error is the first
refusal, and an unreachable broker only where none refused.

1. ``meet``: each proves itself under its pin, and is one that the measured lock names. No other
   broker is listened to.
2. ``obtain``: each is asked for the datasets that are registered with it and that hold a stanza for
   it; shares are combined; the run's key follows from all data keys.
3. ``renew``: each that granted a lease is asked for a later end.
4. ``signed_keys``: each signs the key that a model is sealed to for guests; all must answer.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from sealtrain.base.canonical import JsonValue
from sealtrain.base.clock import Clock
from sealtrain.base.secret import Random
from sealtrain.client.broker_api import BrokerClient
from sealtrain.client.broker_proof import AttestedBroker, Deployed, fetch_keys
from sealtrain.client.grant import AskedKey, Collect, Grant, KeyRequest, obtain, renew
from sealtrain.client.grants import (
    CombinedKey,
    Grants,
    StanzaContent,
    WantedKey,
    WantedModel,
    combine,
    refuse_lapsed,
)
from sealtrain.client.pin import BrokerPin
from sealtrain.consortium.decisions import verify_decision
from sealtrain.consortium.members import Consortium
from sealtrain.consortium.receipts import OwnedId, RunDataset
from sealtrain.errors import (
    BrokerNotApproved,
    RunMismatch,
    SealtrainError,
    TooManyRequests,
    Unreachable,
    UsageError,
)
from sealtrain.keys.derive import run_key
from sealtrain.release.errors import LeaseUnknown
from sealtrain.release.lease_code import Closing, manifest_key
from sealtrain.release.messages import ListedSeries
from sealtrain.release.sealing_key import verify_sealing_key
from sealtrain.sealing.datakey import DataKey
from sealtrain.signing.dsse import Envelope
from sealtrain.signing.errors import BrokerMismatch
from sealtrain.signing.identity import PublicIdentity
from sealtrain.signing.target import Target

OnBrokerFailure = Callable[[str, SealtrainError], None]
"""Called with the URL of a broker that failed, and its error."""

Routes = dict[str, list[AskedKey]]
"""What each broker, by URL, is asked for."""

Answer = TypeVar("Answer")

_CLOSING_PAUSES: Final = (1.0, 2.0, 4.0, 15.0, 30.0, 60.0, 60.0)
"""Between tries to hand in a manifest: longer than the minute for which a broker counts a run's."""
_LONGEST_AWAY: Final = 4.0
"""Longest of these pauses for a broker that does not answer."""


@dataclass(frozen=True, slots=True)
class Seat:
    """A broker that proved itself, and how to reach it."""

    client: BrokerClient
    broker: AttestedBroker


class Quorum:
    """The brokers that a run asks. Thread-safe."""

    def __init__(
        self,
        pins: Sequence[BrokerPin],
        *,
        consortium_id: str,
        deployed: Deployed,
        clock: Clock,
        on_failure: OnBrokerFailure,
        random: Random = os.urandom,
        client: Callable[[str], BrokerClient] | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Prepare a quorum; sends no request yet.

        Args:
            pins: What each broker must prove.
            consortium_id: Of the lock.
            deployed: The guest's deployment, and the brokers that the measured lock names: no
                other counts.
            clock: Time at which brokers' evidence is verified.
            on_failure: Called for each broker that did not help, once for each reason.
            random: Source of nonces and ephemeral keys.
            client: Reaches a broker by its URL [as its broker file says].
            sleep: Waits between tries to hand in a manifest.

        Raises:
            UsageError: No broker, or one twice.
        """
        urls = [pin.url.rstrip("/") for pin in pins]
        if not urls or len(set(urls)) != len(urls):
            raise UsageError(
                "each broker is named once",
                check="brokers",
                got=", ".join(urls) or "none",
                hint="give --broker once for each broker file",
            )
        self._pins = dict(zip(urls, pins, strict=True))
        self._consortium_id = consortium_id
        self._deployed = deployed
        self._clock = clock
        self.on_failure = on_failure
        self._random = random
        self._sleep = sleep
        self._clients = {
            url: BrokerClient.at(pin) if client is None else client(url)
            for url, pin in self._pins.items()
        }
        self._seats: dict[str, Seat] = {}
        self._known: set[tuple[str, str]] = set()
        self._lock = threading.Lock()

    @property
    def urls(self) -> tuple[str, ...]:
        """Where the brokers are."""
        return tuple(self._pins)

    def close(self) -> None:
        """Close connections."""
        for client in self._clients.values():
            client.close()

    def meet(self) -> Consortium:
        """Have every broker prove itself; returns the consortium they serve.

        Raises:
            SealtrainError: None did.
        """
        met, misses = self._each(lambda seat: seat.client.consortium(self._consortium_id))
        if not met:
            raise _worst(misses)
        return next(iter(met.values()))

    def obtain(
        self,
        collect: Collect,
        *,
        run_id: str,
        recipe_hash: str,
        datasets: Sequence[WantedKey],
        resume: bool,
        model: WantedModel | None = None,
        submission_id: str | None = None,
    ) -> Grants:
        """Ask for the keys of datasets and combine them.

        Args:
            collect: This guest's evidence; called by several threads.
            run_id: 32 hex digits; fresh for a new run.
            recipe_hash: SHA-256 of the lock this guest runs.
            datasets: All that the run needs, 1 to 256.
            resume: Continue a run that a broker released keys to before. A broker that never heard
                of it joins it as a new one, once another has confirmed it.
            model: Of the run before, whose key is asked for too; of a lock with one broker.
            submission_id: Which submission the run is for, as the run ticket says.

        Raises:
            Refused: A broker's refusal, where the others do not suffice.
            Unreachable: Too few brokers answered, and none refused.
            UsageError: The brokers asked are too few for a dataset.
        """
        routes, missing = self._routes(datasets)
        data = {
            RunDataset(dataset.owner_id, dataset.dataset_id, dataset.root) for dataset in datasets
        }

        def asking(resuming: bool) -> Callable[[Seat], Grant]:
            return lambda seat: obtain(
                seat.client,
                seat.broker,
                collect,
                KeyRequest(
                    run_id=run_id,
                    recipe_hash=recipe_hash,
                    datasets=routes[seat.client.url],
                    elsewhere=_elsewhere(data, routes[seat.client.url]),
                    resume=resuming,
                    submission_id=submission_id,
                    continues=None if model is None else model.request_to(seat.broker),
                ),
                random=self._random,
            )

        answers, misses = self._each(asking(resume), only=routes)
        newcomers = [url for url, why in misses.items() if isinstance(why, RunMismatch)]
        if resume and answers and newcomers:
            joined, still = self._each(asking(False), only=newcomers)
            answers |= joined
            misses = {url: why for url, why in misses.items() if url not in joined} | still
        return self._combine(run_id, answers, routes, datasets, missing | misses)

    def renew(
        self, grants: Grants, collect: Collect, checkpoint: tuple[int, str] | None
    ) -> tuple[Grants, SealtrainError | None]:
        """Ask every broker whose lease is live for a later end.

        One whose lease has ended, because it did not answer in time, is not asked again before the
        next ``obtain``: its refusal would say nothing about the others.

        Args:
            grants: As obtained or renewed last.
            collect: This guest's evidence; called by several threads.
            checkpoint: (counter, digest) to anchor on the way.

        Returns:
            The grants with whatever was renewed; and, unless the brokers that renewed suffice for
            every dataset, why not.
        """
        answers, misses = self._each(
            lambda seat: renew(
                seat.client,
                seat.broker,
                collect,
                grants.held[seat.client.url],
                checkpoint=checkpoint,
            ),
            only=[url for url, held in grants.held.items() if self._clock() < held.lease_ends],
        )
        renewed = replace(grants, held=grants.held | answers, answered=frozenset(answers))
        if renewed.suffices():
            return renewed, None
        return renewed, _worst(misses) if misses else refuse_lapsed(
            grants.lease_ends, self._clock()
        )

    def keys_for(
        self, owner: PublicIdentity, *, app_id: str, compose_hash: str
    ) -> tuple[AttestedBroker, ...]:
        """Every broker of the lock, with its key for an owner's data in another recipe.

        Arguments and errors as ``signed_keys``, of which the keys are.
        """
        return tuple(
            replace(broker, app_id=app_id, compose_hash=compose_hash, keys={owner.name: key})
            for broker, key in self.signed_keys(
                owner.owner_id, app_id=app_id, compose_hash=compose_hash
            )
        )

    def signed_keys(
        self, owner_id: str, *, app_id: str, compose_hash: str
    ) -> tuple[tuple[AttestedBroker, bytes], ...]:
        """Every broker of the lock, and the key of it that a model is sealed to.

        Each key is signed by its broker. The evidence of a broker shows whose machine answers under
        a policy that the guest's operator wrote, which is not enough to seal a model to.

        Args:
            owner_id: Of the owner whose data it will be; the consortium's id for the model that the
                next run of this recipe begins with.
            app_id: Of the recipe whose guests open it, 40 hex digits.
            compose_hash: The same, 64 hex digits.

        Raises:
            BrokerNotApproved: A broker of the lock is missing.
            SignatureInvalid, AnswerInvalid: An answer is not the broker's, or not to the question.
            Unreachable: A broker did not answer.
        """
        asked = {
            "consortium_id": self._consortium_id,
            "app_id": app_id,
            "compose_hash": compose_hash,
            "owner_id": owner_id,
        }

        def read_key(seat: Seat) -> tuple[AttestedBroker, bytes]:
            nonce = self._random(32).hex()
            answer = seat.client.sealing_key(
                app_id=app_id, compose_hash=compose_hash, owner_id=owner_id, nonce=nonce
            )
            key = verify_sealing_key(answer, seat.broker.signing_key, asked | {"nonce": nonce})
            return seat.broker, key

        answers, misses = self._each(read_key)
        if misses:
            raise _worst(misses)
        missing = set(self._deployed.brokers) - {broker.named_as for broker, _ in answers.values()}
        if missing:
            raise BrokerNotApproved(
                "the model's key is shared over all brokers of the lock, and one is not named",
                check="broker",
                got=", ".join(sorted(broker.named_as for broker, _ in answers.values())),
                expected=", ".join(sorted(self._deployed.brokers)),
                hint="name every broker of the lock: --broker once for each broker file",
            )
        return tuple(answers.values())

    def decisions(self, target: Target, consortium: Consortium) -> list[dict[str, JsonValue]]:
        """Signed decisions that the brokers hold on a target, each once, oldest first.

        Raises:
            SealtrainError: No broker answered.
        """
        answers, misses = self._each(lambda seat: seat.client.decisions(target))
        if not answers:
            raise _worst(misses)
        longest, *others = sorted(answers.values(), key=len, reverse=True)
        merged = list(longest)
        for other in (
            decision for listed in others for decision in listed if decision not in merged
        ):
            merged.insert(_place(other, merged, consortium), other)
        return merged

    def closings(self, grants: Grants) -> tuple[Closing, ...]:
        """What shows brokers that a guest with these grants hands in its run's manifest.

        Args:
            grants: Of a guest of the run.
        """
        with self._lock:
            seats = dict(self._seats)
        return tuple(
            Closing(
                broker_id=seats[url].broker.broker_id,
                lease_id=grant.lease_id,
                key=manifest_key(grant.lease_key),
            )
            for url, grant in grants.held.items()
            if url in seats
        )

    def submit_manifest(self, manifest: bytes, closings: Sequence[Closing]) -> None:
        """Have every broker that granted keys to a guest of the run record its manifest.

        A broker that is busy or away is asked again for some minutes: the run has ended, and
        without the entry it is a run without a result.

        Args:
            manifest: The file's bytes.
            closings: Of the guests of the run (``closings``).

        Raises:
            SealtrainError: None took it.
        """

        def hand_in(seat: Seat) -> int | None:
            own = [closing for closing in closings if closing.broker_id in seat.broker.ids]
            for number, closing in enumerate(own, start=1):
                try:
                    return self._patiently(seat, manifest, closing)
                except LeaseUnknown:  # another guest's lease may be known
                    if number == len(own):
                        raise
            return None

        answers, misses = self._each(hand_in)
        if all(index is None for index in answers.values()):
            raise (
                _worst(misses)
                if misses
                else UsageError("no broker of this run granted keys to its guests", check="brokers")
            )

    def _patiently(self, seat: Seat, manifest: bytes, closing: Closing) -> int:
        """Hand in a manifest, again while the broker says that it is busy, or is away."""
        for pause in _CLOSING_PAUSES:
            try:
                return seat.client.submit_manifest(manifest, closing)
            except SealtrainError as error:
                busy = isinstance(error, TooManyRequests)
                if error.retry != "again" or (not busy and pause > _LONGEST_AWAY):
                    raise
                self._sleep(pause)
        return seat.client.submit_manifest(manifest, closing)

    def series(self, wanted: Iterable[tuple[str, str]]) -> list[tuple[ListedSeries, ...]]:
        """Members of series as each broker lists them for the guest's deployment.

        Args:
            wanted: Owner and name of each series.

        Raises:
            SealtrainError: No broker answered.
        """
        asked = tuple(wanted)
        target = {"app_id": self._deployed.app_id, "compose_hash": self._deployed.compose_hash}

        def list_at(seat: Seat) -> tuple[ListedSeries, ...]:
            found = ((key, seat.client.series(*key, **target)) for key in asked)
            return tuple(
                ListedSeries(owner=owner, name=name, members=members)
                for (owner, name), members in found
                if members
            )

        listed, misses = self._each(list_at)
        if not listed:
            raise _worst(misses)
        return list(listed.values())

    def report_failure(self, code: str, grants: Grants) -> None:
        """Say with which code the run failed, and give its leases back, where brokers answer.

        Args:
            code: Of the error.
            grants: The run's.
        """

        def report(seat: Seat) -> None:
            held = grants.held[seat.client.url]
            with suppress(SealtrainError):
                seat.client.report_failure(held.run_id, code, held.lease_id, held.lease_key)

        now = self._clock()
        alive = [url for url, held in grants.held.items() if now < held.lease_ends]
        self._each(report, only=[url for url in alive if url in self._seats])

    def _routes(self, datasets: Sequence[WantedKey]) -> tuple[Routes, dict[str, SealtrainError]]:
        """What to ask each broker for. What a broker lists only routes: it decides later."""
        listed, misses = self._each(
            lambda seat: (
                seat.broker,
                seat.client.ask_registered(
                    [OwnedId(dataset.owner_id, dataset.dataset_id) for dataset in datasets],
                    app_id=self._deployed.app_id,
                    compose_hash=self._deployed.compose_hash,
                ),
            )
        )
        if not listed:
            raise _worst(misses)
        routes: Routes = {}
        for dataset in datasets:
            stanzas = {
                url: stanza
                for url, (broker, known) in listed.items()
                if (dataset.owner_id, dataset.dataset_id) in known
                and (stanza := dataset.stanza_for(broker)) is not None
            }
            if not stanzas and misses:
                raise _worst(misses)  # the holder is among those that did not answer
            # No broker has it: the brokers say why, and their ledgers record the request.
            for url in stanzas or listed:
                stanza = stanzas.get(url) or dataset.stanzas[0]
                routes.setdefault(url, []).append(
                    AskedKey(dataset.owner_id, dataset.dataset_id, dataset.root, stanza)
                )
        return routes, misses

    def _combine(
        self,
        run_id: str,
        answers: dict[str, Grant],
        routes: Routes,
        datasets: Sequence[WantedKey],
        misses: dict[str, SealtrainError],
    ) -> Grants:
        data_keys: dict[str, DataKey] = {}
        combined: dict[str, CombinedKey] = {}
        for dataset in datasets:
            parts = {
                url: StanzaContent(asked.stanza.kind, answers[url].keys[dataset.dataset_id])
                for url in answers
                for asked in routes[url]
                if asked.dataset_id == dataset.dataset_id
            }
            found = combined[dataset.dataset_id] = combine(parts)
            for url in found.wrong:
                misses[url] = self._tell(url, dataset.wrong_part(url))
            if found.key is None:
                raise _worst(misses) if misses else dataset.too_few_parts(len(parts), found.needed)
            data_keys[dataset.dataset_id] = found.key
        return Grants(
            data_keys=data_keys,
            run_key=run_key(
                data_keys,
                app_id=self._deployed.app_id,
                compose_hash=self._deployed.compose_hash,
                run_id=run_id,
            ),
            held={url: replace(grant, keys={}, model_key=None) for url, grant in answers.items()},
            needed={dataset_id: found.needed for dataset_id, found in combined.items()},
            holders={dataset_id: found.holders for dataset_id, found in combined.items()},
            answered=frozenset(answers),
            model_key=next(
                (
                    DataKey(grant.model_key.reveal())
                    for grant in answers.values()
                    if grant.model_key is not None
                ),
                None,
            ),
        )

    def _each(
        self, act: Callable[[Seat], Answer], *, only: Iterable[str] | None = None
    ) -> tuple[dict[str, Answer], dict[str, SealtrainError]]:
        """Ask brokers side by side: answers and failures by URL, in the order of the pins."""
        urls = [url for url in self._pins if only is None or url in set(only)]
        answers: dict[str, Answer] = {}
        misses: dict[str, SealtrainError] = {}
        with ThreadPoolExecutor(max(1, len(urls)), thread_name_prefix="broker") as threads:
            asked = {url: threads.submit(self._ask, act, url) for url in urls}
            for url, answer in asked.items():
                try:
                    answers[url] = answer.result()
                except SealtrainError as error:
                    misses[url] = self._tell(url, error)
        return answers, misses

    def _ask(self, act: Callable[[Seat], Answer], url: str) -> Answer:
        return act(self._seat(url))

    def _seat(self, url: str) -> Seat:
        """A broker that proved itself, now or before."""
        with self._lock:
            seat = self._seats.get(url)
        if seat is not None:
            return seat
        client = self._clients[url]
        broker = fetch_keys(
            client,
            self._pins[url],
            client.consortium(self._consortium_id),
            self._deployed,
            now=self._clock(),
            random=self._random,
        )
        with self._lock:
            for other, taken in self._seats.items():
                if other != url and taken.broker.named_as == broker.named_as:
                    raise BrokerMismatch(
                        f"the broker at {url} is the one at {other}",
                        check="broker",
                        got=broker.broker_id,
                        expected="another broker of the lock",
                        hint="name each broker by one of its URLs",
                    )
            return self._seats.setdefault(url, Seat(client, broker))

    def _tell(self, url: str, error: SealtrainError) -> SealtrainError:
        if len(self._pins) > 1 and (url, error.code) not in self._known:
            self._known.add((url, error.code))
            self.on_failure(url, error)
        return error


def _elsewhere(data: Collection[RunDataset], asked: Sequence[AskedKey]) -> list[RunDataset]:
    """The data of a run that one broker is not asked for."""
    here = {wanted.dataset_id for wanted in asked}
    return sorted(dataset for dataset in data if dataset.dataset_id not in here)


def _worst(misses: dict[str, SealtrainError]) -> SealtrainError:
    """What to raise: a refusal says more than silence."""
    refused = (why for why in misses.values() if not isinstance(why, Unreachable))
    return next(refused, None) or next(iter(misses.values()))


def _place(
    document: dict[str, JsonValue], listed: Sequence[dict[str, JsonValue]], consortium: Consortium
) -> int:
    """Where a decision goes among those that another broker lists: before the first later one."""

    def signing_time(decision: dict[str, JsonValue]) -> int:
        return verify_decision(Envelope.from_dict(decision), consortium).decision.signed

    at = signing_time(document)
    later = (place for place, earlier in enumerate(listed) if signing_time(earlier) > at)
    return next(later, len(listed))
