"""The command line of one of TRL's scripts, as the arguments it passes.

People keep such a line in a shell script or a page: ``python sft.py --…``, ``trl dpo --…`` or
``accelerate launch … sft.py --…``, perhaps over several lines. It is read as a shell separates
words. Nothing is expanded, and nothing runs.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Final, Literal

from sealtrain.recipe.errors import RecipeInvalid

_HAS_ARGUMENT: Final = re.compile(r"(^|\s)--[A-Za-z]")
_MAPPING: Final = re.compile(r"[\w.-]+:(\s|$)")
_OPTION: Final = re.compile(r"--[A-Za-z][\w-]*")
_NUMBER: Final = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_SCRIPT: Final = re.compile(r"(sft|dpo)([_-][a-z0-9_-]+)?")
_JOINS: Final = ("&&", "||", ";", "|", "&", ">", ">>", "<")
_BOOLEANS: Final = {"true": True, "false": False, "none": None}
_NO: Final = "no_"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrlCommand:
    """What a command line says.

    Attributes:
        arguments: Of the script, by name; a list where one has several values.
        trainer: Of which script they are, where the line names it.
        launcher: Words before the script that say how it is started.
    """

    arguments: dict[str, Any]
    trainer: Literal["sft", "dpo"] | None
    launcher: tuple[str, ...]


def read_command(text: str) -> TrlCommand | None:
    """The command line in a text; ``None`` where the text is of another form.

    Args:
        text: Of a file.

    Raises:
        RecipeInvalid: There are several such lines, or one that cannot be read.
    """
    joined = re.sub(r"\\\r?\n", " ", text)
    lines = [line.strip() for line in joined.splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    commands = [line for line in lines if _HAS_ARGUMENT.search(line)]
    if not commands or any(_MAPPING.match(line) for line in lines):
        return None
    if len(commands) > 1:
        raise _refuse("several command lines", "keep one, with a \\ before each line break in it")
    try:
        words = shlex.split(commands[0], comments=True)
    except ValueError:
        raise _refuse("a quote that is not closed", "close it") from None
    joins = [word for word in words if word in _JOINS or word.endswith(";")]
    if joins:
        raise _refuse(f"a command line with {joins[0][-2:]}", "keep the training command alone")
    return _split(words)


def _split(words: list[str]) -> TrlCommand:
    at, script = _find_script(words)
    trainer: Literal["sft", "dpo"] | None = None
    if script is not None:
        if not _SCRIPT.fullmatch(script) or "vlm" in script:
            raise _refuse(
                f"a command of {script[:40]}",
                "have a line of TRL's sft or dpo, or begin with a ready recipe: sealtrain recipes",
            )
        trainer = "sft" if script.startswith("sft") else "dpo"
    arguments = _read_arguments(words[at:])
    if "config" in arguments:
        raise _refuse("--config", "import the file that it names, and add the arguments to it")
    return TrlCommand(arguments=arguments, trainer=trainer, launcher=tuple(words[:at]))


def _find_script(words: list[str]) -> tuple[int, str | None]:
    """Where the arguments begin, and the script's name in small letters, without ``.py``."""
    for at, word in enumerate(words):
        if word == "trl" and at + 1 < len(words) and not words[at + 1].startswith("-"):
            return at + 2, words[at + 1].lower()
        if word == "-m" and at + 1 < len(words) and words[at + 1].startswith("trl."):
            return at + 2, words[at + 1].rpartition(".")[2].lower()
        if word.endswith(".py"):
            return at + 1, PurePosixPath(word).stem.lower()
    first = next((at for at, word in enumerate(words) if _OPTION.match(word)), len(words))
    return first, None


def _read_arguments(words: list[str]) -> dict[str, Any]:
    found: dict[str, list[str]] = {}
    name = ""
    for word in words:
        option, mark, value = word.partition("=")
        if _OPTION.fullmatch(option):
            name = option.removeprefix("--").replace("-", "_")
            if name in found:
                raise _refuse(f"--{name} twice", "write it once")
            found[name] = [value] if mark else []
        elif not name or (word.startswith("-") and not _NUMBER.fullmatch(word)):
            raise _refuse(
                f"{word[:40]} where an argument is expected", "write arguments as --name value"
            )
        else:
            found[name].append(word)
    arguments: dict[str, Any] = {}
    for name, values in found.items():
        if not values and name.startswith(_NO):
            arguments[name.removeprefix(_NO)] = False
        elif len(values) < 2:
            arguments[name] = _read_value(values[0]) if values else True
        else:
            arguments[name] = [_read_value(value) for value in values]
    return arguments


def _read_value(text: str) -> Any:
    if text.lower() in _BOOLEANS:
        return _BOOLEANS[text.lower()]
    if not _NUMBER.fullmatch(text):
        return text
    return float(text) if re.search(r"[.eE]", text) else int(text)


def _refuse(got: str, hint: str) -> RecipeInvalid:
    return RecipeInvalid(
        "the command line cannot be read",
        check="trl",
        got=got,
        expected="one line of TRL's scripts, such as python sft.py with its arguments",
        hint=hint,
    )
