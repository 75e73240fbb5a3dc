"""Owners send activations, a guest trains on them: conversations, order, results."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from carrying import carries
from collecting import COLLECTING

from sealtrain.training.errors import PeerUnreachable
from sealtrain.training.model_files import SPARSE_FILE
from sealtrain.training.run import Inputs, Reporting, Trained, train
from sealtrain_together.channel.channel import open_over
from sealtrain_together.channel.streams import dial

if not COLLECTING:
    import torch
    from cut_world import DECODER_CONFIG, PARTIES, PATIENCE, RUN_ID, Site, cut_recipe, site
    from language_world import write_base
    from safetensors.torch import load

    from sealtrain.training.basefiles import BASE_FILES, read_list
    from sealtrain_together.cut.learning import Learning

pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),
    pytest.mark.usefixtures("one_thread"),
]


def learned(at: Site, metrics: list[Any] | None = None) -> tuple[Trained, Learning]:
    """What a server's guest makes of its clients."""
    learning = Learning(at.recipe, at.base_dir)
    at.clients.wait_for_all(within=60)
    kept: list[Any] = [] if metrics is None else metrics
    trained = train(
        at.recipe,
        run_id=RUN_ID,
        inputs=Inputs(
            base_dir=at.base_dir,
            sources=at.clients.sources(),
        ),
        reporting=Reporting(
            on_metrics=lambda step, values: kept.append((step, values)),
        ),
        phase=learning.train,
    )
    return trained, learning


@pytest.mark.parametrize("phase", ["classify", "sft"])
def test_a_guest_learns_from_activations_of_two_owners(phase: str) -> None:
    with site(cut_recipe(phase)) as at:
        owners = [at.client(name) for name in PARTIES]
        threads = at.joining(*owners)
        trained, learning = learned(at)
        at.clients.end(b"the manifest")
        for thread in threads:
            thread.join(60)
    assert not at.failures
    assert trained.steps == 6
    assert "accuracy" in trained.metrics
    # Six batches of four are less than a round of records, so no message was asked for twice.
    assert all(0 < owner.sent < 1_000_000 for owner in owners)
    adapter = load(trained.files["adapter_model.safetensors"])
    layer = "layer" if phase == "classify" else "layers"
    assert adapter
    assert not any(f".{layer}.0." in name or f".{layer}.1." in name for name in adapter)
    entries = load(trained.files[SPARSE_FILE])
    assert sum(len(value) for name, value in entries.items() if name.endswith("index")) == (
        learning.entries
    )


def test_the_result_depends_on_nothing_but_the_recipe_and_the_records() -> None:
    """Who joins first, and what has to be sent again, changes no bit."""
    results = []
    for order, kept in ((PARTIES, 1 << 30), (PARTIES[::-1], 0)):
        with site(cut_recipe(), kept_bytes=kept) as at:
            at.joining(*(at.client(name) for name in order))
            results.append(learned(at)[0].files)
            at.clients.end(b"")
    assert results[0].keys() == results[1].keys()
    assert all(results[0][name] == results[1][name] for name in results[0])


def test_a_merged_result_is_the_whole_model_with_what_was_trained() -> None:
    from transformers import AutoConfig, AutoModelForSequenceClassification

    merged = {"method": "lora", "target_modules": ["query"], "merge": True}
    with site(cut_recipe(peft=merged)) as at:
        at.joining(*(at.client(name) for name in PARTIES))
        trained, _ = learned(at)
        at.clients.end(b"")
    assert SPARSE_FILE not in trained.files
    weights = load(trained.files["model.safetensors"])
    auto: Any = AutoModelForSequenceClassification
    config = dict(at.recipe.model.config)
    fresh = auto.from_config(AutoConfig.for_model(config.pop("model_type"), **config, num_labels=2))
    assert not fresh.load_state_dict(weights, strict=False).unexpected_keys
    assert "bert.encoder.layer.0.attention.self.query.weight" in weights
    torch.manual_seed(7)
    base = auto.from_config(AutoConfig.for_model("bert", **dict(config), num_labels=2)).state_dict()
    front = "bert.encoder.layer.1.attention.self.query.weight"
    back = "bert.encoder.layer.2.attention.self.query.weight"
    assert torch.equal(weights[front], base[front])
    assert not torch.equal(weights[back], base[back])


@pytest.mark.nightly
@pytest.mark.claim("C520")
@pytest.mark.parametrize("merge", [False, True])
def test_every_file_of_the_base_goes_along_or_is_listed_with_a_reason(
    merge: bool, tmp_path: Path
) -> None:
    base = write_base(tmp_path / "base", DECODER_CONFIG)
    (base / "generation_config.json").write_text(json.dumps({"max_new_tokens": 5}))
    (base / "LICENSE").write_text("as you like")
    peft = {"method": "lora", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"], "merge": merge}
    recipe = cut_recipe("sft", model={"path": "base"}, peft=peft, trainer={"max_steps": 2})
    with site(recipe, base_dir=tmp_path) as at:
        at.joining(*(at.client(name) for name in PARTIES))
        files = learned(at)[0].files
        at.clients.end(b"")
    listed = read_list(files[BASE_FILES])
    assert listed.keys() == {path.name for path in base.iterdir()}
    kept = {name for name, entry in listed.items() if entry["state"] == "kept"}
    assert {"LICENSE", "tokenizer.json"} <= kept
    assert all(files[name] == (base / name).read_bytes() for name in kept)
    assert all(name in files for name, entry in listed.items() if entry["state"] == "changed")
    assert json.loads(files["generation_config.json"])["max_new_tokens"] == 5


@pytest.mark.nightly
def test_an_owner_who_comes_back_goes_on_where_it_was() -> None:
    with site(cut_recipe(), kept_bytes=0) as at:
        line = dial(at.address, timeout=PATIENCE)
        first = open_over(line, at.talk(PARTIES[0]))
        client, other = at.client(PARTIES[0]), at.client(PARTIES[1])
        lost = threading.Thread(target=_until_lost, args=(client, first), daemon=True)
        lost.start()
        at.joining(other)
        at.clients.wait_for_all(within=60)
        source = at.clients.sources()[0].dataset
        before = source.batch(0)
        line.close()  # the line is cut, nobody said a word
        lost.join(60)
        at.joining(client)
        assert source.batch(0).equals(before)
        at.clients.end(b"")


class Racing(int):
    """A number of bytes at which whoever compares waits for a second one to compare it, too."""

    both: threading.Barrier

    def __lt__(self, size: int) -> bool:
        self._meet()
        return int(self) < size

    def __ge__(self, size: int) -> bool:
        self._meet()
        return int(self) >= size

    def _meet(self) -> None:
        from contextlib import suppress

        with suppress(threading.BrokenBarrierError):
            self.both.wait(2)


def test_messages_that_come_at_once_are_kept_in_no_more_room_than_there_is() -> None:
    recipe = cut_recipe()
    with site(recipe, kept_bytes=0) as at:
        sizes = [_asked_once(at, source) for source in _joined(at)]
    room = Racing(sum(sizes) - 1)  # for each of them, and not for both
    room.both = threading.Barrier(2)
    with site(recipe, kept_bytes=room) as at:
        sources = _joined(at)
        threads = [threading.Thread(target=source.dataset.batch, args=(0,)) for source in sources]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        again = [
            _asked_once(at, source) - size for source, size in zip(sources, sizes, strict=True)
        ]
    assert sorted(map(bool, again)) == [False, True]  # one was kept, one had to be asked for


def _joined(at: Any) -> list[Any]:
    """A source of each owner."""
    at.joining(*(at.client(name) for name in PARTIES))
    at.clients.wait_for_all(within=60)
    return list({source.owner: source for source in at.clients.sources()}.values())


def _asked_once(at: Any, source: Any) -> int:
    """Bytes that came of a dataset in all, once its first message was asked for."""
    source.dataset.batch(0)
    return int(at.clients.find_received(source.dataset.dataset_id).size)


def _until_lost(client: Any, channel: Any) -> None:
    from contextlib import suppress

    with suppress(Exception):
        client.serve(channel)


def test_an_owner_waits_as_long_as_training_goes_on() -> None:
    """Longer than either side would stay silent: the server says that it is there."""
    with site(cut_recipe(), patience=1.5) as at:
        client, received = at.client(PARTIES[0]), []

        def serve() -> None:
            with at.channel(PARTIES[0], within=1.5) as channel:
                received.append(client.serve(channel))

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        thread.join(5)
        assert thread.is_alive()
        at.clients.end(b"the manifest")
        thread.join(60)
    assert received == [b"the manifest"]


def test_an_owner_who_stays_away_ends_the_run() -> None:
    with site(cut_recipe(), patience=1.0) as at:
        at.joining(at.client(PARTIES[0]))
        with pytest.raises(
            PeerUnreachable, check=carries(check="clients", got="1 of 2")
        ) as missing:
            at.clients.wait_for_all(within=1.0)
    assert missing.value.owner == PARTIES[1]
