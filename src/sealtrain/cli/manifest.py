"""``verify`` and ``report``: verify a run's manifest offline, and show it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from sealtrain.base.files import read_bounded
from sealtrain.base.limits import MAX_SETTINGS_BYTES
from sealtrain.cli.output import Json, emit, say
from sealtrain.cli.runchain import RunChainOptions, chain_lines
from sealtrain.errors import UsageError
from sealtrain.manifest.files import examine_file
from sealtrain.manifest.report import write_report
from sealtrain.manifest.verify import Report
from sealtrain.owner.chains import verify_chain
from sealtrain.training.basefiles import BASE_FILES, read_list

ManifestFile = Annotated[Path, typer.Argument(help="manifest.json, or the run's folder.")]
Manifests = Annotated[
    list[Path], typer.Argument(metavar="MANIFEST", help="manifest.json, or the run's folder.")
]
TrustFile = Annotated[Path, typer.Option(help="What you trust (YAML).")]
Artefacts = Annotated[
    Path | None, typer.Option(help="Folder with the sealed outputs [the manifest's].")
]
WithoutArtefacts = Annotated[
    bool, typer.Option("--without-artefacts", help="Do not look at the sealed outputs.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputOptions:
    """A run's sealed outputs, which its manifest names."""

    artefacts: Artefacts = None
    without_artefacts: WithoutArtefacts = False

    def examine(self, manifest: Path, trust: Path) -> Report:
        """Every check of a manifest, these outputs looked at as chosen."""
        if self.without_artefacts:
            return examine_file(manifest, trust, artefacts=None)
        return examine_file(manifest, trust, artefacts=self.artefacts or "beside")


def verify(
    manifest: Manifests,
    trust: TrustFile,
    outputs: OutputOptions,
    chain: RunChainOptions,
    as_json: Json = False,
) -> None:
    """Verify a run manifest offline. Exits 3 when anything in it does not hold.

    With --chain, verify the manifests of all runs of a chain: each, the links between them, that
    data only grew, and what they spent of privacy together.
    """
    if chain.chain:
        _verify_chain(manifest, trust, outputs, chain, as_json)
        return
    if len(manifest) != 1:
        raise UsageError(
            "one manifest is verified at a time", got=len(manifest), expected="1, or --chain"
        )
    found = outputs.examine(manifest[0], trust)
    marks = {"passed": "✓", "failed": "✗", "not-done": "·"}
    lines = []
    for check in found.checks:
        lines.append(f"{marks[check.outcome]} {check.title}: {check.detail}")
    lines.append("")
    lines.extend(f"script: {name} {digest}" for name, digest in _scripts(found).items())
    lines.extend(_guest(guest) for guest in found.guests or ())
    lines.extend(f"limit: {limit}" for limit in found.limits)
    if found.simulated:
        lines.append("SIMULATED — NOT ATTESTED")
    if found.refusal is not None and not as_json:
        emit(False, {}, lines)
    if found.refusal is not None:
        raise found.refusal
    emit(as_json, found.to_dict(), [*lines, "verified"])


def _verify_chain(
    places: list[Path], trust: Path, outputs: OutputOptions, options: RunChainOptions, as_json: bool
) -> None:
    if outputs.artefacts is not None:
        raise UsageError(
            "the outputs of a chain lie beside each manifest",
            check="--artefacts",
            expected="no --artefacts, or --without-artefacts",
        )
    found = verify_chain(
        places,
        trust,
        broker=options.broker,
        database=options.database,
        artefacts=None if outputs.without_artefacts else "beside",
    )
    lines = chain_lines(found)
    lines += [f"limit: {text}" for text in found.limits]
    if found.chain.simulated:
        lines.append("SIMULATED — NOT ATTESTED")
    ended = {} if found.due is None else {"due": [due.to_dict() for due in found.due]}
    emit(as_json, {"accepted": True} | found.chain.to_dict() | ended, [*lines, "verified"])


def _guest(guest: dict[str, Any]) -> str:
    return "guest: " + ", ".join(f"{name} {value}" for name, value in guest.items())


def _scripts(found: Report) -> dict[str, str]:
    lock = found.facts.lock
    return {} if lock is None else lock.script_digests


def report(
    manifest: ManifestFile,
    trust: TrustFile,
    *,
    out: Annotated[Path, typer.Option(help="HTML file to write.")] = Path("report.html"),
    opened: Annotated[
        Path | None,
        typer.Option(help="The opened model: show what became of its base's files."),
    ] = None,
    outputs: OutputOptions,
    as_json: Json = False,
) -> None:
    """Write one self-contained HTML page about a run, its checks and its limits."""
    files = None if opened is None else _base_files(opened)
    found = outputs.examine(manifest, trust)
    write_report(found, out, files)
    say("open it in a browser; it loads nothing from anywhere")
    if found.refusal is not None:
        say(f"report   {out}")  # the one answer of --json is the refusal
        raise found.refusal
    emit(as_json, {"report": str(out), "verified": True}, [f"report   {out}"])


def _base_files(opened: Path) -> dict[str, dict[str, str]]:
    path = opened / BASE_FILES
    if not path.is_file():
        raise UsageError(
            f"the opened model has no {BASE_FILES}",
            check="--opened",
            got=str(opened),
            expected="a folder that sealtrain open wrote, of a model that has a base",
        )
    return read_list(read_bounded(path, MAX_SETTINGS_BYTES))
