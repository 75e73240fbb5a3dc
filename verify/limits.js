// The limits that the facts of a manifest require (spec/run-manifest.md §5).

import { fromBase64 } from "./bytes.js";
import { parseJson } from "./json.js";
import { claimsOf } from "./openvalues.js";
import { kindOf } from "./stays.js";

const BEGINNINGS = ["run.started", "run.restarted", "run.resumed"];
const ALWAYS = [
  "side-channels",
  "revocation",
  "owners-word",
  "recipe-judgement",
  "guest-clock",
  "broker-word",
  "sealed-outputs",
];

const OF_TIER = {
  processor: [],
  "processor-and-paravisor": ["paravisor-word"],
  "cloud-tpm": ["cloud-tpm-word"],
  cloud: ["cloud-word"],
};

/** Whether the kernel held the border of every process of a run (spec/run-log.md). */
function borderHeld(entries) {
  let asked = false;
  let closed = false;
  for (const { event, fields } of entries) {
    if (BEGINNINGS.includes(event)) {
      if (asked) return false;
      asked = true;
    } else if (event === "border.closed") {
      const { landlock, unbound, seccomp } = fields ?? {};
      if (!(Number.isInteger(landlock) && landlock >= 6 && unbound === 0 && seccomp === true)) return false;
      asked = false;
      closed = true;
    }
  }
  return closed && !asked;
}

/** Whether public counts say that half of the records or more did not train. */
function halfLeftOut(entries) {
  let total = 0;
  let out = 0;
  for (const { event, fields } of entries) {
    if (event !== "data.counted") continue;
    for (const counts of Object.values(fields ?? {})) {
      const { records, filtered, empty } = counts ?? {};
      if (![records, filtered, empty].every(Number.isInteger)) continue;
      total += records;
      out += filtered + empty;
    }
  }
  return total > 0 && 2 * out >= total;
}

/** Whether the recipe trains on records, and the run log does not say how many of them. */
function trainsUncounted(lock, entries) {
  if (entries.some(({ event }) => event === "data.counted")) return false;
  const datasets = lock.recipe?.datasets;
  return Array.isArray(datasets) && datasets.some((one) => one?.role === "train");
}

/** Whether a broker's verdict says that a guest's GPUs talk in clear to each other. */
function linksInClear({ receipt }) {
  let verdict;
  try {
    verdict = parseJson(fromBase64(receipt.payload)).verdict;
  } catch {
    return false; // check 11 refuses such a receipt
  }
  return claimsOf(verdict).some(({ name, got }) => name === "GPU mode" && got === "protected_pcie");
}

/** Limits that the final evidence shows, whatever the brokers' verdicts said before. */
export function limitsOfEvidence(evidence) {
  return evidence?.gpu?.claims.multi_gpu_mode === "protected_pcie" ? ["nvlink-in-clear"] : [];
}

/** Ids that a manifest with these facts must list. */
export function requiredLimits(predicate) {
  const { privacy, collaboration, consortium, recipe, compute, run_log: log } = predicate;
  const ids = [predicate.simulated ? "simulated" : "hardware", ...OF_TIER[predicate.deployment.tier]];
  if (!borderHeld(log.entries)) ids.push("border-in-software");
  if (!consortium.own_data_consent) ids.push("owners-not-asked");
  const { scripts } = recipe.lock;
  if (scripts && Object.keys(scripts).length) ids.push("own-script");
  if ((scripts && Object.keys(scripts).length) || log.entries.some(({ event }) => event === "rows.served")) {
    ids.push("workload-word");
  }
  if ((recipe.lock.recipe?.hardware?.launch_script ?? null) !== null) ids.push("platform-script");
  if (halfLeftOut(log.entries)) ids.push("records-left-out");
  if (trainsUncounted(recipe.lock, log.entries)) ids.push("records-not-counted");
  if (compute.accelerators.length) ids.push("accelerator-binding");
  if (predicate.releases.some(linksInClear)) ids.push("nvlink-in-clear");
  ids.push({ none: "memorisation", patients: "patient-scope" }[privacy.dp] ?? "privacy-scope");
  if (privacy.accountant === "gdp") ids.push("accountant-approximate");
  if (collaboration) {
    ids.push(...(kindOf(collaboration.kind)?.limits ?? []));
    const { products } = recipe.lock.recipe?.collaboration ?? {};
    if (collaboration.kind === "federated" && (products ?? null) !== null) ids.push(...kindOf("pads").limits);
  }
  return [...ids, ...ALWAYS];
}
