"""Moves the pieces of all operations over all links, in one thread and in the order of issue.

    engine = Engine(links)
    engine.submit(operation)        # from any thread; returns at once
    operation.wait()                # raises what ended the group

1. An operation begins when every earlier one has queued all its pieces and every earlier
   collective has ended: so both ends of a link have the same order. Sending and receiving of one
   rank (``alone``) do not hold up what comes after them.
2. The first error ends the group: the peers are told, every operation, then and later, raises it,
   and the connections are closed once the peers had time to read why. No operation completes with
   bytes that did not open.
3. An operation that is not done in its time ends the group too.
"""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from sealtrain.errors import SealtrainError
from sealtrain.training.errors import ChannelBroken, PeerUnreachable
from sealtrain_nodes.wire.frames import END, FAILED
from sealtrain_nodes.wire.link import HandedLink, Link, PeerFailed, Piece

CLOSING_SECONDS: Final = 5.0
"""Longest wait for peers that have not ended yet."""
FAILING_SECONDS: Final = 2.0
"""The same after an error: of them one may be why, and say nothing any more."""
_UNDER_WAY: Final = 24
"""Pieces for each link that are queued at a time."""
_NO_ROOM: Final = memoryview(bytearray())


class IssuedWork:
    """What was issued and ends some time, well or with an error: its callers wait for it.

    Args:
        name: For errors.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.error: BaseException | None = None
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[IssuedWork], None]] = []

    def complete(self, error: BaseException | None = None) -> None:
        """Say that it is over."""
        with self._lock:
            self.error = error
            self._done.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)

    @property
    def done(self) -> bool:
        """Whether it is over, well or not."""
        return self._done.is_set()

    def on_done(self, callback: Callable[[IssuedWork], None]) -> None:
        """Call back once it is over, in the thread that ends it, or now."""
        with self._lock:
            if not self._done.is_set():
                self._callbacks.append(callback)
                return
        callback(self)

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until it is over.

        Raises:
            SealtrainError: What ended the group, or the time is over (``PeerUnreachable``).
        """
        if not self._done.wait(timeout_s):
            raise PeerUnreachable(
                "an operation of the group takes too long",
                check="timeout",
                got=self.name,
                expected=f"{timeout_s} s",
            )
        if self.error is not None:
            raise self.error


class Operation(IssuedWork):
    """One collective, or one message of one rank to another.

    Args:
        name: For errors.
        queue: Puts pieces into the links by ``send`` and ``expect`` at each step, so that the
            first are under way before the last are made. Its steps depend on the operation alone.
        finish: Called when all pieces were moved.
        timeout_s: Seconds from its beginning to its end.
        alone: Whether it is no collective.
        keeps: Whatever must live until it is done.
    """

    def __init__(
        self,
        name: str,
        queue: Callable[[Operation], Iterator[None]],
        *,
        finish: Callable[[], None] | None = None,
        timeout_s: float,
        alone: bool = False,
        keeps: object = None,
    ) -> None:
        super().__init__(name)
        self.alone = alone
        self.timeout_s = timeout_s
        self.until = 0.0
        self._steps: Iterator[None] | None = None
        self._queue = queue
        self._finish = finish
        self._keeps = keeps
        self._links: Mapping[int, Link] = {}
        self._left = 0

    # --- What an operation's own code calls --------------------------------------------------

    def send(
        self,
        rank: int,
        form: bytes,
        view: memoryview,
        *,
        ready: bool = True,
    ) -> Piece:
        """Queue a piece for a rank; one that is not ready waits until its ``ready`` is set."""
        piece = Piece(form, len(view), view, self._note_moved, ready=ready)
        self._left += 1
        self._links[rank].send(piece)
        return piece

    def expect(
        self,
        rank: int,
        form: bytes,
        view: memoryview,
        then: Callable[[], None] | None = None,
    ) -> None:
        """Queue room for a piece of a rank; ``then`` is called when it was opened."""
        self._left += 1
        self._links[rank].expect(Piece(form, len(view), view, self._after(then)))

    def expect_in(
        self,
        rank: int,
        form: bytes,
        size: int,
        room: Callable[[], memoryview],
        then: Callable[[], None],
    ) -> None:
        """As ``expect``, into the room that is given once all bytes of the piece are there."""
        self._left += 1
        self._links[rank].expect(Piece(form, size, _NO_ROOM, self._after(then), room=room))

    def _after(self, then: Callable[[], None] | None) -> Callable[[], None]:
        if then is None:
            return self._note_moved

        def arrived() -> None:
            then()
            self._note_moved()

        return arrived

    def _note_moved(self) -> None:
        self._left -= 1

    # --- What the engine calls ---------------------------------------------------------------

    def begin(self, links: Mapping[int, Link]) -> None:
        """Start the clock, and queue the first pieces."""
        self._links = links
        self.until = time.monotonic() + self.timeout_s
        self._steps = self._queue(self)
        self.queue_more()

    def queue_more(self) -> None:
        """Queue pieces until enough of them are under way."""
        # Two ranks that send each other messages first and receive them afterwards must not wait.
        enough = sys.maxsize if self.alone else _UNDER_WAY * max(1, len(self._links))
        while self._steps is not None and self._left < enough:
            try:
                next(self._steps)
            except StopIteration:
                self._steps = None

    @property
    def queued(self) -> bool:
        """Whether all pieces are in the links."""
        return self._steps is None

    @property
    def moved(self) -> bool:
        """Whether no piece is left."""
        return not self._left and self._steps is None

    def complete(self, error: BaseException | None = None) -> None:
        """Finish it where it went well, and say that it is over."""
        if error is None and self._finish is not None:
            self._finish()
        super().complete(error)
        self._keeps = self._finish = None


class LinkEngine:
    """The one thread that works on a group's links."""

    def __init__(self, links: Iterable[Link]) -> None:
        self._links = {link.rank: link for link in links}
        self._all = list(self._links.values())
        self._waiting: deque[Operation] = deque()
        self._active: list[Operation] = []
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._bell, select.POLLIN)
        self._masks: dict[int, int] = {}
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._closing = False
        self._parting: dict[int, Link] = {}
        self._at: int | None = None  # the rank that is worked on
        self._aborted: SealtrainError | None = None
        self.failure: SealtrainError | None = None
        """What ended the group."""
        self.lost_rank: int | None = None
        """The rank that the failure is about, as far as it is known."""

    @property
    def peers(self) -> tuple[int, ...]:
        """Ranks that there is a connection to, in their order."""
        return tuple(sorted(self._links))

    @property
    def bytes_sent(self) -> int:
        """Bytes of frames that were sent to all peers."""
        return sum(self.bytes_by_peer.values())

    @property
    def bytes_by_peer(self) -> dict[int, int]:
        """Bytes of frames that were sent, by the rank that they went to."""
        return {link.rank: link.bytes_sent for link in self._all}

    def submit(self, operation: Operation) -> None:
        """Have an operation done after all that were submitted before."""
        with self._lock:
            if self.failure is None and not self._closing:
                self._waiting.append(operation)
                self._start()
                os.eventfd_write(self._bell, 1)
                return
            error = self.failure or ChannelBroken("the wire is closed", check="wire")
        operation.complete(error)

    def abort(self, error: SealtrainError) -> None:
        """End the group with an error that was found elsewhere in this process; peers are told."""
        with self._lock:
            if self.failure is not None or self._closing:
                return
            self._aborted = error
            self._start()
            os.eventfd_write(self._bell, 1)

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="sealtrain-wire", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End the session: what was submitted is done, the peers are told, and then it is over."""
        if not self._finish():
            return
        if self.failure is None:
            self._tell(END)
            self._leave(CLOSING_SECONDS)
        os.close(self._bell)

    def hand_over(self) -> list[HandedLink]:
        """Stop once all that was submitted is done, and give the connections away; no peer hears.

        Raises:
            SealtrainError: What ended the group before.
        """
        if self._finish():
            os.close(self._bell)
        if self.failure is not None:
            raise self.failure
        return [link.handed_over() for link in self._all]

    def _finish(self) -> bool:
        """Do what was submitted, and take nothing more; whether this was the first time."""
        with self._lock:
            if self._closing:
                return False
            self._closing = True
            if self._thread is not None:
                os.eventfd_write(self._bell, 1)
        if self._thread is not None:
            self._thread.join()
        return True

    # --- The thread --------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while True:
                self._raise_aborted()
                self._begin()
                if not self._active and self._closing and not self._waiting:
                    return
                if not self._pump():
                    self._sleep()
                self._end()
        except SealtrainError as error:
            self._fail(error, self._at)
        except PeerFailed as report:
            self._fail(report.error, report.blamed)
        except BaseException as error:
            found = ChannelBroken("the group failed", check="wire", got=type(error).__name__)
            found.__cause__ = error
            self._fail(found, None)

    def _raise_aborted(self) -> None:
        if self._aborted is not None:
            self._at = None
            raise self._aborted

    def _begin(self) -> None:
        for operation in self._active:
            if not operation.queued:
                operation.queue_more()
        while self._waiting and all(each.alone and each.queued for each in self._active):
            operation = self._waiting.popleft()
            self._active.append(operation)
            operation.begin(self._links)

    def _pump(self) -> bool:
        moved = False
        for link in self._all:
            self._at = link.rank
            if link.wants_out:
                moved |= link.pump_out()
            if link.wants_in:
                moved |= link.pump_in()
        return moved

    def _end(self) -> None:
        over = [operation for operation in self._active if operation.moved]
        for operation in over:
            operation.complete()
            self._active.remove(operation)

    def _sleep(self) -> None:
        """Wait for a socket, the bell, or the end of an operation's time."""
        if any(operation.moved or not operation.queued for operation in self._active):
            return
        for link in self._all:
            mask = (select.POLLIN if link.wants_in else 0) | (
                select.POLLOUT if link.wants_out else 0
            )
            if mask != self._masks.get(link.rank, 0):
                if mask:
                    self._poll.register(link.descriptor, mask)
                else:
                    self._poll.unregister(link.descriptor)
                self._masks[link.rank] = mask
        until = min((operation.until for operation in self._active), default=None)
        left = None if until is None else until - time.monotonic()
        if left is not None and left <= 0:
            self._late()
        for descriptor, _ in self._poll.poll(None if left is None else left * 1000 + 1):
            if descriptor == self._bell:
                os.eventfd_read(self._bell)

    def _late(self) -> None:
        silent = [link.rank for link in self._all if link.wants_in or link.wants_out]
        self._at = silent[0] if silent else None
        late = min(self._active, key=lambda operation: operation.until)
        raise PeerUnreachable(
            "a rank did not answer in time",
            check="timeout",
            got=", ".join(f"rank {rank}" for rank in silent),
            expected=f"{late.name} within {late.timeout_s:g} s",
            hint="check that all nodes run; start again from the last checkpoint",
        )

    def _fail(self, error: SealtrainError, blamed: int | None) -> None:
        with self._lock:
            self.failure, self.lost_rank = error, blamed
            over = [*self._active, *self._waiting]
            self._active.clear()
            self._waiting.clear()
        word = error.code if blamed is None else f"{error.code} {blamed}"
        self._tell(FAILED, word.encode())
        for operation in over:
            operation.complete(error)
        self._leave(FAILING_SECONDS)

    def _tell(self, kind: int, word: bytes = b"") -> None:
        """End every link with a last frame; nothing is sealed or opened after it."""
        self._parting = {link.descriptor: link for link in self._all}
        for link in self._all:
            link.part(kind, word)
            if link.leave():
                del self._parting[link.descriptor]

    def _leave(self, seconds: float) -> None:
        """Wait a moment until each peer has what was told, and then close."""
        until = time.monotonic() + seconds
        poll = select.poll()
        for descriptor, link in self._parting.items():
            poll.register(descriptor, _mask_of(link))
        while self._parting and (left := until - time.monotonic()) > 0:
            for descriptor, _ in poll.poll(left * 1000):
                link = self._parting[descriptor]
                if link.leave():
                    poll.unregister(descriptor)
                    del self._parting[descriptor]
                else:
                    poll.modify(descriptor, _mask_of(link))
        for link in self._all:
            link.close()


def _mask_of(link: Link) -> int:
    return select.POLLIN | (select.POLLOUT if link.tells else 0)
