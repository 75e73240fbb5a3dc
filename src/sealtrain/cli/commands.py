"""Every command: its name, where its function is, and its line in ``--help``.

A summary is the first sentence of the function's docstring; a test compares them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sealtrain.base.distributions import CHAIN, CONSOLE, REHEARSAL, TOGETHER
from sealtrain.cli.lazy import CommandEntry, Entries, Noun

_RECIPE: Final[Entries] = {
    "check": CommandEntry(
        "sealtrain.cli.recipecheck:check",
        "Judge a recipe, its base model and data as lock, seal and train will, without a broker.",
    ),
    "schema": CommandEntry("sealtrain.cli.recipe:schema", "Print the JSON Schema of recipes."),
    "show": CommandEntry(
        "sealtrain.cli.recipe:show", "Show all that a lock fixes, as an owner reviews it."
    ),
    "diff": CommandEntry(
        "sealtrain.cli.recipe:show_diff",
        "Show what changed between two locks: what an owner reads before approving.",
    ),
    "import": CommandEntry(
        "sealtrain.cli.recipe_import:import_recipe",
        "Translate a file of Axolotl or TRL into a recipe, and name every key that is not in it.",
    ),
}

_LOG: Final[Entries] = {
    "witness": CommandEntry(
        "sealtrain.cli.log:witness",
        "See that the ledger of each broker only grew since last time, and cosign it.",
    ),
    "audit": CommandEntry(
        "sealtrain.cli.log:audit",
        "Verify the whole ledger again: every entry, hash, tree head, decision, release and "
        "budget.",
    ),
    "uses": CommandEntry(
        "sealtrain.cli.withdraw:uses",
        "List what became of datasets: runs that got them, their manifests and model files.",
    ),
}

_APPROVALS: Final[Entries] = {
    "status": CommandEntry(
        "sealtrain.cli.approvals:status",
        "Show threshold and progress of a recipe's approval, counted from the signed decisions.",
    ),
    "watch": CommandEntry(
        "sealtrain.cli.approvalswatch:watch",
        "Call a webhook when a submitted run waits for an owner's approval, until Ctrl-C.",
    ),
}

_POLICY: Final[Entries] = {
    "new": CommandEntry(
        "sealtrain.cli.attest:write_policy",
        "Write a policy to begin from; its comments say what to fill in.",
    ),
    "set": CommandEntry(
        "sealtrain.cli.policy:set_policy",
        "Ask more of guests that read your data than the broker asks of all.",
    ),
    "clear": CommandEntry(
        "sealtrain.cli.policy:clear",
        "Ask for nothing of your own any more: what the broker asks of all suffices.",
    ),
    "show": CommandEntry(
        "sealtrain.cli.policy:show", "List what each owner asks, as the owners signed it."
    ),
}

_CONSORTIUM: Final[Entries] = {
    "create": CommandEntry(
        "sealtrain.cli.consortium:create",
        "Found a consortium: owners, their public keys and the thresholds, every one written.",
    ),
    "propose": CommandEntry(
        "sealtrain.cli.succession:propose",
        "Write down what is to take the consortium's place, and sign it first.",
    ),
    "sign": CommandEntry(
        "sealtrain.cli.succession:sign",
        "Read what would change, then add your signature to the file.",
    ),
    "verify": CommandEntry(
        "sealtrain.cli.succession:verify",
        "Verify a succession of the consortium you hold: who signed, what changes, until when.",
    ),
    "succeed": CommandEntry(
        "sealtrain.cli.succession:succeed",
        "Put a succession in force: end the consortium at its brokers, write the successor's file.",
    ),
    "follow": CommandEntry(
        "sealtrain.cli.succession:follow",
        "Take your memory of a ledger along over successions that you did not see happen.",
    ),
}

_ATTEST: Final[Entries] = {
    "collect": CommandEntry(
        "sealtrain.cli.attest:collect",
        "Collect evidence of the guest this runs in, for a verifier that sent a nonce.",
    ),
    "verify": CommandEntry(
        "sealtrain.cli.attest:verify", "Verify evidence at a moment under a policy, claim by claim."
    ),
    "explain": CommandEntry(
        "sealtrain.cli.attest:explain",
        "Say what a file of evidence says, what it means, and which policy lines it meets or "
        "breaks.",
    ),
    "bundle": CommandEntry(
        "sealtrain.cli.attest:bundle",
        "Keep evidence with all that is needed to verify it again, years later and offline.",
    ),
    "fetch": CommandEntry(
        "sealtrain.cli.attest:fetch",
        "Fetch what a vendor publishes about a platform, to verify with it offline.",
    ),
}

_TRUST: Final[Entries] = {
    "new": CommandEntry(
        "sealtrain.cli.trust:new",
        "Write a trust file: consortium, recipe, brokers and appraisal policy, all pinned.",
    ),
}

_BROKER_ROOT: Final[Entries] = {
    "split": CommandEntry(
        "sealtrain.cli.broker_root:split",
        "Split a root secret into SLIP-39 mnemonics, one file each.",
    ),
    "join": CommandEntry(
        "sealtrain.cli.broker_root:join", "Put a root secret together from its shares."
    ),
}

_BROKER_TOKEN: Final[Entries] = {
    "create": CommandEntry("sealtrain.cli.broker_tokens:create", "Make a token."),
    "list": CommandEntry(
        "sealtrain.cli.broker_tokens:list_tokens", "Show every token's name, scope and end."
    ),
    "remove": CommandEntry(
        "sealtrain.cli.broker_tokens:remove",
        "Remove a token: a running broker refuses it from now on.",
    ),
}

_BROKER: Final[Entries] = {
    "serve": CommandEntry(
        "sealtrain.cli.broker:serve",
        "Serve keys to guests that prove themselves, while enough owners approve.",
        measured=True,
    ),
    "deployment": CommandEntry(
        "sealtrain.cli.broker:deployment",
        "Write the broker's own deployment document; its hash is what owners pin.",
    ),
    "pin": CommandEntry(
        "sealtrain.cli.broker:pin",
        "Write a broker file: where the broker is, which one it is and what it must prove to you.",
    ),
    "status": CommandEntry("sealtrain.cli.broker_operations:status", "Ask a broker how it is."),
    "backup": CommandEntry(
        "sealtrain.cli.broker_operations:backup", "Copy a broker's state while it runs."
    ),
    "restore": CommandEntry(
        "sealtrain.cli.broker_operations:restore",
        "Put a backup back, verified, into an empty folder.",
    ),
    "migrate": CommandEntry(
        "sealtrain.cli.broker_database:migrate", "Bring a broker's tables to this version."
    ),
    "restored": CommandEntry(
        "sealtrain.cli.broker_database:check_restored",
        "Check a restored PostgreSQL database, so that a broker starts on it.",
    ),
    "openapi": CommandEntry(
        "sealtrain.cli.broker_operations:openapi", "Print the OpenAPI document of the service."
    ),
    "approve-kms": CommandEntry(
        "sealtrain.cli.broker_operations:approve_kms",
        "Approve a dstack KMS that asks this broker who may boot (serve --boot-auth).",
    ),
    "rotate-root": CommandEntry(
        "sealtrain.cli.broker_root:rotate",
        "Replace a broker's root secret: its ledger's key names the one that comes after it.",
    ),
    "root": Noun("Keep a root secret in shares, and put it together again.", _BROKER_ROOT),
    "token": Noun("Operators' tokens.", _BROKER_TOKEN),
}

_CHAIN: Final[Entries] = {
    "deploy": CommandEntry(
        f"{CHAIN}.setup_commands:deploy",
        "Deploy an OwnersAppAuth; nothing about it can be changed.",
    ),
    "pin": CommandEntry(
        f"{CHAIN}.setup_commands:pin",
        "Write a chain file: which contract decides, with the code it has now, and whom to ask.",
    ),
    "propose": CommandEntry(
        f"{CHAIN}.safe_commands:propose",
        "Write a proposal to a Safe: add or remove a recipe's compose hash.",
    ),
    "sign": CommandEntry(
        f"{CHAIN}.safe_commands:sign",
        "Read what a proposal would allow, then add your signature to a copy of it.",
    ),
    "status": CommandEntry(
        f"{CHAIN}.decision_commands:status",
        "Show what a contract says, proven under a block that enough nodes agree on.",
    ),
    "approve": CommandEntry(
        f"{CHAIN}.decision_commands:approve",
        "Sign for your OwnersAppAuth the approval that you gave in the ledger (sealtrain approve).",
    ),
    "revoke": CommandEntry(
        f"{CHAIN}.decision_commands:revoke",
        "Sign a revocation for your OwnersAppAuth; it also voids approvals that still wait.",
    ),
    "device": CommandEntry(
        f"{CHAIN}.decision_commands:device",
        "Sign a decision on a machine for your OwnersAppAuth, where not every machine may run.",
    ),
    "execute": CommandEntry(
        f"{CHAIN}.decision_commands:execute", "Send what enough owners signed."
    ),
}

_SIMULATOR: Final[Entries] = {
    "serve": CommandEntry(
        f"{REHEARSAL}.simulator_commands:serve",
        "Serve dstack's guest API, or an enclave's security module, with simulated evidence.",
    ),
    "faults": CommandEntry(
        f"{REHEARSAL}.simulator_commands:faults",
        "List the lies a simulated machine can tell, and the refusal each must end in.",
    ),
}

_DEPLOY: Final[Entries] = {
    "run": CommandEntry(
        "sealtrain.cli.deployrun:run",
        "Start exactly what a deployment document says, in a simulated guest that measured it.",
    ),
    "ticket": CommandEntry(
        "sealtrain.cli.deploy:ticket",
        "Write a run ticket: addresses, and which role of its document a guest plays.",
    ),
    "parts": CommandEntry(
        "sealtrain.cli.deployadopt:parts",
        "Write what a platform asks for that makes its own document: Compose file, launch script.",
    ),
    "adopt": CommandEntry(
        "sealtrain.cli.deployadopt:adopt",
        "Judge the document that a platform made of yours, and write it for owners to approve.",
    ),
    "credentials": CommandEntry(
        "sealtrain.cli.credential_lender:credentials",
        "Lend credentials of stores to guests that prove that they run a document.",
        measured=True,
    ),
}

_RUN: Final[Entries] = {
    "submit": CommandEntry(
        "sealtrain.cli.runsubmit:submit",
        "Submit a run: a runner starts it once, however often you ask.",
    ),
    "list": CommandEntry(
        "sealtrain.cli.run:list_runs",
        "List submitted runs, newest first: the runner's word, and the broker's own record.",
    ),
    "wait": CommandEntry(
        "sealtrain.cli.run:wait",
        "Wait until a run has ended: 0 with its manifest in the ledger, 1 without, 124 too late.",
    ),
    "logs": CommandEntry(
        "sealtrain.cli.run:logs",
        "Show what the ledger and the output store hold of a run, and who says each line.",
    ),
    "stop": CommandEntry(
        "sealtrain.cli.run:stop",
        "Stop a run: its guest seals a checkpoint, and no runner starts it again.",
    ),
    "download": CommandEntry(
        "sealtrain.cli.run:download",
        "Fetch model and manifest of a completed run, each verified by its digest.",
    ),
    "compare": CommandEntry(
        "sealtrain.cli.runcompare:compare",
        "Compare finished runs: the metrics that each released, and where their recipes differ.",
    ),
    "track": CommandEntry(
        "sealtrain.cli.runtrack:track",
        "Hand the released metrics of a verified run to MLflow or Trackio, once.",
    ),
    "serve": CommandEntry(
        "sealtrain.cli.runserve:serve",
        "Take submitted runs and start their guests, until Ctrl-C or SIGTERM.",
    ),
    "schedule": CommandEntry(
        "sealtrain.cli.scheduler:schedule",
        "Submit a run for each due time of a recipe's schedule, or record why there is none.",
    ),
}

_NITRO: Final[Entries] = {
    "run": CommandEntry(
        "sealtrain.cli.nitro:run",
        "Start an enclave on this parent instance, hand it document and ticket, and carry bytes.",
    ),
}

_IMAGE: Final[Entries] = {
    "eif": CommandEntry(
        "sealtrain.cli.imageenclave:eif",
        "Write an image's enclave image file (EIF), or compare with one; the same bytes anywhere.",
    ),
    "measure": CommandEntry(
        "sealtrain.cli.imagemeasure:measure",
        "Compute what a machine's registers hold after it booted these files; nothing is started.",
    ),
    "verify": CommandEntry(
        "sealtrain.cli.image:verify",
        "Account for every file of an image; exits 3 where one is not what source and lock say.",
    ),
    "show": CommandEntry(
        "sealtrain.cli.image:show",
        "Show an image's digest, how it starts and which packages it has; nothing is verified.",
    ),
}

_CONSOLE: Final[Entries] = {
    "agent": CommandEntry(
        f"{CONSOLE}.agent_command:agent",
        "Sign decisions that you make in the console, once you confirm each in this terminal.",
    ),
}

_SPLIT: Final[Entries] = {
    "accelerator": CommandEntry(
        f"{TOGETHER}.pads.cli:accelerator",
        "Multiply public matrices for guests, which hide and check what they ask for.",
        measured=True,
    ),
    "try": CommandEntry(
        f"{TOGETHER}.pads.cli:try_out",
        "Train at home twice, on records you may show: the int8 model, and as it is under pads.",
    ),
    "client": CommandEntry(
        f"{TOGETHER}.cut.cli:client",
        "Send activations of your records to a guest you approved; the records stay with you.",
    ),
    "demo": CommandEntry(
        f"{REHEARSAL}.stories:split",
        "Play split fine-tuning on the simulator, from founding to verification; some minutes.",
    ),
}

_TRAVEL: Final[Entries] = {
    "demo": CommandEntry(
        f"{REHEARSAL}.stories:travel",
        "Play a travelling run on the simulator, from founding to verification; about a minute.",
    ),
}

_FEDERATE: Final[Entries] = {
    "relay": CommandEntry(
        f"{TOGETHER}.federated.cli:relay",
        "Write the Flower app that carries messages between lead and parties, for: flwr run.",
    ),
    "demo": CommandEntry(
        f"{REHEARSAL}.stories:federate",
        "Play a federation of three hospitals on the simulator; some minutes.",
    ),
}

COMMANDS: Final[Entries] = {
    "init": CommandEntry(
        "sealtrain.cli.init:init",
        "Begin here: make an identity, a recipe that fits a sample of your records, a project "
        "file.",
    ),
    "keygen": CommandEntry(
        "sealtrain.cli.keys:keygen",
        "Make an owner's identity: a private file (0600) and a public one to share.",
    ),
    "lock": CommandEntry(
        "sealtrain.cli.recipe:lock",
        "Resolve everything a recipe names to digests: recipe.lock.json and app-compose.json.",
    ),
    "seal": CommandEntry("sealtrain.cli.data:seal", "Seal data for one locked recipe."),
    "register": CommandEntry(
        "sealtrain.cli.data:register",
        "Tell brokers of a dataset that is sealed already, as `sealtrain seal` does in the end.",
    ),
    "rewrap": CommandEntry(
        "sealtrain.cli.data:rewrap",
        "Change which recipients may unwrap the data key; the sealed records stay as they are.",
    ),
    "adopt": CommandEntry(
        "sealtrain.cli.adopt:adopt",
        "Sign and register a model that was handed on to your recipe; it opens for no person.",
    ),
    "inspect": CommandEntry(
        "sealtrain.cli.inspecting:inspect",
        "Show what a sealed file or dataset, or a run's manifest, tells without any key.",
    ),
    "contains": CommandEntry(
        "sealtrain.cli.opening:contains",
        "Say whether a record is in a dataset of yours, by its commitments and without its shards.",
    ),
    "open": CommandEntry(
        "sealtrain.cli.opening:open_sealed",
        "Open what was sealed to you: your own dataset, or a model trained for you.",
    ),
    "approve": CommandEntry(
        "sealtrain.cli.approvals:approve", "Read what a recipe will do, then approve exactly that."
    ),
    "revoke": CommandEntry(
        "sealtrain.cli.approvals:revoke",
        "Stop further key releases and lease renewals for a recipe.",
    ),
    "status": CommandEntry(
        "sealtrain.cli.status:status",
        "Say whether train would be given keys now; if not, who has to do what.",
    ),
    "train": CommandEntry(
        "sealtrain.cli.train:train",
        "Attest, get the keys, train, seal the model, sign the manifest.",
    ),
    "resume": CommandEntry(
        "sealtrain.cli.train:resume",
        "Continue an interrupted run from its last sealed checkpoint, bit for bit.",
    ),
    "guest": CommandEntry(
        "sealtrain.cli.guest:guest",
        "Play the role of a run ticket in a guest; a measured deployment document starts this.",
        measured=True,
    ),
    "checkpoints": CommandEntry(
        "sealtrain.cli.checkpoints:checkpoints",
        "List the sealed checkpoints of a run, newest first, as their files claim them.",
    ),
    "merge": CommandEntry(
        "sealtrain.cli.merge:merge", "Merge an opened adapter into its base model."
    ),
    "up": CommandEntry(
        f"{REHEARSAL}.up:up",
        "Play broker and hardware on this machine, until Ctrl-C, to rehearse every role by hand.",
    ),
    "walk": CommandEntry(
        f"{CONSOLE}.walk_command:walk",
        "Walk through a sealed run and switch one protection after the other off.",
    ),
    "rehearse": CommandEntry(
        f"{REHEARSAL}.rehearse:rehearse",
        "Play every part on the simulator: found, lock, seal, approve, train, verify, open.",
    ),
    "verify": CommandEntry("sealtrain.cli.manifest:verify", "Verify a run manifest offline."),
    "report": CommandEntry(
        "sealtrain.cli.manifest:report",
        "Write one self-contained HTML page about a run, its checks and its limits.",
    ),
    "export": CommandEntry(
        "sealtrain.cli.exports:export",
        "Write what other tools read about a model; only of a manifest that verifies.",
    ),
    "validate": CommandEntry(
        "sealtrain.cli.validate:validate",
        "Hold your data against the rules of a recipe, as the guest will before training.",
    ),
    "publish": CommandEntry("sealtrain.cli.publish:publish", "Send a sealed dataset to a store."),
    "doctor": CommandEntry(
        "sealtrain.cli.doctor:doctor",
        "Look at this machine: its TEE, GPUs, clock, memory and software.",
    ),
    "withdraw": CommandEntry(
        "sealtrain.cli.withdraw:withdraw",
        "Take datasets of yours back for good, and list what has them in it.",
    ),
    "explain": CommandEntry(
        "sealtrain.cli.ready:explain", "Say what an error means and what to do about it."
    ),
    "recipes": CommandEntry(
        "sealtrain.cli.ready:recipes", "List the ready recipes, or print one to start from."
    ),
    "demo": CommandEntry(
        "sealtrain.cli.ready:demo",
        "Play three hospitals that train one model together, on the simulator (about 3 minutes).",
    ),
    "recipe": Noun("Read recipes: their schema, content and differences.", _RECIPE),
    "log": Noun(
        "Show the ledger: every approval, release, refusal and manifest, the newest first.",
        _LOG,
        place="sealtrain.cli.entries:show",
    ),
    "approvals": Noun("Where the approval of a recipe stands.", _APPROVALS),
    "policy": Noun(
        "What guests must show: write a policy; ask more of guests that read your data.", _POLICY
    ),
    "consortium": Noun("Who the owners are, and how many must agree to what.", _CONSORTIUM),
    "attest": Noun(
        "Collect, verify, explain and bundle evidence of guests and accelerators.", _ATTEST
    ),
    "trust": Noun("The auditor's trust file.", _TRUST, no_args_is_help=True),
    "broker": Noun("The key-release service.", _BROKER),
    "deploy": Noun("Deployment documents: run tickets, and start what is measured.", _DEPLOY),
    "run": Noun("Runs: submit, watch, stop and fetch them; compare what they released.", _RUN),
    "console": Noun(
        "Show consortium and runs in a browser on this machine, until Ctrl-C.",
        _CONSOLE,
        place=f"{CONSOLE}.console_command:console",
    ),
    "image": Noun("Container images: what is in one, and where it comes from.", _IMAGE),
    "nitro": Noun("AWS Nitro enclaves, on their parent instance.", _NITRO, no_args_is_help=True),
    "chain": Noun("Owners' decisions on a public chain.", _CHAIN),
    "simulator": Noun("A simulated guest API. SIMULATED — NOT ATTESTED.", _SIMULATOR),
    "split": Noun(
        "Fine-tune in a slow guest on a fast machine that nobody trusts.",
        _SPLIT,
        no_args_is_help=True,
    ),
    "travel": Noun(
        "Train with data that stay with their holders: the accelerator travels.",
        _TRAVEL,
        no_args_is_help=True,
    ),
    "federate": Noun(
        "Fine-tune together without pooling data: parties learn, a lead merges.",
        _FEDERATE,
        no_args_is_help=True,
    ),
}

SECTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "Begin": ("init", "demo", "walk", "recipes", "rehearse", "up", "explain"),
    "Owners of data": (
        "keygen",
        "consortium",
        "validate",
        "seal",
        "register",
        "publish",
        "approve",
        "approvals",
        "revoke",
        "policy",
        "log",
        "rewrap",
        "adopt",
        "withdraw",
        "contains",
        "open",
    ),
    "Everybody": ("console",),
    "Engineers": ("recipe", "lock", "status", "run", "train", "resume", "checkpoints", "merge"),
    "Operators": ("broker", "deploy", "guest", "image", "nitro", "doctor", "simulator"),
    "Auditors": ("verify", "report", "export", "inspect", "trust", "attest"),
    "Training together, and on a chain": ("split", "travel", "federate", "chain"),
}
"""Where each name stands in ``--help``: by the person who begins with it."""
