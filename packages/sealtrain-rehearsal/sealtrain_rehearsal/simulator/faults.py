"""Faults of a simulated TDX guest, one at a time, while all else is right.

For tests, and for readers who want to see a verifier refuse.
"""

from __future__ import annotations

from sealtrain.errors import DataInvalid

FAULT_MEANINGS: dict[str, str] = {
    "debug-bit": "the guest runs in debug mode; its memory is open to the host (debug-guest)",
    "no-sept-ve-disable": "the host may take pages away unnoticed (debug-guest)",
    "migratable": "a service guest may move the guest elsewhere (migratable-guest)",
    "out-of-date-tcb": "the vendor calls the platform OutOfDate (tcb-status-refused)",
    "revoked-tcb": "the vendor calls the platform Revoked (tcb-status-refused)",
    "stale-collateral": "collateral issued 60 days ago for 30 (collateral-expired)",
    "future-collateral": "collateral issued tomorrow (collateral-expired)",
    "low-evaluation-number": "collateral of evaluation number 0 (tcb-status-refused)",
    "foreign-root": "another vendor's chain under the quote (quote-root-untrusted)",
    "other-image": "another firmware and kernel booted (measurement-mismatch)",
    "replayed-log": "the event log of an earlier boot is shown (event-log-mismatch)",
    "wrong-report-data": "the quote commits to something else (report-data-mismatch)",
    "bad-signature": "one bit of the quote's signature is wrong (quote-invalid)",
    "other-compose": "another deployment document was measured (compose-hash-mismatch)",
}
"""What the lie is, and the refusal it must end in (under a policy that looks: measurements pinned,
floor at least 1)."""

FAULTS: tuple[str, ...] = tuple(FAULT_MEANINGS)
"""Their names."""


def check_fault(fault: str | None) -> None:
    """Refuse an unknown lie.

    Raises:
        DataInvalid: Not one of ``FAULTS``.
    """
    if fault is not None and fault not in FAULTS:
        raise DataInvalid("no such fault", got=fault[:40], expected=", ".join(FAULTS))
