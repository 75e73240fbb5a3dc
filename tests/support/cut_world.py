"""Small encoders and decoders to cut, batches for them, and training that can be repeated."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from channel_world import COMPOSE, NOW, acceptance, guest
from world import digest, founded, identity, signed_dataset

from sealtrain.base.digests import sha256_hex
from sealtrain.consortium.datasets import verify_dataset
from sealtrain.signing.target import Target
from sealtrain_together.channel.channel import AttestedChannel, open_over
from sealtrain_together.channel.handshake import ChannelTerms
from sealtrain_together.channel.ports import listening
from sealtrain_together.channel.streams import dial
from sealtrain_together.cut.front import RecordEncoding
from sealtrain_together.cut.learning import Learning
from sealtrain_together.cut.messages import conversation_of
from sealtrain_together.cut.sending import Client, OwnDataset
from sealtrain_together.cut.server import Clients, CutRun

WORDS = 97
SHAPE = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
DECODER = SHAPE | {"num_key_value_heads": 2}
ENCODERS = ("bert", "roberta", "modernbert")
DECODERS = ("llama", "qwen3", "gemma3_text")


def model_of(kind: str, **changed: Any) -> Any:
    """A model of random weights, the same at every call; classifiers have three labels."""
    import transformers

    encoder = kind in ENCODERS
    values = SHAPE | {"num_labels": 3} if encoder else DECODER
    auto = "AutoModelForSequenceClassification" if encoder else "AutoModelForCausalLM"
    config = transformers.AutoConfig.for_model(kind, **values | changed)
    torch.manual_seed(5)
    return getattr(transformers, auto).from_config(config)


def batch_of(
    kind: str, seed: int = 3, *, rows: int = 4, tokens: int = 9
) -> dict[str, torch.Tensor]:
    """Tokens, a mask with padding on the right, and labels."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, WORDS, (rows, tokens), generator=generator)
    lengths = torch.randint(2, tokens + 1, (rows,), generator=generator)
    lengths[0] = tokens
    mask = (torch.arange(tokens) < lengths[:, None]).to(torch.int64)
    ids = ids * mask
    labels = ids % 3 if kind in ENCODERS else torch.where(mask == 1, ids, -100)
    return {
        "input_ids": ids,
        "attention_mask": mask,
        "labels": labels[:, 0] if kind in ENCODERS else labels,
    }


def lora(kind: str, layers: Sequence[int]) -> Any:
    """A LoRA adapter on attention behind a cut, without dropout."""
    from peft import LoraConfig

    encoder = kind in ENCODERS
    names = {"modernbert": ["Wqkv"]}.get(
        kind, ["query", "value"] if encoder else ["q_proj", "v_proj"]
    )
    return LoraConfig(
        r=4,
        lora_alpha=8,
        target_modules=names,
        layers_to_transform=list(layers),
        task_type="SEQ_CLS" if encoder else "CAUSAL_LM",
    )


def trained(
    model: Any, inputs: Sequence[Mapping[str, torch.Tensor]], *, rate: float = 5e-3
) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses of one step on each batch, without dropout, and what was trained, by name."""
    model.eval()
    weights = {name: tensor for name, tensor in model.named_parameters() if tensor.requires_grad}
    optimizer = torch.optim.AdamW(list(weights.values()), lr=rate)
    losses = []
    for batch in inputs:
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, {name: weight.detach().clone() for name, weight in weights.items()}


# -- parties ----------------------------------------------------------------------------------

PARTIES = ("hospital-a", "hospital-b")
RUN_ID = "5a" * 16
PATIENCE = 60.0
ENCODER_CONFIG = SHAPE | {"model_type": "bert", "vocab_size": 259}
TARGET = Target(app_id="22" * 20, compose_hash=sha256_hex(COMPOSE), recipe_hash=digest("recipe"))
DECODER_CONFIG = DECODER | {"model_type": "llama", "vocab_size": 259}


def cut_recipe(phase: str = "classify", **changed: Any) -> Any:
    """A recipe of kind cut over records of two owners; the first one's test split is measured."""
    from training_world import TRAINER, classify, sft

    modules = {"classify": ["query", "value"], "sft": ["q_proj", "v_proj"]}[phase]
    config = {"classify": ENCODER_CONFIG, "sft": DECODER_CONFIG}[phase]
    length = {"classify": 48, "sft": 96}[phase]  # of a shorter one a batch has nothing to learn
    how = {"kind": "cut", "policy": "policy.yaml", "layers": 2, "spf_share": 0.05, "wire": "int8"}
    values: dict[str, Any] = {
        "model": {"config": config, "init_seed": 7, "tokenizer": {"kind": "bytes"}},
        "peft": {"method": "lora", "r": 4, "lora_alpha": 8, "target_modules": modules},
        "collaboration": how | changed.pop("collaboration", {}),
        "trainer": TRAINER | {"max_length": length, "max_steps": 6} | changed.pop("trainer", {}),
    }
    if phase == "classify":
        values["columns"] = {"text": "text", "label": "finding"}
        return classify(**values | changed)
    values["columns"] = {"prompt": "prompt", "completion": "completion"}
    return sft(**values | changed)


@dataclass
class Site:
    """Both sides of a cut run in one process: the server's clients, and owners to be one."""

    recipe: Any
    consortium: Any
    target: Any
    clients: Clients
    address: tuple[str, int]
    failures: list[BaseException] = field(default_factory=list)
    base_dir: Path = Path()

    def client(self, owner: str, **changed: Any) -> Client:
        """An honest client of an owner, with changes."""
        values: dict[str, Any] = {
            "owner": identity(owner).public,
            "consortium_id": self.consortium.consortium_id,
            "signer": identity(owner).signer,
            "target": self.target,
            "datasets": [
                own_dataset(dataset) for dataset in self.recipe.datasets if dataset.owner == owner
            ],
            "reading": RecordEncoding.of(self.recipe, self.base_dir),
            "rows": self.clients.rows,
            "share": lambda _run_id: sha256_hex(f"share of {owner}".encode()).encode()[:32],
            "clock": lambda: NOW,
        }
        return Client(**values | changed)

    def channel(self, owner: str, *, within: float = PATIENCE, **changed: Any) -> AttestedChannel:
        """A channel of an owner to the server."""
        return open_over(dial(self.address, timeout=within), self.talk(owner, **changed))

    def talk(self, owner: str, **changed: Any) -> ChannelTerms:
        """How an owner talks to the server."""
        talk = conversation_of(
            owner, identity(owner).signer, acceptance(), self.target, random=os.urandom
        )
        return replace(talk, **changed)

    def joining(self, *clients: Client) -> list[threading.Thread]:
        """Clients that serve, each in its thread."""

        def serve(client: Client) -> None:
            try:
                with self.channel(client.owner.name) as channel:
                    client.serve(channel)
            except BaseException as error:
                self.failures.append(error)

        threads = [
            threading.Thread(target=serve, args=(client,), daemon=True) for client in clients
        ]
        for thread in threads:
            thread.start()
        return threads


def own_dataset(wanted: Any) -> OwnDataset:
    """A dataset of an owner, as it lies opened on that owner's machine."""
    import pyarrow as pa
    from training_world import records

    count = 40 if wanted.role == "train" else 20
    envelope = signed_dataset(TARGET, wanted.owner, wanted.name, sealed_at=NOW - 60, records=count)
    trains = wanted.role == "train"
    return OwnDataset(
        counted=trains,
        manifest=verify_dataset(envelope, identity(wanted.owner).public),
        envelope=envelope.to_dict(),
        records=pa.Table.from_pylist(records(count, f"{wanted.owner}.{wanted.name}")),
    )


@contextmanager
def site(
    recipe: Any,
    *,
    proof: Any = None,
    base_dir: Path = Path(),
    **changed: Any,
) -> Iterator[Site]:
    """A server's guest that waits for its clients.

    Args:
        recipe: What owners approved.
        proof: Of the server, where it is not the approved guest's.
        base_dir: Folder that the recipe's paths start from, on both sides.
        changed: Arguments of ``Clients``, and ``expected`` and ``sealed`` of ``CutRun``.
    """
    consortium = founded("cut", PARTIES)
    values: dict[str, Any] = {"patience": PATIENCE, "clock": lambda: NOW} | changed
    expected = values.pop("expected", None) or Learning(recipe, base_dir).expected
    sealed = values.pop("sealed", None)
    clients = Clients(
        CutRun(
            run_id=RUN_ID,
            target=TARGET,
            consortium=consortium,
            recipe=recipe,
            expected=expected,
            sealed=sealed,
        ),
        proof or guest(),
        **values,
    )
    with listening(("127.0.0.1", 0), clients.handle, what="clients") as address:
        try:
            yield Site(recipe, consortium, TARGET, clients, address, base_dir=base_dir)
        finally:
            clients.close()
