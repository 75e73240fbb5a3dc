// Rules of federated rounds (spec/federated-rounds.md §6).

import { demand, seconds } from "./bytes.js";
import { canonical } from "./json.js";
import { isWritten } from "./logevents.js";
import { beganAsAsked } from "./pads.js";
import { epsilonOf } from "./privacyloss.js";

const claim = (condition, message) => demand(condition, "claim-contradicted", message);
const names = (values) => [...values].sort().join();
const text = (value) => new TextDecoder().decode(canonical(value));
const COUNTS = ["products", "rows", "bytes_out", "bytes_in"];
const NOTHING = Object.fromEntries(COUNTS.map((name) => [name, 0]));
const TOLERANCE = 300;
const SHARE = 0.98;

/** Fields that an event has exactly where patients are hidden, and those that are null then. */
const IF_HIDDEN = { "party.joined": ["patients"], "round.merged": ["noise_multiplier"] };
const NULL_IF_HIDDEN = { "update.taken": ["digest", "norm"] };

/** Whether the log of a federation that hides patients, or hides none, may have an event. */
function isTold(event, fields, hidden) {
  if (!isWritten(event, fields) || (event === "federation.planned" && !hidden)) return false;
  return (
    (IF_HIDDEN[event] ?? []).every((name) => Object.hasOwn(fields, name) === hidden) &&
    (NULL_IF_HIDDEN[event] ?? []).every((name) => (fields[name] === null) === hidden)
  );
}

/** Sessions of pads, where an accelerator multiplies for the parties: each one party's, and forward only. */
class Sessions {
  constructor({ products, local_steps: steps }) {
    this.asked = products ?? null;
    this.steps = steps;
    this.layers = null;
    this.last = new Map();
  }

  join(begun) {
    claim((begun !== undefined) === (this.asked !== null), "other products made elsewhere than the recipe's");
    if (!begun) return;
    claim(beganAsAsked(begun, this.asked), "pads are begun otherwise than the recipe says");
    const layers = text(begun.layers);
    claim((this.layers ?? layers) === layers, "pads are begun for other layers than the others'");
    this.layers = layers;
  }

  give(party, spent) {
    claim((spent !== undefined) === (this.asked !== null), "other products counted than the recipe's");
    if (!spent) return;
    const { owner, counts } = this.last.get(spent.session) ?? { owner: party, counts: NOTHING };
    claim(owner === party, "pads of another party");
    claim(COUNTS.every((name) => spent[name] >= counts[name]), "pads that were used before");
    const [products, rows] = COUNTS.map((name) => spent[name] - counts[name]);
    claim(this.steps <= products && products <= rows, "an update of fewer products than steps");
    this.last.set(spent.session, { owner: party, counts: spent });
  }
}

class Federation {
  constructor(state) {
    const { collaboration, datasets } = state.need("lock").recipe;
    this.asked = collaboration;
    this.sessions = new Sessions(collaboration);
    this.hidden = collaboration.patient_privacy ?? null;
    this.stays = new Map(state.predicate.collaboration.parties.map((one) => [one.name, one]));
    this.holders = new Set(datasets.filter((one) => one.role === "train").map((one) => one.owner));
    this.records = recordsOf(state, datasets);
    this.present = new Map();
    this.patients = new Map();
    this.merged = new Set();
    this.begun = false;
    this.finished = false;
    this.plan = null;
    this.round = 0;
    this.open = false;
    this.taken = new Set();
    this.state = null;
  }

  read({ event, fields, at }) {
    if (event !== "federation.begun") claim(this.begun, `${event} before the federation begins`);
    claim(!this.finished, `${event} after the federation finished`);
    this[STEPS[event]](fields, seconds(at));
  }

  begin(fields) {
    const { aggregation, rounds, min_parties: least } = this.asked;
    claim(!this.begun, "a federation begins twice");
    const same = fields.rule === aggregation && fields.rounds === rounds && fields.min_parties === least;
    claim(same && names(fields.parties) === names(this.holders), "another federation than the recipe's");
    this.begun = true;
    this.state = fields.state;
  }

  join({ party, records, patients, products }) {
    claim(this.holders.has(party) && !this.present.has(party), "a party that is no owner, or present already");
    claim(records === this.records.get(party), "another number of records than its manifests say");
    if (this.hidden) {
      claim((this.patients.get(party) ?? patients) === patients, "another number of patients than before");
      this.patients.set(party, patients);
    }
    this.sessions.join(products);
    this.present.set(party, records);
  }

  leave({ party }) {
    claim(this.present.delete(party), "a party left that was not present");
  }

  refuse() {}

  planned(fields) {
    claim(this.plan === null && this.round === 0, "the noise is planned twice, or too late");
    const there = [...this.present.keys()];
    const same = names(Object.keys(fields.patients)) === names(there);
    claim(same && there.every((one) => fields.patients[one] === this.patients.get(one)), "planned for other patients");
    const all = there.reduce((sum, one) => sum + this.patients.get(one), 0);
    const rate = this.hidden.patients_a_round / all;
    claim(Math.abs(fields.rate - rate) <= 1e-9 * rate, "another rate than the recipe's");
    const noise = this.hidden.noise_multiplier ?? null;
    claim(noise === null || noise === fields.noise_multiplier, "another noise than the recipe's");
    claim(fields.epsilon <= this.hidden.target_epsilon, "epsilon is above the recipe's");
    const own = epsilonOf({ noise: fields.noise_multiplier, rate: fields.rate, steps: this.asked.rounds, delta: this.hidden.delta });
    claim(fields.epsilon >= SHARE * own, "epsilon is too small for this noise");
    this.plan = fields;
  }

  open_round(fields) {
    claim(!this.open && fields.round === this.round + 1, "a round is out of order");
    claim(fields.round <= this.asked.rounds, "more rounds than the recipe's");
    claim(!this.hidden || this.plan, "a round before the noise was planned");
    claim(fields.state === this.state, "a round begins from another state");
    this.round = fields.round;
    this.open = true;
    this.taken = new Set();
  }

  take({ round: of, party, records, products }, at) {
    claim(this.open && of === this.round, "an update outside of its round");
    claim(this.present.has(party) && !this.taken.has(party), "an update of an absent party, or a second one");
    claim(records === this.present.get(party), "another number of records than at its join");
    const stay = this.stays.get(party);
    claim(stay, "an update of a party that the manifest does not name");
    const [from, until] = [seconds(stay.from), seconds(stay.until)];
    claim(from - TOLERANCE <= at && at <= until + TOLERANCE, "an update while its party took no part");
    this.sessions.give(party, products);
    this.taken.add(party);
  }

  refuse_update({ round: of, party }) {
    claim(this.holders.has(party), "a refusal of a party that is no owner");
    claim(of <= this.round, "a refusal of a later round");
  }

  merge(fields) {
    claim(this.open && fields.round === this.round, "a round is merged out of order");
    claim(fields.rule === this.asked.aggregation, "another rule than the recipe's");
    const listed = fields.parties;
    const same = new Set(listed).size === listed.length && names(listed) === names(this.taken);
    claim(same && listed.length >= this.asked.min_parties, "merged of other parties than gave an update");
    claim(!this.hidden || fields.noise_multiplier === this.plan.noise_multiplier, "merged under another noise");
    for (const party of listed) this.merged.add(party);
    this.state = fields.state;
    this.open = false;
  }

  finish(fields) {
    const over = !this.open && this.round === this.asked.rounds && fields.rounds === this.round;
    claim(over && fields.state === this.state, "finished before its last round, or with another state");
    this.finished = true;
  }
}

const STEPS = {
  "federation.begun": "begin",
  "party.joined": "join",
  "party.left": "leave",
  "party.refused": "refuse",
  "federation.planned": "planned",
  "round.begun": "open_round",
  "update.taken": "take",
  "update.refused": "refuse_update",
  "round.merged": "merge",
  "federation.finished": "finish",
};
const OURS = /^(?:federation|party|round|update)\./;

/** Number of each party's training records, null where one of its manifests states no number. */
function recordsOf(state, asked) {
  const training = new Set(asked.filter((one) => one.role === "train").map((one) => `${one.owner}/${one.name}`));
  const result = new Map();
  for (const { owner, name, records } of state.need("datasets")) {
    const own = training.has(`${owner}/${name}`) ? records : 0;
    const before = result.has(owner) ? result.get(owner) : 0;
    result.set(owner, before === null || records === null ? null : before + own);
  }
  return result;
}

/** The federation that a run log tells of, held to rules 1 to 10. */
export function mergedRounds(state) {
  const { predicate } = state;
  const federation = new Federation(state);
  const hidden = federation.hidden !== null;
  for (const entry of predicate.run_log.entries) {
    if (!OURS.test(entry.event)) continue;
    claim(isTold(entry.event, entry.fields, hidden), `${entry.event} is unknown or has another form`);
    federation.read(entry);
  }
  claim(federation.finished, "the federation never finished");
  const listed = predicate.collaboration.parties.map((one) => one.name);
  claim(names(listed) === names(federation.merged), "other parties than those whose updates were merged");
  return federation;
}

export async function roundsHold(state) {
  const federation = mergedRounds(state);
  if (federation.hidden) privacyFollows(state.predicate, federation);
  return `${federation.round} rounds of ${federation.merged.size} parties`;
}

function privacyFollows({ privacy, collaboration }, { hidden, plan, asked, patients }) {
  const expected = {
    epsilon: plan.epsilon,
    delta: hidden.delta,
    accountant: hidden.accountant,
    noise_multiplier: plan.noise_multiplier,
    max_patient_norm: hidden.max_patient_norm,
    records_a_patient: hidden.records_a_patient,
    sample_rate: plan.rate,
    rounds: asked.rounds,
  };
  for (const [name, value] of Object.entries(expected)) {
    claim(privacy[name] === value, `another ${name} than the plan's`);
  }
  const parties = collaboration.parties.map((one) => one.name).sort();
  const same = privacy.parties.map((one) => one.name).join() === parties.join();
  claim(same && privacy.parties.every((one) => one.patients === patients.get(one.name)), "patients of other parties");
}
