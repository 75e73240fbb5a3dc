"""A ledger's tables and triggers in PostgreSQL: makes and fills them, and finds faults in them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from psycopg import Connection

    from sealtrain.ledger.tree import Growth

_REFUSE: Final = "BEGIN RAISE EXCEPTION 'append only'; END"
_NEXT: Final = """
BEGIN
    IF NEW.i IS DISTINCT FROM (SELECT coalesce(max(i) + 1, 0) FROM sealtrain_ledger.entry) THEN
        RAISE EXCEPTION 'append only';
    END IF;
    RETURN NEW;
END
"""

# The triggers fire always: also in a session that says it replicates, which skips others.
MAKE: Final = f"""
CREATE SCHEMA IF NOT EXISTS sealtrain_ledger;
CREATE TABLE sealtrain_ledger.meta (name text PRIMARY KEY, value text NOT NULL);
CREATE TABLE sealtrain_ledger.entry (i bigint PRIMARY KEY, data bytea NOT NULL);
CREATE TABLE sealtrain_ledger.node (
    level integer NOT NULL, i bigint NOT NULL, hash bytea NOT NULL, PRIMARY KEY (level, i));
CREATE FUNCTION sealtrain_ledger.refuse() RETURNS trigger LANGUAGE plpgsql AS $${_REFUSE}$$;
CREATE FUNCTION sealtrain_ledger.next() RETURNS trigger LANGUAGE plpgsql AS $${_NEXT}$$;
CREATE TRIGGER refuse BEFORE UPDATE OR DELETE OR TRUNCATE ON sealtrain_ledger.meta
    FOR EACH STATEMENT EXECUTE FUNCTION sealtrain_ledger.refuse();
CREATE TRIGGER refuse BEFORE UPDATE OR DELETE OR TRUNCATE ON sealtrain_ledger.entry
    FOR EACH STATEMENT EXECUTE FUNCTION sealtrain_ledger.refuse();
CREATE TRIGGER refuse BEFORE UPDATE OR DELETE OR TRUNCATE ON sealtrain_ledger.node
    FOR EACH STATEMENT EXECUTE FUNCTION sealtrain_ledger.refuse();
CREATE TRIGGER next BEFORE INSERT ON sealtrain_ledger.entry
    FOR EACH ROW EXECUTE FUNCTION sealtrain_ledger.next();
ALTER TABLE sealtrain_ledger.meta ENABLE ALWAYS TRIGGER refuse;
ALTER TABLE sealtrain_ledger.entry ENABLE ALWAYS TRIGGER refuse;
ALTER TABLE sealtrain_ledger.node ENABLE ALWAYS TRIGGER refuse;
ALTER TABLE sealtrain_ledger.entry ENABLE ALWAYS TRIGGER next;
"""
"""Makes them, in an empty database or an empty schema."""

# What is in the schema, in words that do not depend on the server's version. Constraints of the
# kind "n" (NOT NULL) exist since version 18; the columns' own property is here in any case.
_STRUCTURE: Final = """
WITH here AS (SELECT * FROM pg_class WHERE relnamespace = to_regnamespace('sealtrain_ledger'))
SELECT format('relation %s %s %s rules:%s rows:%s', relname, relkind, relpersistence,
              relhasrules, relrowsecurity) FROM here
UNION ALL SELECT format('column %s.%s %s %s', relname, attname,
                        format_type(atttypid, atttypmod), attnotnull)
    FROM pg_attribute JOIN here ON here.oid = attrelid
    WHERE attnum > 0 AND NOT attisdropped AND relkind <> 'i'
UNION ALL SELECT format('default of %s.%s', relname, adnum)
    FROM pg_attrdef JOIN here ON here.oid = adrelid
UNION ALL SELECT format('constraint of %s: %s', relname, pg_get_constraintdef(c.oid))
    FROM pg_constraint c JOIN here ON here.oid = conrelid WHERE contype <> 'n'
UNION ALL SELECT format('trigger %s of %s: %s.%s %s %s always:%s', tgname, relname, nspname,
                        proname, tgtype, tgenabled, tgqual IS NULL)
    FROM pg_trigger JOIN here ON here.oid = tgrelid JOIN pg_proc p ON p.oid = tgfoid
    JOIN pg_namespace n ON n.oid = pronamespace WHERE NOT tgisinternal
UNION ALL SELECT format('function %s %s %s %s', proname, prosecdef, proconfig, prosrc)
    FROM pg_proc WHERE pronamespace = to_regnamespace('sealtrain_ledger')
UNION ALL SELECT format('child of %s', relname) FROM pg_inherits JOIN here ON here.oid = inhparent
"""


def structure(connection: Connection) -> set[str]:
    """Every table, trigger and function of the schema, each in a line; empty for another schema."""
    return {str(row[0]) for row in connection.execute(_STRUCTURE)}


_EXPECTED: Final = frozenset(
    {
        "column meta.name text t",
        "column meta.value text t",
        "column entry.i bigint t",
        "column entry.data bytea t",
        "column node.level integer t",
        "column node.i bigint t",
        "column node.hash bytea t",
        "constraint of meta: PRIMARY KEY (name)",
        "constraint of entry: PRIMARY KEY (i)",
        "constraint of node: PRIMARY KEY (level, i)",
        f"function refuse f  {_REFUSE}",
        f"function next f  {_NEXT}",
        "trigger next of entry: sealtrain_ledger.next 7 A always:t",
        *(
            line
            for table in ("meta", "entry", "node")
            for line in (
                f"relation {table} r p rules:f rows:f",
                f"relation {table}_pkey i p rules:f rows:f",
                f"trigger refuse of {table}: sealtrain_ledger.refuse 58 A always:t",
            )
        ),
    }
)
"""What ``structure`` says of a ledger as ``MAKE`` left it."""


def faults_of(connection: Connection) -> Iterator[str]:
    """What is wrong with a ledger's tables and triggers, in lines."""
    found = structure(connection)
    yield from (f"its schema has an unexpected part: {line}" for line in found - _EXPECTED)
    yield from (f"its schema has no: {line}" for line in _EXPECTED - found)


# One round trip, however many there are.
_INSERT: Final = """
WITH entries AS (
    INSERT INTO sealtrain_ledger.entry (i, data)
    SELECT %(first)s + n - 1, data
    FROM unnest(%(data)s::bytea[]) WITH ORDINALITY AS given (data, n) ORDER BY n
)
INSERT INTO sealtrain_ledger.node (level, i, hash)
SELECT * FROM unnest(%(level)s::integer[], %(i)s::bigint[], %(hash)s::bytea[])
"""


def insert(connection: Connection, made: Growth) -> None:
    """Write new entries and roots."""
    values = {
        "first": made.first,
        "data": list(made.entries),
        "level": [level for level, _ in made.nodes],
        "i": [place for _, place in made.nodes],
        "hash": list(made.nodes.values()),
    }
    connection.execute(_INSERT, values)
