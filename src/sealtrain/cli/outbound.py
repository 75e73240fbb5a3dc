"""How the commands of a person reach servers: from variables and the project file.

Commands that a measured document starts read neither (``cli.command``). What is taken is said on
stderr once, before the first server is reached.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sealtrain.base.outbound import (
    CA_FILE,
    DIRECT,
    PROXY,
    Outbound,
    from_variables,
    parse_proxy,
    read_authorities,
)
from sealtrain.cli.output import say
from sealtrain.cli.project import Project, find_project


def settle_outbound() -> Outbound:
    """How this command reaches servers, told to its user.

    Raises:
        ConfigError: A setting, or the project file, cannot be used.
    """
    project = find_project()
    found = outbound_of(project, os.environ)
    say_outbound(project, os.environ, found)
    return found


def outbound_of(project: Project | None, variables: Mapping[str, str]) -> Outbound:
    """What variables say, and the project file where they say nothing.

    Args:
        project: The checked project file.
        variables: Of the environment.

    Raises:
        ConfigError: A setting cannot be used.
    """
    said: Mapping[str, Any] = {} if project is None else project.network
    authorities, proxy = "", None
    if "ca_file" in said and not variables.get(CA_FILE):
        authorities = read_authorities(Path(said["ca_file"]), "ca_file")
    if "proxy" in said and not variables.get(PROXY):
        proxy = parse_proxy(said["proxy"], "proxy", secret=False)
    direct = tuple(said.get("no_proxy", ()))
    base = Outbound(authorities=authorities, proxy=proxy, direct=direct)
    return from_variables(variables, DIRECT if not said else base)


def say_outbound(project: Project | None, variables: Mapping[str, str], found: Outbound) -> None:
    """Name authorities and proxy that were not typed, and where they come from."""
    if found.authorities:
        place = variables.get(CA_FILE) or str(project and project.network.get("ca_file"))
        say(f"servers may have certificates of {place}")
    if found.proxy is not None:
        say(f"https goes through the proxy {found.proxy.host}:{found.proxy.port}")
