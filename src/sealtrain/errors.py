"""Every error sealtrain raises on purpose: one tree; each leaf has a code and an exit code.

::

    SealtrainError
    ├── ConfigError                exit 2   what you typed or wrote cannot be used
    │   ├── UsageError             usage
    │   ├── RecipeInvalid          recipe-invalid
    │   ├── LockInvalid            lock-invalid
    │   ├── TrustInvalid           trust-invalid
    │   ├── KeyFileInvalid         key-file-invalid
    │   ├── ConsortiumInvalid      consortium-invalid
    │   ├── AlreadyExists          already-exists
    │   └── ExtraMissing           extra-missing
    ├── Refused                    exit 3   policy, evidence, approvals or a signature says no
    │   ├── SealRefused            a sealed file does not open
    │   │   ├── HeaderDamaged      header-damaged
    │   │   ├── ChunkDamaged       chunk-damaged
    │   │   ├── FileTruncated      file-truncated
    │   │   ├── WrongKey           wrong-key
    │   │   ├── WrongContext       wrong-context
    │   │   ├── NoStanza           no-stanza
    │   │   └── RootMismatch       root-mismatch
    │   ├── SignatureInvalid       signature-invalid
    │   ├── StatementInvalid       statement-invalid
    │   ├── EvidenceRefused        the guest did not prove what it must prove
    │   │   ├── EvidenceMalformed  evidence-malformed
    │   │   ├── QuoteInvalid       quote-invalid
    │   │   ├── QuoteRootUntrusted quote-root-untrusted
    │   │   ├── CollateralExpired  collateral-expired
    │   │   ├── CollateralMismatch collateral-mismatch
    │   │   ├── TcbStatusRefused   tcb-status-refused
    │   │   ├── DebugGuest         debug-guest
    │   │   ├── EventLogMismatch   event-log-mismatch
    │   │   ├── ComposeHashMismatch compose-hash-mismatch
    │   │   ├── AppIdMismatch      app-id-mismatch
    │   │   ├── KeyProviderMismatch key-provider-mismatch
    │   │   ├── MeasurementMismatch measurement-mismatch
    │   │   ├── ReportDataMismatch report-data-mismatch
    │   │   ├── PlatformMismatch   platform-mismatch
    │   │   ├── SimulatedEvidence  simulated-evidence
    │   │   ├── CertificateChainInvalid certificate-chain-invalid
    │   │   ├── CertificateRevoked certificate-revoked
    │   │   ├── EvidenceStale evidence-stale
    │   │   ├── GpuModeRefused gpu-mode-refused
    │   │   ├── GpuNonceMismatch gpu-nonce-mismatch
    │   │   ├── GpuReportInvalid gpu-report-invalid
    │   │   ├── GpuSetRefused gpu-set-refused
    │   │   ├── MigratableGuest migratable-guest
    │   │   ├── ReferenceValueInvalid reference-value-invalid
    │   │   ├── ReferenceValueMismatch reference-value-mismatch
    │   │   ├── RemoteVerdictRefused remote-verdict-refused
    │   │   └── RevocationUnknown revocation-unknown
    │   ├── ReleaseRefused         the broker keeps the keys
    │   │   ├── ApprovalsMissing   approvals-missing
    │   │   ├── ApprovalExpired    approval-expired
    │   │   ├── ApprovalRevoked    approval-revoked
    │   │   ├── ApprovalUnknown    approval-unknown
    │   │   ├── RecipeChanged      recipe-changed
    │   │   ├── ChallengeUnknown   challenge-unknown
    │   │   ├── ChallengeReplayed  challenge-replayed
    │   │   ├── ChallengeExpired   challenge-expired
    │   │   ├── DatasetUnknown     dataset-unknown
    │   │   ├── DatasetMismatch    dataset-mismatch
    │   │   ├── DatasetWithdrawn   dataset-withdrawn
    │   │   ├── BudgetSpent        budget-spent
    │   │   ├── LeaseStale         lease-stale
    │   │   ├── LeaseUnknown       lease-unknown
    │   │   ├── RunMismatch        run-mismatch
    │   │   ├── ChainRefused       chain-refused
    │   │   ├── ConsortiumMismatch consortium-mismatch
    │   │   ├── BrokerMismatch     broker-mismatch
    │   │   ├── BrokerNotApproved  broker-not-approved
    │   │   └── AnswerInvalid      answer-invalid
    │   ├── KmsAnswerInvalid       kms-answer-invalid
    │   ├── LedgerInconsistent     ledger-inconsistent
    │   ├── ProofInvalid           proof-invalid
    │   ├── RequestReplayed        request-replayed
    │   ├── RequestStale           request-stale
    │   ├── TokenRefused           token-refused
    │   ├── CapabilityRefused      capability-refused
    │   ├── ChannelBroken          channel-broken
    │   │   └── ChannelCut         channel-cut
    │   ├── ChannelRefused         channel-refused
    │   ├── RunLogBroken           run-log-broken
    │   ├── CheckpointRefused      checkpoint-refused
    │   ├── TripBroken             trip-broken
    │   ├── TranscriptInvalid      transcript-invalid
    │   ├── EgressRefused          egress-refused
    │   ├── EnvironmentChanged     environment-changed
    │   ├── ImportRefused          import-refused
    │   ├── PadsRefused            pads-refused
    │   ├── PrivacyBroken          privacy-broken
    │   ├── ProductAltered         product-altered
    │   ├── UpdateRefused          update-refused
    │   └── ManifestRefused        a manifest does not hold what it claims
    │       ├── ManifestMalformed  manifest-malformed
    │       ├── SubjectMismatch    subject-mismatch
    │       ├── TrustMismatch      trust-mismatch
    │       └── ClaimContradicted  claim-contradicted
    ├── Unreachable                exit 4   another side did not answer in time
    │   ├── AcceleratorUnreachable accelerator-unreachable
    │   ├── BrokerUnreachable      broker-unreachable
    │   ├── ChainUnreachable       chain-unreachable
    │   ├── CollateralUnreachable  collateral-unreachable
    │   ├── DealerUnreachable      dealer-unreachable
    │   ├── DecryptionLost         decryption-lost
    │   ├── GuestApiUnreachable    guest-api-unreachable
    │   ├── KmsUnreachable         kms-unreachable
    │   ├── PeerUnreachable        peer-unreachable
    │   ├── RankLost               rank-lost
    │   ├── RequestLate            request-late
    │   ├── StorageFailed          storage-failed
    │   ├── StorageUnreachable     storage-unreachable
    │   ├── TooFewParties          too-few-parties
    │   └── TooManyRequests        too-many-requests
    ├── DataInvalid                exit 5   the data is not what it must be
    │   ├── EntryUnknown           entry-unknown
    │   ├── NotSealed              not-sealed
    │   ├── FormatUnknown          format-unknown
    │   ├── SchemaMismatch         schema-mismatch
    │   ├── RecordInvalid          record-invalid
    │   ├── ModelInvalid           model-invalid
    │   ├── ValidationFailed       validation-failed
    │   └── LimitExceeded          input beyond the limit that protects a step
    │       ├── HeadTooLarge       head-too-large
    │       └── RequestTooLarge    request-too-large
    └── TrainingFailed             training-failed

Anything else that escapes is a bug and exits 1. A message never holds a key, a row or a sample.

A class says by itself how it leaves a process (``exit_code``), how a service answers with it
(``http_status``) and what a client may expect of asking again (``retry``).
"""

from __future__ import annotations

from typing import ClassVar, Literal

__all__ = [
    "AcceleratorUnreachable",
    "AlreadyExists",
    "AnswerInvalid",
    "AppIdMismatch",
    "ApprovalExpired",
    "ApprovalRevoked",
    "ApprovalUnknown",
    "ApprovalsMissing",
    "BrokerMismatch",
    "BrokerNotApproved",
    "BrokerUnreachable",
    "BudgetSpent",
    "CapabilityRefused",
    "CertificateChainInvalid",
    "CertificateRevoked",
    "ChainRefused",
    "ChainUnreachable",
    "ChallengeExpired",
    "ChallengeReplayed",
    "ChallengeUnknown",
    "ChannelBroken",
    "ChannelCut",
    "ChannelRefused",
    "CheckpointRefused",
    "ChunkDamaged",
    "ClaimContradicted",
    "CollateralExpired",
    "CollateralMismatch",
    "CollateralUnreachable",
    "ComposeHashMismatch",
    "ConfigError",
    "ConsortiumInvalid",
    "ConsortiumMismatch",
    "DataInvalid",
    "DatasetMismatch",
    "DatasetUnknown",
    "DatasetWithdrawn",
    "DealerUnreachable",
    "DebugGuest",
    "DecryptionLost",
    "EgressRefused",
    "EntryUnknown",
    "EnvironmentChanged",
    "EventLogMismatch",
    "EvidenceMalformed",
    "EvidenceRefused",
    "EvidenceStale",
    "ExtraMissing",
    "FileTruncated",
    "FormatUnknown",
    "GpuModeRefused",
    "GpuNonceMismatch",
    "GpuReportInvalid",
    "GpuSetRefused",
    "GuestApiUnreachable",
    "HeadTooLarge",
    "HeaderDamaged",
    "ImportRefused",
    "KeyFileInvalid",
    "KeyProviderMismatch",
    "KmsAnswerInvalid",
    "KmsUnreachable",
    "LeaseStale",
    "LeaseUnknown",
    "LedgerInconsistent",
    "LimitExceeded",
    "LockInvalid",
    "ManifestMalformed",
    "ManifestRefused",
    "MeasurementMismatch",
    "MigratableGuest",
    "ModelInvalid",
    "NoStanza",
    "NotSealed",
    "PadsRefused",
    "PeerUnreachable",
    "PlatformMismatch",
    "PrivacyBroken",
    "ProductAltered",
    "ProofInvalid",
    "QuoteInvalid",
    "QuoteRootUntrusted",
    "RankLost",
    "RecipeChanged",
    "RecipeInvalid",
    "RecordInvalid",
    "ReferenceValueInvalid",
    "ReferenceValueMismatch",
    "Refused",
    "ReleaseRefused",
    "RemoteVerdictRefused",
    "ReportDataMismatch",
    "RequestLate",
    "RequestReplayed",
    "RequestStale",
    "RequestTooLarge",
    "RevocationUnknown",
    "RootMismatch",
    "RunLogBroken",
    "RunMismatch",
    "SchemaMismatch",
    "SealRefused",
    "SealtrainError",
    "SignatureInvalid",
    "SimulatedEvidence",
    "StatementInvalid",
    "StorageFailed",
    "StorageUnreachable",
    "SubjectMismatch",
    "TcbStatusRefused",
    "TokenRefused",
    "TooFewParties",
    "TooManyRequests",
    "TrainingFailed",
    "TranscriptInvalid",
    "TripBroken",
    "TrustInvalid",
    "TrustMismatch",
    "Unreachable",
    "UpdateRefused",
    "UsageError",
    "ValidationFailed",
    "WrongContext",
    "WrongKey",
    "error_by_code",
]


Retry = Literal["never", "again", "later"]


class SealtrainError(Exception):
    """Root of the tree.

    Args:
        message: One sentence, what happened.
        check: Name of the check that failed (``"compose hash"``).
        owner: Owner concerned, where one is.
        got: What was found, printable and free of secrets and samples.
        expected: What would have been accepted.
        hint: What to do now.
    """

    code: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 1
    http_status: ClassVar[int] = 500
    """Status of a service's answer that carries the error."""
    retry: ClassVar[Retry] = "never"
    """What asking again may bring; ``"again"``: nothing was decided, the same request may succeed
    in a moment; ``"later"``: owners or operators can change the answer; ``"never"``: neither."""

    def __init__(
        self,
        message: str,
        *,
        check: str | None = None,
        owner: str | None = None,
        got: object = None,
        expected: object = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.check = check
        self.owner = owner
        self.got = None if got is None else str(got)
        self.expected = None if expected is None else str(expected)
        self.hint = hint

    def __str__(self) -> str:
        """Message with got and expected behind it, on one line."""
        if self.got is None and self.expected is None:
            return self.message
        return f"{self.message} (got {self.got}, expected {self.expected})"

    def restated(
        self, message: str, *, owner: str | None = None, hint: str | None = None
    ) -> SealtrainError:
        """The same error in other words: of what a failed check means to somebody else.

        Args:
            message: What happened.
            owner: Owner concerned; as before when ``None``.
            hint: What to do now; as before when ``None``.
        """
        return type(self)(
            message,
            check=self.check,
            owner=owner or self.owner,
            got=self.got,
            expected=self.expected,
            hint=hint or self.hint,
        )

    def to_dict(self) -> dict[str, str]:
        """Fields that are set, for ``--json`` and for a broker's refusal."""
        fields = {
            "code": self.code,
            "message": self.message,
            "check": self.check,
            "owner": self.owner,
            "got": self.got,
            "expected": self.expected,
            "hint": self.hint,
        }
        return {name: value for name, value in fields.items() if value is not None}


class ConfigError(SealtrainError):
    """What was typed or written cannot be used."""

    code = "config"
    exit_code = 2
    http_status = 400


class UsageError(ConfigError):
    """A command line that makes no sense."""

    code = "usage"


class RecipeInvalid(ConfigError):
    """A recipe breaks its schema."""

    code = "recipe-invalid"


class LockInvalid(ConfigError):
    """A lock or deployment document is malformed or does not fit its recipe."""

    code = "lock-invalid"


class TrustInvalid(ConfigError):
    """A trust file or appraisal policy lacks a field or has one too many."""

    code = "trust-invalid"


class KeyFileInvalid(ConfigError):
    """A key file is malformed or readable by others."""

    code = "key-file-invalid"


class ConsortiumInvalid(ConfigError):
    """A consortium document breaks its rules or lacks the owner that is asked for."""

    code = "consortium-invalid"


class AlreadyExists(ConfigError):
    """The output is already there and is never overwritten silently."""

    code = "already-exists"


class ExtraMissing(ConfigError):
    """An optional dependency is not installed."""

    code = "extra-missing"


class Refused(SealtrainError):
    """Policy, evidence, approvals or a signature says no."""

    code = "refused"
    exit_code = 3
    http_status = 403


class SealRefused(Refused):
    """A sealed file does not open."""

    code = "seal-refused"


class HeaderDamaged(SealRefused):
    """The header of a sealed file fails authentication or is malformed."""

    code = "header-damaged"


class ChunkDamaged(SealRefused):
    """A chunk of ciphertext fails authentication; none of its plaintext was released."""

    code = "chunk-damaged"


class FileTruncated(SealRefused):
    """A sealed file ends before its final chunk."""

    code = "file-truncated"


class WrongKey(SealRefused):
    """The key does not open this file."""

    code = "wrong-key"


class WrongContext(SealRefused):
    """The file is genuine but not the one that was asked for."""

    code = "wrong-context"


class NoStanza(SealRefused):
    """No stanza of the header is for this recipient."""

    code = "no-stanza"


class RootMismatch(SealRefused):
    """Ciphertext differs from the hash tree root that was signed."""

    code = "root-mismatch"


class SignatureInvalid(Refused):
    """A signature does not verify under the expected key."""

    code = "signature-invalid"


class StatementInvalid(Refused):
    """A signed document is genuine but not in its format or outside its time."""

    code = "statement-invalid"


class EvidenceRefused(Refused):
    """The guest did not prove what it must prove."""

    code = "evidence-refused"


class EvidenceMalformed(EvidenceRefused):
    """Evidence cannot be parsed."""

    code = "evidence-malformed"


class QuoteInvalid(EvidenceRefused):
    """A quote's signature or structure does not verify."""

    code = "quote-invalid"


class QuoteRootUntrusted(EvidenceRefused):
    """A quote chains to a root that the policy does not trust."""

    code = "quote-root-untrusted"


class CollateralExpired(EvidenceRefused):
    """Collateral is not valid at the verification time."""

    code = "collateral-expired"
    retry = "later"


class CollateralMismatch(EvidenceRefused):
    """Collateral belongs to another platform or is not authentic."""

    code = "collateral-mismatch"


class TcbStatusRefused(EvidenceRefused):
    """The platform's TCB status or an advisory is not allowed by the policy."""

    code = "tcb-status-refused"


class DebugGuest(EvidenceRefused):
    """The guest runs in debug mode; its memory is readable from outside."""

    code = "debug-guest"


class EventLogMismatch(EvidenceRefused):
    """The event log does not replay to the quoted registers, or breaks its rules."""

    code = "event-log-mismatch"


class ComposeHashMismatch(EvidenceRefused):
    """The guest measured another deployment document."""

    code = "compose-hash-mismatch"


class AppIdMismatch(EvidenceRefused):
    """The guest measured another app id."""

    code = "app-id-mismatch"


class KeyProviderMismatch(EvidenceRefused):
    """The guest got its keys from another key provider than the pinned one."""

    code = "key-provider-mismatch"


class MeasurementMismatch(EvidenceRefused):
    """A measured register differs from every reference value."""

    code = "measurement-mismatch"


class ReportDataMismatch(EvidenceRefused):
    """The quote does not commit to this conversation."""

    code = "report-data-mismatch"


class PlatformMismatch(EvidenceRefused):
    """Evidence comes from another kind of platform than the policy names."""

    code = "platform-mismatch"


class SimulatedEvidence(EvidenceRefused):
    """Simulated evidence met a policy that asks for hardware."""

    code = "simulated-evidence"


class CertificateChainInvalid(EvidenceRefused):
    """A certificate chain does not hold: dates, roles, key types or signatures."""

    code = "certificate-chain-invalid"


class CertificateRevoked(EvidenceRefused):
    """The vendor revoked a certificate, or holds it back."""

    code = "certificate-revoked"


class EvidenceStale(EvidenceRefused):
    """Evidence was made too long ago, or in the future."""

    code = "evidence-stale"


class GpuModeRefused(EvidenceRefused):
    """An accelerator is not in the confidential mode that the policy asks for."""

    code = "gpu-mode-refused"


class GpuNonceMismatch(EvidenceRefused):
    """An accelerator's report was made for another conversation."""

    code = "gpu-nonce-mismatch"


class GpuReportInvalid(EvidenceRefused):
    """An accelerator's report does not parse or its signature does not hold."""

    code = "gpu-report-invalid"


class GpuSetRefused(EvidenceRefused):
    """Accelerators are missing, shown twice, or do not belong together."""

    code = "gpu-set-refused"


class MigratableGuest(EvidenceRefused):
    """Another guest may move this one, and its memory, to another machine."""

    code = "migratable-guest"


class ReferenceValueInvalid(EvidenceRefused):
    """A vendor's file of reference values is not authentic."""

    code = "reference-value-invalid"


class ReferenceValueMismatch(EvidenceRefused):
    """An accelerator runs firmware that differs from the vendor's reference values."""

    code = "reference-value-mismatch"


class RemoteVerdictRefused(EvidenceRefused):
    """A vendor's verdict is not authentic, not about this evidence, or negative."""

    code = "remote-verdict-refused"


class RevocationUnknown(EvidenceRefused):
    """Nothing valid says whether a certificate was revoked."""

    code = "revocation-unknown"


class ReleaseRefused(Refused):
    """The broker keeps the keys."""

    code = "release-refused"


class ApprovalsMissing(ReleaseRefused):
    """Fewer owners approved than the threshold asks for."""

    code = "approvals-missing"
    retry = "later"


class ApprovalExpired(ReleaseRefused):
    """The approvals that would complete the threshold have expired."""

    code = "approval-expired"
    retry = "later"


class ApprovalRevoked(ReleaseRefused):
    """An owner revoked the recipe."""

    code = "approval-revoked"
    retry = "later"


class ApprovalUnknown(ReleaseRefused):
    """An approval is signed by nobody in this consortium or names another one."""

    code = "approval-unknown"


class RecipeChanged(ReleaseRefused):
    """The recipe that runs is not the recipe that was approved."""

    code = "recipe-changed"


class ChallengeUnknown(ReleaseRefused):
    """The broker never issued this challenge."""

    code = "challenge-unknown"
    retry = "again"


class ChallengeReplayed(ReleaseRefused):
    """The challenge was used before."""

    code = "challenge-replayed"
    retry = "again"


class ChallengeExpired(ReleaseRefused):
    """The challenge is too old."""

    code = "challenge-expired"
    retry = "again"


class DatasetUnknown(ReleaseRefused):
    """No owner registered this dataset for this recipe."""

    code = "dataset-unknown"


class DatasetMismatch(ReleaseRefused):
    """The dataset offered is not the dataset its owner signed."""

    code = "dataset-mismatch"


class DatasetWithdrawn(ReleaseRefused):
    """The owner of a dataset took it back for good."""

    code = "dataset-withdrawn"


class BudgetSpent(ReleaseRefused):
    """A run would spend more of a dataset's privacy than its owner's budget has left."""

    code = "budget-spent"


class LeaseStale(ReleaseRefused):
    """The lease has ended; keys must not be used any longer."""

    code = "lease-stale"
    retry = "later"


class LeaseUnknown(ReleaseRefused):
    """The broker never granted this lease."""

    code = "lease-unknown"


class RunMismatch(ReleaseRefused):
    """A run id is unknown, taken, or belongs to another recipe or to other data."""

    code = "run-mismatch"


class ConsortiumMismatch(ReleaseRefused):
    """The request or its recipe is about another consortium than the broker's."""

    code = "consortium-mismatch"


class BrokerMismatch(ReleaseRefused):
    """A broker is another one than the request or the broker file names."""

    code = "broker-mismatch"
    retry = "later"  # after a rotation of its key, whoever asks anew knows it again


class BrokerNotApproved(ReleaseRefused):
    """The recipe's lock, which the owners approved, does not name this broker."""

    code = "broker-not-approved"


class ChainRefused(ReleaseRefused):
    """The owners' contract on the chain does not allow this, or is not the one that was pinned."""

    code = "chain-refused"
    retry = "later"


class AnswerInvalid(ReleaseRefused):
    """A broker's answer belongs to another conversation or breaks the protocol."""

    code = "answer-invalid"
    retry = "again"


class KmsAnswerInvalid(Refused):
    """A key service answered with something that does not open as it must."""

    code = "kms-answer-invalid"


class LedgerInconsistent(Refused):
    """A ledger was rewritten or forked."""

    code = "ledger-inconsistent"


class ProofInvalid(Refused):
    """A Merkle proof does not lead to the signed root."""

    code = "proof-invalid"


class RequestReplayed(Refused):
    """A signed request came a second time."""

    code = "request-replayed"


class RequestStale(Refused):
    """A request was signed too long ago, or ahead of the broker's clock."""

    code = "request-stale"


class TokenRefused(Refused):
    """An operator's token is missing, unknown, or not for this."""

    code = "token-refused"
    http_status = 401


class RunLogBroken(Refused):
    """A run log's hash chain does not hold."""

    code = "run-log-broken"


class CheckpointRefused(Refused):
    """A checkpoint belongs to another run, was rolled back or was altered."""

    code = "checkpoint-refused"


class CapabilityRefused(Refused):
    """A write capability is unknown, used, taken back, or does not cover what was written."""

    code = "capability-refused"


class ChannelBroken(Refused):
    """A channel between proven parties carried something else than what was sent next."""

    code = "channel-broken"


class ChannelCut(ChannelBroken):
    """A channel ended in the middle: the other party died, or the network cut the connection."""

    code = "channel-cut"


class ChannelRefused(Refused):
    """The other side of a channel is not the one to talk to, or speaks another protocol."""

    code = "channel-refused"


class TripBroken(Refused):
    """On a trip of the accelerator something was not as it was left or promised."""

    code = "trip-broken"


class TranscriptInvalid(Refused):
    """The transcript of a travelling accelerator does not hold together."""

    code = "transcript-invalid"


class EgressRefused(Refused):
    """Something wanted to leave the guest that the release policy does not name."""

    code = "egress-refused"


class PadsRefused(Refused):
    """A one-time pad is asked for that is not there, or that would be used twice."""

    code = "pads-refused"


class PrivacyBroken(Refused):
    """Training or evaluation would not, or did not, keep the promised differential privacy."""

    code = "privacy-broken"


class ProductAltered(Refused):
    """An accelerator or a dealer gave a product that is not the product."""

    code = "product-altered"


class EnvironmentChanged(Refused):
    """Code, packages, base model or tokenizer differ from the lock."""

    code = "environment-changed"


class ImportRefused(Refused):
    """Something imports a package that the lock does not pin."""

    code = "import-refused"


class UpdateRefused(Refused):
    """A party of a federation, or an update of one, does not count."""

    code = "update-refused"


class ManifestRefused(Refused):
    """A manifest does not hold what it claims."""

    code = "manifest-refused"


class ManifestMalformed(ManifestRefused):
    """A manifest cannot be parsed or is not in its canonical form."""

    code = "manifest-malformed"


class SubjectMismatch(ManifestRefused):
    """An artefact is not what the manifest names: altered, absent, or not named at all."""

    code = "subject-mismatch"


class TrustMismatch(ManifestRefused):
    """The manifest is about another consortium, recipe or broker than the trust file names."""

    code = "trust-mismatch"


class ClaimContradicted(ManifestRefused):
    """Two statements inside a manifest contradict each other."""

    code = "claim-contradicted"


class Unreachable(SealtrainError):
    """Another side did not answer in time."""

    code = "unreachable"
    exit_code = 4
    http_status = 503
    retry: ClassVar[Retry] = "again"


class AcceleratorUnreachable(Unreachable):
    """The accelerator is gone or broken; resume the run, or take it over, with one that works."""

    code = "accelerator-unreachable"
    retry = "never"


class BrokerUnreachable(Unreachable):
    """The broker did not answer."""

    code = "broker-unreachable"


class ChainUnreachable(Unreachable):
    """The chain's nodes do not answer, disagree, or show an old block."""

    code = "chain-unreachable"


class CollateralUnreachable(Unreachable):
    """The vendor's collateral, or a cache of it, cannot be fetched."""

    code = "collateral-unreachable"


class DealerUnreachable(Unreachable):
    """The dealer of pads is gone or broken; resume the run with one that works (--dealer)."""

    code = "dealer-unreachable"


class DecryptionLost(Unreachable):
    """The process that decrypts ahead of training ended without a word."""

    code = "decryption-lost"
    retry = "never"


class GuestApiUnreachable(Unreachable):
    """The guest's attestation API did not answer."""

    code = "guest-api-unreachable"


class KmsUnreachable(Unreachable):
    """The key service does not answer."""

    code = "kms-unreachable"


class PeerUnreachable(Unreachable):
    """The other side of a channel does not answer in time."""

    code = "peer-unreachable"
    retry = "never"


class RankLost(Unreachable):
    """A process that trains together with the run ended without a word."""

    code = "rank-lost"
    retry = "never"


class RequestLate(Unreachable):
    """A request did not arrive in the time that the broker waits for one."""

    code = "request-late"
    http_status = 408


class StorageFailed(Unreachable):
    """The disk did not take what had to be kept: it is full, read-only or broken."""

    code = "storage-failed"
    retry = "never"


class StorageUnreachable(Unreachable):
    """A store elsewhere does not deliver or take a file, however often it is asked."""

    code = "storage-unreachable"


class TooFewParties(Unreachable):
    """Fewer parties than a round of a federation needs answered in its time."""

    code = "too-few-parties"
    retry = "never"


class TooManyRequests(Unreachable):
    """The broker answers no more requests of this caller, or of all, for now."""

    code = "too-many-requests"
    http_status = 429


class DataInvalid(SealtrainError):
    """The data is not what it must be."""

    code = "data-invalid"
    exit_code = 5
    http_status = 400


class EntryUnknown(DataInvalid):
    """The ledger has no such entry, or not that many."""

    code = "entry-unknown"
    http_status = 404


class NotSealed(DataInvalid):
    """The file or folder is not in sealtrain's format."""

    code = "not-sealed"


class FormatUnknown(DataInvalid):
    """No reader knows this file format."""

    code = "format-unknown"


class SchemaMismatch(DataInvalid):
    """Columns are missing or have other types than the recipe asks for."""

    code = "schema-mismatch"


class RecordInvalid(DataInvalid):
    """A record cannot be read; its position is named, never its content."""

    code = "record-invalid"


class ModelInvalid(DataInvalid):
    """A base model or tokenizer cannot be loaded."""

    code = "model-invalid"


class ValidationFailed(DataInvalid):
    """The records break a rule that the recipe sets for them; rules are named, never records."""

    code = "validation-failed"


class LimitExceeded(DataInvalid):
    """Input is larger, deeper or longer than the limit that protects this step."""

    code = "limit-exceeded"


class HeadTooLarge(LimitExceeded):
    """Path, query and headers of a request are longer than the broker reads."""

    code = "head-too-large"
    http_status = 431


class RequestTooLarge(LimitExceeded):
    """The body of a request is longer than the broker reads for this path."""

    code = "request-too-large"
    http_status = 413


class TrainingFailed(SealtrainError):
    """Training raised something that is no error of sealtrain; what it said stays in the guest."""

    code = "training-failed"


def error_by_code(code: str) -> type[SealtrainError]:
    """Class of an error code received from a peer; ``Refused`` for an unknown one."""
    pending: list[type[SealtrainError]] = [SealtrainError]
    while pending:
        cls = pending.pop()
        if cls.code == code:
            return cls
        pending.extend(cls.__subclasses__())
    return Refused
