"""The core reaches every kind of collaboration through one table, and loads no roles by it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields
from typing import get_args

import pytest

from sealtrain.base.distributions import CORE, DISTRIBUTIONS, load
from sealtrain.client.ticket import Role
from sealtrain.manifest.checks.collaboration import RULES
from sealtrain.manifest.limits import TEXTS
from sealtrain.recipe.collaboration import DECRYPTED_IN_A_GUEST, CollaborationSettings
from sealtrain.recipe.kinds import KINDS, settings_of


@pytest.mark.parametrize("name", KINDS)
def test_what_the_table_names_is_there(name: str) -> None:
    kind = KINDS[name]
    named = {field.name: getattr(kind, field.name) for field in fields(kind)}
    assert named.pop("roles").keys() <= set(get_args(Role))
    rooms = named.pop("rooms")
    assert rooms == tuple(sorted(rooms))
    assert {place.partition(".")[0] for place in kind.roles.values()} <= {
        DISTRIBUTIONS[room] for room in rooms
    }
    for place in (*named.values(), *kind.roles.values()):
        assert place is None or callable(load(place))
        # What a workload may import follows from these places (workload_distributions).
        assert place is None or place.partition(".")[0] in {
            DISTRIBUTIONS[room] for room in (CORE, *rooms)
        }
    settings = settings_of(name)
    assert settings is not None
    assert issubclass(settings, CollaborationSettings)
    assert get_args(settings.model_fields["kind"].annotation) == (name,)
    assert set(settings.limits) <= set(TEXTS)
    assert (settings.party_role is not None) == settings.shares_out
    assert (settings.decrypted == DECRYPTED_IN_A_GUEST) != settings.shares_out


def test_a_kind_of_another_version_has_no_settings() -> None:
    assert settings_of("relay") is None


def test_every_kind_has_a_rule_for_its_manifests() -> None:
    assert set(RULES) == set(KINDS)


def test_settings_and_rules_are_loaded_without_torch() -> None:
    code = (
        "import sys\n"
        "from sealtrain.base.distributions import load\n"
        "from sealtrain.recipe.kinds import KINDS\n"
        "for kind in KINDS.values():\n"
        "    load(kind.settings), load(kind.rule), kind.summary and load(kind.summary)\n"
        "sys.exit('torch' in sys.modules or 'sealtrain.guest.run' in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
