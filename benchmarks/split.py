"""What fine-tuning costs when an untrusted machine multiplies under one-time pads.

    python benchmarks/split.py [--json] [--rounds 3] [--hidden 512 2048] [--ways plain pads]

LoRA on a Llama of random weights, the same texts and the same chance in every way to train it:

==================  ================================================================================
``plain``           everything in this process in float32, nothing hidden: what pads have to beat
``int8``            the same with the int8 base that pads are exact to, in float32
``inside``          everything in the guest, in the exact arithmetic that pads need
``pads``            products on the accelerator, pads from a pool that was filled before
``pads in step``    the same, each pad made ready when its product is asked for
``pads, 1 check``   as ``pads``, checked with one secret vector in place of two
``dealer``          as ``pads``, pads from a dealer while training runs
``dealer in step``  the same, each pad asked for with its product
``own pads``        the guest makes its pads itself: nothing saved, everything paid
==================  ================================================================================

Accelerator and dealer are other processes, over loopback, on the same processors: what they compute
is not free here as it is where they are other machines. So two ratios are printed. ``guest`` is
processor time of the guest alone (what has to be paid inside the TEE), ``wall`` is by the clock.
Nothing is emulated: no TEE, no link. Losses of all but ``plain`` and ``int8`` are the same bits.

With ``--fillings N`` also the time to fill a pool N times, beside making the streams from their
beginning each time.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from measured_on import give_up, machine
from sealtrain.signing.ed25519 import Ed25519Signer
from sealtrain_together.channel.handshake import ChannelTerms
from sealtrain_together.channel.ports import listening
from sealtrain_together.channel.proofs import AcceptKey, ProveKey
from sealtrain_together.pads.accelerator import RemoteAccelerator
from sealtrain_together.pads.dealer import Dealer, RemoteDealer, conversation
from sealtrain_together.pads.engine import PadTimes
from sealtrain_together.pads.exact_products import backend
from sealtrain_together.pads.freivalds import CHECKS
from sealtrain_together.pads.matrix import DIRECTIONS, PublicMatrix
from sealtrain_together.pads.multiplying import Device, Limits
from sealtrain_together.pads.pool import OwnPool, write_pool
from sealtrain_together.pads.prefetch import PREFETCH_BYTES
from sealtrain_together.pads.protect import protect, quantise, restore
from sealtrain_together.pads.serving import Served, start_accelerator

Told = dict[str, float]
VOCABULARY = 2048


class Training:
    """One way to train, step by step.

    Args:
        given: Sizes.
        change: What is done to the model before.
    """

    def __init__(self, given: argparse.Namespace, change: Callable[[Any], Any]) -> None:
        self.model = _model(given)
        self.change = change(self.model)
        self.optimizer = torch.optim.AdamW(
            [weight for weight in self.model.parameters() if weight.requires_grad], lr=1e-3
        )
        generator = torch.Generator().manual_seed(1)
        shape = (given.batch, given.length)
        self.ids = torch.randint(0, VOCABULARY, shape, generator=generator)
        self.wall: list[float] = []
        self.guest: list[float] = []
        self.losses: list[float] = []

    @property
    def spent(self) -> PadTimes | None:
        """Of an engine that works under pads."""
        return self.change.engine.spent if hasattr(self.change, "engine") else None

    def step(self, number: int) -> None:
        """Train one step and take its time."""
        torch.manual_seed(number)
        wall, guest = time.perf_counter(), time.process_time()
        loss = self.model(input_ids=self.ids, labels=self.ids, use_cache=False).loss
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.losses.append(loss.item())
        self.wall.append(time.perf_counter() - wall)
        self.guest.append(time.process_time() - guest)


def _model(given: argparse.Namespace) -> Any:
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=given.hidden,
        intermediate_size=given.hidden * 11 // 4 // 8 * 8,
        num_hidden_layers=given.layers,
        num_attention_heads=given.hidden // 64,
        num_key_value_heads=given.hidden // 64,
    )
    lora = LoraConfig(r=8, lora_alpha=32, target_modules=["q_proj", "v_proj"])
    return get_peft_model(LlamaForCausalLM(config), lora)


@contextmanager
def ways(given: argparse.Namespace) -> Iterator[dict[str, Training]]:
    """All ways, ready to train, with the processes they need."""
    exact = backend("fastest", "cpu")
    with ExitStack() as around:
        there = around.enter_context(start_accelerator(device=given.device))
        folder = Path(around.enter_context(tempfile.TemporaryDirectory()))
        pools: list[OwnPool] = []

        def elsewhere(
            supplier: Any, *, checks: int = CHECKS, prefetch: int = PREFETCH_BYTES
        ) -> Callable[[Any], Any]:
            def change(model: Any) -> Any:
                made = protect(
                    model,
                    _accelerator(around, there),
                    supplier=supplier(),
                    checks=checks,
                    prefetch=prefetch,
                )
                around.callback(made.engine.close)
                return made

            return change

        def pool() -> OwnPool:
            pools.append(OwnPool(folder / str(len(pools)), exact=exact))
            around.callback(pools[-1].close)
            return pools[-1]

        def dealer() -> RemoteDealer:
            return around.enter_context(_dealer())

        def int8(model: Any) -> Any:
            quantise(model)
            return restore(model)

        changes: dict[str, Callable[[Any], Any]] = {
            "plain": lambda model: model,
            "int8": int8,
            "inside": quantise,
            "pads": elsewhere(pool),
            "pads in step": elsewhere(pool, prefetch=0),
            "pads, 1 check": elsewhere(pool, checks=1),
            "dealer": elsewhere(dealer),
            "dealer in step": elsewhere(dealer, prefetch=0),
            "own pads": elsewhere(lambda: None),
        }
        trainings = {name: Training(given, changes[name]) for name in given.ways}
        for each_pool in pools:
            # One step more than is trained: what is made ahead for it is there.
            each_pool.fill((given.rounds + 2) * given.batch * given.length)
        yield trainings


def _accelerator(around: ExitStack, there: Served) -> RemoteAccelerator:
    accelerator = RemoteAccelerator(there.host, there.port)
    around.callback(accelerator.close)
    return accelerator


@contextmanager
def _dealer() -> Iterator[RemoteDealer]:
    """A session with a dealer that is another process. Keys prove the two, in place of evidence."""
    seeds = os.urandom(32), os.urandom(32)
    fresh = multiprocessing.get_context("spawn")
    here, there = fresh.Pipe()
    process = fresh.Process(target=_deal, args=(there, *seeds), daemon=True)
    process.start()
    mine, theirs = map(_signer, seeds)
    try:
        dealer = RemoteDealer(*here.recv(), _talk("ab" * 16, mine, theirs))
        yield dealer
        dealer.close()
    finally:
        process.terminate()
        process.join()


def _deal(pipe: Any, guest: bytes, own: bytes) -> None:
    torch.set_num_threads(1)
    talk = _talk(None, _signer(own), _signer(guest))
    dealer = Dealer(talk, Device("cpu", "fastest"), Limits())
    with listening(("127.0.0.1", 0), dealer.serve, what="guests") as address:
        pipe.send(address)
        threading.Event().wait()


def _signer(seed: bytes) -> Ed25519Signer:
    return Ed25519Signer(Ed25519PrivateKey.from_private_bytes(seed))


def _talk(run_id: str | None, mine: Ed25519Signer, theirs: Ed25519Signer) -> ChannelTerms:
    accept = AcceptKey(frozenset({theirs.public}))
    return conversation(run_id, proof=ProveKey(mine), accept=accept, random=os.urandom)


def measured(given: argparse.Namespace) -> dict[str, Any]:
    """Every way, step by step in turn, the first step of each left out."""
    with ways(given) as trainings:
        for number in range(given.rounds + 1):
            for training in trainings.values():
                training.step(number)
        exact = [name for name in given.ways if name not in ("plain", "int8")]
        if len({tuple(trainings[name].losses) for name in exact}) > 1:
            raise SystemExit("losses under pads differ from those without")
        both = "int8" in trainings and exact
        off = [abs(a - b) for a, b in _pairs(trainings, exact[0], "int8")] if both else []
        figures = {name: _figures(training, trainings) for name, training in trainings.items()}
        tokens = given.batch * given.length
        return {
            "tokens_a_step": tokens,
            "figures": figures,
            "loss_off_int8_model": max(off, default=None),
            "parts": {
                name: _parts(training, tokens)
                for name, training in trainings.items()
                if training.spent is not None
            },
        }


def _pairs(trainings: dict[str, Training], left: str, right: str) -> Iterator[tuple[float, float]]:
    yield from zip(trainings[left].losses, trainings[right].losses, strict=True)


def _figures(training: Training, trainings: dict[str, Training]) -> Told:
    told = {}
    for clock in ("guest", "wall"):
        middle = statistics.median(getattr(training, clock)[1:])
        told[f"{clock}_ms"] = round(1000 * middle, 1)
        for other in ("plain", "inside"):
            if other not in trainings:
                continue
            base = statistics.median(getattr(trainings[other], clock)[1:])
            told[f"{clock}_to_{other}"] = round(middle / base, 3)
    return told


def _parts(training: Training, tokens: int) -> Told:
    """Milliseconds a step of what products took, and bytes a token."""
    spent = training.spent
    assert spent is not None
    steps = len(training.losses)
    told = {
        name: round(1000 * value / steps, 2)
        for name, value in asdict(spent).items()
        if isinstance(value, float)
    }
    told["kilobytes_a_token"] = round((spent.bytes_out + spent.bytes_in) / steps / tokens / 1e3, 1)
    return told


def fillings(count: int, hidden: int, rows: int) -> dict[str, list[float]]:
    """Milliseconds of each filling of a pool: taken up, and with the streams from their beginning.

    Args:
        count: Fillings; between two of them all rows are used.
        hidden: Both sides of the matrix.
        rows: Of a filling.
    """
    exact = backend("fastest", "cpu")
    generator = torch.Generator().manual_seed(0)
    matrix, _ = PublicMatrix.stack([torch.randn(hidden, hidden, generator=generator)])
    told: dict[str, list[float]] = {"taken up": [], "from the beginning": []}
    with tempfile.TemporaryDirectory() as folder:
        pool = OwnPool(Path(folder) / "pool", exact=exact)
        secret = pool.begin()
        pool.admit(matrix)
        for number in range(count):
            began = time.perf_counter()
            pool.fill(rows)
            told["taken up"].append(1000 * (time.perf_counter() - began))
            for direction in DIRECTIONS:
                empty = torch.empty(rows, 0)
                pool.product(matrix, direction, number * rows, empty)
            began = time.perf_counter()
            write_pool(
                Path(folder) / "anew",
                secret=secret,
                matrices=[matrix],
                rows=rows,
                exact=exact,
                first={(matrix.digest, direction): number * rows for direction in DIRECTIONS},
                overwrite=True,
            )
            told["from the beginning"].append(1000 * (time.perf_counter() - began))
        pool.close()
    return {name: [round(value, 1) for value in each] for name, each in told.items()}


WAYS = (
    "plain",
    "int8",
    "inside",
    "pads",
    "pads in step",
    "pads, 1 check",
    "dealer",
    "dealer in step",
    "own pads",
)


def main() -> None:
    """Measure everything and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--hidden", type=int, nargs="+", default=[512])
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--device", default="cpu", help="of the accelerator")
    parser.add_argument("--threads", type=int, default=1, help="of the guest")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--fillings", type=int, default=0, help="fill a pool so often, too")
    given = parser.parse_args()
    if given.device != "cpu" and not torch.cuda.is_available():
        give_up("a GPU that PyTorch can use")
    torch.set_num_threads(given.threads)
    results: dict[str, Any] = {
        "machine": machine("torch", "transformers", "peft", "cryptography"),
        "given": vars(given),
        "back_end": {
            "guest": backend("fastest", "cpu").name,
            "accelerator": _name_of(given.device),
            "int8_hardware": bool(torch.cpu._is_vnni_supported()),
        },
        "widths": {
            hidden: measured(argparse.Namespace(**vars(given) | {"hidden": hidden}))
            for hidden in given.hidden
        },
    }
    if given.fillings:
        results["fillings"] = fillings(given.fillings, given.hidden[0], given.batch * given.length)
    if given.json:
        print(json.dumps(results, indent=2))
        return
    print(f"{results['machine']}\n{results['back_end']}")
    for hidden, result in results["widths"].items():
        _show(hidden, result, given.rounds)
    for name, each in results.get("fillings", {}).items():
        print(f"{name:20}" + "".join(f"{value:>9}" for value in each) + "  ms a filling")


def _name_of(device: str) -> str:
    return device if device == "cpu" else torch.cuda.get_device_name(device)


def _show(hidden: int, result: dict[str, Any], rounds: int) -> None:
    print(f"\nwidth {hidden}, {result['tokens_a_step']} tokens a step, {rounds} rounds\n")
    print(f"{'':16}{'guest ms':>10}{'÷ plain':>9}{'÷ inside':>9}", end="")
    print(f"{'wall ms':>10}{'÷ plain':>9}{'÷ inside':>9}")
    for name, told in result["figures"].items():
        print(f"{name:16}", end="")
        for clock in ("guest", "wall"):
            print(f"{told[f'{clock}_ms']:>10}", end="")
            for other in ("plain", "inside"):
                print(f"{told.get(f'{clock}_to_{other}', ''):>9}", end="")
        print()
    print()
    for name, told in result["parts"].items():
        print(f"{name:16}" + "  ".join(f"{part} {value}" for part, value in told.items()))
    off = result["loss_off_int8_model"]
    if off is not None:
        print(f"losses under pads are off those of the int8 model by {off:.1e}")


if __name__ == "__main__":
    main()
