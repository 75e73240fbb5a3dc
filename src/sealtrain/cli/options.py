"""Options that belong together, as the fields of a dataclass that a command takes.

typer makes one option of each parameter of a function and knows no objects. So typer is given a
function with a parameter for each field, in the place of the object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Any, get_type_hints


def spread(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with a parameter for each field of the dataclasses that it takes.

    Args:
        command: Its parameters, and the fields of the dataclasses, are annotated for typer.

    Returns:
        The command itself where it takes no dataclass.
    """
    hints = get_type_hints(command, include_extras=True)
    objects: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    if not objects:
        return command

    @wraps(command)
    def spread_out(**given: Any) -> None:
        made = {
            name: kind(**{field.name: given.pop(field.name) for field in fields(kind)})
            for name, kind in objects.items()
        }
        command(**made, **given)

    parameters = [
        inner
        for parameter in signature(command).parameters.values()
        for inner in (
            _of_fields(objects[parameter.name])
            if parameter.name in objects
            else [_make_parameter(parameter.name, parameter.default, hints[parameter.name])]
        )
    ]
    spread_out.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    spread_out.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return spread_out


def _of_fields(kind: Any) -> Iterator[Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    for field in fields(kind):
        default = Parameter.empty if field.default is MISSING else field.default
        yield _make_parameter(field.name, default, hints[field.name])


def _make_parameter(name: str, default: object, annotation: object) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
