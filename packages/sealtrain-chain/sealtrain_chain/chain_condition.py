"""The condition a broker adds: does the owners' contract allow this now? Fails closed.

1. The app id is the contract's, unless the chain file says that any is.
2. The contract's slot is proven at a block that enough nodes agree on (``reading``).
3. The slot says that the compose hash counts now.

A permission is kept for ``cache_seconds``, by a clock that cannot be set back, and never beyond its
own end; a refusal is never kept, a failure only for those who waited for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sealtrain.base.clock import Clock
from sealtrain.consortium.chainfile import ChainFile
from sealtrain.consortium.chainword import ChainWord, compose_slot, counts_until
from sealtrain.errors import ChainRefused, ChainUnreachable
from sealtrain.signing.errors import ProofInvalid
from sealtrain_chain.reading import ContractReading, Reader, open_reader

_KEPT = 1024
_READY_SECONDS = 15.0
"""A probe that asks whether the broker is ready must not cost each node a request each time."""


class ChainGate:
    """Asks the chain of one chain file. Thread-safe; simultaneous askers share one reading."""

    def __init__(self, reader: Reader, *, clock: Clock, monotonic: Callable[[], float]) -> None:
        self._reader = reader
        self._clock = clock
        self._monotonic = monotonic
        self._turn = threading.Lock()
        self._kept: dict[str, tuple[float, int, ChainWord | None]] = {}
        self._failed: tuple[float, ChainUnreachable] | None = None
        self._looked: float | None = None

    def require_allowed(self, app_id: str, compose_hash: str) -> ChainWord | None:
        """Return if the chain allows the deployment now.

        Args:
            app_id: Measured, 40 hex digits.
            compose_hash: Measured, 64 hex digits.

        Returns:
            The chain's word for a receipt; ``None`` of a chain whose headers are of another form.

        Raises:
            ChainRefused: It does not, or the contract is not the one that was pinned.
            ChainUnreachable: What the chain says cannot be known.
            ProofInvalid: Nodes say what they cannot prove.
        """
        chain = self._reader.chain
        require_app(chain, app_id)
        arrived = self._monotonic()
        with self._turn:
            if self._failed is not None and arrived <= self._failed[0]:
                # It failed while this asker waited: asking again would make everybody wait longer.
                raise _copy(self._failed[1])
            now = self._clock()
            begun = self._monotonic()
            ends, until, word = self._kept.get(compose_hash, (begun, 0, None))
            if begun < ends and now <= until:
                return word
            self._kept.pop(compose_hash, None)
            reading = self._read([compose_slot(chain.kind, compose_hash)], now)
            [value] = reading.values
            until = require_counting(chain, compose_hash, value, now)
            if len(self._kept) >= _KEPT:
                self._kept.clear()
            self._kept[compose_hash] = (begun + chain.cache_seconds, until, reading.word)
            return reading.word

    def ready(self) -> None:
        """Return if the contract could be read when it was tried last, at most some seconds ago.

        Raises:
            ChainUnreachable: It could not, or is not the one that was pinned.
        """
        with self._turn:
            moment = self._monotonic()
            if self._looked is None or moment >= self._looked + _READY_SECONDS:
                try:
                    self._read([], self._clock())
                except (ChainRefused, ProofInvalid) as error:
                    unusable = ChainUnreachable(error.message, check=error.check, hint=error.hint)
                    self._failed = (self._monotonic(), unusable)
                    raise unusable from error
            elif self._failed is not None and self._failed[0] >= self._looked:
                raise _copy(self._failed[1])

    def _read(self, slots: list[bytes], now: int) -> ContractReading:
        self._looked = self._monotonic()
        try:
            return self._reader.read(slots, now=now)
        except ChainUnreachable as error:
            self._failed = (self._monotonic(), error)
            raise


def _copy(error: ChainUnreachable) -> ChainUnreachable:
    """One exception cannot be raised in two threads: each adds to its traceback."""
    return ChainUnreachable(
        error.message,
        check=error.check,
        got=error.got,
        expected=error.expected,
        hint=error.hint,
    )


@contextmanager
def open_gate(
    chain: ChainFile, *, clock: Clock, monotonic: Callable[[], float]
) -> Iterator[ChainGate]:
    """A gate, its connections closed at the end.

    Raises:
        ExtraMissing: The ``chain`` extra is not installed.
    """
    with open_reader(chain) as reader:
        yield ChainGate(reader, clock=clock, monotonic=monotonic)


def require_app(chain: ChainFile, app_id: str) -> None:
    """Return if the contract governs this application.

    Raises:
        ChainRefused: It governs another one.
    """
    if chain.app_id == "contract" and f"0x{app_id}" != chain.contract:
        raise ChainRefused(
            "the contract on the chain is another application's",
            check="app id",
            got=app_id,
            expected=chain.contract[2:],
            hint="deploy the guest as the contract's application, or use its own chain file",
        )


def require_counting(chain: ChainFile, compose_hash: str, value: int, now: int) -> int:
    """Last second at which a compose hash counts, by the value of its slot, if it counts now.

    Raises:
        ChainRefused: It does not.
    """
    until = counts_until(chain.kind, value)
    if now > until:
        raise ChainRefused(
            "the owners' contract on the chain does not allow this deployment"
            + (" any longer" if until else ""),
            check="compose hash",
            got=compose_hash,
            expected=f"a compose hash that {chain.contract} allows",
            hint="owners decide with: sealtrain chain approve, or by a proposal to their Safe",
        )
    return until
