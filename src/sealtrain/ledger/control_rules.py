"""Does an entry of run control hold, given the entries before it? See ``spec/run-control.md`` §6.

Operators change their lists of submitters and runners, so an entry states the key that signed it;
what it signed is verified under that key, and an owner's name may stand beside that owner's only.
A broker decides some seconds before it writes, so an event is judged at both times.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from sealtrain.base.canonical import JsonValue
from sealtrain.base.encoding import from_base64
from sealtrain.base.models import Base64, OwnerName, StrictModel, load_model
from sealtrain.consortium.members import Consortium
from sealtrain.consortium.runevents import (
    RunEvent,
    SubmissionState,
    apply_event,
    require_following,
    require_stoppable,
    state_submitted,
    stop_applied,
)
from sealtrain.consortium.submissions import (
    ControlDocument,
    RunStop,
    Submission,
    verify_control,
)
from sealtrain.errors import LedgerInconsistent, SealtrainError
from sealtrain.signing.dsse import Envelope
from sealtrain.signing.ed25519 import check_public_key, key_id
from sealtrain.signing.target import Target

KINDS: Final[Mapping[str, type[ControlDocument]]] = {
    kind.entry_kind: kind for kind in (Submission, RunEvent, RunStop)
}
"""By the kind of its ledger entry."""
_DECISION_SECONDS: Final = 60


class _Signed(StrictModel):
    by: OwnerName
    signing_key: Base64


class ControlRules:
    """The submissions so far. Feed it every entry of ``KINDS``, in order."""

    def __init__(self, consortium: Consortium) -> None:
        self._consortium = consortium
        self._owners = {owner.name: owner.signing_bytes for owner in consortium.owners}
        self._states: dict[str, SubmissionState] = {}
        self._names: set[str] = set()
        self._digests: set[str] = set()
        self._runs: dict[str, str] = {}
        self._released: dict[str, tuple[Target, int, str | None]] = {}
        self._latest = 0
        self.index = 0
        """Of the entry that comes next."""

    def note_release(
        self, run_id: str, target: Target, index: int, *, submission_id: str | None
    ) -> None:
        """Note a release to a run; the first one counts.

        Args:
            target: Of the run.
            index: Of the entry.
            submission_id: Which submission the guest said that its run is for.
        """
        self._released.setdefault(run_id, (target, index, submission_id))

    def problems(self, kind: str, at: int, body: dict[str, Any]) -> Iterator[str]:
        """Yield the problems of an entry.

        Args:
            kind: One of ``KINDS``.
            at: Its time, seconds since the epoch.
            body: Of the entry.

        Raises:
            SealtrainError: It does not hold in a way that ends the examination.
        """
        envelope = Envelope.from_dict(body.get("envelope"))
        signed = load_model(
            _Signed,
            {name: body.get(name) for name in ("by", "signing_key")},
            LedgerInconsistent,
            kind,
        )
        key = check_public_key(from_base64(signed.signing_key))
        document = verify_control(
            KINDS[kind], envelope, {key_id(key): key}, self._consortium.consortium_id
        )
        expected: dict[str, JsonValue] = {
            **document.ledger_fields(),
            "by": signed.by,
            "signing_key": signed.signing_key,
            "digest": envelope.digest,
            "envelope": envelope.to_dict(),
        }
        wrong = sorted(
            name for name in {*body, *expected} if body.get(name, ...) != expected.get(name, ...)
        )
        if wrong:
            yield f"its {', '.join(wrong)} differ from what was signed"
        if self._owners.get(signed.by, key) != key or (
            key in self._owners.values() and signed.by not in self._owners
        ):
            yield f"it has the name {signed.by} beside another key than that owner's"
        if envelope.digest in self._digests:
            yield f"the {document.what} {envelope.digest} was recorded before"
            return
        self._digests.add(envelope.digest)
        self._latest = max(self._latest, at)
        if isinstance(document, Submission):
            yield from self._submission(document, signed.by, envelope.digest, at)
            return
        assert isinstance(document, RunEvent | RunStop)  # noqa: S101  # there are three kinds
        state = self._states.get(document.submission_id)
        if state is None:
            yield f"no submission {document.submission_id} was recorded"
        elif isinstance(document, RunEvent):
            yield from self._event(state, document, signed.by, envelope.digest, at)
        else:
            owner = key in self._owners.values()
            yield from self._stop(state, document, signed.by, owner, at)

    def _submission(self, found: Submission, by: str, digest: str, at: int) -> Iterator[str]:
        if found.submission_id in self._states:
            yield f"the submission {found.submission_id} was recorded before"
            return
        if found.name in self._names:
            yield f"another submission has the name {found.name}"
        if found.ends < at - _DECISION_SECONDS:
            yield "it had ended before it was recorded"
        self._names.add(found.name)
        self._states[found.submission_id] = state_submitted(
            found, by=by, digest=digest, index=self.index, at=at
        )

    def _event(
        self, state: SubmissionState, event: RunEvent, by: str, digest: str, at: int
    ) -> Iterator[str]:
        try:
            require_following(state, event, now=self._latest)
        except SealtrainError as problem:
            try:
                require_following(state, event, now=self._latest - _DECISION_SECONDS)
            except SealtrainError:
                yield str(problem)
        if event.run_id is not None:
            yield from self._run(state, event.run_id)
        self._states[state.submission_id] = apply_event(
            state, event, by=by, digest=digest, index=self.index, at=at
        )

    def _run(self, state: SubmissionState, run_id: str) -> Iterator[str]:
        named = self._runs.setdefault(run_id, state.submission_id)
        released = self._released.get(run_id)
        if released is None:
            if named != state.submission_id:
                yield f"run {run_id} was named by another submission"
            return
        target, first, stated = released
        if stated != state.submission_id:
            yield f"run {run_id} did not begin for this submission"
        if target != state.target or first < state.index:
            yield f"run {run_id} is of another document, or began before the submission"

    def _stop(
        self, state: SubmissionState, stop: RunStop, by: str, owner: bool, at: int
    ) -> Iterator[str]:
        try:
            require_stoppable(state, stop, owner=owner, now=self._latest - _DECISION_SECONDS)
        except SealtrainError as problem:
            yield str(problem)
        self._states[state.submission_id] = stop_applied(state, by=by, index=self.index, at=at)
