"""How much of the ledger the database reflects, and challenges that are kept only once used."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Make the tables. The broker's next start records anew what the ledger states."""
    reflected = op.create_table(
        "reflected",
        sa.Column("place", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("entries", sa.BigInteger(), nullable=False),
        sa.Column("leaf", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("place", name=op.f("pk_reflected")),
    )
    op.bulk_insert(reflected, [{"place": 0, "entries": 0, "leaf": ""}])
    op.create_table(
        "incarnations",
        sa.Column("place", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("generation", sa.Text(), nullable=False),
        sa.Column("began_at", sa.BigInteger(), nullable=False),
        sa.Column("forgotten_before", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("place", name=op.f("pk_incarnations")),
    )
    op.create_table(
        "used_challenges",
        sa.Column("challenge", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("challenge", name=op.f("pk_used_challenges")),
    )
    op.create_index(op.f("ix_used_challenges_expires_at"), "used_challenges", ["expires_at"])
    op.drop_table("challenges")
