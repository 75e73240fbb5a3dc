// What checks read of a recipe's lock (spec/recipe.md §3). The recipe's own schema is not read here:
// whether a lock keeps it was decided by whoever locked, and by the owners who approved its digest.

import { legalBasis, purposeText } from "./datause.js";
import * as shape from "./shape.js";

const { either, list, literal, map, nullable, record, string } = shape;
const open = (fields) => (value) =>
  shape.anyObject(value) && Object.keys(fields).every((name) => fields[name](value[name]));
const PIN = record({ kind: literal("folder", "config", "sealed", "bytes", "none"), sha256: nullable(shape.hex64) });
const optional = (form) => (value) => value === undefined || form(value);

const absent = (value) => value === undefined;

const RECIPE = open({
  version: literal(1),
  name: shape.ownerName,
  purpose: optional(purposeText),
  legal_basis: optional(legalBasis),
  phase: string,
  datasets: list(
    either(
      open({ owner: shape.ownerName, name: shape.ownerName, series: absent, role: literal("train", "test", "model") }),
      open({ owner: shape.ownerName, series: shape.ownerName, name: absent, role: literal("train", "test") }),
    ),
    { min: 1, max: 256 },
  ),
  model: shape.anyObject,
  columns: shape.anyObject,
  privacy: open({ dp: literal("none", "sgd", "counts") }),
  release_policy: open({
    metrics: list(string),
    round_to: shape.integer(0, 8),
    logs: literal("none", "error-summary", "structured"),
    model: open({ recipients: list(shape.ownerName) }),
  }),
  hardware: open({
    platforms: list(string, { min: 1 }),
    image: nullable(string),
    key_provider: string,
    key_provider_id: nullable(string),
  }),
  collaboration: optional(open({ kind: string })),
  scripts: optional(list(string)),
});

const LOCK = record(
  {
    version: literal(2),
    consortium_id: shape.hex64,
    brokers: (value) =>
      list(shape.hex64, { min: 1, max: 16 })(value) &&
      value.every((one, i) => i === 0 || value[i - 1] < one),
    recipe: RECIPE,
    code: record({ sealtrain: string, sha256: shape.hex64 }),
    environment: record({
      python: string,
      packages: map(string, record({ version: string, record_sha256: shape.hex64 })),
    }),
    scripts: map(string, string),
    model: PIN,
    tokenizer: PIN,
    models: map(string, record({ model: PIN, tokenizer: PIN })),
  },
  {
    hub: shape.anyObject,
    handed_on: record({
      app_id: shape.hex40,
      compose_hash: shape.hex64,
      recipe_hash: shape.hex64,
      owner: shape.ownerName,
      dataset: shape.ownerName,
    }),
    policy: shape.anyObject,
  },
);

/** Whether a value has the form of a lock whose parts fit each other. */
export function isLock(value) {
  if (!LOCK(value)) return false;
  const { recipe, scripts, models, model } = value;
  const further = recipe.reward?.model ? ["reward"] : [];
  const kind = recipe.model.sealed !== undefined ? "sealed" : recipe.model.config !== undefined ? "config" : "folder";
  const listed = recipe.scripts === undefined ? [] : recipe.scripts;
  const handsOn = Boolean(recipe.release_policy.model.handed_on);
  return (
    Object.keys(models).join() === further.join() &&
    model.kind === kind &&
    [...listed].sort().join("\n") === Object.keys(scripts).sort().join("\n") &&
    handsOn === "handed_on" in value
  );
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
