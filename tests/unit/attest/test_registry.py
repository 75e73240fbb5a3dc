"""The table of TEEs: every one is complete, and reading it loads no TEE's library."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import get_args

import pytest

from sealtrain.attest.bundle import KINDS
from sealtrain.attest.presets import DEFAULT, PRESETS, preset
from sealtrain.attest.registry import TEES, VENDORS, tee_of
from sealtrain.attest.tee import Tee
from sealtrain.attest.verifier import verifier_of
from sealtrain.base.platforms import PLATFORMS, Platform, either
from sealtrain.base.tiers import TIER_OF_KIND, TIERS, WORDS, tier_of
from sealtrain.errors import UsageError


def test_the_table_and_the_vocabulary_name_the_same_tees() -> None:
    offered = dict.fromkeys(tee.platform for tee in TEES)
    assert list(offered) == list(get_args(Platform))
    others = (tee.of for tee in TEES if tee.of not in (None, "simulator"))
    assert all(tee_of(name).of is None for name in others)
    under_test_roots = [tee.name for tee in TEES if tee.platform == "simulator"]
    assert under_test_roots == ["test-vtpm", "test-nitro"]
    assert not {tee_of(name).vendor for name in under_test_roots} & set(VENDORS)
    assert list(TIER_OF_KIND) == [tee.name for tee in TEES]
    assert set(TIER_OF_KIND.values()) <= set(TIERS) == set(WORDS)
    assert PLATFORMS.split(" or ")[1] == "simulator"
    assert either(["a"]) == "a"


@pytest.mark.parametrize("tee", TEES, ids=lambda tee: tee.name)
def test_a_descriptor_is_of_one_tee(tee: Tee) -> None:
    found = tee_of(tee.name)
    assert found is tee
    for model in (found.evidence, found.rules.form):
        assert get_args(model.model_fields["tee"].annotation) == (found.name,)
    assert set(found.kinds) <= set(KINDS)
    fields = set(found.rules.form.model_fields)
    assert set(found.rules.comments) <= fields
    assert set(found.rules.lines.values()) <= fields
    assert found.rules.form.model_validate_json(json.dumps(dict(found.rules.simulated)))
    assert (found.device is None) == (verifier_of(found.name).collect is None)
    for name in found.rules.presets:
        assert preset(name).platform == found.platform
        assert preset(name).root == found.vendor
    assert all(len(digest) == 64 for digest in verifier_of(found.name).pinned_roots)


def test_the_default_preset_is_one() -> None:
    assert DEFAULT in PRESETS


def test_a_name_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError):
        tee_of("simulator")


def test_a_kind_of_evidence_without_a_tier_is_an_error() -> None:
    with pytest.raises(UsageError):
        tier_of("toy")


def test_reading_the_table_loads_no_library_of_a_tee() -> None:
    code = (
        "import sys, sealtrain.attest.evidence, sealtrain.attest.policy, sealtrain.attest.presets;"
        "print([n for n in ('dcap_qvl', 'lxml', 'signxml', 'pynvml', 'cbor2', 'httpx2')"
        " if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
