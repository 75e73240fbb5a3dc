"""The lanes: parts of the test suite that stand on their own, each with the code that it tests.

A test file belongs to the first lane of ``LANES`` with a pattern that fits its name, otherwise to
the core. Every lane stands on the core's code; what else its files use is in ``uses``. The core is
played for each change, another lane when its digest (``lane_digests.py``) is not the recorded one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import translate
from functools import cache

_KINDS = "packages/sealtrain-together/sealtrain_together"
_NODES = "packages/sealtrain-nodes/sealtrain_nodes/"
_CHANNEL = f"{_KINDS}/channel/"
_ERRORS = f"{_KINDS}/errors.py"
_PARTIES = f"{_KINDS}/parties/"
_PADS = f"{_KINDS}/pads/"  # of parties, too
_CONSOLE = "packages/sealtrain-console/sealtrain_console/"
_CHAIN = "packages/sealtrain-chain/sealtrain_chain/"
_SIMULATOR = "packages/sealtrain-rehearsal/sealtrain_rehearsal/"
_ROOMS = ("chain", "console", "nodes", "rehearsal", "together")
_FIGURES = "docs/reference/benchmarks/"


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteLane:
    """A part of the tests that is played, or not, as one.

    Attributes:
        name: How the record, the command line and the table of results call it.
        tests: Patterns of the names of its test files, as ``fnmatch`` reads them.
        owns: Paths, or folders with a slash at the end, that are of this lane; others name what
            they use of it.
        uses: Folders of code that it uses besides the core and what it owns.
    """

    name: str
    tests: tuple[str, ...]
    owns: tuple[str, ...] = ()
    uses: tuple[str, ...] = (_SIMULATOR,)


CORE = SuiteLane(name="core", tests=("*",))
"""What is in no other lane; it uses everything and is always played."""

LANES: tuple[SuiteLane, ...] = (
    SuiteLane(
        name="together",  # several kinds at once, and what they share
        tests=(
            "test_channel_*",
            "test_collab_channel.py",
            "test_parties*.py",
            "test_killed_together.py",
            "test_tied_processes.py",
            "test_frozen_peers.py",
            "test_sharing.py",
            "test_medical_*",
        ),
        uses=(f"{_KINDS}/", _NODES, _CHAIN, _SIMULATOR, _FIGURES),
    ),
    SuiteLane(
        name="travelling",
        tests=("test_travel*", "test_recipe_travelling.py"),
        owns=(f"{_KINDS}/travelling/", "vectors/travelling/", "tools/vectorgen/travelling.py"),
        uses=(_CHANNEL, _ERRORS, _PARTIES, _SIMULATOR, _FIGURES),
    ),
    SuiteLane(
        name="federated",
        tests=(
            "test_federated*",
            "test_flower_*",
            "test_patient_rounds.py",
            "test_manifest_patients.py",
            "test_manifest_rounds.py",
            "test_recipe_patients.py",
        ),
        owns=(
            f"{_KINDS}/federated/",
            "vectors/federated/",
            "tools/vectorgen/federated.py",
        ),
        uses=(_CHANNEL, _ERRORS, _PARTIES, _PADS, _CHAIN, _SIMULATOR, "docs/guides/federated.md"),
    ),
    SuiteLane(
        name="pads",
        tests=(
            "test_*pads*.py",
            "test_dealt_*",
            "test_split_runs.py",
            "test_split_exact.py",
            "test_insecure_float_mask.py",
            "test_training_standins.py",
        ),
        owns=(_PADS, "vectors/one-time-pads/", "tools/vectorgen/one_time_pads.py"),
        uses=(_CHANNEL, _ERRORS, _SIMULATOR),
    ),
    SuiteLane(
        name="cut",
        tests=("test_cut_*", "test_split_cut*", "test_manifest_cut.py"),
        owns=(
            f"{_KINDS}/cut/",
            "vectors/split-cut/",
            "tools/vectorgen/split_cut.py",
            "tools/vectorgen/cut_states.py",
        ),
        uses=(_CHANNEL, _ERRORS, _PARTIES, _CHAIN, _SIMULATOR, "spec/split-cut.md"),
    ),
    SuiteLane(
        name="nodes",
        tests=("test_node*", "test_wire_*", "test_resized_run.py", "test_whole_machines.py"),
        owns=(
            _NODES,
            "vectors/nodes/",
            "vectors/node-wire/",
            "tools/vectorgen/nodes.py",
            "tools/vectorgen/node_wire.py",
        ),
        uses=(_CHANNEL, _ERRORS, _CHAIN, _SIMULATOR, _FIGURES, "spec/nodes.md"),
    ),
    SuiteLane(
        name="chain",
        tests=("test_chain_*", "test_broker_chain.py"),
        owns=(
            _CHAIN,
            "vectors/chain/",
            "tools/vectorgen/chain.py",
            "tools/vectorgen/chain_proofs.py",
            "tools/vectorgen/chain_words.py",
        ),
        uses=(_SIMULATOR, "verify/", "spec/", "docs/reference/"),
    ),
    SuiteLane(
        name="simulator",
        tests=("test_simulat*", "test_*_simulator.py"),
        uses=(_SIMULATOR, "verify/", "spec/schema/", "docs/reference/second-verifier.md"),
    ),
    SuiteLane(
        name="evidence",  # what the JavaScript verifier says of machines
        tests=(
            "test_second_verifier_accelerators.py",
            "test_second_verifier_evidence.py",
            "test_second_verifier_spellings.py",
            "test_*_in_chromium.py",
        ),
        uses=(_CHAIN, _CONSOLE, _SIMULATOR, "verify/", "spec/schema/", "docs/reference/"),
    ),
    SuiteLane(
        name="javascript",  # what it says of runs, those of every kind among them
        tests=("test_second_*",),
        owns=("verify/",),
        uses=(
            f"{_KINDS}/",
            _NODES,
            _CHAIN,
            _CONSOLE,
            _SIMULATOR,
            "spec/schema/",
            "docs/reference/",
        ),
    ),
    SuiteLane(
        name="examples",
        tests=(
            "test_demo.py",
            "test_examples.py",
            "test_clinics_tables.py",
            "test_first_hour.py",
            "test_notebook.py",
            "test_real_model.py",
            "test_scripts_in_ranks.py",
            "test_scripts_people_bring.py",
            "test_ten_days.py",
        ),
        owns=(
            "examples/consortium/",
            "examples/first_hour/",
            "examples/notebook/",
            "examples/own_script/",
            "examples/real_model/",
            "examples/scripts/",
            "examples/ten_days/",
            "examples/three_hospitals/",
        ),
        uses=(_CHAIN, _SIMULATOR, "docs/guides/", "docs/reference/", "spec/schema/"),
    ),
    SuiteLane(
        name="guests",  # whole runs of the core's programs, and what a run may reach and leave
        tests=(
            "test_border_*",
            "test_containers.py",
            "test_guest_lets_go.py",
            "test_handed_on_run.py",
            "test_imports_of_recipes.py",
            "test_measured_runs.py",
            "test_only_pinned.py",
            "test_outputs_*.py",
            "test_public_face.py",
            "test_rehearse.py",
            "test_recovery.py",
            "test_run_end_to_end.py",
            "test_run_stopped.py",
            "test_runner*.py",
            "test_schedulers.py",
            "test_scripts_that_save_otherwise.py",
            "test_series_run.py",
            "test_submitted_runs.py",
            "test_sealed_model_measured.py",
            "test_taken_along.py",
            "test_unattended_guests.py",
            "test_up.py",
            "test_walk.py",
            "test_*_nothing.py",
        ),
        uses=(_CHAIN, _CONSOLE, _SIMULATOR, "docs/guides/", "docs/reference/", "spec/schema/"),
    ),
    SuiteLane(
        name="training",  # by itself, and beside the same training in the clear
        tests=(
            "test_*_exact.py",
            "test_dealing.py",
            "test_phase_*.py",
            "test_privacy_audit.py",
            "test_privacy_steps.py",
            "test_ranks_*.py",
            "test_recipes_in_ranks.py",
            "test_sealed_model.py",
            "test_training_*.py",
        ),
        uses=(_CHAIN, _SIMULATOR, "docs/reference/"),
    ),
    SuiteLane(
        name="brokers",  # programs that release keys, their databases, and floods of callers
        tests=("test_broker_*", "test_ledger_*", "test_postgres_*", "test_servers_without_end.py"),
        uses=(_CHAIN, _SIMULATOR, "docs/guides/", "docs/reference/", "spec/"),
    ),
)
"""Every lane but the core."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherEnvironment:
    """Tests that ``.ci/run`` plays beside the lanes, with other versions of libraries.

    Attributes:
        name: How the record and the command line call it.
        mark: A file with this text in it is one of its test files.
        tests: Further test files, by their paths.
        uses: Files, or folders with a slash at the end, that its result depends on, besides the
            test files, what these name, and the modules of ``src`` that they import.
    """

    name: str
    mark: str | None = None
    tests: tuple[str, ...] = ()
    uses: tuple[str, ...] = ()


ENVIRONMENTS: tuple[OtherEnvironment, ...] = (
    OtherEnvironment(
        name="flower",
        mark="mark.flower",
        uses=(
            "constraints.txt",
            "pyproject.toml",
            f"{_KINDS}/federated/",
            "src/sealtrain/recipe/collaborations/",
            "tools/flower/",
        ),
    ),
    OtherEnvironment(
        name="newest",  # what .ci/run plays of it; the night plays every test of the command line
        tests=("tests/cli/test_cli_help.py", "tests/cli/test_cli_names.py"),
        uses=(
            "constraints.txt",
            "docs/reference/",  # the page of every command
            *(f"packages/sealtrain-{room}/pyproject.toml" for room in _ROOMS),
            "pyproject.toml",
            "src/sealtrain/cli/",
            *(f"{_KINDS}/{kind}/cli.py" for kind in ("cut", "federated", "pads", "travelling")),
            f"{_NODES}cli.py",
            "tools/newest.py",
        ),
    ),
)
"""Every one, each a line of the record."""


def lane_of(name: str, lanes: Sequence[SuiteLane] = LANES) -> SuiteLane:
    """The lane of a test file.

    Args:
        name: The file's name, without its folders.
        lanes: Where to look, in this order.
    """
    for lane in lanes:
        if _pattern_of(lane.tests).match(name):
            return lane
    return CORE


@cache
def _pattern_of(tests: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(translate, tests)))
