"""What every challenge and release asks the database: built once, for their cost is in building.

A statement written where it is used is assembled and looked up anew each time, which takes several
times as long as running it.
"""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa

from sealtrain.broker.tables import challenges, datasets, decisions, leases, runs

__all__ = [
    "BEGIN_RUN",
    "BURN",
    "CHALLENGE",
    "DATASETS",
    "DECISIONS",
    "END_LEASES",
    "FORGET_CHALLENGES",
    "GRANT_LEASE",
    "ISSUE",
    "LEASE",
    "RUN",
    "WAITING",
]

_key: Final[sa.BindParameter[str]] = sa.bindparam("key", type_=sa.Text)
_at: Final[sa.BindParameter[int]] = sa.bindparam("at", type_=sa.BigInteger)

FORGET_CHALLENGES: Final = challenges.delete().where(challenges.c.expires_at < _at)
WAITING: Final = (
    sa.select(sa.func.count())
    .select_from(challenges)
    .where(challenges.c.used_at.is_(None), challenges.c.expires_at > _at)
)
"""How many challenges wait to be used."""
ISSUE: Final = challenges.insert()
CHALLENGE: Final = sa.select(challenges.c.purpose, challenges.c.expires_at).where(
    challenges.c.challenge == _key
)
BURN: Final = (
    challenges.update()
    .where(challenges.c.challenge == _key, challenges.c.used_at.is_(None))
    .values(used_at=_at)
)
DECISIONS: Final = (
    sa.select(decisions.c.envelope)
    .order_by(decisions.c.sequence)
    .limit(sa.bindparam("limit", type_=sa.Integer))
)
DATASETS: Final = (
    sa.select(datasets)
    .where(datasets.c.dataset_id.in_(sa.bindparam("ids", expanding=True)))
    .order_by(datasets.c.ledger_index)
)
RUN: Final = sa.select(runs).where(runs.c.run_id == _key)
BEGIN_RUN: Final = runs.insert()
LEASE: Final = sa.select(leases).where(leases.c.lease_id == _key)
END_LEASES: Final = (
    leases.update()
    .where(leases.c.run_id == _key, leases.c.superseded_at.is_(None))
    .values(superseded_at=_at)
)
GRANT_LEASE: Final = leases.insert()
