"""Old names of commands and options: each works for one release, and says its new name on stderr.

A new entry goes into ``COMMANDS`` or ``OPTIONS``; nothing else knows of old names. Help, reference
page and completion show new names only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

__all__ = ["COMMANDS", "OPTIONS", "WORDS", "Renamed", "with_new_options"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Renamed:
    """Where an old command went.

    Attributes:
        to: Words of the new command.
        options: Options of the old one that have other names there.
        added: Words that make the new command do what the old one did.
    """

    to: tuple[str, ...]
    options: Mapping[str, str] = field(default_factory=dict)
    added: tuple[str, ...] = ()


COMMANDS: Final[Mapping[str, Renamed]] = MappingProxyType(
    {
        "attest policy": Renamed(to=("policy", "new")),
        "evaluate": Renamed(to=("train",)),
        "simulator policy": Renamed(
            to=("simulator", "serve"),
            options={"--state": "--simulator", "--out": "--write-policy"},
            added=("--write-policy", "policy.yaml"),
        ),
    }
)
"""By the old command's words."""

_MEMORY: Final = {"--state": "--memory"}
_VALID: Final = {"--days": "--valid-for"}
_ATTEST: Final = {
    "--chain": "--gpu-chain",
    "--switches": "--switch-evidence",
    "--compose": "--deployment",
}
_ETHEREUM: Final = {"--key": "--ethereum-key"}

OPTIONS: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        "adopt": _MEMORY,
        "approve": _MEMORY | {"--dataset": "--data", "--days": "--valid-for"},
        "attest bundle": _ATTEST,
        "attest explain": _ATTEST,
        "attest verify": _ATTEST,
        "broker approve-kms": _VALID | {"--revoke": "--end"},
        "broker pin": {"--deployment": "--broker-deployment"},
        "broker deployment": {"--image": "--image-name"},
        "broker token create": _VALID,
        "chain approve": _ETHEREUM,
        "chain deploy": _ETHEREUM | {"--owner": "--owner-address"},
        "chain device": _ETHEREUM | _VALID | {"--revoke": "--end"},
        "chain execute": _ETHEREUM,
        "chain pin": {"--owner": "--owner-address"},
        "chain revoke": _ETHEREUM,
        "chain sign": _ETHEREUM,
        "consortium follow": _MEMORY,
        "consortium propose": _MEMORY
        | {"--days": "--within", "--name": "--new-name", "--remove": "--leaves"},
        "consortium sign": _MEMORY,
        "deploy ticket": {"--model": "--model-at"},
        "export": {"--key": "--pem-key"},
        "log audit": _MEMORY,
        "log uses": _MEMORY,
        "log witness": _MEMORY,
        "merge": {"--base": "--base-model"},
        "policy clear": _MEMORY,
        "policy set": _MEMORY,
        "rehearse": {"--data": "--records"},
        "revoke": _MEMORY,
        "rewrap": _MEMORY,
        "seal": _MEMORY,
        "simulator serve": {"--state": "--simulator"},
        "split try": {"--data": "--records"},
        "validate": {"--data": "--records"},
    }
)
"""New option by old one, by the command's words."""

WORDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "approve": "--deployment",
        "approvals status": "--deployment",
        "chain approve": "--deployment",
        "chain propose": "--deployment",
        "chain revoke": "--deployment",
        "deploy run": "--deployment",
        "revoke": "--deployment",
        "simulator serve": "--deployment",
        "split client": "--deployment",
    }
)
"""Option that holds what was the command's first word without one, by the command's words."""


def with_new_options(
    args: Sequence[str], options: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """Put new names in the place of old ones.

    Args:
        args: Words of a command line.
        options: New option by old one.

    Returns:
        The words, and the old names that were found with the new ones.
    """
    found: dict[str, str] = {}
    words: list[str] = []
    for place, word in enumerate(args):
        if word == "--":
            return [*words, *args[place:]], found
        name, equals, value = word.partition("=")
        new = options.get(name)
        if new is not None:
            found[name] = new
            word = f"{new}{equals}{value}"
        words.append(word)
    return words, found
