// Verify a run manifest offline: every check of spec/run-manifest.md §3, each reported by itself.

import { CannotCheck, Refusal } from "./bytes.js";
import { chainBlocks } from "./chainword.js";
import { CHECKS } from "./checks.js";
import { consortiumId, ownersOf } from "./consortium.js";
import { readManifest } from "./form.js";
import { openValues, releasedOpen } from "./openvalues.js";
import { statedLimits } from "./stated.js";

export { readTrust } from "./trust.js";

/** A check needs a fact that another check did not establish. */
class NotEstablished extends Error {}

const ESTABLISHED_BY = {
  evidence: "evidence-signature",
  verified: "quote",
  bound: "binding",
  lock: "recipe",
  log: "run-log",
  datasets: "datasets",
  receipts: "releases",
};

function stateOf(manifest, inputs) {
  const state = { manifest, predicate: manifest.predicate, ...inputs };
  state.need = (fact) => {
    if (state[fact] === undefined) throw new NotEstablished(ESTABLISHED_BY[fact] ?? "releases");
    return state[fact];
  };
  return state;
}

/**
 * Run every check that can be run.
 *
 * `outcome` of a check is `passed`, `failed`, `not-done` (another check did not establish what it
 * needs, or the caller left the files out) or `not-checked` (this program or browser cannot).
 * `verdict` is `verified`, `refused` or `not verified`; the last is no refusal of the manifest and
 * no pass either. `open` lists the values that the trust file leaves open,
 * `released` what brokers did not compare before they released keys, `chain` the blocks of a public
 * chain that they relied on, where the trust file names no chain, `limits` all that the manifest
 * does not prove and that the trust file leaves open, a text each.
 *
 * @param {Uint8Array} bytes The manifest file.
 * @param {object} trust Of `readTrust`.
 * @param {{artefacts?: Map<string, () => Promise<Uint8Array>>|null, now: number}} options
 *   Output files by path, null for the choice not to check them; seconds since the epoch.
 */
export async function verify(bytes, trust, { artefacts = null, now }) {
  const checks = [];
  let manifest = null;
  let state = null;
  checks.push(
    await outcomeOf("form", "File is well formed", async () => {
      manifest = await readManifest(bytes);
      return `canonical, ${bytes.length} bytes, ${manifest.subjects.length} files`;
    }),
  );
  if (manifest !== null) {
    const id = await consortiumId(manifest.predicate.consortium);
    const owners = await ownersOf(manifest.predicate.consortium);
    state = stateOf(manifest, { trust, artefacts, now, consortiumId: id, owners });
  }
  for (const [name, title, check] of CHECKS) {
    checks.push(
      await outcomeOf(name, title, async () => {
        if (state === null) throw new NotEstablished("form");
        if (name === "artefacts" && artefacts === null) throw new LeftOut();
        return check(state);
      }),
    );
  }
  const unasked = state?.unasked ?? null;
  const receipts = (state?.receipts ?? []).map(({ receipt }) => receipt);
  const released = releasedOpen(receipts);
  const chain = (trust.chain ?? null) === null ? chainBlocks(receipts) : [];
  const facts = { manifest, unasked, released, chain, open: openValues(trust) };
  return { ...verdictOf(checks), checks, ...facts, limits: statedLimits(facts, trust, { artefacts }) };
}

class LeftOut extends Error {}

async function outcomeOf(name, title, examine) {
  const base = { name, title };
  try {
    return { ...base, outcome: "passed", detail: await examine() };
  } catch (error) {
    if (error instanceof Refusal) {
      return { ...base, outcome: "failed", detail: error.message, code: error.code };
    }
    if (error instanceof NotEstablished) {
      return { ...base, outcome: "not-done", detail: `needs the check '${error.message}'`, needs: error.message };
    }
    if (error instanceof LeftOut) {
      return { ...base, outcome: "not-done", detail: "not looked at, as asked" };
    }
    const known = error instanceof CannotCheck;
    const detail = known ? error.message : `fault of this program: ${error}`;
    return { ...base, outcome: "not-checked", detail, fault: !known };
  }
}

function verdictOf(checks) {
  const failed = checks.find((check) => check.outcome === "failed");
  if (failed) return { verdict: "refused", check: failed.name, code: failed.code };
  const open = checks.find(
    ({ outcome, needs }) => outcome === "not-checked" || (outcome === "not-done" && needs),
  );
  if (open) return { verdict: "not verified", check: open.name, code: null };
  return { verdict: "verified", check: null, code: null };
}
