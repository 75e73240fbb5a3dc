"""The project file ``sealtrain.toml``: what the commands of one folder have in common.

It is looked for in the working folder and every folder above it; the nearest one counts. It only
fills in options that a command lacks: flags win over ``SEALTRAIN_*`` variables, and these win over
the file. It holds places of files, and nothing that says yes: no decision, no limit, no trust file
and no secret has a key here. The keys of ``NETWORK`` say how servers are reached
(``base.outbound``), and nothing of whom to believe. Every other key is refused by name.

Checks, numbered as in the code:

1. The file, each link on the way to it and each folder above them are the user's own
   (``base.ownfiles``).
2. It is TOML of version 1 with known keys, each of its own type.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal

from sealtrain.base.files import open_regular
from sealtrain.base.ownfiles import require_own
from sealtrain.errors import LimitExceeded, ProjectInvalid

NAME: Final = "sealtrain.toml"
PLACE: Final = "SEALTRAIN_PROJECT"
"""Variable that names the project file, or is ``none``: no folder is searched then."""

_MAX_BYTES: Final = 64 << 10
_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """What a project file can say.

    Attributes:
        parameter: Name on the command line: an option, or an argument without dashes.
        help: What it is, for the reference page.
        variable: The variable that wins over the file; ``None`` for none.
        many: Whether it is a list.
        always: Whether it also fills in an option that the command could do without.
    """

    parameter: str
    help: str
    variable: str | None
    many: bool = False
    always: bool = False


KEYS: Final[Mapping[str, Key]] = MappingProxyType(
    {
        "consortium": Key(
            parameter="--consortium",
            help="The consortium file.",
            variable="SEALTRAIN_CONSORTIUM",
        ),
        "brokers": Key(
            parameter="--broker",
            help="Broker files.",
            variable="SEALTRAIN_BROKERS",
            many=True,
        ),
        "identity": Key(
            parameter="--identity",
            help="Your private identity file.",
            variable="SEALTRAIN_IDENTITY",
        ),
        "deployment": Key(
            parameter="--deployment",
            help="app-compose.json of the recipe.",
            variable="SEALTRAIN_DEPLOYMENT",
        ),
        "lock": Key(
            parameter="lock",
            help="recipe.lock.json [the one beside the deployment].",
            variable="SEALTRAIN_LOCK",
        ),
        "memory": Key(
            parameter="--memory",
            help="Your memory of the ledger [beside your identity].",
            variable="SEALTRAIN_MEMORY",
            always=True,
        ),
        "ticket": Key(
            parameter="--ticket",
            help="Run ticket that runs are submitted with.",
            variable="SEALTRAIN_TICKET",
        ),
        "base": Key(
            parameter="--base",
            help="Folder that the recipe's paths start from, with the base model.",
            variable="SEALTRAIN_BASE",
            always=True,
        ),
    }
)
"""By the name in the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How the commands of a folder reach servers; no option has its name.

    Attributes:
        help: What it is, for the reference page.
        variable: The variable that wins over the file.
        kind: A path, a text, or a list of texts.
    """

    help: str
    variable: str
    kind: Literal["a path", "a text", "a list of texts"]


NETWORK: Final[Mapping[str, Setting]] = MappingProxyType(
    {
        "ca_file": Setting(
            help="Certificates (PEM) of authorities that servers may have besides public ones.",
            variable="SEALTRAIN_CA_FILE",
            kind="a path",
        ),
        "proxy": Setting(
            help="Proxy on the way to `https` servers: `http://host:port`, without a password.",
            variable="SEALTRAIN_PROXY",
            kind="a text",
        ),
        "no_proxy": Setting(
            help="Hosts, domains and networks that are reached without the proxy.",
            variable="NO_PROXY",
            kind="a list of texts",
        ),
    }
)
"""By the name in the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """A project file that was checked.

    Attributes:
        path: Where it lies.
        values: Absolute paths by key; lists of them where the key has many.
        network: How servers are reached, by the keys of ``NETWORK``.
    """

    path: Path
    values: Mapping[str, Path | tuple[Path, ...]]
    network: Mapping[str, Path | str | tuple[str, ...]] = field(
        default_factory=lambda: MappingProxyType({})
    )

    def value(self, key: str) -> Path | tuple[Path, ...] | None:
        """What the file says, or implies: a lock lies beside its deployment."""
        found = self.values.get(key)
        if (
            found is None
            and key == "lock"
            and isinstance(at := self.values.get("deployment"), Path)
        ):
            return at.parent / "recipe.lock.json"
        return found


def find_project(
    folder: Path | None = None, variables: Mapping[str, str] | None = None
) -> Project | None:
    """The project file that counts for a folder, checked; ``None`` where there is none.

    Args:
        folder: The working folder [the process's own].
        variables: Of the environment [the process's own].

    Raises:
        ProjectInvalid: The nearest file is not one to believe. A file further up is not asked.
    """
    named = (os.environ if variables is None else variables).get(PLACE)
    if named == "none":
        return None
    if named:
        return load_project(Path(named))
    start = Path.cwd() if folder is None else folder.absolute()
    for place in (start, *start.parents):
        if os.path.lexists(place / NAME):
            return load_project(place / NAME)
    return None


def load_project(path: Path) -> Project:
    """Read a project file and check it.

    Raises:
        ProjectInvalid: One of the numbered checks.
        DataInvalid: It cannot be read.
    """
    path = path.absolute()
    # 1. Before it is opened: what is the user's own now, no other user replaces afterwards.
    hint = f"name your own project file in {PLACE}, or set it to none"
    require_own(path, ProjectInvalid, hint=hint)
    with os.fdopen(open_regular(path), "rb") as file:
        data = file.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise LimitExceeded(
            f"{path} is too large", got=f"over {_MAX_BYTES} bytes", expected=f"at most {_MAX_BYTES}"
        )
    document = _document(path, data)
    network = {name: document.pop(name) for name in NETWORK if name in document}
    return Project(
        path=path,
        values=MappingProxyType(
            {name: _value(path, name, value) for name, value in document.items()}
        ),
        network=MappingProxyType(
            {name: _setting(path, name, value) for name, value in network.items()}
        ),
    )


def _document(path: Path, data: bytes) -> dict[str, Any]:
    # 2.
    try:
        document = tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProjectInvalid(
            f"{path} is not TOML", check="form", got=type(error).__name__, hint="sealtrain init"
        ) from None
    version = document.pop("version", None)
    if version != _VERSION or isinstance(version, bool):
        raise ProjectInvalid(
            f"{path} has another version",
            check="version",
            got="none" if version is None else type(version).__name__ + f" {version}"[:40],
            expected=_VERSION,
        )
    for name in document:
        if name not in KEYS and name not in NETWORK:
            near = get_close_matches(name, (*KEYS, *NETWORK), n=1)
            raise ProjectInvalid(
                f"{path} has a key that a project file does not have",
                check="key",
                got=name[:80],
                expected=", ".join(near or (*KEYS, *NETWORK)),
                hint="decisions, limits, trust files and secrets are named on the command line",
            )
    return document


def _setting(path: Path, name: str, value: Any) -> Path | str | tuple[str, ...]:
    kind = NETWORK[name].kind
    parts = value if kind == "a list of texts" else [value]
    if (
        not isinstance(parts, list)
        or not parts
        or not all(isinstance(part, str) and part and "\0" not in part for part in parts)
    ):
        raise ProjectInvalid(
            f"{path}: {name} is of another type",
            check="type",
            got=type(value).__name__,
            expected=kind,
        )
    if kind == "a path":
        return path.parent / str(parts[0])
    return tuple(parts) if kind == "a list of texts" else str(parts[0])


def _value(path: Path, name: str, value: Any) -> Path | tuple[Path, ...]:
    many = KEYS[name].many
    parts = value if many else [value]
    if (
        not isinstance(parts, list)
        or not parts
        or not all(isinstance(at, str) and at for at in parts)
    ):
        raise ProjectInvalid(
            f"{path}: {name} is of another type",
            check="type",
            got=type(value).__name__,
            expected="a list of paths" if many else "a path",
        )
    if any("\0" in at for at in parts):
        raise ProjectInvalid(f"{path}: {name} is no path", check="type", expected="a path")
    places = tuple(path.parent / at for at in parts)
    return places if many else places[0]
