"""What of a TEE needs its parsers and libraries, in ``exhibit.py`` of its folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from sealtrain.attest.registry import tee_of
from sealtrain.attest.rules import Rule
from sealtrain.attest.statement import GuestEvidence, GuestPolicy
from sealtrain.attest.tee import Shown, SignedStatement

if TYPE_CHECKING:
    from sealtrain.attest.bundle import Attachments
    from sealtrain.attest.facts import SignedFacts, Situation
    from sealtrain.attest.field import Field
    from sealtrain.attest.forms import Exhibit, StatementExhibit

E = TypeVar("E", bound=GuestEvidence)
P = TypeVar("P", bound=GuestPolicy)
S = TypeVar("S", bound=SignedStatement)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verifier(Generic[E, P, S]):
    """What of a TEE needs its parsers and libraries.

    Attributes:
        prove: Evidence, what lies beside it, situation → what was signed, once every signature
            leads to a root; raises ``EvidenceRefused`` where one does not.
        form: The policy's rules that ``rules`` read.
        rules: What the statement is compared with, in the order of decisions.
        eat: Statement → claims under their RFC 9711 names; true once every comparison held.
        fields: Evidence → everything it says.
        early: Names of rules that come before the deployment document, in this order.
        recognise: A file → its statement; ``None`` where it is something else.
        show: Device or socket, 64 bytes → a statement over them and what lies beside it.
        pinned_roots: SHA-256 of pinned roots → their names in words.
        collect: Device, 64 bytes, options of the address → evidence; there with ``Tee.device``.
        ask_agent: A ``DstackClient`` of the guest's socket, 64 bytes → evidence; ``None`` asks a
            simulated driver.
        of_agent: An ``AgentStatement`` of dstack's agent → evidence, where ``Tee.of`` is dstack.
    """

    prove: Callable[[E, Attachments, Situation], SignedFacts[S]]
    form: type[P]
    rules: tuple[Rule, ...]
    eat: Callable[[S], dict[str, str]]
    fields: Callable[[E], list[Field]]
    show: Callable[[Path, bytes], tuple[StatementExhibit, Attachments]]
    pinned_roots: Mapping[str, str]
    early: tuple[str, ...] = ()
    recognise: Callable[[bytes], Exhibit | None] = field(default=lambda data: None)
    collect: Callable[[Path, bytes, Mapping[str, str]], Shown] | None = None
    ask_agent: Callable[[Any, bytes], Shown] | None = None
    of_agent: Callable[[Any], Shown] | None = None


@cache
def verifier_of(name: str) -> Verifier[Any, Any, Any]:
    """What the ``exhibit.py`` of a TEE ends in.

    Args:
        name: The TEE's.

    Raises:
        UsageError: There is no such TEE.
    """
    tee = tee_of(name)
    module = import_module(f"sealtrain.attest.{tee.folder or tee.name}.exhibit")
    found: Verifier[Any, Any, Any] = getattr(module, tee.exhibit)
    names = {rule.name for rule in found.rules}
    if not issubclass(tee.rules.form, found.form) or not names.issuperset(found.early):
        raise TypeError(f"the rules of {name} would be left out")  # none may be, silently
    return found
