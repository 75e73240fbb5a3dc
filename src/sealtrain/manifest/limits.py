"""The limits of a manifest: the facts it does not prove, in plain words (spec/run-manifest.md §5).

Ids are part of the format and are checked; texts are for people and may improve. ``list_required``
returns the ids that the facts of a run require, ``limits_for`` writes them into a new manifest,
``state_limits`` shows them to an auditor, ``list_skipped`` lists the checks that the auditor's own
trust file leaves out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from sealtrain.attest.open_values import OPEN as OPEN_OF_POLICIES
from sealtrain.attest.open_values import open_values
from sealtrain.base.canonical import parse_json
from sealtrain.base.encoding import from_base64
from sealtrain.base.tiers import Tier
from sealtrain.errors import DataInvalid, LimitExceeded
from sealtrain.manifest.predicate import Limit
from sealtrain.recipe.kinds import settings_of

if TYPE_CHECKING:
    from sealtrain.consortium.chainword import ChainWord
    from sealtrain.consortium.receipts import ReleaseReceipt
    from sealtrain.manifest.predicate import Predicate
    from sealtrain.manifest.trust import Trust

TEXTS: Mapping[str, str] = MappingProxyType(
    {
        "border-in-software": (
            "The kernel of the guest that wrote this file did not enforce the whole sandbox of the "
            "training. Python's own hooks did, which stop library code; native code of the pinned "
            "packages or of a script could have written files, connected or started programs."
        ),
        "simulated": (
            "The evidence comes from a software simulator. It shows that the protocol was "
            "followed, and nothing about hardware: its operator could read the data and the keys."
        ),
        "owners-not-asked": (
            "This consortium lets an owner's data be used without that owner's approval, if enough "
            "others approve."
        ),
        "own-script": (
            "A script of the engineer's trained, in place of sealtrain's own training. The trainer "
            "settings of the recipe need not be those that it used. Its text shows how it used the "
            "records: read the script with the digest shown here. In a run of several guests it "
            "chose how many messages they exchanged, and when, which the network could see."
        ),
        "workload-word": (
            "The recipe's code ran in a process of its own. Steps, tokens, samples, metrics, "
            "history and what follows from them are that process's word; the process that kept "
            "the keys could not recompute them. It counted by itself the rows that it served, "
            "and read environment and accelerators by itself."
        ),
        "platform-script": (
            "The recipe lets a script of the platform run in the guest before the run, as root. It "
            "could read and change everything there: read the script with the digest in "
            "hardware.launch_script."
        ),
        "records-left-out": (
            "Half of the records or more left nothing to learn, at the recipe's length or by their "
            "form, and did not train. The model has learned from the others alone."
        ),
        "records-not-counted": (
            "This kind of run does not count how many of its records trained whole, cut or not at "
            "all. How many the model learned from does not follow from this file."
        ),
        "hardware": (
            "The evidence is as good as the processor that made it. Attackers with physical "
            "access to a machine's memory have extracted attestation keys from such processors "
            "before, and a stolen key makes evidence that verifies."
        ),
        "paravisor-word": (
            "The cloud's paravisor measured what started; the processor's vendor vouches for the "
            "paravisor and for the encryption of memory. The cloud that wrote the paravisor could "
            "read the data and the keys."
        ),
        "cloud-tpm-word": (
            "The cloud's TPM measured what started. The processor's vendor vouches for the "
            "encryption of memory and for the firmware, and for nothing that started after it: a "
            "cloud whose TPM lies could read the data and the keys."
        ),
        "cloud-word": (
            "The cloud alone vouches for what started. No vendor of a processor does, and nothing "
            "shows that memory is encrypted: the cloud could read the data and the keys."
        ),
        "side-channels": (
            "The machine's operator sees sizes, timing, memory access patterns and network "
            "traffic. Sealing does not hide them."
        ),
        "memorisation": (
            "The model was trained without differential privacy. It may repeat or reveal "
            "records it was trained on to anyone who can query it."
        ),
        "privacy-scope": (
            "Differential privacy hides single records: whether one record of one dataset took "
            "part. It does not hide patterns that many records share, a person with several "
            "records, numbers of records, or measurements without noise: on test records, by "
            "validation, or by an audit of the model."
        ),
        "patient-scope": (
            "Differential privacy hides single patients: whether all of one party's records of a "
            "patient took part. A patient of two parties counts as two, and the owner alone says "
            "which patient a record belongs to. It does not hide patterns that many patients "
            "share, numbers of patients and records, how long a party took, or measurements on "
            "test records. Brokers do not count it over several runs."
        ),
        "accountant-approximate": (
            "Epsilon was computed by a central limit approximation, which can fall below the "
            "true value. It is not a bound."
        ),
        "revocation": (
            "A revocation stops further releases and renewals. It recalls neither keys "
            "already released nor the finished model."
        ),
        "owners-word": (
            "Owners vouch for their data. Nothing here shows that records are true, complete, "
            "lawful to use or correctly labelled; only which ciphertext was used."
        ),
        "recipe-judgement": (
            "Approvals show that owners agreed to this exact recipe. They do not show that it "
            "is safe, fair or fit for a purpose."
        ),
        "guest-clock": (
            "Start, finish and events are by the guest's clock, which its host can shift. "
            "Only the broker's receipts bracket them from outside."
        ),
        "broker-word": (
            "Receipts and the ledger are signed by the broker. A holder of its root secret "
            "can open the data without leaving a trace in this file, or show another ledger "
            "to other readers."
        ),
        "sealed-outputs": (
            "Digests are of the sealed files. Only their recipients, or the guests that the model "
            "was handed on to, can see the contents; "
            "anyone else has the measured code's word that they are the model this run trained."
        ),
        "accelerator-binding": (
            "An accelerator took part in the run. Where the evidence has a section for it, it was "
            "genuine and answered this run; that it stood in this very machine rests on the "
            "measured code, for no hardware of today ties the two. Where the evidence has none, "
            "data it computed on was outside what the evidence covers."
        ),
        "nvlink-in-clear": (
            "The accelerators ran in the mode protected_pcie: they encrypt what goes to the "
            "processor, and what they say to each other over NVLink is in clear inside the "
            "machine. An attacker with a probe at those links reads activations and gradients."
        ),
        "parties-evidence": (
            "Several guests took part. This file holds the evidence of the guest that led; of the "
            "others it holds the brokers' receipts for the keys released to them. That each guest "
            "accepted the others by their evidence is the word of the measured code. The file does "
            "not say how far the kernels of the others enforced the sandbox of their training."
        ),
        "nodes-evidence": (
            "Several guests of one deployment trained together. This file holds the evidence of "
            "the guest that led; of the others it holds the digests of the evidence that the lead "
            "accepted and the brokers' receipts for the keys released to them. That the nodes "
            "exchanged tensors with no other machine is the word of the measured code. The file "
            "does not say how far the kernels of the others enforced their sandbox."
        ),
        "updates-merged": (
            "Parties' updates reveal something of their records; the guest that led read each one, "
            "and released only the merge. A party may have chosen records to steer the model: the "
            "recipe's rule bounds the influence of one party, and does not detect it."
        ),
        "lent-by-software": (
            "One accelerator had every holder's chunks in its memory, one after another. That a "
            "holder could write to the range it was lent and read nothing, and that each chunk was "
            "wiped before the next, is the word of the code measured there: no hardware of today "
            "lends a range of an accelerator's memory."
        ),
        "base-model-public": (
            "Frozen weights of the base model were given, as eight-bit integers, to an untrusted "
            "accelerator. They are public now; the trained weights are not."
        ),
        "outsourced-shapes": (
            "The accelerator saw how many rows each product had, when and how often: sizes of "
            "batches, lengths of texts, how long training took. It saw no number of the data, of a "
            "gradient or of the trained weights."
        ),
        "dealer-apart": (
            "Pads hide nothing from a reader who has them and also sees the accelerator's traffic. "
            "Where a dealer made them, its guest proved itself to the guest that trained, which is "
            "the word of the measured code, and kept them in its memory."
        ),
        "activations-reveal": (
            "Owners' records came to the guest as activations of the model's front half, which "
            "is public. A reader of such activations recovers much of the text, after few layers "
            "nearly all of it. Only the attested channel and the guest hide them."
        ),
        "clients-word": (
            "Owners' clients ran on machines of their owners, outside of any TEE. That their "
            "messages were computed from the sealed records named here is their owners' word."
        ),
    }
)

BORDER_CLOSED: Final = "border.closed"
"""Event of the run log: how far the kernel enforces a process's sandbox (``border_held``)."""
DATA_COUNTED: Final = "data.counted"
"""Event of the run log: what each dataset's records left to learn."""
ROWS_SERVED: Final = "rows.served"
"""Event of the run log: how many rows of each dataset the recipe's code was given."""
_BEGINNINGS: Final = frozenset({"run.started", "run.restarted", "run.resumed"})
_NEEDED_LANDLOCK: Final = 6
"""Linux 6.12: with rules of files, TCP, signals and abstract unix sockets (spec/run-log.md)."""

_GPU_MODE: Final = "GPU mode"
"""Name of the comparison in a verdict (``attest.nvidia.topology``)."""

OPEN: Final = {
    "compose_hash": "deployment document that embeds the recipe",
    "app_id": "app id",
    **OPEN_OF_POLICIES,
}
"""After *accepts any*, by the field of a trust file or policy that may be ``any``."""

_SHOWN_BLOCKS: Final = 64

_COMPARISON: Final = re.compile(r"\A[A-Za-z0-9][A-Za-z0-9 -]{0,63}\Z")
"""Name of a comparison in a verdict; another is no name of ours and is passed over."""

_OF_TIER: Final[Mapping[Tier, tuple[str, ...]]] = {
    "processor": (),
    "processor-and-paravisor": ("paravisor-word",),
    "cloud-tpm": ("cloud-tpm-word",),
    "cloud": ("cloud-word",),
}
"""What a machine below the strongest tier does not prove."""

_ALWAYS = (
    "side-channels",
    "revocation",
    "owners-word",
    "recipe-judgement",
    "guest-clock",
    "broker-word",
    "sealed-outputs",
)


def list_required(predicate: Predicate) -> tuple[str, ...]:
    """Ids that a manifest with these facts must list, in the order they are shown.

    Args:
        predicate: The function does not read its ``limits``.
    """
    privacy, collaboration = predicate.privacy, predicate.collaboration
    ids = ["simulated" if predicate.simulated else "hardware"]
    ids += _OF_TIER[predicate.deployment.tier]
    if not border_held(predicate.run_log.entries):
        ids.append("border-in-software")
    if not predicate.consortium.own_data_consent:
        ids.append("owners-not-asked")
    if predicate.recipe.lock.get("scripts"):
        ids.append("own-script")
    if predicate.recipe.lock.get("scripts") or _serves_rows(predicate.run_log.entries):
        ids.append("workload-word")
    if _names_launch_script(predicate.recipe.lock):
        ids.append("platform-script")
    ids += limits_of_records(predicate)
    if predicate.compute.accelerators:
        ids.append("accelerator-binding")
    if any(_links_in_clear(release.receipt) for release in predicate.releases):
        ids.append("nvlink-in-clear")
    if privacy.dp == "none":
        ids.append("memorisation")
    else:
        ids.append("patient-scope" if privacy.dp == "patients" else "privacy-scope")
    if getattr(privacy, "accountant", None) == "gdp":
        ids.append("accountant-approximate")
    settings = None if collaboration is None else settings_of(collaboration.kind)
    if settings is not None:
        ids += settings.limits_of(_collaboration_in(predicate.recipe.lock))
    return (*ids, *_ALWAYS)


def limits_of_records(predicate: Predicate) -> list[str]:
    """Those of ``list_required`` that concern how many records trained."""
    ids = []
    if _half_left_out(predicate.run_log.entries):
        ids.append("records-left-out")
    if _trains_uncounted(predicate):
        ids.append("records-not-counted")
    return ids


def limits_for(predicate: Predicate) -> tuple[Limit, ...]:
    """``limits`` of a new manifest with these facts."""
    return tuple(Limit(id=name, text=TEXTS[name]) for name in list_required(predicate))


def state_limits(predicate: Predicate, unasked: Sequence[str] | None) -> tuple[str, ...]:
    """Limits of a manifest, in this program's texts: the manifest cannot soften or conceal them.

    Args:
        predicate: The manifest's.
        unasked: Owners whose data the run used without their approval, as the signed approvals and
            receipts show; ``None`` where these did not verify.
    """
    texts = {limit.id: TEXTS.get(limit.id, limit.text) for limit in predicate.limits}
    texts |= {name: TEXTS[name] for name in list_required(predicate)}
    if unasked is not None and "owners-not-asked" in texts:
        texts["owners-not-asked"] += (
            f" Data of {', '.join(unasked)} was used without approval."
            if unasked
            else " Every owner whose data was used had approved this run."
        )
    return tuple(texts.values())


def list_uncompared(receipts: Sequence[ReleaseReceipt]) -> tuple[str, ...]:
    """What brokers did not compare before they released keys, by the verdicts that they signed.

    Args:
        receipts: Those that count; the manifest's own list is not asked.

    Returns:
        Names of comparisons, sorted.
    """
    return tuple(sorted({name for receipt in receipts for name in _open_in(receipt.verdict)}))


def _open_in(verdict: Mapping[str, Any]) -> Iterator[str]:
    for claim in _claims_in(verdict):
        name = claim.get("name")
        if isinstance(name, str) and claim.get("outcome") == "any":
            yield from _COMPARISON.findall(name)


def _claims_in(verdict: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    submods = verdict.get("submods")
    parts = submods.values() if isinstance(submods, Mapping) else ()
    for part in parts:
        claims = part.get("claims") if isinstance(part, Mapping) else None
        for claim in claims if isinstance(claims, list | tuple) else ():
            if isinstance(claim, Mapping):
                yield claim


def border_held(entries: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the kernel enforced the sandbox of every process of a run.

    Args:
        entries: Entries of the run log. Each start of a process (``run.started``,
            ``run.restarted``, ``run.resumed``) needs its own ``border.closed`` after it.
    """
    asked, closed, held = False, False, True
    for entry in entries:
        event, fields = entry.get("event"), entry.get("fields")
        if not isinstance(event, str):  # the check of the log refuses it; this one has an answer
            continue
        if event in _BEGINNINGS:
            held, asked = held and not asked, True
        elif event == BORDER_CLOSED:
            closed, asked = True, False
            held = held and isinstance(fields, Mapping) and _is_kernels(fields)
    return held and closed and not asked


def _links_in_clear(receipt: Mapping[str, Any]) -> bool:
    """Whether a broker's verdict says that a guest's GPUs talk in clear to each other."""
    try:
        found = parse_json(from_base64(str(receipt.get("payload"))))
    except (DataInvalid, LimitExceeded):  # check 11 refuses such a receipt
        return False
    verdict = found.get("verdict") if isinstance(found, dict) else None
    return isinstance(verdict, dict) and any(
        claim.get("name") == _GPU_MODE and claim.get("got") == "protected_pcie"
        for claim in _claims_in(verdict)
    )


def _names_launch_script(lock: Mapping[str, Any]) -> bool:
    recipe = lock.get("recipe")
    hardware = recipe.get("hardware") if isinstance(recipe, Mapping) else None
    return isinstance(hardware, Mapping) and hardware.get("launch_script") is not None


def _serves_rows(entries: Sequence[Mapping[str, Any]]) -> bool:
    return any(entry.get("event") == ROWS_SERVED for entry in entries)


def _collaboration_in(lock: Mapping[str, Any]) -> Mapping[str, Any]:
    recipe = lock.get("recipe")
    written = recipe.get("collaboration") if isinstance(recipe, Mapping) else None
    return written if isinstance(written, Mapping) else {}


def _half_left_out(entries: Sequence[Mapping[str, Any]]) -> bool:
    """Whether public counts say that half of the records or more did not train."""
    total = out = 0
    for entry in entries:
        fields = entry.get("fields")
        if entry.get("event") != DATA_COUNTED or not isinstance(fields, Mapping):
            continue
        for counts in fields.values():
            if not isinstance(counts, Mapping):
                continue
            parts = [counts.get(part) for part in ("records", "filtered", "empty")]
            if all(isinstance(part, int) for part in parts):
                total += parts[0] or 0
                out += (parts[1] or 0) + (parts[2] or 0)
    return total > 0 and 2 * out >= total


def _trains_uncounted(predicate: Predicate) -> bool:
    """Whether the recipe trains on records, and the run log does not say how many of them."""
    if any(entry.get("event") == DATA_COUNTED for entry in predicate.run_log.entries):
        return False
    recipe = predicate.recipe.lock.get("recipe")
    datasets = recipe.get("datasets") if isinstance(recipe, Mapping) else None
    if not isinstance(datasets, list | tuple):
        return False
    return any(
        isinstance(dataset, Mapping) and dataset.get("role") == "train" for dataset in datasets
    )


def _is_kernels(fields: Mapping[str, Any]) -> bool:
    landlock = fields.get("landlock")
    rules = isinstance(landlock, int) and landlock >= _NEEDED_LANDLOCK
    unbound = fields.get("unbound")
    everywhere = isinstance(unbound, int) and not isinstance(unbound, bool) and unbound == 0
    return rules and everywhere and fields.get("seccomp") is True


def chain_open(blocks: Sequence[tuple[int, ChainWord, str]]) -> tuple[str, ...]:
    """What a trust file without a chain leaves open of receipts with a chain's word.

    Args:
        blocks: Height, word and hash of each block that receipts rely on.
    """
    if not blocks:
        return ()
    word = blocks[0][1]
    named = ", ".join(f"{number} ({block})" for number, _, block in blocks[:_SHOWN_BLOCKS])
    more = len(blocks) - _SHOWN_BLOCKS
    return (
        f"Owners decide on chain {word.chain_id} by the contract {word.contract}, and your trust "
        "file names no chain: that these blocks are of it was not compared: "
        f"{named}{f' and {more} more' if more > 0 else ''}.",
    )


def chain_is_open(trust: Trust, receipts: Sequence[ReleaseReceipt]) -> bool:
    """Whether receipts that count rely on a public chain, and the trust file names none."""
    return trust.chain is None and any(receipt.chain is not None for receipt in receipts)


def list_skipped(trust: Trust, *, artefacts_checked: bool) -> tuple[str, ...]:
    """The checks that this auditor left out, a sentence each."""
    pins = (("compose_hash", trust.compose_hash), ("app_id", trust.app_id))
    words = [OPEN[name] for name, value in pins if value == "any"]
    words += [value.words for value in open_values(trust.appraisal)]
    sentences = [f"Your trust file accepts any {text}." for text in words]
    if trust.brokers.datasets == "theirs":
        sentences.append(
            "Your trust file asks only about datasets that its own brokers released; other keys "
            "and leases were not looked at."
        )
    if not artefacts_checked:
        sentences.append(
            "The output files were not looked at; only their names and digests are known."
        )
    return tuple(sentences)
