# %% [markdown]
# # Three hospitals train one model, and none shows the others a record
#
# SIMULATED — NOT ATTESTED. Everything runs on this machine's CPU, in about two minutes: owners,
# engineer and auditor are objects of `sealtrain`, broker and guests are processes on the simulator.
# Keys, signatures, ledger and manifest are real; the hardware is not.
#
# You need `pip install 'sealtrain[notebook]'`. The notebook is made from `story.py` beside it.

# %%
import base64
import json
import runpy
import shutil
from collections.abc import Callable
from pathlib import Path

import matplotlib.pyplot as plt

import sealtrain
from sealtrain.base.canonical import canonical_json
from sealtrain.base.shipped import find_shipped

out = Path("story-out")
if (out / "consortium.json").exists():
    shutil.rmtree(out)  # an earlier play of this story
example = find_shipped("examples/three_hospitals")


def refused(act: Callable[[], object]) -> None:
    """Do what has to be refused, and print the error's code."""
    try:
        act()
    except sealtrain.errors.SealtrainError as error:
        print(f"refused: {error.code}" + (f", by the check {error.check!r}" if error.check else ""))
    else:
        raise AssertionError("nothing refused this")


# %% [markdown]
# ## Data, keys, and a consortium
#
# The records are scikit-learn's bundled ones: 569 patients of the breast cancer data set. Each
# hospital makes an identity and keeps its private file; two of three must approve a recipe, and
# every hospital whose records are read.

# %%
counts = runpy.run_path(str(example / "records.py"))["write_records"](out)
for what, patients in counts.items():
    print(f"{what:<26} {patients:>4} patients")

hospitals = ("hospital-a", "hospital-b", "hospital-c")
identities = {name: sealtrain.Identity.generate(name) for name in hospitals}
private = {name: identity.save_pair(out / name)[0] for name, identity in identities.items()}

consortium = sealtrain.Consortium.found(
    name="three-hospitals",
    owners=[identity.public for identity in identities.values()],
    approve=2,
)
consortium.save(out / "consortium.json")
print(consortium.thresholds)

# %% [markdown]
# ## A broker
#
# The broker guards the keys. It proves which software it runs; the *broker file* pins that.

# %%
simulation = sealtrain.rehearsal(out / "simulation", consortium).start()
owners = {
    name: sealtrain.Owner(identity=private[name], brokers=simulation.brokers, consortium=consortium)
    for name in hospitals
}

# %% [markdown]
# ## The engineer locks a recipe
#
# The recipe is the example's, with half the steps. Its lock pins every byte that matters by digest:
# data, model, code, packages, what may leave.

# %%
text = (example / "recipe.yaml").read_text().replace("max_steps: 300", "max_steps: 150")
(out / "recipe.yaml").write_text(text)
recipe = sealtrain.Recipe.load(out / "recipe.yaml").check(consortium)
recipe.lock(consortium, simulation.brokers, out=out / "engineer")

# What a hospital reads. It gets the document from the engineer, and its hash by voice.
locked = sealtrain.LockedRecipe.load(out / "engineer" / "app-compose.json")
agreed = locked.recipe_hash
for change in locked.changes():
    if change.path.startswith(("recipe.release_policy", "recipe.privacy", "recipe.hardware")):
        print(f"{change.severity:<9} {change.path:<40} {change.after}")

# %% [markdown]
# ## Each hospital seals its records, at home
#
# Only ciphertext leaves the hospital. It can be opened by the hospital itself, and by a guest that
# runs this very recipe while enough owners approve.

# %%
sealed = out / "sealed"
sealed.mkdir()
for name, owner in owners.items():
    for dataset in ("biopsies", "biopsies-test"):
        made = owner.seal(
            out / name / f"{dataset}.jsonl",
            sealed / f"{name}.{dataset}.sealed",
            name=dataset,
            locked=locked,
        )
        print(f"{name} sealed {made.description.records} records of {dataset}")

# %% [markdown]
# ## Approvals
#
# No call asks a question: the hash that the owner read is an argument. Two of three suffice by the
# threshold; the third hospital's records are read, so it must approve as well.

# %%
for name in hospitals[:2]:
    owners[name].approve(locked, expecting=agreed)
refused(lambda: simulation.train(recipe, locked, sealed))

# %% [markdown]
# The engineer changes the seed and hands out another document. Its hash is not the agreed one.

# %%
changed = out / "changed"
changed.mkdir()
(changed / "recipe.yaml").write_text(text.replace("seed: 7", "seed: 8"))
other = sealtrain.Recipe.load(changed / "recipe.yaml").lock(consortium, simulation.brokers)
for change in other.changes(since=locked):
    print(f"{change.path}: {change.before} → {change.after}")
refused(lambda: owners["hospital-c"].approve(other, expecting=agreed))

# %%
for tally in owners["hospital-c"].approve(locked, expecting=agreed).done.values():
    print("approved by", ", ".join(tally.approved_by))

# %% [markdown]
# ## The guest proves itself, gets the keys and trains

# %%
run = simulation.train(recipe, locked, sealed)
print(run.state, "with", len(run.checkpoints()), "sealed checkpoints")

# %% [markdown]
# ## The auditor verifies, offline
#
# The auditor writes down what it trusts *before* it reads the manifest. `verify` returns the
# verified contents or raises the first refusal; it never returns a bool.

# %%
trust = sealtrain.pin_trust(consortium, locked, simulation.brokers, simulation.policy)
verified = run.verify(trust)
for check in verified.checks:
    print("✓", check.title)
run.report(trust, out / "report.html")
print(verified.predicate.run.metrics)

# %%
points = [(point.step, point.values["loss"]) for point in verified.predicate.run.history]
drawn = [(step, loss) for step, loss in points if loss is not None]
figure, axes = plt.subplots(figsize=(6, 2.5), layout="constrained")
axes.plot([step for step, _ in drawn], [loss for _, loss in drawn])
axes.set_xlabel("step")
axes.set_ylabel("loss, as released")
plt.show()

# %% [markdown]
# ## Without sitting beside it
#
# The same recipe once more, as on any other day: an engineer asks the broker for a run, a runner of
# the operator starts its guest, and its outputs go to a store. What is fetched from there is what
# the broker's ledger names, so neither runner nor store has to be trusted.

# %%
ticket = simulation.ticket(recipe, locked, sealed, name="nightly")
submitted = sealtrain.SubmittedRun.submit(
    locked, ticket, broker=simulation.brokers[0], identity=private["hospital-a"], name="nightly"
)
print(submitted.name, "is", submitted.state)
simulation.serve_runs(locked, sealed, out)

# %%
states: list[str] = []
left = submitted.wait(900, on_change=lambda shown: states.append(shown.state))
print("it ended as", states[-1])
fetched = submitted.download(out / "fetched")
again = fetched.verify(trust)
assert again.predicate.run.run_id == left.run_id
print("verified:", again.predicate.run.metrics)
refused(lambda: submitted.stop(private["hospital-a"]))  # it has ended

# %% [markdown]
# ## Attacks
#
# A better accuracy in the manifest; a byte of a sealed output changed.

# %%
genuine = run.manifest.read_bytes()
forged = json.loads(genuine)
envelope = forged["bundle"]["dsseEnvelope"]
statement = json.loads(base64.b64decode(envelope["payload"]))
statement["predicate"]["run"]["metrics"]["accuracy"] = 1.0
envelope["payload"] = base64.b64encode(canonical_json(statement)).decode()
_ = run.manifest.write_bytes(canonical_json(forged))
refused(lambda: run.verify(trust))
_ = run.manifest.write_bytes(genuine)

# %%
victim = sorted(run.model.glob("*.sealed"))[0]
kept = victim.read_bytes()
_ = victim.write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
refused(lambda: run.verify(trust))
_ = victim.write_bytes(kept)

# %% [markdown]
# A revocation stops the next release. What was released before stays released.

# %%
owners["hospital-b"].revoke(locked, expecting=agreed)
refused(lambda: simulation.train(recipe, locked, sealed))
refused(lambda: owners["hospital-b"].approve(locked, expecting=agreed))  # not taken back by chance

# %% [markdown]
# ## A hospital opens the model, and the history is whole

# %%
opened = owners["hospital-a"].open_model(run, out / "hospital-a" / "model", trust=trust)
print(", ".join(opened.files))
audited = sealtrain.audit_ledger(simulation.brokers[0], consortium)
print(audited.size, "entries:", audited.kinds)

# %%
simulation.close()  # no process stays
