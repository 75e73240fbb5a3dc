"""Submissions, what runners said of them, and an index of the ledger's entries."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    """Make the tables. The broker's next start records anew what the ledger states."""
    op.create_table(
        "control_documents",
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("submission_id", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=True),
        sa.Column("ledger_index", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_control_documents")),
    )
    op.create_index(op.f("ix_control_documents_run_id"), "control_documents", ["run_id"])

    op.create_table(
        "entry_index",
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("ledger_index", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("subject", "ledger_index", name=op.f("pk_entry_index")),
    )
    op.create_index(
        op.f("ix_entry_index_subject_kind_ledger_index"),
        "entry_index",
        ["subject", "kind", "ledger_index"],
    )

    op.create_table(
        "submissions",
        sa.Column("submission_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("app_id", sa.Text(), nullable=False),
        sa.Column("compose_hash", sa.Text(), nullable=False),
        sa.Column("recipe_hash", sa.Text(), nullable=False),
        sa.Column("submitter", sa.Text(), nullable=False),
        sa.Column("submitter_key", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("has_store", sa.Boolean(), nullable=False),
        sa.Column("ledger_index", sa.BigInteger(), nullable=False),
        sa.Column("submitted_at", sa.BigInteger(), nullable=False),
        sa.Column("not_after", sa.BigInteger(), nullable=False),
        sa.Column("phase", sa.Text(), nullable=False),
        sa.Column("head", sa.Text(), nullable=True),
        sa.Column("runner", sa.Text(), nullable=True),
        sa.Column("runner_key", sa.Text(), nullable=True),
        sa.Column("instance", sa.Text(), nullable=True),
        sa.Column("event", sa.Text(), nullable=True),
        sa.Column("code", sa.Text(), nullable=True),
        sa.Column("run_id", sa.Text(), nullable=True),
        sa.Column("run_stated", sa.Boolean(), nullable=False),
        sa.Column("claim_until", sa.BigInteger(), nullable=True),
        sa.Column("event_index", sa.BigInteger(), nullable=True),
        sa.Column("event_at", sa.BigInteger(), nullable=True),
        sa.Column("stop_signer", sa.Text(), nullable=True),
        sa.Column("stop_index", sa.BigInteger(), nullable=True),
        sa.Column("stop_at", sa.BigInteger(), nullable=True),
        sa.Column("changed_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("submission_id", name=op.f("pk_submissions")),
        sa.UniqueConstraint("ledger_index", name=op.f("uq_submissions_ledger_index")),
        sa.UniqueConstraint("name", name=op.f("uq_submissions_name")),
    )
    op.create_index(op.f("ix_submissions_changed_at"), "submissions", ["changed_at"])
    op.create_index(
        op.f("ix_submissions_compose_hash_ledger_index"),
        "submissions",
        ["compose_hash", "ledger_index"],
    )
    op.create_index(
        op.f("ix_submissions_phase_ledger_index"), "submissions", ["phase", "ledger_index"]
    )

    op.execute("UPDATE reflected SET entries = 0, leaf = ''")
