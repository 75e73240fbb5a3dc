"""A small model with LoRA, accelerators that record or lie, and both machines in a thread."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from channel_world import acceptance, guest
from relays import altering, carried

from sealtrain_together.channel.handshake import ChannelTerms
from sealtrain_together.channel.ports import listening
from sealtrain_together.pads.dealer import Dealer, RemoteDealer, conversation
from sealtrain_together.pads.exact_products import Float64
from sealtrain_together.pads.field import PRIME
from sealtrain_together.pads.matrix import Direction, PublicMatrix
from sealtrain_together.pads.multiplying import Device, Limits
from sealtrain_together.pads.serving import Multiplier

LABELS = 3


def random_matrix(outputs: int = 24, inputs: int = 40, *, seed: int = 0) -> PublicMatrix:
    generator = torch.Generator().manual_seed(seed)
    return PublicMatrix.stack([torch.randn(outputs, inputs, generator=generator)])[0]


def random_entries(matrix: PublicMatrix, direction: Direction, rows: int = 9) -> torch.Tensor:
    reach = matrix.largest(direction)
    generator = torch.Generator().manual_seed(rows)
    shape = (rows, matrix.widths(direction)[0])
    return torch.randint(-reach, reach + 1, shape, generator=generator, dtype=torch.int32)


def tiny_model(adapter: Any = None) -> Any:
    """A Llama of random weights with LoRA or another adapter; the same at every call."""
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    lora = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"])
    return get_peft_model(LlamaForCausalLM(config), adapter or lora)


def batches(count: int, *, rows: int = 2, length: int = 12, words: int = 64) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(11)
    return [torch.randint(0, words, (rows, length), generator=generator) for _ in range(count)]


def trained(
    model: Any, steps: int, *, before: Callable[[int], object] = lambda step: None
) -> tuple[list[float], list[torch.Tensor]]:
    """Losses of a few steps and what was trained, from the same chance each time."""
    torch.manual_seed(23)
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=2e-3)
    losses = []
    for step, ids in enumerate(batches(steps)):
        before(step)
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, [weight.detach().clone() for weight in weights]


Changed = Callable[[torch.Tensor], torch.Tensor]


class Watched:
    """An honest accelerator until told otherwise, that keeps what it sees.

    Args:
        lie: Makes its answers from right ones.
    """

    def __init__(self, lie: Changed | None = None) -> None:
        self.seen: list[torch.Tensor] = []
        self.matrices: list[torch.Tensor] = []
        self.lie = lie

    def admit(self, matrix: PublicMatrix) -> None:
        self.matrices.append(matrix.values)

    def product(
        self, matrix: PublicMatrix, direction: Direction, elements: torch.Tensor
    ) -> Callable[[], torch.Tensor]:
        self.seen.append(elements.clone())
        answer = Float64().product(elements, matrix.factor(direction))
        return lambda: answer if self.lie is None else self.lie(answer)


def masks_seen(accelerator: Watched, entries: torch.Tensor) -> set[bytes]:
    """Rows of masks, which a test can tell as it knows what was hidden."""
    rows = torch.cat([(sample.long() - entries.long()) % PRIME for sample in accelerator.seen])
    return {row.numpy().tobytes() for row in rows}


Address = tuple[str, int]
RUN_ID = "ab" * 16
DEVICE = Device("cpu", "float64")


@contextmanager
def accelerating(**limits: Any) -> Iterator[Address]:
    """An accelerator in this process, on loopback."""
    limit = Limits(**limits)
    multiplier = Multiplier(DEVICE, limit)
    with listening(
        ("127.0.0.1", 0), multiplier.serve, what="accelerator", connections=limit.connections
    ) as address:
        yield address


def talk(run_id: str | None = RUN_ID, **changed: Any) -> ChannelTerms:
    """What a guest of the simulator's says to a dealer of its deployment."""
    proofs: dict[str, Any] = {"proof": guest(), "accept": acceptance(), "random": os.urandom}
    return conversation(run_id, **proofs | changed)


@contextmanager
def dealing(
    theirs: ChannelTerms | None = None, *, said: list[str] | None = None, **limits: Any
) -> Iterator[Address]:
    """A dealer of the same deployment in this process, on loopback.

    Args:
        theirs: How it proves itself and for whom it deals.
        said: Takes the lines that it says.
        limits: Of ``Limits``.
    """
    limit = Limits(**limits)
    dealer = Dealer(theirs or talk(None), DEVICE, limit)
    with listening(
        ("127.0.0.1", 0),
        dealer.serve,
        what="guests",
        connections=limit.connections,
        say=[].append if said is None else said.append,
    ) as address:
        yield address


def dealt(address: Address, ours: ChannelTerms | None = None, **changed: Any) -> RemoteDealer:
    """A guest's session with a dealer."""
    return RemoteDealer(*address, ours or talk(), **{"seconds": 10.0} | changed)


@contextmanager
def recording(address: tuple[str, int]) -> Iterator[tuple[str, list[bytearray]]]:
    """Somebody between a guest and a server, who keeps what the guest says.

    Yields:
        ``host:port`` to go to instead, and the bytes of each connection.
    """
    with carried(address, altering(), altering()) as ((host, port), relay):
        yield f"{host}:{port}", relay.there
