"""Every error that sealtrain raises on purpose, as one tree under ``SealtrainError``.

The name of a class gives its code: ``WrongKey`` is ``wrong-key``, ``UsageError`` is ``usage``. Each
class says with which code a process exits (``exit_code``), with which status a service answers
(``http_status``) and whether the same request may succeed later (``retry``).
docs/reference/errors.md shows the tree and what to do about each error.

The base, its branches and what several packages raise stand here; an error that one package raises
stands in its ``errors`` module. ``error_homes`` is the closed table of all of them, by code;
``tools/error_reference.py`` writes table and page (``make format``).

Any other exception that escapes is a bug and exits 1. A message never holds a key, a row or a
sample.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import ClassVar, Final, Literal, Self

from sealtrain.error_homes import HOMES

_FIELDS: Final = ("check", "owner", "dataset", "column", "got", "expected", "hint")
Retry = Literal["never", "again", "later"]
"""What the same request may bring. ``again``: the receiver decided nothing, and the request may
succeed in a moment; ``later``: owners or operators can change the answer; ``never``: neither."""


def code_of(name: str) -> str:
    """The code of a class, by its name: ``WrongKey`` is ``wrong-key``, ``UsageError`` ``usage``."""
    if name == "SealtrainError":
        return "error"
    return re.sub(r"(?<!^)(?=[A-Z])", "-", name.removesuffix("Error")).lower()


class SealtrainError(Exception):
    """Root of the tree: every error that sealtrain raises on purpose.

    Args:
        message: One sentence, what happened.
        check: Name of the check that failed (``"compose hash"``).
        owner: Owner concerned, if any.
        got: The value that was found, printable and free of secrets and samples.
        expected: A value that the check would have accepted.
        hint: A command or an action.
        field: Where in a document the problem is (``"trainer.max_steps"``). It stays in the
            process: ``to_dict`` leaves it out.
        dataset: Name of the owner's dataset that it is about.
        column: Name of the column that it is about.
    """

    code: ClassVar[str] = "error"
    label: ClassVar[str] = "error"
    """The word in front of the code on a terminal."""
    exit_code: ClassVar[int] = 1
    http_status: ClassVar[int] = 500
    """Of a service's answer. 500 is a fault of the service; a higher one, a part that is away."""
    retry: ClassVar[Retry] = "never"

    def __init_subclass__(cls) -> None:
        """Name the code after a class of the table; any other keeps its parent's code."""
        code = code_of(cls.__name__)
        if HOMES.get(code) == f"{cls.__module__}:{cls.__name__}":
            cls.code = code

    def __init__(  # noqa: PLR0913  # a keyword for each line that is shown
        self,
        message: str,
        *,
        check: str | None = None,
        owner: str | None = None,
        got: object = None,
        expected: object = None,
        hint: str | None = None,
        field: str | None = None,
        dataset: str | None = None,
        column: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.check = check
        self.owner = owner
        self.got = None if got is None else str(got)
        self.expected = None if expected is None else str(expected)
        self.hint = hint
        self.field = field
        self.dataset = dataset
        self.column = column

    def __str__(self) -> str:
        """Message with got and expected behind it, on one line."""
        if self.got is None and self.expected is None:
            return self.message
        return f"{self.message} (got {self.got}, expected {self.expected})"

    def restated(self, message: str, *, owner: str | None = None, hint: str | None = None) -> Self:
        """The same error with another message; ``owner`` and ``hint`` stay where none is given."""
        return type(self)(
            message,
            check=self.check,
            owner=owner or self.owner,
            got=self.got,
            expected=self.expected,
            hint=hint or self.hint,
            field=self.field,
            dataset=self.dataset,
            column=self.column,
        )

    def to_dict(self) -> dict[str, str]:
        """Fields that are set, for ``--json`` and for a broker's refusal."""
        names = ("code", "message", *_FIELDS)
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    @staticmethod
    def from_dict(told: Mapping[str, object], clean: Callable[[str], str] = str) -> SealtrainError:
        """The error that a peer wrote by ``to_dict``: of its code's class, ``Refused`` otherwise.

        A peer may send anything: a field that ``to_dict`` does not write is dropped, a value that
        is no text becomes one, and a message that is missing is the code.

        Args:
            told: Of the peer.
            clean: Applied to each text, such as ``base.visible.escape_hidden`` for a terminal.
        """
        kind = error_by_code(str(told.get("code")))
        fields = {name: clean(str(told[name])) for name in _FIELDS if told.get(name) is not None}
        return kind(clean(str(told.get("message") or "")) or kind.code, **fields)


class ConfigError(SealtrainError):
    """A command line, or a file that a person wrote, cannot be used."""

    exit_code = 2
    http_status = 400


class UsageError(ConfigError):
    """Options or arguments are missing, wrong, or do not go together."""


class ProjectInvalid(ConfigError):
    """A project file is malformed, or another user made it or can change it."""


class RecipeInvalid(ConfigError):
    """A recipe breaks its schema."""


class LockInvalid(ConfigError):
    """A lock or deployment document is malformed or does not fit its recipe."""


class TicketInvalid(ConfigError):
    """A run ticket is malformed, or names a role that the deployment document does not have."""


class TrustInvalid(ConfigError):
    """A trust file or appraisal policy is missing a field or has an unknown one."""


class KeyFileInvalid(ConfigError):
    """A key file is malformed, or other users of the machine can read it."""


class ConsortiumInvalid(ConfigError):
    """A consortium document breaks its rules or does not name the owner."""


class AlreadyExists(ConfigError):
    """The output exists already; sealtrain never overwrites it silently."""


class ExtraMissing(ConfigError):
    """An optional dependency is not installed."""


class Refused(SealtrainError):
    """A check of policy, evidence, approvals or a signature failed."""

    label = "refused"
    exit_code = 3
    http_status = 403


class SealRefused(Refused):
    """A sealed file does not open."""


class HeaderDamaged(SealRefused):
    """The header of a sealed file fails authentication or is malformed."""


class ChunkDamaged(SealRefused):
    """A chunk of ciphertext fails authentication; none of its plaintext was released."""


class FileTruncated(SealRefused):
    """A sealed file ends before its final chunk."""


class WrongKey(SealRefused):
    """The key does not open this file."""


class WrongContext(SealRefused):
    """The file is genuine, but it is another one than was requested."""


class NoStanza(SealRefused):
    """No stanza of the header is for this recipient."""


class RootMismatch(SealRefused):
    """The ciphertext does not lead to the signed root of the hash tree."""


class ImageRefused(Refused):
    """A container image is malformed, or not everything in it is accounted for."""


class SignatureInvalid(Refused):
    """A signature does not verify under the expected key."""


class StatementInvalid(Refused):
    """A signed document is genuine, but malformed or outside its period of validity."""


class EvidenceRefused(Refused):
    """The guest did not prove what the appraisal policy asks for."""


class EvidenceMalformed(EvidenceRefused):
    """Evidence cannot be parsed."""


class QuoteInvalid(EvidenceRefused):
    """A quote's signature or structure does not verify."""


class QuoteRootUntrusted(EvidenceRefused):
    """A quote chains to a root that the policy does not trust."""


class CollateralExpired(EvidenceRefused):
    """Collateral is not valid at the time of verification."""

    retry = "later"


class CollateralMismatch(EvidenceRefused):
    """Collateral belongs to another platform or is not authentic."""


class TcbStatusRefused(EvidenceRefused):
    """The platform's TCB status or an advisory is not allowed by the policy."""


class DebugGuest(EvidenceRefused):
    """The guest runs in debug mode: its host can read its memory."""


class EventLogMismatch(EvidenceRefused):
    """The event log does not replay to the quoted registers, or breaks its rules."""


class ComposeHashMismatch(EvidenceRefused):
    """The guest measured another deployment document."""


class AppIdMismatch(EvidenceRefused):
    """The guest measured another app id."""


class KeyProviderMismatch(EvidenceRefused):
    """The guest got its keys from another key provider than the pinned one."""


class MeasurementMismatch(EvidenceRefused):
    """A measured register differs from every reference value."""


class ReportDataMismatch(EvidenceRefused):
    """The quote does not commit to this conversation."""


class PlatformMismatch(EvidenceRefused):
    """Evidence comes from another kind of platform than the policy names."""


class TierRefused(EvidenceRefused):
    """The machine proves less than the lowest tier that a policy or the recipe takes."""


class SimulatedEvidence(EvidenceRefused):
    """The evidence is simulated, and the policy asks for hardware."""


class CertificateChainInvalid(EvidenceRefused):
    """A certificate chain does not verify: its dates, roles, key types or signatures are wrong."""


class CertificateRevoked(EvidenceRefused):
    """The vendor revoked or suspended a certificate."""


class EvidenceStale(EvidenceRefused):
    """Evidence is stale, or dated in the future."""


class GpuModeRefused(EvidenceRefused):
    """An accelerator is not in the confidential mode that the policy asks for."""


class GpuNonceMismatch(EvidenceRefused):
    """An accelerator's report was made for another conversation."""


class GpuReportInvalid(EvidenceRefused):
    """An accelerator's report does not parse, or its signature does not verify."""


class GpuSetRefused(EvidenceRefused):
    """Accelerators are missing, are shown twice, or do not belong together."""


class MigratableGuest(EvidenceRefused):
    """Another guest may move this one, and its memory, to another machine."""


class ReferenceValueInvalid(EvidenceRefused):
    """A vendor's file of reference values is not authentic."""


class ReferenceValueMismatch(EvidenceRefused):
    """An accelerator runs firmware that differs from the vendor's reference values."""


class RemoteVerdictRefused(EvidenceRefused):
    """A vendor's verdict is not authentic, not about this evidence, or negative."""


class RevocationUnknown(EvidenceRefused):
    """No valid revocation list or OCSP answer covers a certificate."""


class ReleaseRefused(Refused):
    """The broker does not release the keys."""


class ApprovalsMissing(ReleaseRefused):
    """Fewer owners approved than the threshold asks for."""

    retry = "later"


class ApprovalExpired(ReleaseRefused):
    """The approvals that would complete the threshold have expired."""

    retry = "later"


class ApprovalSpent(ReleaseRefused):
    """As many runs as standing approvals allow have begun."""

    retry = "later"


class ApprovalRevoked(ReleaseRefused):
    """An owner revoked the recipe."""

    retry = "later"


class ApprovalUnknown(ReleaseRefused):
    """No owner of this consortium signed the approval, or it names another consortium."""


class RecipeChanged(ReleaseRefused):
    """The recipe that runs is not the recipe that was approved."""


class ChallengeUnknown(ReleaseRefused):
    """The broker never issued this challenge."""

    retry = "again"


class ChallengeReplayed(ReleaseRefused):
    """The challenge was used before."""

    retry = "again"


class ChallengeExpired(ReleaseRefused):
    """The challenge is too old."""

    retry = "again"


class DatasetUnknown(ReleaseRefused):
    """No owner registered this dataset for this recipe."""


class DatasetMismatch(ReleaseRefused):
    """The dataset is not the one that its owner signed."""


class SeriesMismatch(ReleaseRefused):
    """The members of a series are not the whole and newest series that its owner signed."""


class DatasetWithdrawn(ReleaseRefused):
    """The owner withdrew the dataset for good."""


class RetentionEnded(ReleaseRefused):
    """The time until which the owner lets the dataset be used has passed."""


class PurposeMismatch(ReleaseRefused):
    """The recipe's purpose is none of those to which the owner binds the dataset."""


class BudgetSpent(ReleaseRefused):
    """A run would spend more of a dataset's privacy than its owner's budget has left."""


class LeaseStale(ReleaseRefused):
    """The lease has ended: the guest must not use the keys any longer."""

    retry = "later"


class LeaseUnknown(ReleaseRefused):
    """The broker never granted this lease."""


class RunMismatch(ReleaseRefused):
    """A run id is unknown, taken, or belongs to another recipe or to other data."""


class ConsortiumMismatch(ReleaseRefused):
    """The request or its recipe is about another consortium than the broker's."""


class BrokerMismatch(ReleaseRefused):
    """The broker is not the one that the request, the decision or the broker file names."""

    retry = "later"  # a guest that asks again after a rotation learns the broker's new key


class BrokerNotApproved(ReleaseRefused):
    """The recipe's lock, which the owners approved, does not name this broker."""


class ChainRefused(ReleaseRefused):
    """The owners' contract on the chain does not allow this, or is not the pinned one."""

    retry = "later"


class AnswerInvalid(ReleaseRefused):
    """A broker's answer belongs to another conversation or breaks the protocol."""

    retry = "again"


class KmsAnswerInvalid(Refused):
    """The answer of a key service or security module fails its checks."""


class LedgerInconsistent(Refused):
    """A ledger was rewritten or forked."""


class ProofInvalid(Refused):
    """A Merkle proof does not lead to the signed root."""


class RequestReplayed(Refused):
    """A signed request arrived a second time."""


class RequestStale(Refused):
    """A request was signed too long ago, or ahead of the broker's clock."""


class SignerUnknown(Refused):
    """No submitter or runner that the broker knows signed the document."""


class SubmissionConflict(Refused):
    """Another submission has this name."""


class SubmissionEnded(Refused):
    """The submission has ended: it was run, stopped, skipped, or never claimed in time."""


class ClaimTaken(Refused):
    """Another runner holds the submission."""

    retry = "later"


class RunEventRefused(Refused):
    """The run event does not follow the last one of its submission."""


class RunUnconfirmed(Refused):
    """A runner says that a run completed, and the broker has recorded no manifest of it."""

    retry = "later"


class TokenRefused(Refused):
    """An operator's token is missing or unknown, or its scope does not cover the request."""

    http_status = 401


class RunLogBroken(Refused):
    """A run log's hash chain does not verify."""


class CheckpointRefused(Refused):
    """A checkpoint, or what a party keeps of its run, is another run's, older or altered."""


class CapabilityRefused(Refused):
    """A write capability is unknown, used or withdrawn, or does not cover the write."""


class ChannelBroken(Refused):
    """A channel between attested parties carried something other than the next message."""


class ChannelCut(ChannelBroken):
    """A channel ended early: the peer died, or the network cut the connection."""


class ChannelRefused(Refused):
    """The peer on a channel is not the expected party, or speaks another protocol."""


class NodeRefused(Refused):
    """A node is not one that the run expects, or says otherwise than the recipe."""


class NodeTaken(NodeRefused):
    """Another guest has joined under this node's number."""

    retry = "later"


class TripBroken(Refused):
    """On a trip, the accelerator's program, state, model or data was not the agreed one."""


class TranscriptInvalid(Refused):
    """The transcript of a travelling accelerator contradicts itself or its run."""


class EgressRefused(Refused):
    """The run tried to write, send or start something that the release policy does not name."""


class ForkRefused(Refused):
    """A forked process would use a counter, and the key under it, of the process it came from."""


class PadsRefused(Refused):
    """A one-time pad is missing, or would be used twice."""


class PrivacyBroken(Refused):
    """Training or evaluation would not, or did not, keep the promised differential privacy."""


class OutputStoreInvalid(Refused):
    """The store of a run's outputs holds something else than the run left there."""


class ProductAltered(Refused):
    """An accelerator or a dealer returned a wrong product."""


class DocumentMismatch(Refused):
    """A broker was told to serve something else than its measured deployment document says."""


class EnvironmentChanged(Refused):
    """Code, packages, base model or tokenizer differ from the lock."""


class ImportRefused(Refused):
    """The run imports a package that the lock does not pin."""


class ModelNotReloaded(Refused):
    """The model that a script saved does not load again with the weights that were trained."""


class UpdateRefused(Refused):
    """A party of a federation, or its update, was refused."""


class ManifestRefused(Refused):
    """A manifest does not prove what it claims."""


class ManifestMalformed(ManifestRefused):
    """A manifest cannot be parsed or is not in its canonical form."""


class SubjectMismatch(ManifestRefused):
    """An artefact was altered, is missing, or is not named by the manifest."""


class TrustMismatch(ManifestRefused):
    """The manifest is about another consortium, recipe or broker than the trust file names."""


class ClaimContradicted(ManifestRefused):
    """Two statements inside a manifest contradict each other."""


class RunChainBroken(ManifestRefused):
    """Run manifests, each valid by itself, are not one whole chain of runs."""


class CrossSiteRefused(Refused):
    """A page of another site, or a foreign host name, asked the console."""


class PasskeyInvalid(Refused):
    """A passkey did not sign this decision for this console, or was not enrolled with the agent."""


class AgentDeclined(Refused):
    """An owner's agent signed nothing: its owner did not confirm, or it was asked for another."""


class Unreachable(SealtrainError):
    """A service, a party or a process did not answer in time."""

    label = "unreachable"
    exit_code = 4
    http_status = 503
    retry: ClassVar[Retry] = "again"


class AgentUnreachable(Unreachable):
    """The owner's agent does not run, is busy asking, or did not answer in time."""

    retry = "again"


class AcceleratorUnreachable(Unreachable):
    """The accelerator is gone or broken; resume the run, or take it over, with one that works."""

    retry = "later"


class BrokerUnreachable(Unreachable):
    """The broker did not answer."""


class ChainUnreachable(Unreachable):
    """The chain's nodes do not answer, disagree, or show an old block."""


class CollateralUnreachable(Unreachable):
    """The vendor's collateral, or a cache of it, cannot be fetched."""


class DealerUnreachable(Unreachable):
    """The dealer of pads is gone or broken; go on with one that works."""


class DecryptionLost(Unreachable):
    """The prefetch process, which decrypts ahead of training, died."""

    retry = "never"


class GuestApiUnreachable(Unreachable):
    """The guest's attestation API did not answer."""


class HubUnreachable(Unreachable):
    """The hub of models does not answer, or stalls; files in its local cache do not suffice."""


class KmsUnreachable(Unreachable):
    """The key service did not answer."""


class PeerUnreachable(Unreachable):
    """The peer on a channel did not answer in time."""

    retry = "later"


class RankLost(Unreachable):
    """A process of the training run died."""

    retry = "never"


class GuestLost(Unreachable):
    """A guest ended and left neither a model nor a code that says why."""

    retry = "later"


class NodeLost(Unreachable):
    """A node of the run ended, or is about to."""

    retry = "later"


class NodeMissing(Unreachable):
    """Not all nodes of the run joined in time."""

    retry = "later"


class RequestLate(Unreachable):
    """A request did not arrive within the broker's time limit."""

    http_status = 408


class StorageFailed(Unreachable):
    """The disk refused a write: it is full, read-only or broken."""

    retry = "never"


class StorageUnreachable(Unreachable):
    """A remote store did not deliver or take a file, and every retry failed."""


class StorageRefused(StorageUnreachable):
    """A remote store refuses a request for good: trying again changes nothing."""

    retry = "never"


class TooFewParties(Unreachable):
    """Fewer parties answered in time than a round of the federation needs."""

    retry = "later"


class TooManyRequests(Unreachable):
    """One caller, or all callers together, sent more requests than the broker answers."""

    http_status = 429


class DataInvalid(SealtrainError):
    """Data is malformed, inconsistent or too large."""

    label = "data invalid"
    exit_code = 5
    http_status = 400


class EntryUnknown(DataInvalid):
    """The ledger has no such entry, or is shorter than the request says."""

    http_status = 404


class PageUnknown(DataInvalid):
    """The console has no page at this address."""

    http_status = 404


class SubmissionUnknown(DataInvalid):
    """The broker's ledger has no such submission."""

    http_status = 404


class NotSealed(DataInvalid):
    """The file or folder is not in sealtrain's format."""


class FormatUnknown(DataInvalid):
    """No reader knows this file format."""


class SchemaMismatch(DataInvalid):
    """Columns are missing or have other types than the recipe asks for."""


class RecordInvalid(DataInvalid):
    """A record cannot be read; the error names its position, never its content."""


class ModelInvalid(DataInvalid):
    """A base model or tokenizer cannot be loaded."""


class ValidationFailed(DataInvalid):
    """The records break a rule of the recipe; the error names the rule, never a record."""


class LimitExceeded(DataInvalid):
    """Input is larger, deeper or longer than the limit that protects this step."""


class HeadTooLarge(LimitExceeded):
    """The path, query and headers of a request are longer than the broker reads."""

    http_status = 431


class RequestTooLarge(LimitExceeded):
    """The body of a request is longer than the broker reads for this path."""

    http_status = 413


class TrainingFailed(SealtrainError):
    """Training raised an exception that is not sealtrain's; its text stays in the guest."""


class TrainingDiverged(SealtrainError):
    """A loss, a gradient norm or a weight is no longer a finite number; no such model is sealed."""


class RunStopped(SealtrainError):
    """The run was told to end (SIGTERM); what it had sealed stays, and a resume goes on from it."""

    exit_code = 143
    retry = "later"


class RunNotCompleted(SealtrainError):
    """A submitted run has no model: it failed, was stopped or skipped, never began, or goes on."""


class ProtectionMissing(SealtrainError):
    """A step of a walk passed without its protection, or was refused with it."""


class WaitOver(SealtrainError):
    """A submitted run has not ended in the time given; it goes on."""

    exit_code = 124
    http_status = 503
    retry = "again"


class ScriptFailed(ConfigError):
    """A script of the recipe raised an exception of its own; its text stays in the guest."""


INTERNAL: Final = "internal"
"""The code of a fault, which no class has: its text stays where it happened."""
ERROR_CODES: Final = frozenset(HOMES) | {INTERNAL}
"""The closed list of codes. A document that names another one is refused: a word of the right form
could hold anything that its writer chose."""


def error_by_code(code: str) -> type[SealtrainError]:
    """Class of an error code received from a peer; ``Refused`` for an unknown one.

    The module of the class is imported where it is not yet, and nothing else is. A process that
    runs code of others takes its classes from ``every_error`` before it begins.
    """
    return _class_at(HOMES[code]) or Refused if code in HOMES else Refused


def every_error() -> tuple[type[SealtrainError], ...]:
    """Every class of the table, in the order of the codes; all modules with errors are imported.

    Classes of packages that are not installed are left out.
    """
    return tuple(kind for kind in map(_class_at, HOMES.values()) if kind is not None)


def _class_at(home: str) -> type[SealtrainError] | None:
    module, _, name = home.partition(":")
    try:
        found: type[SealtrainError] = getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0]:
            raise
        return None  # a room that this installation does without
    return found
