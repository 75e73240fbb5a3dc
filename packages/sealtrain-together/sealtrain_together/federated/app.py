"""The Flower app as a folder for ``flwr run``: the relay, and its project file."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Final

from sealtrain.base.files import atomic_folder, atomic_write

FLWR_VERSION: Final = "1.41.0"

_PROJECT = f"""\
[project]
name = "sealtrain-relay"
version = "1.0.0"
description = "Carries messages between the guests of a federation; reads none."
license = {{ text = "Apache-2.0" }}
dependencies = ["flwr=={FLWR_VERSION}"]

[tool.flwr.app]
publisher = "sealtrain"

[tool.flwr.app.components]
serverapp = "sealtrain_relay.relay:server"
clientapp = "sealtrain_relay.relay:client"

[tool.flwr.app.config]
relay = ""
"""


def write_app(folder: Path) -> None:
    """Write the app.

    Args:
        folder: A new folder.

    Raises:
        AlreadyExists: It is there.
        UsageError: The folder that it is to lie in does not exist.
    """
    code = files("sealtrain_together.federated").joinpath("relay.py").read_bytes()
    with atomic_folder(folder, mode=0o755) as made:
        package = made / "sealtrain_relay"
        package.mkdir()
        for path, data in (
            (made / "pyproject.toml", _PROJECT.encode()),
            (package / "__init__.py", b'"""The relay of a federation."""\n'),
            (package / "relay.py", code),
        ):
            atomic_write(path, data, overwrite=False)
