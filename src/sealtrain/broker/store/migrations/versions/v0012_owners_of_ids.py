"""Whose each dataset id is, and for which submission a run began."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    """Add the columns. The broker's next start records anew what the ledger states.

    Rows of before name no owner: their leases end, and no resume names such data.
    """
    op.drop_table("datasets")
    op.create_table(
        "datasets",
        sa.Column("owner_id", sa.Text(), nullable=False),
        sa.Column("dataset_id", sa.Text(), nullable=False),
        sa.Column("app_id", sa.Text(), nullable=False),
        sa.Column("compose_hash", sa.Text(), nullable=False),
        sa.Column("series", sa.Text()),
        sa.Column("number", sa.BigInteger()),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("envelope", sa.LargeBinary(), nullable=False),
        sa.Column("ledger_index", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint(
            "owner_id", "dataset_id", "app_id", "compose_hash", name=op.f("pk_datasets")
        ),
    )
    op.create_index(op.f("ix_datasets_dataset_id"), "datasets", ["dataset_id"])
    op.create_index(op.f("ix_datasets_series"), "datasets", ["series"])
    with op.batch_alter_table("run_datasets") as table:
        table.add_column(sa.Column("owner_id", sa.Text(), nullable=False, server_default=""))
        table.drop_constraint("pk_run_datasets", type_="primary")
        table.create_primary_key("pk_run_datasets", ["run_id", "owner_id", "dataset_id"])
    with op.batch_alter_table("run_datasets") as table:
        table.alter_column("owner_id", server_default=None)
    op.drop_table("document_subjects")
    op.create_table(
        "document_subjects",
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("owner_id", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("kind", "subject", "digest", name=op.f("pk_document_subjects")),
    )
    op.add_column("runs", sa.Column("submission_id", sa.Text(), nullable=True))
    op.execute("DELETE FROM owner_documents")
    op.execute("UPDATE leases SET superseded_at = not_after WHERE superseded_at IS NULL")
    op.execute("UPDATE reflected SET entries = 0, leaf = ''")
