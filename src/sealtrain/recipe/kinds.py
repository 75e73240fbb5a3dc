"""The kinds of collaboration: the one table through which the core reaches their packages.

Settings and rules of every kind are the core's (``recipe.collaborations``,
``manifest.checks.collaborations``): who verifies a manifest needs nothing else. The core imports no
role of a kind. What it needs of one is named here as ``module:name`` and loaded when it is asked
for. Another kind is its settings, its rules, a package of roles, and one entry here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Final, Union

from pydantic import Field

from sealtrain.base.distributions import CORE, DISTRIBUTIONS, NODES, TOGETHER, load
from sealtrain.recipe.collaboration import CollaborationSettings

_TOGETHER: Final = ("sealtrain-together",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Where a kind has what the core asks of it, each as ``module:name``.

    Attributes:
        rooms: Distributions that have its roles, sorted; a lock pins them beside the core.
        settings: Class of its settings in a recipe (``CollaborationSettings``).
        rule: Check 18 for its runs (``manifest.checks.collaboration``).
        summary: Sums up its run log for a report (``manifest.joint_sections``), or ``None``.
        helper_desk: Makes the ``HelperDesk`` of a run (``guest.helper_machines``), for a kind with
            helpers.
        stand_ins: Makes the ``StandIns`` of a run in its workload, for a kind with helpers.
        company: Makes the ``WorkloadCompany`` of a run in its workload, for a kind with fellows.
        fellows: Makes the ``Fellows`` of a run, for a kind whose guests train one model together.
        guests: Lists a run's other guests for a reader (``manifest.verify``) as its log names them:
            JSON-ready, all with the same names; ``None`` where there are none, or parties are
            listed.
        stays: Lists the stays of a run's other guests that hold keys (``manifest.checks.parties``).
        roles: What a guest of such a recipe may be told to be by its ticket (``cli.guest``), by
            name; called with its settings and the ticket. None for a kind whose guest trains.
    """

    rooms: tuple[str, ...]
    settings: str
    rule: str
    summary: str | None = None
    helper_desk: str | None = None
    stand_ins: str | None = None
    company: str | None = None
    fellows: str | None = None
    guests: str | None = None
    stays: str | None = None
    roles: Mapping[str, str] = field(default_factory=dict)

    @property
    def guest_trains(self) -> bool:
        """Whether a guest of the kind trains (role ``train``), besides its roles."""
        return self.stand_ins is not None or self.fellows is not None


KINDS: Final[Mapping[str, Kind]] = {
    "travelling": Kind(
        rooms=_TOGETHER,
        settings="sealtrain.recipe.collaborations.travelling:Travelling",
        rule="sealtrain.manifest.checks.collaborations.travelling:trips_hold",
        roles={
            "accelerator": f"{TOGETHER}.travelling.cli:accelerate_by_ticket",
            "holder": f"{TOGETHER}.travelling.cli:hold_by_ticket",
            "orchestrator": f"{TOGETHER}.travelling.cli:orchestrate_by_ticket",
            "standby": f"{TOGETHER}.travelling.cli:orchestrate_by_ticket",
        },
    ),
    "federated": Kind(
        rooms=_TOGETHER,
        settings="sealtrain.recipe.collaborations.federated:Federated",
        rule="sealtrain.manifest.checks.collaborations.federated:rounds_hold",
        summary="sealtrain.manifest.checks.collaborations.federated:sum_up",
        roles={
            "lead": f"{TOGETHER}.federated.cli:lead_by_ticket",
            "party": f"{TOGETHER}.federated.cli:join_by_ticket",
            "dealer": f"{TOGETHER}.pads.cli:deal_by_ticket",
        },
    ),
    "pads": Kind(
        rooms=_TOGETHER,
        settings="sealtrain.recipe.collaborations.pads:Pads",
        rule="sealtrain.manifest.checks.collaborations.pads:pads_hold",
        summary="sealtrain.manifest.checks.collaborations.pads:sum_up",
        helper_desk=f"{TOGETHER}.pads.guest.keeper:KeptPads",
        stand_ins=f"{TOGETHER}.pads.guest.workload:PadStandIns",
        roles={"dealer": f"{TOGETHER}.pads.cli:deal_by_ticket"},
    ),
    "cut": Kind(
        rooms=_TOGETHER,
        settings="sealtrain.recipe.collaborations.cut:Cut",
        rule="sealtrain.manifest.checks.collaborations.cut:cut_holds",
        roles={"server": f"{TOGETHER}.cut.cli:serve_by_ticket"},
    ),
    "nodes": Kind(
        rooms=("sealtrain-nodes", "sealtrain-together"),
        settings="sealtrain.recipe.collaborations.nodes:Nodes",
        rule="sealtrain.manifest.checks.collaborations.nodes:nodes_hold",
        company=f"{NODES}.node_ranks:KeptCompany",
        fellows=f"{NODES}.guest.lead:LeadNode",
        guests="sealtrain.manifest.checks.collaborations.nodes:guests_in",
        stays="sealtrain.manifest.checks.collaborations.nodes:stays_of_nodes",
        roles={"node": f"{NODES}.cli:join_by_ticket"},
    ),
}
"""By the name that ``collaboration.kind`` has in recipes and manifests."""


def distributions_of(collaboration: CollaborationSettings | None) -> tuple[str, ...]:
    """What of sealtrain a guest of a recipe needs, and no more: the core, and its kind's rooms."""
    return (CORE,) if collaboration is None else (CORE, *KINDS[collaboration.kind].rooms)


def workload_distributions(collaboration: CollaborationSettings | None) -> tuple[str, ...]:
    """What of them the process that trains may import: the core, and the rooms that work in it."""
    if collaboration is None:
        return (CORE,)
    kind = KINDS[collaboration.kind]
    packages = {
        place.partition(".")[0] for place in (kind.stand_ins, kind.company) if place is not None
    }
    return (CORE, *(room for room in kind.rooms if DISTRIBUTIONS[room] in packages))


def settings_of(kind: str) -> type[CollaborationSettings] | None:
    """The settings class of a kind; ``None`` for a kind that this version does not know."""
    if kind not in KINDS:
        return None
    found: type[CollaborationSettings] = load(KINDS[kind].settings)
    return found


if TYPE_CHECKING:
    Collaboration = CollaborationSettings
else:
    Collaboration = Annotated[
        Union[tuple(load(kind.settings) for kind in KINDS.values())],  # noqa: UP007  # not a literal
        Field(discriminator="kind"),
    ]
"""Settings of any kind, as a recipe holds them."""
