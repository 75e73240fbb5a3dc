"""The two programs of an accelerator, by their settings (spec/travelling.md §4)."""

from __future__ import annotations

from typing import Literal

from sealtrain.base.canonical import JsonValue
from sealtrain.errors import DataInvalid, UsageError
from sealtrain.recipe.collaborations.travelling import program_of
from sealtrain.recipe.schema import PhaseRecipe
from sealtrain_together.travelling import program, trainer_program
from sealtrain_together.travelling.program import ProgramSettings, TravellingModel
from sealtrain_together.travelling.trainer_program import TrainerProgram, TrainerSettings, Training

AnySettings = ProgramSettings | TrainerSettings
AnyProgram = TravellingModel | TrainerProgram


def parse_settings(value: JsonValue) -> AnySettings:
    """Settings from their JSON form. Raises ``DataInvalid``."""
    if not isinstance(value, dict):
        raise DataInvalid("program settings are no object", check="program")
    return (TrainerSettings if "recipe" in value else ProgramSettings).from_dict(value)


def settings_of(recipe: PhaseRecipe, device: Literal["cpu", "cuda"]) -> AnySettings:
    """What a recipe means, on a device. Raises ``DataInvalid``."""
    return parse_settings({**program_of(recipe), "device": device})


def build_program(
    settings: AnySettings, state: bytes | None = None, training: Training | None = None
) -> AnyProgram:
    """The program of these settings.

    Args:
        settings: What to build.
        state: As the program takes it.
        training: Recipe and base of program ``trainer``.

    Raises:
        ModelInvalid: As the program.
        UsageError: It trains a recipe, and none is here.
    """
    if isinstance(settings, ProgramSettings):
        return TravellingModel(settings, state)
    return TrainerProgram(settings, _require(training), state)


def rehearse(settings: AnySettings, training: Training | None = None) -> None:
    """Do once what a program does, so that it loads no code while it trains."""
    if isinstance(settings, ProgramSettings):
        program.rehearse(settings)
    else:
        trainer_program.rehearse(settings, _require(training))


def _require(training: Training | None) -> Training:
    if training is None:
        raise UsageError("the program trains a recipe, and none is here", check="program")
    return training
