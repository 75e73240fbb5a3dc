"""Whatever bytes arrive, examining them ends in a report, and only the honest file is accepted."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from manifest_world import NOW, World, make_world
from variants import examples

from sealtrain.manifest.curve import draw_curve
from sealtrain.manifest.report import render
from sealtrain.manifest.verify import examine


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def honest(world: World) -> bytes:
    return world.manifest()


@settings(max_examples=examples(30), deadline=None)
@given(data=st.binary(max_size=200))
def test_noise_is_refused_and_reported(world: World, data: bytes) -> None:
    report = examine(data, world.trust(), artefacts=None, now=NOW)
    assert report.refusal is not None
    assert report.refusal.exit_code == 3
    assert "Refused" in render(report)


@settings(max_examples=examples(40), deadline=None)
@given(draw=st.data())
def test_an_edited_file_is_refused(world: World, honest: bytes, draw: st.DataObject) -> None:
    start = draw.draw(st.integers(0, len(honest) - 1))
    end = draw.draw(st.integers(start, min(len(honest), start + 8)))
    edited = honest[:start] + draw.draw(st.binary(max_size=8)) + honest[end:]
    report = examine(edited, world.trust(), artefacts=world.artefacts, now=NOW)
    assert report.accepted == (edited == honest)
    if report.refusal is not None:
        assert report.refusal.exit_code == 3


@settings(max_examples=examples(50), deadline=None)
@given(
    values=st.lists(
        st.none() | st.floats(-1e12, 1e12, allow_nan=False, allow_infinity=False), max_size=40
    )
)
@example(values=[0.0, 5e-324])
def test_any_curve_can_be_drawn_inside_its_frame(values: list[float | None]) -> None:
    svg = draw_curve(list(enumerate(values)), label="loss")
    if sum(value is not None for value in values) < 2:
        assert svg is None
        return
    assert svg is not None
    assert "nan" not in svg
    assert "inf" not in svg
