"""Where a run stands after what its log says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sealtrain_together.travelling.bounds import epsilon_spent
from sealtrain_together.travelling.schedule import ChunkPlaces, TravelPlan, TripRotation

if TYPE_CHECKING:
    from sealtrain.base.canonical import JsonValue
    from sealtrain.signing.runlog import RunLog


def last_state(log: RunLog) -> dict[str, Any] | None:
    """Code and model state that a run log ends with, and the nonce that it was measured under.

    ``None`` where nothing was set up.
    """
    found: dict[str, Any] | None = None
    for entry in log.entries:
        if entry["event"] == "travel.setup":
            found = entry["fields"]
        elif entry["event"] == "trip.trained":
            found = {**entry["fields"]["after"], "nonce": entry["fields"]["nonce"]}
    return found


def rotation_after(plan: TravelPlan, log: RunLog) -> TripRotation:
    """Whose turn it is after what a log says.

    A log has the size and the order of trips, and from these follows which bytes each had. Trips
    that are still open came to nothing, the last one first.
    """
    places = ChunkPlaces(holder.name for holder in plan.holders)
    open_trips: dict[int, tuple[str, int, int]] = {}
    lent = 0
    last: str | None = None

    def came_to_nothing() -> None:
        while open_trips:
            places.refuse(*open_trips.popitem()[1])

    for entry in log.entries:
        event, fields = entry["event"], entry["fields"]
        if event == "trip.lent":
            holder, size = fields["holder"], fields["end"] - fields["start"]
            open_trips[fields["trip"]] = (holder, places.lend(holder, size), size)
            lent += 1
        elif event == "trip.trained":
            last = open_trips.pop(fields["trip"])[0]
        elif event == "trip.refused":
            places.refuse(*open_trips.pop(fields["trip"]))
        elif event == "travel.taken-over":
            came_to_nothing()
    came_to_nothing()
    return TripRotation(plan, places, lent, last)


def spend_of(plan: TravelPlan, log: RunLog) -> dict[str, JsonValue] | None:
    """What a run spent of each holder's privacy, by name; ``None`` where nothing is hidden.

    Each sequence is in one step of the run at most, so its holder spent the epsilon of one step.
    """
    privacy = plan.program.privacy
    if privacy is None:
        return None
    given = rotation_after(plan, log).given
    epsilon = epsilon_spent(privacy) if any(given.values()) else 0.0
    return {
        name: {
            "epsilon": epsilon if size else 0.0,
            "delta": privacy.delta if size else 0.0,
            "sequences": size // plan.program.sequence_bytes,
        }
        for name, size in given.items()
    }


def first_open(log: RunLog) -> int:
    """Number of the first trip that came to nothing so far: lent, and neither trained nor refused.

    What a holder gave for it and for all that follow is asked for again.
    """
    lent, closed = 0, set()
    for entry in log.entries:
        if entry["event"] == "trip.lent":
            lent += 1
        elif entry["event"] in ("trip.trained", "trip.refused"):
            closed.add(entry["fields"]["trip"])
        elif entry["event"] == "travel.taken-over":
            closed.update(range(lent))  # what was open then came to nothing, and was forgiven
    return min((trip for trip in range(lent) if trip not in closed), default=lent)
