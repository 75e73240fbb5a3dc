"""Tables of the broker's database. Times are whole seconds since the epoch; no column is secret.

The same tables serve SQLite and PostgreSQL. To change them:

1. Change this file. Times, sizes and ledger indices are ``BigInteger``, digests and ids ``Text``,
   bytes ``LargeBinary``. Every constraint gets its name from the convention below; give a check
   constraint a ``name`` of its own. A table may not name one of the ledger, which lives elsewhere.
2. ``python tools/migration.py "add withdrawals"`` writes the next file of ``migrations/versions``.
   Read it and shorten it. Each continues the newest one (``down_revision``); tests refuse two
   heads, and tables that the migrations do not lead to.
3. Never change a migration that was released.
"""

from __future__ import annotations

import sqlalchemy as sa

metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)

used_challenges = sa.Table(
    "used_challenges",
    metadata,
    sa.Column("challenge", sa.Text, primary_key=True),
    sa.Column("expires_at", sa.BigInteger, nullable=False, index=True),
)

incarnations = sa.Table(
    "incarnations",
    metadata,
    # Always 0: a database is one memory.
    sa.Column("place", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("generation", sa.Text, nullable=False),
    sa.Column("began_at", sa.BigInteger, nullable=False),
    sa.Column("forgotten_before", sa.BigInteger, nullable=False),
)

reflected = sa.Table(
    "reflected",
    metadata,
    # Always 0: a database reflects one ledger.
    sa.Column("place", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("entries", sa.BigInteger, nullable=False),
    sa.Column("leaf", sa.Text, nullable=False),
)

cosigned = sa.Table(
    "cosigned",
    metadata,
    sa.Column("size", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("note", sa.Text, nullable=False),
)

cosignatures = sa.Table(
    "cosignatures",
    metadata,
    sa.Column("size", sa.BigInteger, sa.ForeignKey("cosigned.size"), primary_key=True),
    sa.Column("owner", sa.Text, primary_key=True),
    sa.Column("line", sa.Text, nullable=False),
)

decisions = sa.Table(
    "decisions",
    metadata,
    sa.Column("sequence", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("digest", sa.Text, nullable=False, unique=True),
    sa.Column("app_id", sa.Text, nullable=False),
    sa.Column("compose_hash", sa.Text, nullable=False),
    sa.Column("recipe_hash", sa.Text, nullable=False),
    sa.Column("envelope", sa.LargeBinary, nullable=False),
    sa.Column("ledger_index", sa.BigInteger, nullable=False),
)

datasets = sa.Table(
    "datasets",
    metadata,
    sa.Column("owner_id", sa.Text, primary_key=True),
    sa.Column("dataset_id", sa.Text, primary_key=True, index=True),
    sa.Column("app_id", sa.Text, primary_key=True),
    sa.Column("compose_hash", sa.Text, primary_key=True),
    # OWNER/SERIES of a member of a series and its number in it, else null.
    sa.Column("series", sa.Text, index=True),
    sa.Column("number", sa.BigInteger),
    sa.Column("digest", sa.Text, nullable=False),
    sa.Column("envelope", sa.LargeBinary, nullable=False),
    sa.Column("ledger_index", sa.BigInteger, nullable=False),
)

runs = sa.Table(
    "runs",
    metadata,
    sa.Column("run_id", sa.Text, primary_key=True),
    sa.Column("app_id", sa.Text, nullable=False),
    sa.Column("compose_hash", sa.Text, nullable=False),
    sa.Column("recipe_hash", sa.Text, nullable=False, index=True),
    sa.Column("started_at", sa.BigInteger, nullable=False),
    # Of the first release; null of runs that are older than standing approvals.
    sa.Column("ledger_index", sa.BigInteger),
    # What the first release says the run is for; null of a run that is for no submission.
    sa.Column("submission_id", sa.Text),
    sa.Column("checkpoint_counter", sa.BigInteger),
    sa.Column("checkpoint_digest", sa.Text),
)

reservations = sa.Table(
    "reservations",
    metadata,
    sa.Column("run_id", sa.Text, primary_key=True),
    sa.Column("ledger_index", sa.BigInteger, nullable=False),
)

leases = sa.Table(
    "leases",
    metadata,
    sa.Column("lease_id", sa.Text, primary_key=True),
    sa.Column("run_id", sa.Text, sa.ForeignKey("runs.run_id"), nullable=False, index=True),
    sa.Column("not_after", sa.BigInteger, nullable=False),
    sa.Column("superseded_at", sa.BigInteger),
    sa.Column("instance_id", sa.Text, nullable=False),
)

manifests = sa.Table(
    "manifests",
    metadata,
    sa.Column("digest", sa.Text, primary_key=True),
    sa.Column("run_id", sa.Text, sa.ForeignKey("runs.run_id"), nullable=False, index=True),
    sa.Column("ledger_index", sa.BigInteger, nullable=False),
)

nonces = sa.Table(
    "nonces",
    metadata,
    sa.Column("key_id", sa.Text, primary_key=True),
    sa.Column("nonce", sa.Text, primary_key=True),
    sa.Column("forget_after", sa.BigInteger, nullable=False, index=True),
)

tokens = sa.Table(
    "tokens",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("digest", sa.Text, nullable=False, unique=True),
    sa.Column("scope", sa.Text, nullable=False),
    sa.Column("made_at", sa.BigInteger, nullable=False),
    sa.Column("not_after", sa.BigInteger, nullable=False),
)

run_datasets = sa.Table(
    "run_datasets",
    metadata,
    sa.Column("run_id", sa.Text, sa.ForeignKey("runs.run_id"), primary_key=True),
    sa.Column("owner_id", sa.Text, primary_key=True),
    sa.Column("dataset_id", sa.Text, primary_key=True),
    sa.Column("root", sa.Text, nullable=False),
)

owner_documents = sa.Table(
    "owner_documents",
    metadata,
    sa.Column("digest", sa.Text, primary_key=True),
    sa.Column("kind", sa.Text, nullable=False, index=True),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("envelope", sa.LargeBinary, nullable=False),
    sa.Column("ledger_index", sa.BigInteger, nullable=False),
)

document_subjects = sa.Table(
    "document_subjects",
    metadata,
    sa.Column("kind", sa.Text, primary_key=True),
    sa.Column("subject", sa.Text, primary_key=True),
    sa.Column("digest", sa.Text, primary_key=True),
    sa.Column("owner_id", sa.Text, nullable=False),
    sa.Column("owner", sa.Text, nullable=False),
)

home = sa.Table(
    "home",
    metadata,
    sa.Column("identity", sa.Text, primary_key=True),
)

successions = sa.Table(
    "successions",
    metadata,
    # Always 0: a consortium has one successor.
    sa.Column("place", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("successor_id", sa.Text, nullable=False),
    sa.Column("digest", sa.Text, nullable=False),
    sa.Column("ledger_index", sa.BigInteger, nullable=False),
)

entry_index = sa.Table(
    "entry_index",
    metadata,
    # What an entry names, and "*": store.entry_index.
    sa.Column("subject", sa.Text, primary_key=True),
    sa.Column("ledger_index", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Index(None, "subject", "kind", "ledger_index"),
)

submissions = sa.Table(
    "submissions",
    metadata,
    sa.Column("submission_id", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, nullable=False, unique=True),
    sa.Column("app_id", sa.Text, nullable=False),
    sa.Column("compose_hash", sa.Text, nullable=False),
    sa.Column("recipe_hash", sa.Text, nullable=False),
    sa.Column("submitter", sa.Text, nullable=False),
    sa.Column("submitter_key", sa.Text, nullable=False),
    sa.Column("digest", sa.Text, nullable=False),
    sa.Column("has_store", sa.Boolean, nullable=False),
    sa.Column("ledger_index", sa.BigInteger, nullable=False, unique=True),
    sa.Column("submitted_at", sa.BigInteger, nullable=False),
    sa.Column("not_after", sa.BigInteger, nullable=False),
    sa.Column("phase", sa.Text, nullable=False),
    sa.Column("head", sa.Text),
    sa.Column("runner", sa.Text),
    sa.Column("runner_key", sa.Text),
    sa.Column("instance", sa.Text),
    sa.Column("event", sa.Text),
    sa.Column("code", sa.Text),
    sa.Column("run_id", sa.Text),
    sa.Column("run_stated", sa.Boolean, nullable=False),
    sa.Column("claim_until", sa.BigInteger),
    sa.Column("event_index", sa.BigInteger),
    sa.Column("event_at", sa.BigInteger),
    sa.Column("stop_signer", sa.Text),
    sa.Column("stop_index", sa.BigInteger),
    sa.Column("stop_at", sa.BigInteger),
    # The newest entry of this submission: the time of run control never goes back.
    sa.Column("changed_at", sa.BigInteger, nullable=False, index=True),
    sa.Index(None, "phase", "ledger_index"),
    sa.Index(None, "compose_hash", "ledger_index"),
)

control_documents = sa.Table(
    "control_documents",
    metadata,
    sa.Column("digest", sa.Text, primary_key=True),
    sa.Column("submission_id", sa.Text, nullable=False),
    sa.Column("run_id", sa.Text, index=True),
    sa.Column("ledger_index", sa.BigInteger, nullable=False),
)
