"""The statement of a dataset's use: its bounds, its one spelling, and hostile files."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sealtrain.base.canonical import canonical_json, parse_json
from sealtrain.base.clock import to_rfc3339
from sealtrain.base.models import load_model
from sealtrain.base.yamltext import yaml_text
from sealtrain.errors import ConfigError, DataInvalid
from sealtrain.signing.datause import DataUse, load_data_use
from sealtrain.signing.errors import PurposeMismatch, RetentionEnded

pytestmark = pytest.mark.claim("C178")

WHOLE = {
    "purposes": ["care", "early detection"],
    "purposes_bind": True,
    "legal_basis": "other",
    "legal_basis_note": "§ 27 BDSG, ethics vote 12/2026",
    "categories": ["health data"],
    "phi": "de-identified",
    "retention_until": "2027-01-01T00:00:00Z",
}
OWN = {"owner": "ada", "name": "biopsies"}


def read(document: Any) -> DataUse:
    return load_model(DataUse, document, ConfigError, "data use")


@pytest.mark.parametrize("field", [*WHOLE, None])
def test_what_is_stated_is_read_and_written_alike(field: str | None) -> None:
    stated = {name: value for name, value in WHOLE.items() if name != field}
    if field == "purposes":
        del stated["purposes_bind"]
    if field == "legal_basis":
        del stated["legal_basis_note"]
    if field == "legal_basis_note":
        stated["legal_basis"] = "public-task"
    assert read(stated).to_dict() == stated


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"purposes": []},
        {"purposes_bind": False},
        {"purposes_bind": True},
        {"purposes": "care"},
        {"purposes": ["care", "care"]},
        {"purposes": [""]},
        {"purposes": ["x" * 201]},
        {"purposes": [str(number) for number in range(17)]},
        {"purposes": ["care\n"]},
        {"purposes": ["care\x1b[2J"]},
        {"purposes": ["\u202eerac"]},
        {"purposes": ["ca\u200bre"]},
        {"purposes": ["ca\u00a0re"]},
        {"categories": ["x" * 101]},
        {"categories": ["\x00"]},
        {"categories": [str(number) for number in range(65)]},
        {"legal_basis": "Consent"},
        {"legal_basis": "other"},
        {"legal_basis_note": "a note alone"},
        {"legal_basis": "consent", "legal_basis_note": "x" * 501},
        {"phi": "some"},
        {"phi": True},
        {"retention_until": "2027-01-01"},
        {"retention_until": "2027-02-30T00:00:00Z"},
        {"retention_until": "2027-01-01T00:00:00+01:00"},
        {"retention_until": "٢٠٢٧-01-01T00:00:00Z"},
        {"retention_until": 1_800_000_000},
        {"purpose": "care"},
        ["care"],
        None,
    ],
    ids=repr,
)
def test_another_form_is_refused(document: Any) -> None:
    with pytest.raises(ConfigError):
        read(document)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (b"purposes: [care]\npurposes: [other]\n", ConfigError),
        (b"purposes: &p [care]\ncategories: *p\n", ConfigError),
        (b"phi: !!str none\n", ConfigError),
        (b"phi: \xff\n", ConfigError),
        (b"", ConfigError),
        (b"categories: [" + b"x, " * 20_000 + b"x]\n", DataInvalid),
    ],
)
def test_a_hostile_file_is_refused(tmp_path: Path, text: bytes, error: type[Exception]) -> None:
    path = tmp_path / "use.yaml"
    path.write_bytes(text)
    with pytest.raises(error):
        load_data_use(path)


def test_a_misspelt_field_names_the_one_that_was_meant(tmp_path: Path) -> None:
    path = tmp_path / "use.yaml"
    path.write_text("retention_untill: 2027-01-01T00:00:00Z\n")
    with pytest.raises(ConfigError) as caught:
        load_data_use(path)
    assert "'retention_until'" in (caught.value.hint or "")


def test_the_last_second_is_a_good_one() -> None:
    use = read({"retention_until": "2027-01-01T00:00:00Z"})
    last = use.last_second
    assert last == 1_798_761_600
    use.require_retained(last, **OWN)
    with pytest.raises(RetentionEnded) as caught:
        use.require_retained(last + 1, **OWN)
    assert (caught.value.owner, caught.value.dataset) == ("ada", "biopsies")
    read({"phi": "none"}).require_retained(1 << 60, **OWN)


def test_purposes_that_bind_are_compared_letter_by_letter() -> None:
    use = read({"purposes": ["care"], "purposes_bind": True})
    use.require_purpose("care", **OWN)
    for other in (None, "", "Care", "care "):
        with pytest.raises(PurposeMismatch):
            use.require_purpose(other, **OWN)
    read({"purposes": ["care"]}).require_purpose("anything", **OWN)


LETTERS = string.ascii_letters + string.digits + string.punctuation + "äßŁΩжデ漢가…≤€"
printable = st.text(LETTERS, min_size=1, max_size=100)


@settings(deadline=None)
@given(
    st.fixed_dictionaries(
        {"purposes": st.lists(printable, min_size=1, max_size=16, unique=True)},
        optional={
            "purposes_bind": st.just(True),
            "legal_basis": st.sampled_from(["consent", "contract", "public-task"]),
            "categories": st.lists(printable, min_size=1, max_size=64, unique=True),
            "phi": st.sampled_from(["none", "de-identified", "limited", "identified"]),
            "retention_until": st.integers(0, 4_000_000_000).map(to_rfc3339),
        },
    )
)
def test_every_statement_makes_the_round_trip(tmp_path_factory: Any, stated: Any) -> None:
    use = read(stated)
    assert read(parse_json(canonical_json(use.to_dict()))) == use
    assert canonical_json(use.to_dict()) == canonical_json(stated)
    path = tmp_path_factory.mktemp("use") / "use.yaml"
    path.write_text(yaml_text(use.to_dict()), "utf-8")
    assert load_data_use(path) == use
