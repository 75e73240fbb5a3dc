"""What a run released, handed to an experiment tracker from outside the guest.

A tracker is no part of a run: no guest knows of it, and it gets numbers only after a manifest was
verified, whose check 15 holds each of them to the release policy.

1. What leaves is a ``TrackedRun`` and nothing else: metric names, values and steps, the times at
   which the guest began and finished, run id, recipe hash, manifest digest, whether it was
   simulated. No name of recipe, owner or dataset is in it, nor anything of this machine.
2. A manifest is tracked once, however often and from however many machines it is sent: every value
   has the same identity each time. What was interrupted continues with what is missing.
3. A tracker is a server that the caller names: HTTPS, or plain HTTP on this machine. It is asked by
   ``owner.tracker_server``, whose waiting is bounded and which follows no redirect.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import urlsplit

from sealtrain.base.clock import from_rfc3339
from sealtrain.base.outbound import is_this_machine
from sealtrain.errors import UsageError

if TYPE_CHECKING:
    from sealtrain.manifest.verify import VerifiedManifest

FINAL: Final = "final/"
"""Before the name of a metric at the end of a run: it need not be the last of its curve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedPoint:
    """Metrics at one step.

    Attributes:
        step: Of the run.
        values: By name; ``None`` is a value that was not finite.
        final: They are the metrics at the end, whose names begin with ``final/``.
    """

    step: int
    values: dict[str, float | None]
    final: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun:
    """All that a tracker is told of a run.

    Attributes:
        run_id: 32 hex digits.
        manifest: SHA-256 of the manifest, 64 hex digits.
        recipe_hash: 64 hex digits.
        simulated: It was a rehearsal.
        started: Seconds since 1970, by the guest's clock.
        finished: The same.
        points: In the order of the steps, the metrics at the end last.
    """

    run_id: str
    manifest: str
    recipe_hash: str
    simulated: bool
    started: int
    finished: int
    points: tuple[TrackedPoint, ...]

    @property
    def tags(self) -> dict[str, str]:
        """What says of which run the numbers are."""
        return {
            "sealtrain.manifest": self.manifest,
            "sealtrain.run_id": self.run_id,
            "sealtrain.recipe_hash": self.recipe_hash,
            "sealtrain.simulated": "true" if self.simulated else "false",
        }

    @property
    def values(self) -> int:
        """Number of values."""
        return sum(len(point.values) for point in self.points)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {
            "tags": self.tags,
            "started": self.started,
            "finished": self.finished,
            "points": [{"step": point.step, "values": point.values} for point in self.points],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracked:
    """How a tracker stands now.

    Attributes:
        place: The run's id at the tracker.
        sent: Values that were sent this time.
        before: Whether the tracker had the run already.
    """

    place: str
    sent: int
    before: bool

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {"place": self.place, "sent": self.sent, "before": self.before}


class Tracker(Protocol):
    """An experiment tracker: ``owner.trackers`` has MLflow and Trackio."""

    def track(self, run: TrackedRun) -> Tracked:
        """Have the tracker hold a run, whole and once.

        Raises:
            StorageUnreachable: It does not answer, or does not keep every value.
            StorageRefused: It refuses for good, or is another server than it should be.
        """
        ...


def track_verified(verified: VerifiedManifest) -> TrackedRun:
    """What a verified manifest lets out.

    Args:
        verified: From ``verify_manifest``.
    """
    predicate = verified.predicate
    run = predicate.run
    points = [
        TrackedPoint(step=point.step, values=dict(point.values))
        for point in run.history
        if point.values
    ]
    if run.metrics:
        last = {f"{FINAL}{name}": value for name, value in run.metrics.items()}
        points.append(TrackedPoint(step=run.steps, values=last, final=True))
    return TrackedRun(
        run_id=run.run_id,
        manifest=verified.digest,
        recipe_hash=predicate.recipe.recipe_hash,
        simulated=verified.simulated,
        started=from_rfc3339(run.started_at),
        finished=from_rfc3339(run.finished_at),
        points=tuple(points),
    )


def require_tracker(url: str) -> str:
    """The URL of a tracker's server, once it is one to send numbers to.

    Raises:
        UsageError: It is not ``https``, nor ``http`` on this machine, or it holds more than an
            address: credentials belong in variables.
    """
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        parts, host = urlsplit(""), ""
    secured = parts.scheme == "https" or (parts.scheme == "http" and is_this_machine(host))
    if not host or not secured or not url.isprintable():
        raise UsageError(
            "not the address of a tracker",
            check="--tracking-uri",
            got=url.rpartition("@")[2][:200],
            expected="https://host, or http://127.0.0.1:port",
        )
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise UsageError(
            "the address of a tracker holds more than an address",
            check="--tracking-uri",
            expected="no user, password, token, query or fragment",
            hint="set MLFLOW_TRACKING_TOKEN or TRACKIO_WRITE_TOKEN",
        )
    return url.rstrip("/")
