"""One table for owners' documents of all kinds, in place of one for each kind."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """Make the tables. The broker's next start records anew what the ledger states."""
    op.create_table(
        "owner_documents",
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("envelope", sa.LargeBinary(), nullable=False),
        sa.Column("ledger_index", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_owner_documents")),
    )
    op.create_index(op.f("ix_owner_documents_kind"), "owner_documents", ["kind"])
    op.create_table(
        "document_subjects",
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("kind", "subject", "digest", name=op.f("pk_document_subjects")),
    )
    op.drop_table("withdrawals")
    op.drop_table("owner_policies")
    op.execute("UPDATE reflected SET entries = 0, leaf = ''")
