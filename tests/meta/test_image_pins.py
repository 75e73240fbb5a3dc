"""The images' pins are of this source: no requirement of it is missing or of another version."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.requirements import Requirement

from sealtrain.image.pins import IMAGES, load_image_recipe, load_pins
from sealtrain.recipe.installation import normalise_name, requirements_in

REPOSITORY = Path(__file__).resolve().parents[2]
NAMES = sorted(path.parent.name for path in (REPOSITORY / IMAGES).glob("*/image.yaml"))


def wanted_of(extras: tuple[str, ...]) -> list[Requirement]:
    lines = [Requirement(line) for line in requirements_in(REPOSITORY / "pyproject.toml")]
    wanted, pending, walked = [], ["", *extras], set()
    while pending:
        active = pending.pop()
        if active in walked:
            continue
        walked.add(active)
        for line in lines:
            holds = line.marker.evaluate({"extra": active}) if line.marker else not active
            if holds and line.name == "sealtrain":
                pending += line.extras
            elif holds:
                wanted.append(line)
    return wanted


@pytest.mark.parametrize("name", NAMES)
def test_the_pins_are_of_the_recipe_and_meet_every_requirement(name: str) -> None:
    recipe, pins = load_image_recipe(REPOSITORY, name), load_pins(REPOSITORY, name)
    assert set(pins.debian) == set(recipe.debian)
    for line in wanted_of(recipe.extras):
        pin = pins.wheels.get(normalise_name(line.name))
        assert pin is not None, f"tools/images/pin.py {name}: {line.name} is not pinned"
        assert line.specifier.contains(pin.version, prereleases=True), (line, pin.version)


@pytest.mark.parametrize("name", NAMES)
def test_the_pins_are_the_versions_that_tests_run_with(name: str) -> None:
    held = {}
    lines = (REPOSITORY / "constraints.txt").read_text().splitlines()
    if "federated" in load_image_recipe(REPOSITORY, name).extras:  # Flower's own win there
        lines += (REPOSITORY / "tools" / "flower" / "pins.txt").read_text().splitlines()
    for text in lines:
        bare = text.partition("#")[0].strip()
        if bare:
            line = Requirement(bare)
            held[normalise_name(line.name)] = line.specifier
    for package, pin in load_pins(REPOSITORY, name).wheels.items():
        if package in held:
            assert held[package].contains(pin.version, prereleases=True), (package, pin.version)


def test_there_are_images() -> None:
    guests = [f"guest-{what}" for what in ("cpu", "cuda", "federated", "nodes", "together")]
    assert ["broker", *guests] == NAMES
