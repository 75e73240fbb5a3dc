"""The run ticket: what a guest is told that its measured document cannot know.

Addresses, names and a choice among the roles of the document (spec/run-ticket.md). The operator
writes it and may lie in it, so every reader checks what a ticket leads to: brokers by the ids of
the lock, data and models by their digests, peers by their evidence. A ticket holds no secret.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple, Self

from pydantic import AfterValidator, Field, StringConstraints, field_validator, model_validator

from sealtrain.attest.tdx.fetch import services_of
from sealtrain.base.canonical import canonical_json
from sealtrain.base.encoding import from_base64
from sealtrain.base.filenames import portable_name
from sealtrain.base.files import read_regular
from sealtrain.base.hostport import host_and_port
from sealtrain.base.http import parts_of
from sealtrain.base.models import Base64, Hex32, OwnerName, StrictModel, holding, load_json
from sealtrain.base.outbound import Outbound, parse_proxy
from sealtrain.client.errors import TicketInvalid
from sealtrain.client.parentticket import from_parent
from sealtrain.client.pin import BrokerPin, Certificate, pem_of
from sealtrain.errors import ConfigError, DataInvalid, UsageError
from sealtrain.recipe.lockfile import MAX_BROKERS
from sealtrain.signing.continues import Continues
from sealtrain.signing.ed25519 import check_public_key
from sealtrain.storage.address import is_url, parse_address
from sealtrain.storage.pieces import Pieces

MAX_TICKET_BYTES: Final = 1 << 20
MAX_WAIT_SECONDS: Final = 30 * 24 * 3600
MAX_RESTARTS: Final = 1000
MAX_THREADS: Final = 1024
BROKER_ROLE: Final = "broker"
_VSOCK: Final = re.compile(r"vsock:([1-9][0-9]{0,8})")

Role = Literal[
    "accelerator",
    "broker",
    "dealer",
    "evaluate",
    "holder",
    "lead",
    "node",
    "orchestrator",
    "party",
    "server",
    "standby",
    "train",
]
Text = Annotated[
    str, StringConstraints(min_length=1, max_length=1024, pattern=r"^[^\x00-\x1f\x7f]+$")
]
SigningKey = Annotated[Base64, holding(lambda key: check_public_key(from_base64(key)))]
FileName = Annotated[str, AfterValidator(portable_name)]
PeerName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]


_NOT_GIVEN: Final[tuple[object, ...]] = (None, (), [], {}, 0)


class _RoleFields(NamedTuple):
    """Fields of a role's ticket besides version and role."""

    required: frozenset[str] = frozenset()
    optional: frozenset[str] = frozenset()


_OUTBOUND: Final = frozenset({"authorities", "no_proxy", "outbound_proxy"})
_IN_GUEST: Final = frozenset({"base", "collateral", "submission_id"}) | _OUTBOUND
_UNATTENDED: Final = _IN_GUEST | {"credentials", "health", "models", "restarts", "wait_seconds"}
_OF_BROKERS: Final = _OUTBOUND | frozenset(
    {
        "certificate",
        "certificate_key",
        "collateral",
        "former_root_secrets",
        "listen",
        "proxies",
        "public_urls",
        "root_secret",
        "runners",
        "submitters",
    }
)
_FIELDS: Final[Mapping[str, _RoleFields]] = {
    "accelerator": _RoleFields(frozenset(), _IN_GUEST | {"listen", "listen_writes", "threads"}),
    "broker": _RoleFields(frozenset(), _OF_BROKERS),
    "dealer": _RoleFields(frozenset(), _IN_GUEST | {"listen", "threads"}),
    "evaluate": _RoleFields(frozenset({"brokers", "data"}), _UNATTENDED | {"continues", "store"}),
    "holder": _RoleFields(
        frozenset({"brokers", "data", "party", "peers"}), _UNATTENDED | {"listen", "rejoins"}
    ),
    "lead": _RoleFields(frozenset({"brokers"}), _UNATTENDED),
    "node": _RoleFields(frozenset({"brokers", "data", "node", "peers"}), _UNATTENDED | {"listen"}),
    "orchestrator": _RoleFields(
        frozenset({"brokers", "holders", "peers"}), _UNATTENDED | {"states"}
    ),
    "party": _RoleFields(
        frozenset({"brokers", "data", "party", "run"}), _UNATTENDED | {"peers", "rejoins"}
    ),
    "server": _RoleFields(frozenset({"brokers"}), _UNATTENDED | {"listen"}),
    "standby": _RoleFields(frozenset({"brokers", "holders", "peers", "states"}), _UNATTENDED),
    "train": _RoleFields(
        frozenset({"brokers", "data"}),
        _UNATTENDED | {"continues", "listen", "peers", "nodes", "previous", "ranks", "store"},
    ),
}


class ModelPlace(StrictModel):
    """Where the files of a model or tokenizer are.

    Attributes:
        address: URL of their folder.
        files: Name → what the file is. The lock has the digest that counts.
    """

    address: Text
    files: dict[FileName, Pieces] = Field(min_length=1, max_length=4096)

    @field_validator("address")
    @classmethod
    def _without_secrets(cls, address: str) -> str:
        _url(address)
        return address


class RunTicket(StrictModel):
    """What an operator tells a guest; fields that are not written are null or empty.

    Attributes:
        version: Format version, 1.
        role: Which role of the document the guest plays.
        brokers: Broker files of the brokers to ask.
        data: Sealed datasets, folders of them, or URLs.
        base: Folder that the recipe's paths start from.
        collateral: URL of a service for collateral of quotes, in place of a file.
        models: Where models and tokenizers are, by the path that the recipe gives them.
        store: URL of the output store.
        credentials: URL of the lender of store credentials.
        wait_seconds: How long the guest waits for keys, services, machines and parties that do not
            answer.
        restarts: How often it starts a process again that was killed.
        ranks: Number of ranks on which an interrupted run goes on; the recipe's own if not given.
        continues: Manifest of the run before, for a run of a chain.
        previous: Folder or output store of that run, where this one begins with its model.
        authorities: Certificates (DER in base64) of authorities besides the public ones.
        outbound_proxy: ``http://host:port`` of a proxy on the way to ``https`` servers.
        no_proxy: Hosts, domains and networks that are reached without it.
        submission_id: Which submission the run is for; its runner writes this, no submitter does.
        health: ``HOST:PORT`` at which the guest says how far the run is.
        listen: ``HOST:PORT`` to listen at, in place of the document's.
        listen_writes: The same for the writes of holders.
        peers: ``HOST:PORT`` of other machines, by what they are asked for.
        holders: ``HOST:PORT`` of the holders of a travelling run, by owner.
        party: Owner whose data this guest holds.
        run: Id of the run, as its lead told it.
        rejoins: The owner's data took part in the run before, in a guest whose disk is gone.
        node: Number of this node, from 1.
        nodes: Number of nodes on which an interrupted run goes on; the recipe's if not given.
        states: Folder for sealed states that orchestrator and standby share.
        threads: Number of threads that it computes with, on the CPU.
        public_urls: URLs under which a broker is reached.
        proxies: Addresses of a broker's reverse proxies.
        certificate: File of the certificate chain by which a broker speaks TLS itself.
        certificate_key: File of its private key.
        root_secret: URI of a broker's root secret after a rotation.
        former_root_secrets: URIs of those before, newest first.
        submitters: Who may submit runs to a broker besides the owners: name → key in base64.
        runners: Who may claim submissions at a broker: the same.
    """

    version: Literal[1]
    role: Role
    brokers: tuple[BrokerPin, ...] = Field(default=(), max_length=MAX_BROKERS)
    data: tuple[Text, ...] = Field(default=(), max_length=256)
    base: Text | None = None
    collateral: Text | None = None
    models: dict[FileName, ModelPlace] = Field(default_factory=dict, max_length=64)
    store: Text | None = None
    credentials: Text | None = None
    wait_seconds: Annotated[int, Field(ge=0, le=MAX_WAIT_SECONDS)] = 0
    restarts: Annotated[int, Field(ge=0, le=MAX_RESTARTS)] = 0
    ranks: Annotated[int, Field(ge=1, le=64)] | None = None
    continues: Continues | None = None
    previous: Text | None = None
    authorities: tuple[Certificate, ...] = Field(default=(), max_length=16)
    outbound_proxy: Text | None = None
    no_proxy: tuple[Text, ...] = Field(default=(), max_length=64)
    submission_id: Hex32 | None = None
    health: Text | None = None
    listen: Text | None = None
    listen_writes: Text | None = None
    peers: dict[PeerName, Text] = Field(default_factory=dict, max_length=256)
    holders: dict[OwnerName, Text] = Field(default_factory=dict, max_length=256)
    party: OwnerName | None = None
    run: Hex32 | None = None
    rejoins: bool = False
    node: Annotated[int, Field(ge=1, le=255)] | None = None
    nodes: Annotated[int, Field(ge=2, le=256)] | None = None
    states: Text | None = None
    threads: Annotated[int, Field(ge=1, le=MAX_THREADS)] | None = None
    public_urls: tuple[Text, ...] = Field(default=(), max_length=16)
    proxies: tuple[Text, ...] = Field(default=(), max_length=16)
    certificate: Text | None = None
    certificate_key: Text | None = None
    root_secret: Text | None = None
    former_root_secrets: tuple[Text, ...] = Field(default=(), max_length=64)
    submitters: dict[OwnerName, SigningKey] = Field(default_factory=dict, max_length=64)
    runners: dict[OwnerName, SigningKey] = Field(default_factory=dict, max_length=64)

    @field_validator("health", "listen", "listen_writes")
    @classmethod
    def _listens(cls, place: str | None) -> str | None:
        if place is not None:
            _address(place)
        return place

    @field_validator("peers", "holders")
    @classmethod
    def _name_reached(cls, peers: dict[str, str]) -> dict[str, str]:
        for place in peers.values():
            _address(place)
        return peers

    @field_validator("data")
    @classmethod
    def _without_secrets(cls, data: tuple[str, ...]) -> tuple[str, ...]:
        for place in filter(is_url, data):
            _url(place)
        return data

    @field_validator("previous")
    @classmethod
    def _a_place(cls, previous: str | None) -> str | None:
        if previous is not None and is_url(previous):
            _url(previous)
        return previous

    @field_validator("store")
    @classmethod
    def _a_folder(cls, store: str | None) -> str | None:
        if store is not None:
            _url(store)
        return store

    @field_validator("credentials")
    @classmethod
    def _a_lender(cls, url: str | None) -> str | None:
        if url is not None and (parts_of(url) is None or url.endswith("/")):
            raise ValueError("not the URL of a lender")
        return url

    @field_validator("outbound_proxy")
    @classmethod
    def _a_proxy(cls, url: str | None) -> str | None:
        if url is not None:
            try:
                parse_proxy(url, "outbound_proxy", secret=False)
            except ConfigError as error:
                raise ValueError(error.message) from None
        return url

    @field_validator("collateral")
    @classmethod
    def _a_service(cls, collateral: str | None) -> str | None:
        if collateral is not None and not services_of(collateral):
            raise ValueError("not the URL of a service")
        return collateral

    @model_validator(mode="after")
    def _of_its_role(self) -> Self:
        fields = _FIELDS[self.role]
        given = {
            name
            for name in type(self).model_fields
            if name not in ("version", "role") and getattr(self, name) not in _NOT_GIVEN
        }
        if missing := fields.required - given:
            raise ValueError(f"role {self.role} needs {', '.join(sorted(missing))}")
        if self.previous is not None and self.continues is None:
            raise ValueError("previous is of the run that continues names")
        if strange := given - fields.required - fields.optional:
            raise ValueError(f"role {self.role} has no {', '.join(sorted(strange))}")
        return self

    @property
    def outbound(self) -> Outbound:
        """How the guest reaches servers."""
        url = self.outbound_proxy
        return Outbound(
            authorities=pem_of(self.authorities),
            proxy=None if url is None else parse_proxy(url, "outbound_proxy", secret=False),
            direct=self.no_proxy,
        )

    @property
    def is_unattended(self) -> bool:
        """Whether it asks for anything that a guest's supervisor does."""
        return any(
            getattr(self, name) not in _NOT_GIVEN for name in (_UNATTENDED | {"store"}) - _IN_GUEST
        )

    def has_taken_part(self, folder: Path) -> bool:
        """Whether this owner's data took part in the run before: by the ticket, or by its folder.

        Args:
            folder: What the guest keeps of its part.
        """
        return self.rejoins or (folder.is_dir() and any(folder.iterdir()))

    def peer(self, name: str) -> tuple[str, int]:
        """Host and port of a peer.

        Raises:
            TicketInvalid: The ticket names no such peer.
        """
        if name not in self.peers:
            raise TicketInvalid(
                f"the run ticket names no peer {name!r}",
                check="peers",
                got=", ".join(self.peers) or "none",
                expected=name,
                hint=f"sealtrain deploy ticket --peer {name}=HOST:PORT",
            )
        return host_and_port(self.peers[name])

    def to_bytes(self) -> bytes:
        """Canonical JSON; what is not given is left out."""
        given = {name: value for name, value in self.to_dict().items() if value not in _NOT_GIVEN}
        return canonical_json(given)


def parse_ticket(data: bytes) -> RunTicket:
    """A ticket from its bytes, in any JSON spelling.

    Raises:
        TicketInvalid: Too long or deep, not JSON, or a field is missing, unknown, malformed or not
            of its role.
    """
    try:
        return load_json(RunTicket, data, TicketInvalid, "run ticket", max_bytes=MAX_TICKET_BYTES)
    except DataInvalid as error:
        raise TicketInvalid(f"run ticket: {error.message}", check="run ticket") from error


def load_ticket(place: Path | str) -> RunTicket:
    """Read a ticket.

    Args:
        place: Its file; or ``vsock:PORT``, where an enclave's parent sends it.

    Raises:
        TicketInvalid: There is no such file, no ticket comes, or as ``parse_ticket``.
    """
    found = _VSOCK.fullmatch(str(place))
    if found is not None:
        return parse_ticket(from_parent(int(found[1]), MAX_TICKET_BYTES))
    try:
        data = read_regular(Path(place), MAX_TICKET_BYTES)
    except DataInvalid as error:
        raise TicketInvalid(
            f"run ticket: {error.message}",
            check="run ticket",
            hint="write one with sealtrain deploy ticket, and give it to the guest",
        ) from error
    return parse_ticket(data)


def _url(place: str) -> None:
    if not is_url(place):
        raise ValueError("not a URL")
    try:
        parse_address(place)
    except UsageError as error:
        raise ValueError(error.message) from None


def _address(place: str) -> None:
    try:
        host_and_port(place)
    except UsageError as error:
        raise ValueError(f"not HOST:PORT ({error.message})") from None
