// Rules of a run whose accelerator travels (spec/travelling.md §5).

import { CannotCheck, concat, demand, digest, fromHex, hex, seconds, sha256 } from "./bytes.js";
import { canonical } from "./json.js";
import { isWritten } from "./logevents.js";

const TOLERANCE = 300;
const PIECE = 2 ** 18;
const [NARROW, WIDE] = [2, 4];
const broken = (condition, message) => demand(condition, "transcript-invalid", message);
const text = (value) => new TextDecoder().decode(canonical(value));

const OURS = /^(?:travel|trip)\./;

/** Settings of the program that trains a recipe with the trainer of its phase. */
async function trainerOf(recipe) {
  const { phase, trainer, collaboration } = recipe;
  const program = { version: 1, phase, recipe: await digest(canonical(recipe)) };
  program.seq_len = phase === "cpt" ? trainer.block_size : trainer.max_length;
  program.batch_size = trainer.per_device_train_batch_size * trainer.gradient_accumulation_steps;
  if (typeof collaboration.max_update_norm === "number") program.max_update_norm = collaboration.max_update_norm;
  return program;
}

/** Settings of the accelerator's program that a recipe means, but for its device. */
async function programOf(recipe) {
  const { model, trainer, collaboration } = recipe;
  if (collaboration.program === "trainer") return trainerOf(recipe);
  const { sequence_privacy: privacy, max_update_norm: norm } = collaboration;
  const { n_layer, n_head, n_embd, vocab_size } = model.config;
  const program = { version: 1, n_layer, n_head, n_embd, vocab_size };
  program.seq_len = trainer.block_size;
  program.batch_size = trainer.per_device_train_batch_size;
  program.seed = model.init_seed;
  for (const name of ["learning_rate", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon", "max_grad_norm"]) {
    program[name] = trainer[name];
  }
  if (model.dtype === "bfloat16") program.dtype = model.dtype;
  if (privacy) program.privacy = privacy;
  if (typeof norm === "number") program.max_update_norm = norm;
  return program;
}

/** Fingerprint under a nonce of so many bytes of a seed's keystream (spec/travelling.md §4). */
async function proofOfWipe(seed, nonce, size) {
  const subtle = globalThis.crypto?.subtle;
  if (!subtle) throw new CannotCheck("this browser offers no WebCrypto on this page");
  const stream = await subtle.importKey("raw", fromHex(seed), "AES-CTR", false, ["encrypt"]);
  const key = await subtle.importKey("raw", fromHex(nonce), "AES-GCM", false, ["encrypt"]);
  const tags = [];
  for (let at = 0; at < size; at += PIECE) {
    const counter = new Uint8Array(16);
    new DataView(counter.buffer).setBigUint64(8, BigInt(at / 16));
    const zeros = new Uint8Array(Math.min(PIECE, size - at));
    const additionalData = new Uint8Array(await subtle.encrypt({ name: "AES-CTR", counter, length: 64 }, stream, zeros));
    const iv = new Uint8Array(12);
    new DataView(iv.buffer).setBigUint64(4, BigInt(at));
    const tag = await subtle.encrypt({ name: "AES-GCM", iv, additionalData }, key, new Uint8Array(0));
    tags.push(new Uint8Array(tag));
  }
  return hex(await sha256(concat(...tags)));
}

class Travel {
  constructor(recipe, program, parties) {
    this.recipe = recipe;
    this.asked = recipe.collaboration;
    this.windows = new Map(parties.map((one) => [one.name, [seconds(one.from), seconds(one.until)]]));
    this.owners = [...new Set(recipe.datasets.filter((one) => one.role === "train").map((one) => one.owner))].sort();
    this.program = program;
    this.width = "recipe" in program || program.vocab_size > 65536 ? WIDE : NARROW;
    this.trips = [];
    this.ids = new Set();
    this.nonces = new Set();
    this.trained = new Map();
    this.steps = 0;
    this.setup = null;
    this.finished = false;
  }

  async read({ event, fields, at }) {
    broken(!this.finished, `${event} after the end`);
    broken((this.setup !== null) === (event !== "travel.setup"), "not one setup before all else");
    await this[STEPS[event]](fields, seconds(at));
  }

  begin(fields) {
    const { device, ...program } = fields.program;
    broken(["cpu", "cuda"].includes(device) && text(program) === text(this.program), "another program than the recipe's");
    broken(fields.buffer === this.asked.buffer_bytes, "another buffer than the recipe's");
    broken(Object.keys(fields.holders).sort().join() === this.owners.join(), "other holders than the recipe's");
    this.fresh(fields.nonce);
    this.setup = fields;
    this.model = fields.model;
  }

  fresh(...nonces) {
    for (const nonce of nonces) {
      broken(!this.nonces.has(nonce), "a nonce or seed was used twice");
      this.nonces.add(nonce);
    }
  }

  of(trip, holds, becomes) {
    const found = this.trips[trip];
    broken(found && holds.includes(found.state), `trip ${trip} is out of order`);
    found.state = becomes;
    return found;
  }

  lend({ trip, holder, start, end, id }) {
    broken(trip === this.trips.length, "trips are not counted");
    broken(Object.hasOwn(this.setup.holders, holder), "a holder that the setup does not name");
    broken(start < end && end <= this.setup.buffer, "a range outside of the buffer");
    broken(!this.ids.has(id), "a capability occurs twice");
    this.ids.add(id);
    this.trips.push({ holder, start, end, state: "lent" });
  }

  write({ trip, size }, at) {
    const { holder, start, end } = this.of(trip, ["lent"], "written");
    broken(size === end - start, "not the whole range was written");
    const window = this.windows.get(holder);
    const inside = window && window[0] - TOLERANCE <= at && at <= window[1] + TOLERANCE;
    broken(inside, "a chunk from outside of its holder's part");
  }

  refuse({ trip, holder }) {
    const found = this.of(trip, ["lent", "written"], "refused");
    broken(found.holder === holder, "a refusal of another holder");
  }

  train({ trip, tokens, nonce, after, moved }) {
    const { holder, start, end } = this.of(trip, ["written"], "trained");
    const { code, holders } = this.setup;
    broken(after.code === code, "another code");
    this.fresh(nonce);
    broken((moved !== undefined) === ("max_update_norm" in this.program), "what bounds a chunk does not show");
    const step = this.program.batch_size * this.program.seq_len;
    broken(tokens > 0 && tokens % step === 0 && tokens * this.width <= end - start, "not whole steps of what was written");
    const whole = (this.trained.get(holder) ?? 0) + tokens;
    broken(whole <= holders[holder] && whole <= this.most(holder), "a holder gave more than its limit");
    this.steps += tokens / step;
    broken(this.steps <= this.recipe.trainer.max_steps, "more steps than the recipe's");
    this.trained.set(holder, whole);
    this.model = after.model;
  }

  most(holder) {
    const { max_tokens: limit } = this.asked;
    if (typeof limit === "number") return limit;
    return limit?.[holder] ?? Infinity;
  }

  async scrub({ trip, seed, nonce, proof }) {
    const { start, end } = this.of(trip, ["trained", "refused"], "scrubbed");
    this.fresh(nonce, seed);
    broken(proof === (await proofOfWipe(seed, nonce, end - start)), "the range was not wiped");
  }

  takeOver({ code, model }) {
    broken(code === this.setup.code && model === this.model, "taken over from another state");
    for (const trip of this.trips) trip.state = "scrubbed";
  }

  finish({ model, privacy }) {
    broken(this.trips.every((one) => one.state === "scrubbed"), "finished before every trip was wiped");
    broken(model === this.model, "another model state than was trained");
    broken((privacy !== undefined) === ("privacy" in this.program), "what was spent does not show");
    this.finished = true;
  }
}

const STEPS = {
  "travel.setup": "begin",
  "trip.lent": "lend",
  "trip.written": "write",
  "trip.refused": "refuse",
  "trip.trained": "train",
  "trip.scrubbed": "scrub",
  "travel.taken-over": "takeOver",
  "travel.finished": "finish",
};

/** The travel that a run log tells of, held to rules 1 to 7. */
export async function travelled({ predicate, need }) {
  const { recipe } = need("lock");
  const travel = new Travel(recipe, await programOf(recipe), predicate.collaboration.parties);
  for (const entry of predicate.run_log.entries) {
    if (!OURS.test(entry.event)) continue;
    broken(isWritten(entry.event, entry.fields), `${entry.event} is unknown or has another form`);
    await travel.read(entry);
  }
  broken(travel.finished, "the travel never finished");
  return travel;
}

export async function tripsHold(state) {
  const travel = await travelled(state);
  const { predicate } = state;
  const tokens = [...travel.trained.values()].reduce((sum, one) => sum + one, 0);
  const counted = predicate.run.steps === travel.steps && predicate.run.tokens === tokens;
  demand(counted, "claim-contradicted", "the run counts other steps or tokens than its trips");
  return `${travel.trips.length} trips, ${travel.steps} steps`;
}
