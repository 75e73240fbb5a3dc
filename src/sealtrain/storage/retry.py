"""Retries: a bounded number, with a longer pause before each."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from sealtrain.errors import DataInvalid
from sealtrain.storage.errors import StorageUnreachable

Answer = TypeVar("Answer")


class Busy(ConnectionError):
    """The store asks to come back later.

    Attributes:
        after: Seconds it asks for, where it says.
    """

    def __init__(self, message: str, after: float | None = None) -> None:
        super().__init__(message)
        self.after = after


class Unanswered(ConnectionError):
    """No answer came.

    Attributes:
        remedy: What to do where it is known; ``None`` where the store may be at fault.
    """

    def __init__(self, message: str, remedy: str | None) -> None:
        super().__init__(message)
        self.remedy = remedy


class Unsafe(ConnectionError):
    """TLS with the store, or the proxy before it, failed: a setting is at fault, and no moment.

    Attributes:
        check: ``tls`` or ``proxy``.
        remedy: What to do.
    """

    def __init__(self, reason: str, check: str, remedy: str | None) -> None:
        super().__init__(reason)
        self.check = check
        self.remedy = remedy


@dataclass(frozen=True, slots=True)
class Patience:
    """How often to retry, and how long to wait.

    Attributes:
        attempts: Tries altogether.
        first: Seconds before the second try; doubled each time, half of it random.
        longest: Most seconds of one wait, whatever the store asks for.
        sleep: Waits.
    """

    attempts: int = 6
    first: float = 0.25
    longest: float = 20.0
    sleep: Callable[[float], None] = time.sleep

    def ask(self, work: Callable[[], Answer], *, what: str) -> Answer:
        """Result of ``work``, tried again while the connection fails.

        Args:
            work: Asks once.
            what: Name of the file, for refusals.

        Raises:
            StorageUnreachable: Every try failed, or the store denies access.
            DataInvalid: There is no such file.
        """
        problem, after, remedy = "", None, None
        for attempt in range(self.attempts):
            if attempt:
                self.sleep(self._pause(attempt, after))
            try:
                return work()
            except FileNotFoundError:
                raise DataInvalid(
                    f"there is no {what} at this address", hint="check the URL"
                ) from None
            except PermissionError as error:
                raise StorageUnreachable(
                    f"the store does not let {what} be read or written",
                    check="storage",
                    got=str(error),
                    hint="give this process credentials of the store",
                ) from None
            except Unsafe as error:
                raise StorageUnreachable(
                    "no safe connection to the store"
                    if error.check == "tls"
                    else "the proxy does not lead to the store",
                    check=error.check,
                    got=str(error),
                    hint=error.remedy,
                ) from None
            except OSError as error:  # ConnectionError and TimeoutError are
                problem = str(error) or type(error).__name__
                after = error.after if isinstance(error, Busy) else None
                remedy = error.remedy if isinstance(error, Unanswered) else None
        raise StorageUnreachable(
            f"the store did not deliver {what}",
            check="storage",
            got=f"{problem}, {self.attempts} times",
            hint=remedy or "check that the store is up and reachable, then run the command again",
        )

    def _pause(self, attempt: int, after: float | None) -> float:
        growing = self.first * float(1 << (attempt - 1))
        jittered = growing * (0.5 + secrets.randbelow(1000) / 2000)
        return min(max(jittered, after or 0.0), self.longest)


PATIENT = Patience()
