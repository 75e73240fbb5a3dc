"""A file that an earlier command makes: where it is absent, the refusal names that command."""

from __future__ import annotations

from pathlib import Path

import pytest

from sealtrain.client.pin import load_pin
from sealtrain.errors import DataInvalid
from sealtrain.recipe.lock import LockedRecipe


@pytest.mark.parametrize(
    ("load", "command"), [(load_pin, "sealtrain up"), (LockedRecipe.load, "sealtrain lock")]
)
def test_an_absent_file_names_the_command_that_makes_it(
    load: object, command: str, tmp_path: Path
) -> None:
    """A person who is faster than ``sealtrain up`` read only that a path is wrong."""
    assert callable(load)
    with pytest.raises(DataInvalid) as absent:
        load(tmp_path / "absent")
    assert command in (absent.value.hint or "")
    with pytest.raises(DataInvalid) as folder:
        load(tmp_path)
    assert command not in (folder.value.hint or "")
