// Whether a value is a recipe's lock, and what checks read of it (spec/recipe.md §3). Whether the
// appraisal policy in it is one, and the rules between the recipe's fields, are not checked here.

import { digest, utf8 } from "./bytes.js";
import { canonical } from "./json.js";
import { isRecipe } from "./recipe.js";
import * as shape from "./shape.js";

const { either, hex40, hex64, line, list, literal, map, match, nullable, ownerName, record } = shape;
const none = literal(null);
const MOST_SCRIPT = 64 * 1024;

const version = match(/^[A-Za-z0-9.+!_-]{1,64}$/);
const PATH = /^(\.\.\/)?[A-Za-z0-9_][A-Za-z0-9._+@=-]*(\/[A-Za-z0-9_][A-Za-z0-9._+@=-]*)*$/;
const path = (value) => value.length <= 255 && PATH.test(value);
const script = (value) => typeof value === "string" && value.split("\n").every(shape.visible);
const MODEL = record({ kind: literal("folder", "config"), sha256: hex64 });
const TOKENIZER = either(
  record({ kind: literal("folder"), sha256: hex64 }),
  record({ kind: literal("bytes", "sealed", "none"), sha256: none }),
);

/** Kind of collaboration → sealtrain's distributions that its guests need beside the core. */
const TOGETHER = "sealtrain-together";
const ROOMS_OF = {
  travelling: [TOGETHER],
  federated: [TOGETHER],
  pads: [TOGETHER],
  cut: [TOGETHER],
  nodes: ["sealtrain-nodes", TOGETHER],
};

const LOCK = record(
  {
    version: literal(2),
    consortium_id: hex64,
    brokers: (value) =>
      list(hex64, { min: 1, max: 16 })(value) && value.every((one, i) => i === 0 || value[i - 1] < one),
    recipe: isRecipe,
    code: list(record({ name: literal("sealtrain", ...ROOMS_OF.nodes), version, sha256: hex64 }), { min: 1, max: 8 }),
    environment: record({
      python: match(/^3\.[0-9]{1,2}\.[0-9]{1,3}((a|b|rc)[0-9]{1,2})?\+?$/),
      packages: map(match(/^[a-z0-9]([a-z0-9-]{0,98}[a-z0-9])?$/), record({ version, record_sha256: hex64 })),
    }),
    scripts: map(path, script),
    model: either(MODEL, record({ kind: literal("sealed"), sha256: none })),
    tokenizer: TOKENIZER,
    models: map(ownerName, record({ model: MODEL, tokenizer: TOKENIZER })),
  },
  {
    hub: map(ownerName, record({ commit: hex40, licence: nullable(line(128, 1)) })),
    handed_on: record({ app_id: hex40, compose_hash: hex64, recipe_hash: hex64, owner: ownerName, dataset: ownerName }),
    policy: shape.anyObject,
  },
);

const sameNames = (first, second) => Object.keys(first).sort().join("\n") === Object.keys(second).sort().join("\n");
const tokenizerKind = ({ tokenizer }) => (tokenizer === null ? "none" : (tokenizer.kind ?? "folder"));
const modelKind = ({ sealed, config }) => (sealed !== undefined ? "sealed" : config !== undefined ? "config" : "folder");

/** The models that a recipe names, by the names that a lock gives them. */
function modelsOf({ model, reward }) {
  return reward?.model ? { model, reward: reward.model } : { model };
}

function scriptsFit({ recipe, scripts }) {
  const bytes = Object.values(scripts).reduce((sum, text) => sum + utf8(text).length, 0);
  return [...recipe.scripts].sort().join("\n") === Object.keys(scripts).sort().join("\n") && bytes <= MOST_SCRIPT;
}

function codeFits({ recipe, code }) {
  const needed = ["sealtrain", ...(ROOMS_OF[recipe.collaboration?.kind] ?? [])];
  return code.map(({ name }) => name).join() === needed.join();
}

function handOnFits({ recipe, handed_on: pin, brokers }) {
  const named = recipe.release_policy.model.handed_on;
  if ((named === undefined) !== (pin === undefined)) return false;
  if (named === undefined) return true;
  const [count, { threshold }] = [brokers.length, named];
  return count === 1 ? threshold === null : count < 2 * threshold && threshold <= count;
}

function hubFits({ recipe, hub }) {
  const named = Object.entries(modelsOf(recipe)).filter(([, { id }]) => id !== undefined);
  if (hub === undefined) return named.length === 0;
  const held = named.every(([name, { revision }]) => !shape.hex40(revision) || revision === hub[name]?.commit);
  return named.length > 0 && sameNames(hub, Object.fromEntries(named)) && held;
}

async function modelFits(named, model, tokenizer) {
  if (model.kind !== modelKind(named) || tokenizer.kind !== tokenizerKind(named)) return false;
  const { config, dtype, init_seed } = named;
  return config === undefined || (await digest(canonical({ config, dtype, init_seed }))) === model.sha256;
}

/** Whether a value has the form of a lock, and its parts fit each other. */
export async function isLock(value) {
  if (!LOCK(value)) return false;
  const { recipe, brokers, policy } = value;
  const pins = { ...value.models, model: { model: value.model, tokenizer: value.tokenizer } };
  const named = modelsOf(recipe);
  const fits =
    scriptsFit(value) &&
    (policy === undefined) === (typeof recipe.collaboration?.policy !== "string") &&
    codeFits(value) &&
    handOnFits(value) &&
    hubFits(value) &&
    (recipe.schedule?.continue !== "last" || brokers.length === 1) &&
    sameNames(pins, named);
  if (!fits) return false;
  for (const [name, { model, tokenizer }] of Object.entries(pins)) {
    if (!(await modelFits(named[name], model, tokenizer))) return false;
  }
  return true;
}

/** Datasets of a recipe; a series has its name as `name` too. */
export const datasetsOf = ({ datasets }) => datasets.map((one) => ({ ...one, name: one.name ?? one.series }));

/** Needs of a recipe, which every approval states (spec/consortium.md §3). */
export function needsOf(recipe) {
  const actions = ["approve"];
  if (recipe.phase !== "evaluate") actions.push("export_model");
  if (recipe.release_policy.logs !== "none") actions.push("raise_logging");
  return { actions, owners: [...new Set(recipe.datasets.map((one) => one.owner))].sort() };
}

/** What the first release of a run reserves of each protected dataset (spec/key-release.md §4.2). */
export function reservations(recipe) {
  const { privacy } = recipe;
  if (privacy.dp === "none") return [];
  const role = privacy.dp === "sgd" ? "train" : "test";
  return datasetsOf(recipe)
    .filter((one) => one.role === role)
    .map(({ owner, name }) => ({
      owner,
      name,
      epsilon: privacy.target_epsilon,
      delta: privacy.dp === "sgd" ? privacy.delta : 0,
      budget: privacy.budgets[owner] ?? null,
    }));
}
