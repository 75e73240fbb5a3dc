// The guests that held keys in a run, and when (spec/parties.md, spec/run-manifest.md §4.1).

import { demand, digest, seconds, utf8 } from "./bytes.js";
import { isWritten } from "./logevents.js";

/** What a kind of collaboration asks of the manifest; `null` for one guest. */
const KINDS = {
  travelling: { role: "holder", limits: ["parties-evidence", "lent-by-software"] },
  federated: { role: "holder", limits: ["parties-evidence", "updates-merged"] },
  pads: { role: null, limits: ["base-model-public", "outsourced-shapes", "dealer-apart"] },
  cut: { role: "client", limits: ["activations-reveal", "clients-word"], keys: false },
  nodes: { role: null, limits: ["nodes-evidence"] },
};

export const kindOf = (name) => (Object.hasOwn(KINDS, name) ? KINDS[name] : null);
const runId = async (whole) => (await digest(utf8(whole))).slice(0, 32);
export const partyRunId = (run, party) => runId(`sealtrain/party/v1:${run}/${party}`);
export const nodeRunId = (run, session, node) => runId(`sealtrain/node/v1:${run}/${session}/${node}`);

/** Seconds of a time in the manifest; refused where no calendar has it. */
export function moment(value) {
  const found = seconds(value);
  demand(found !== null, "claim-contradicted", `no such time: ${value}`);
  return found;
}

/** Whether brokers released keys to a run. */
export const keysReleased = ({ collaboration }) =>
  !collaboration || (kindOf(collaboration.kind)?.keys ?? true);

/** Every guest that held keys: `{runId, party, begins, until, leads}`. */
export async function staysOf(predicate) {
  const { run, collaboration } = predicate;
  const ends = { begins: moment(run.started_at), until: moment(run.finished_at) };
  const own = { runId: run.run_id, party: null, leads: true, ...ends };
  if (!collaboration || !kindOf(collaboration.kind)?.role) {
    return collaboration?.kind === "nodes" ? [own, ...(await nodes(predicate))] : [own];
  }
  return Promise.all(
    collaboration.parties.map(async (party) => ({
      runId: await partyRunId(run.run_id, party.name),
      party: party.name,
      leads: false,
      begins: moment(party.from),
      until: moment(party.until),
    })),
  );
}

export const BEGINNINGS = ["run.started", "run.restarted", "run.resumed"];
const WORK = ["checkpoint.sealed", "outputs.sealed", "training.finished"];

/** The meetings of a run log: what was joined, and when that was over (spec/nodes.md §5). */
export function meetings({ run, run_log: { entries } }) {
  const claim = (condition, message) => demand(condition, "claim-contradicted", message);
  const found = [];
  let there = false;
  let anew = false;
  let latest = null;
  for (const { event, at: written, fields } of entries) {
    const at = moment(written);
    if (BEGINNINGS.includes(event)) {
      if (there) found.at(-1).until = latest;
      there = false;
      anew = event !== "run.started";
    } else if (event === "nodes.joined") {
      claim(!there, "nodes joined twice without an interruption");
      claim(isWritten(event, fields), "nodes.joined has another form");
      found.push({ ...fields, at, anew, until: null });
      there = true;
    }
    claim(there || !WORK.includes(event), `${event} without nodes that had joined`);
    if (event === "training.finished") found.at(-1).until ??= at;
    latest = at;
  }
  return found.map((one) => ({ ...one, until: one.until ?? moment(run.finished_at) }));
}

async function nodes(predicate) {
  const all = meetings(predicate).flatMap(({ session, nodes: joined, until }) =>
    joined.map(async ({ node, from }) => ({
      runId: await nodeRunId(predicate.run.run_id, session, node),
      party: null,
      leads: false,
      begins: moment(from),
      until,
    })),
  );
  return Promise.all(all);
}

/** Check 10's first half: the parties are the recipe's. Returns the owners whose data is listed. */
export async function checkParties(predicate, recipe) {
  const { collaboration, run } = predicate;
  const claim = (condition, message) => demand(condition, "claim-contradicted", message);
  const owners = new Set(recipe.datasets.map((one) => one.owner));
  const kind = collaboration?.kind ?? null;
  claim(kind === (recipe.collaboration?.kind ?? null), "another kind of collaboration");
  const role = kind === null ? null : kindOf(kind)?.role;
  if (!role) {
    claim(!collaboration?.parties.length, "parties in a run of one guest");
    return owners;
  }
  const names = collaboration.parties.map((one) => one.name);
  claim(new Set(names).size === names.length, "a party is listed twice");
  for (const party of collaboration.parties) {
    claim(owners.has(party.name), "a party that is no owner of data");
    claim(party.run_id === (await partyRunId(run.run_id, party.name)), "another run id of a party");
    claim(party.role === role, "another role of a party");
  }
  const holders = new Set(recipe.datasets.filter((one) => one.role === "train").map((one) => one.owner));
  const needed = { travelling: holders.size, federated: recipe.collaboration.min_parties, cut: 1 }[kind];
  claim(names.filter((name) => holders.has(name)).length >= needed, "a party is missing");
  return new Set(names);
}
