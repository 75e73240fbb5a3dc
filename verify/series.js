// Series of datasets and standing approvals (spec/approvals.md §2.1 and §5.2, spec/run-manifest.md §2.4).

import { demand, digest, seconds, utf8 } from "./bytes.js";
import { isFor, readDataset, readDecision } from "./consortium.js";
import { canonical } from "./json.js";
import { datasetsOf } from "./lock.js";
import * as shape from "./shape.js";

const { integer, list, literal, number, record } = shape;
const TOLERANCE = 300;
const ROUNDING = 1e-9;
const MAX_MEMBERS = 512;
const claim = (condition, message) => demand(condition, "claim-contradicted", message);
const whole = (condition, message) => demand(condition, "series-mismatch", message);
const proven = (condition, message) => demand(condition, "proof-invalid", message);
const nameOf = ({ owner, name }) => `${owner}/${name}`;

/** Digest of a member, which covers all before it. */
export const memberDigest = ({ owner, dataset_id, root, records, schema_digest, series }) =>
  digest(
    utf8("sealtrain/series-member/v1:"),
    canonical({ owner, dataset_id, root, records, schema_digest, series }),
  );

async function follows(member, before) {
  const { series } = member;
  whole(series !== undefined && series.number === before.length + 1, "a gap in a series, or a dataset in none");
  if (before.length === 0) return;
  const [first] = before;
  const last = before[before.length - 1];
  whole(series.mode === last.series.mode, "a successor of another mode");
  whole(series.previous === (await memberDigest(last)), "a successor that names another member before it");
  const { bounds } = first.series;
  if (bounds === undefined) return;
  whole(bounds.schema !== "same" || member.schema_digest === first.schema_digest, "a successor with other columns");
  if (member.records === null || (series.mode === "replace" && last.records === null)) return;
  const growth = member.records - (series.mode === "replace" ? last.records : 0);
  const { min_growth: least = -Infinity, max_growth: most = Infinity } = bounds;
  whole(least <= growth && growth <= most, "a successor that grew less or more than its series allows");
}

async function chainOf(item, found, owners) {
  const former = [];
  for (const envelope of item.former) former.push(await readDataset(envelope, owners));
  const read = item.members.map((id) => found.find((one) => one.dataset_id === id));
  claim(!read.includes(undefined), "a series lists a member that is not among the datasets");
  const members = [...former, ...read];
  const chain = [];
  for (const member of members) {
    whole(nameOf(member) === nameOf(item), "a series lists a dataset of another owner or name");
    await follows(member, chain);
    chain.push(member);
  }
  const expected = chain[0].series.mode === "append" ? chain.length : 1;
  whole(read.length === expected, "not the members that a run of this mode reads");
  const own = found.filter((one) => nameOf(one) === nameOf(item));
  whole(own.length === read.length, "a dataset of the series' name is left out");
  return chain;
}

/** (10) Every series of the lock is one chain: members up to the newest, by owner and name. */
export async function chainsOf(predicate, recipe, found, owners) {
  const series = predicate.series ?? [];
  const asked = datasetsOf(recipe).filter((one) => one.series !== undefined);
  claim(series.map(nameOf).join() === asked.map(nameOf).join(), "not the series that the recipe names");
  const chains = new Map();
  for (const item of series) chains.set(nameOf(item), await chainOf(item, found, owners));
  return chains;
}

/** Whether an owner's approval admits a dataset of that owner, root aside. */
export async function admits(statement, dataset, chains) {
  const { datasets: pins, standing } = statement;
  if (pins.some((one) => one.dataset_id === dataset.dataset_id)) return true;
  if (standing?.series === undefined) return pins.length === 0;
  const chain = chains.get(nameOf(dataset)) ?? [];
  if (!chain.some((one) => one.dataset_id === dataset.dataset_id)) return false;
  const approved = standing.series.find((one) => one.name === dataset.name);
  return approved !== undefined && approved.first === (await memberDigest(chain[0]));
}

const NEWEST = record({
  owner: shape.ownerName,
  name: shape.ownerName,
  number: integer(1, MAX_MEMBERS),
  member: shape.hex64,
});
const USE = record(
  { owner: shape.ownerName, approval: shape.hex64, run: integer(1) },
  { epsilon: number((value) => value >= 0) },
);

function items(body, name, form) {
  if (!Object.hasOwn(body, name)) return [];
  proven(list(form, { min: 1 })(body[name]), `${name} has another form`);
  return body[name];
}

/** (13) The entry with which a run begins counts it, and names the newest member of each series. */
export async function beginsAsAllowed(state, { receipt, ids }, body) {
  if (receipt.kind !== "release" || receipt.resume) {
    const silent = !Object.hasOwn(body, "standing") && !Object.hasOwn(body, "series");
    proven(silent, "only the entry with which a run begins counts it");
    return;
  }
  state.need("datasets");
  await newestRead(state.chains, receipt, items(body, "series", NEWEST));
  await counted(state, receipt, ids, items(body, "standing", USE));
}

async function newestRead(chains, receipt, stated) {
  const said = new Map(stated.map((item) => [nameOf(item), item]));
  proven(said.size === stated.length, "the newest member of a series is stated twice");
  whole([...said.keys()].every((name) => chains.has(name)), "a series that the recipe does not read");
  const place = ({ owner_id, dataset_id }) => `${owner_id}/${dataset_id}`;
  const released = new Set(receipt.datasets.map(place));
  for (const [name, chain] of chains) {
    const item = said.get(name);
    const handedOut = chain.some((one) => released.has(place(one)));
    proven(item !== undefined || !handedOut, "the newest member of a released series is not stated");
    if (item === undefined) continue;
    const newest = chain[chain.length - 1];
    const same = item.number === newest.series.number && item.member === (await memberDigest(newest));
    whole(same, "the broker knew another newest member than the run read");
  }
}

async function counted(state, receipt, ids, uses) {
  const { predicate, owners, consortiumId } = state;
  const names = uses.map((use) => use.owner);
  const order = predicate.consortium.owners.map((one) => one.name).filter((name) => names.includes(name));
  const ours = names.join() === order.join() && names.every((name) => receipt.approved_by.includes(name));
  proven(ours, "approvals of other owners than the receipt names are counted");
  const known = [];
  for (const envelope of predicate.approvals) known.push(await readDecision(envelope, owners, consortiumId));
  const until = seconds(receipt.released_at) + TOLERANCE;
  const target = { ...predicate.deployment, recipe_hash: predicate.recipe.recipe_hash };
  const approvals = known.filter(
    ({ statement }) =>
      isFor({ statement }, ids) &&
      statement.decision === "approve" &&
      ["app_id", "compose_hash", "recipe_hash"].every((name) => statement[name] === target[name]) &&
      seconds(statement.signed_at) <= until,
  );
  for (const use of uses) {
    const signed = approvals.find((one) => one.owner === use.owner && one.digest === use.approval);
    const terms = signed?.statement.standing;
    const fits = terms !== undefined && (terms.epsilon === undefined) === (use.epsilon === undefined);
    proven(fits, "an approval is counted that the manifest does not hold");
    demand(use.run <= terms.runs, "approval-spent", "one run more than the standing approval allows");
    const within = use.epsilon === undefined || use.epsilon <= terms.epsilon + ROUNDING;
    demand(within, "budget-spent", "more epsilon than the standing approval allows");
  }
  for (const owner of receipt.approved_by) {
    const plain = approvals.some((one) => one.owner === owner && one.statement.standing === undefined);
    proven(names.includes(owner) || plain, "the run is not counted under a standing approval");
  }
}
