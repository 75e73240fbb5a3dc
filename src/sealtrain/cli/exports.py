"""``export``: a verified manifest in the formats of other tools."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from sealtrain.base.files import atomic_write
from sealtrain.cli.manifest import ManifestFile, OutputOptions, TrustFile
from sealtrain.cli.output import Json, emit, say
from sealtrain.errors import UsageError
from sealtrain.keys.identity import Identity
from sealtrain.manifest.exports.cyclonedx import cyclonedx
from sealtrain.manifest.exports.model_card import model_card
from sealtrain.manifest.exports.model_facts import ModelFacts, model_facts_of
from sealtrain.manifest.exports.model_signing import hash_opened, load_signing_key, model_signature
from sealtrain.manifest.exports.training_summary import training_summary
from sealtrain.manifest.files import manifest_at
from sealtrain.manifest.opening import digest_opened
from sealtrain.manifest.outputs import model_of
from sealtrain.sealing.trainedmodel import MODEL_FOLDER

_NAMES = {
    "model-signing": "model.sig",
    "cyclonedx": "bom.json",
    "model-card": "README.md",
    "eu-training-summary": "training-summary.md",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SignatureOptions:
    """What a signature over the opened model needs."""

    model: Annotated[
        Path | None, typer.Option(help="model-signing: folder the model was opened to.")
    ] = None
    identity: Annotated[
        Path | None, typer.Option(help="model-signing: private identity of a recipient.")
    ] = None
    key: Annotated[
        Path | None,
        typer.Option("--pem-key", help="model-signing: your PEM key (P-256, P-384, P-521)."),
    ] = None


def export(
    manifest: ManifestFile,
    trust: TrustFile,
    format_: Annotated[
        str,
        typer.Option(
            "--format", help="model-signing, cyclonedx, model-card or eu-training-summary."
        ),
    ],
    *,
    out: Annotated[Path | None, typer.Option(help="File to write [named for the format].")] = None,
    outputs: OutputOptions,
    spec: Annotated[str, typer.Option(help="Version of CycloneDX: 1.6 or 1.7.")] = "1.7",
    signature: SignatureOptions,
    as_json: Json = False,
) -> None:
    """Write what other tools read about a model; only of a manifest that verifies."""
    if format_ not in _NAMES:
        raise UsageError("unknown export", got=format_, expected=", ".join(_NAMES))
    facts = model_facts_of(outputs.examine(manifest, trust))
    if format_ == "model-signing":
        data = _signature(
            facts,
            outputs.artefacts or manifest_at(manifest).parent,
            signature.model,
            signature.identity,
            signature.key,
        )
    else:
        data = _document(facts, format_, spec)
    target = out or Path(_NAMES[format_])
    atomic_write(target, data, mode=0o600)
    if facts.marker is not None:
        say(facts.marker)
    emit(as_json, {"export": str(target), "format": format_}, [f"export   {target}"])


def _document(facts: ModelFacts, format_: str, spec: str) -> bytes:
    if format_ == "cyclonedx":
        if spec not in ("1.6", "1.7"):
            raise UsageError("unknown version of CycloneDX", got=spec, expected="1.6 or 1.7")
        return cyclonedx(facts, version="1.6" if spec == "1.6" else "1.7")
    if format_ == "model-card":
        return model_card(facts)
    return training_summary(facts)


def _signature(
    facts: ModelFacts, artefacts: Path, model: Path | None, identity: Path | None, key: Path | None
) -> bytes:
    if model is None or identity is None or key is None:
        raise UsageError(
            "signing a model needs --model, --identity and --pem-key",
            hint="open the outputs first: sealtrain open run/model --identity … --out opened",
        )
    signing = load_signing_key(key)
    made = model_of(facts.predicate, facts.subjects)
    sealed = digest_opened(artefacts / MODEL_FOLDER, made, Identity.load(identity))
    # A marker has no place in this format but the model's name.
    name = facts.name if facts.marker is None else f"{facts.name} ({facts.marker})"
    return model_signature(name, hash_opened(model, sealed), signing)
