// Rules of a run whose model is cut between owners and a guest (spec/split-cut.md §4).

import { Refusal, demand, seconds } from "./bytes.js";
import { readOwned } from "./consortium.js";
import { isWritten } from "./logevents.js";
import * as shape from "./shape.js";

const { count, list, literal, record } = shape;
const TOLERANCE = 300;
const claim = (condition, message) => demand(condition, "claim-contradicted", message);
const ids = (values) => values.every((one, i) => i === 0 || values[i - 1].dataset_id < one.dataset_id);

const ORDER = ["cut.begun", "cut.joined", "cut.received", "cut.finished"];

const CONSENT = record({
  version: literal(1),
  consortium_id: shape.hex64,
  owner: shape.ownerName,
  owner_id: shape.hex64,
  nonce: shape.hex32,
  signed_at: shape.realTime,
  run_id: shape.hex32,
  app_id: shape.hex40,
  compose_hash: shape.hex64,
  recipe_hash: shape.hex64,
  datasets: (value) =>
    list(record({ dataset_id: shape.hex32, name: shape.ownerName, root: shape.hex64, rows: count }), {
      min: 1,
      max: 1024,
    })(value) && ids(value),
});

export async function cutHolds(state) {
  const { predicate } = state;
  const { recipe } = state.need("lock");
  const events = predicate.run_log.entries.filter((one) => one.event.startsWith("cut."));
  let place = 0;
  for (const { event, fields } of events) {
    claim(isWritten(event, fields), `${event} is unknown or has another form`);
    claim(ORDER.indexOf(event) >= place, `${event} is out of order`);
    place = ORDER.indexOf(event);
  }
  const of = (name) => events.filter((one) => one.event === name).map((one) => one.fields);
  const [begun, finished] = [of("cut.begun"), of("cut.finished")];
  claim(begun.length === 1 && finished.length === 1, "not begun and finished once");
  for (const name of ["layers", "wire", "spf_share"]) {
    claim(begun[0][name] === recipe.collaboration[name], `another ${name} than the recipe's`);
  }
  const consents = new Map();
  for (const { party, consent } of of("cut.joined")) {
    const document = await consentOf(state, party, consent);
    claim(!consents.has(party), "a consent is given twice");
    consents.set(party, document);
  }
  const listed = predicate.collaboration.parties.map((one) => one.name).sort().join();
  const owners = [...new Set(recipe.datasets.map((one) => one.owner))].sort().join();
  const joined = [...consents.keys()].sort().join();
  claim(listed === joined && joined === owners, "parties, consents and owners differ");
  const known = new Map(state.need("datasets").map((one) => [one.dataset_id, one]));
  const rows = new Map();
  for (const [party, { datasets }] of consents) {
    const own = [...known.values()].filter((one) => one.owner === party);
    claim(own.length === datasets.length, "a consent is to other datasets");
    for (const one of datasets) {
      const { owner, name, root, records } = known.get(one.dataset_id) ?? {};
      claim(owner === party && name === one.name && root === one.root, "a consent is to another dataset or root");
      claim(records === null || one.rows <= records, "a consent to more rows than the dataset has");
      rows.set(one.dataset_id, { party, rows: one.rows });
    }
  }
  const seen = new Set();
  for (const { party, dataset_id: id, rows: got } of of("cut.received")) {
    claim(rows.has(id) && rows.get(id).party === party, "a dataset came from another party");
    claim(!seen.has(id), "a dataset came twice");
    claim(got <= rows.get(id).rows, "more rows than consented to");
    seen.add(id);
  }
  claim(seen.size === rows.size, "a dataset never came");
  for (const { event, fields } of predicate.run_log.entries) {
    if (event !== "data.counted") continue;
    claim(isWritten(event, fields), "counts of another form");
    for (const [id, counts] of Object.entries(fields)) {
      if (counts === null || !rows.has(id)) continue;
      claim(counts.whole + counts.truncated === rows.get(id).rows, "other records counted than consented to");
    }
  }
  return `${consents.size} owners gave their consent and kept their records`;
}

async function consentOf({ predicate, owners, consortiumId }, party, envelope) {
  const type = "application/vnd.sealtrain.cut-consent+json";
  const { owner, document } = await readOwned(envelope, owners, consortiumId, { type, form: CONSENT, what: "consent" });
  const { run, deployment, recipe } = predicate;
  claim(owner === party, "a consent by another owner");
  const target = { run_id: run.run_id, app_id: deployment.app_id, compose_hash: deployment.compose_hash, recipe_hash: recipe.recipe_hash };
  const fits = Object.keys(target).every((name) => document[name] === target[name]);
  demand(fits, "run-mismatch", "a consent to another run, deployment or recipe");
  const at = seconds(document.signed_at);
  const [first, last] = [seconds(run.started_at), seconds(run.finished_at)];
  if (first === null || last === null) throw new Refusal("claim-contradicted", "no such time");
  claim(first - TOLERANCE <= at && at <= last + TOLERANCE, "a consent from outside the run");
  return document;
}
