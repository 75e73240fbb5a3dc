"""A training computes on the GPU of its machine, or says why it cannot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from carrying import carries
from collecting import COLLECTING
from training_world import checkpoint_store, run, seal_records, sft, sources_of, write_records

from sealtrain.errors import UsageError
from sealtrain.training import devices
from sealtrain.training.arguments import trainer_arguments
from sealtrain.training.devices import compute_device

if not COLLECTING:
    import torch
    import torch.distributed as distributed
    from transformers import TrainingArguments

pytestmark = pytest.mark.claim("C283")
GPUS = 4


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Device files of a machine with a GPU that PyTorch, built for it, does not see."""
    folder = tmp_path / "dev"
    folder.mkdir()
    for name in ("nvidia0", "nvidiactl", "nvidia-uvm"):
        (folder / name).touch()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    return folder


def test_a_gpu_that_is_not_seen_is_an_error(machine: Path) -> None:
    with pytest.raises(UsageError, check=carries(check="accelerator", got="nvidia0")):
        compute_device(machine)


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_gpus_that_are_all_hidden_are_none(
    hidden: str, machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    assert compute_device(machine) == "cpu"


@pytest.mark.parametrize("shown", ["0", "7", "MIG-of-yesterday"])
def test_a_gpu_that_is_asked_for_and_not_seen_is_an_error(
    shown: str, machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    with pytest.raises(UsageError, check=carries(check="accelerator")):
        compute_device(machine)


def test_a_build_for_processors_uses_the_processor(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    assert compute_device(machine) == "cpu"


def test_a_machine_without_a_gpu_uses_the_processor(machine: Path) -> None:
    (machine / "nvidia0").unlink()
    assert compute_device(machine) == "cpu"


def test_no_training_begins_beside_a_gpu_that_it_does_not_see(
    machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sealed: dict[str, Any] = seal_records(write_records(tmp_path), tmp_path)
    monkeypatch.setattr(devices.compute_device, "__defaults__", (machine,))
    recipe = sft(trainer={"max_steps": 1})
    with pytest.raises(UsageError, check=carries(check="accelerator")):
        run(recipe, sources_of(recipe, sealed), checkpoint_store(tmp_path / "store"))


@pytest.mark.claim("C285")
def test_a_machine_with_several_gpus_multiplies_no_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trainer of transformers asks how many there are, unless it was told that it has ranks."""
    arguments = trainer_arguments(sft().trainer, tmp_path)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: GPUS)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    made = TrainingArguments(**arguments | {"use_cpu": False})
    assert made.device.type == "cuda"
    assert vars(made)["_n_gpu"] == GPUS
    assert made.n_gpu == 1
    assert made.train_batch_size == arguments["per_device_train_batch_size"]
    assert made.eval_batch_size == arguments["per_device_eval_batch_size"]
    monkeypatch.undo()
    assert TrainingArguments(**arguments).device.type == "cpu"  # what is kept of the device goes


@pytest.mark.claim("C285")
def test_a_group_of_one_that_a_script_made_is_no_trouble(tmp_path: Path) -> None:
    """Asked how many GPUs there are, transformers asks whether it trains in ranks, and back."""
    arguments = trainer_arguments(sft().trainer, tmp_path)
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        assert TrainingArguments(**arguments).n_gpu == 0
    finally:
        distributed.destroy_process_group()
