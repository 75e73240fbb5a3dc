"""Write the next migration of the broker's database: what its tables lack of ``tables.py``.

``python tools/migration.py "add withdrawals"``
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from alembic import command

from sealtrain.broker.store.database import engine_of
from sealtrain.broker.store.schema import HEAD, migrate, migrations


def main() -> None:
    """Write it beside the others."""
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    message = sys.argv[1]
    number = f"{int(HEAD) + 1:04d}"
    with tempfile.TemporaryDirectory() as folder:
        engine = engine_of(Path(folder) / "broker.sqlite", migrating=True)
        with engine.begin() as connection:
            migrate(connection)
            config = migrations(connection)
            config.set_main_option("file_template", "v%%(rev)s_%%(slug)s")
            command.revision(config, message, autogenerate=True, rev_id=number)
        engine.dispose()


if __name__ == "__main__":
    main()
