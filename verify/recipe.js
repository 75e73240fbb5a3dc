// Whether a recipe is one that a lock holds (spec/recipe.md §1, §2): its schema, and what is said of one
// field that no schema can say. Rules between fields are not checked here.

import { canonical } from "./json.js";
import { purposeText } from "./datause.js";
import { RECIPE_SCHEMA } from "./recipeschema.js";
import { validator } from "./schema.js";
import { anyObject, realTime, visible } from "./shape.js";

const CRON = [[0, 23], [1, 31], [1, 12], [0, 6]];
const ITEM = /^(?:\*|([0-9]{1,2})(?:-([0-9]{1,2}))?)(?:\/([0-9]{1,2}))?$/;

/** Five fields in their ranges, the minute one number, not days of the month and of the week (spec/schedule.md §1). */
function isCron(text) {
  const [minute, ...fields] = text.split(" ");
  if (fields.length !== 4 || !/^([0-9]|[1-5][0-9])$/.test(minute)) return false;
  if (fields[1] !== "*" && fields[3] !== "*") return false;
  return fields.every((field, at) =>
    field.split(",").every((item) => {
      const found = ITEM.exec(item);
      if (found === null) return false;
      const [first, last, step] = found.slice(1).map((part) => (part === undefined ? null : Number(part)));
      const bounds = [CRON[at][0], first, last, CRON[at][1]].filter((part) => part !== null);
      const ascends = bounds.every((bound, i) => i === 0 || bounds[i - 1] <= bound);
      return ascends && step !== 0 && !(step !== null && first !== null && last === null);
    }),
  );
}

const LEVELS = 6;
const FOREIGN = ["auto_map", "custom_pipelines", "custom_generate", "trust_remote_code"];

/** Settings that are visible, not nested deeply, and load no code from elsewhere (spec/recipe.md §2.1). */
function isPlain(value, level = 0) {
  if (level > LEVELS) return false;
  if (typeof value === "string") return visible(value);
  if (Array.isArray(value)) return value.every((item) => isPlain(item, level + 1));
  if (!anyObject(value)) return true;
  return Object.entries(value).every(([key, item]) => {
    const kernel = () => key.includes("implementation") && new TextDecoder().decode(canonical(item)).includes("/");
    const foreign = FOREIGN.includes(key) || key.startsWith("_");
    return visible(key) && !foreign && isPlain(item, level + 1) && !kernel();
  });
}

const keepsSchema = validator(RECIPE_SCHEMA, { visible, "date-time": realTime, cron: isCron });

/** Whether a value is a recipe as far as its schema and each field by itself say. */
export function isRecipe(value) {
  if (!keepsSchema(value)) return false;
  const { purpose, model, backend, columns } = value;
  if (columns?.features?.includes(columns.label)) return false;
  for (const numbers of [backend?.resume_ranks, value.collaboration?.resume_nodes]) {
    if (numbers?.some((number, at) => at > 0 && number <= numbers[at - 1])) return false;
  }
  if (purpose !== undefined && !purposeText(purpose)) return false;
  if (model.config === undefined) return true;
  const { model_type: type } = model.config;
  return typeof type === "string" && type !== "" && isPlain(model.config);
}
