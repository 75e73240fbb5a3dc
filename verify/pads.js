// Rules of a run under one-time pads (spec/one-time-pads.md §8).

import { demand } from "./bytes.js";
import { canonical } from "./json.js";
import { isWritten } from "./logevents.js";
import { BEGINNINGS } from "./stays.js";

const claim = (condition, message) => demand(condition, "claim-contradicted", message);
const text = (value) => new TextDecoder().decode(canonical(value));

/** Whether a session of pads began as a recipe asks for (spec/one-time-pads.md §8, rule 2). */
export const beganAsAsked = (begun, asked) =>
  ["pads", "checks", "skip"].every((name) => text(begun[name]) === text(asked[name])) &&
  (begun.dealer !== null) === (asked.pads === "dealer");

export async function padsHold(state) {
  const { predicate } = state;
  const asked = state.need("lock").recipe.collaboration;
  let layers = null;
  let begun = false;
  let spent = null;
  let products = 0;
  for (const { event, fields } of predicate.run_log.entries) {
    if (BEGINNINGS.includes(event)) {
      if (spent) products += spent.products;
      begun = false;
      spent = null;
    } else if (event === "pads.begun") {
      claim(isWritten(event, fields), "pads.begun has another form");
      claim(!begun, "pads are begun twice in one process");
      claim(beganAsAsked(fields, asked), "pads are begun otherwise than the recipe says");
      claim(layers === null || layers === text(fields.layers), "other layers than before");
      layers = text(fields.layers);
      begun = true;
    } else if (event === "pads.spent") {
      claim(isWritten(event, fields), "pads.spent has another form");
      claim(begun, "pads are spent before they are begun");
      const falls = spent && Object.keys(fields).some((name) => fields[name] < spent[name]);
      claim(!falls, "a count falls");
      spent = fields;
    } else if (event === "checkpoint.sealed" || event === "training.finished") {
      claim(spent, "work without products of the accelerator");
    } else {
      claim(!event.startsWith("pads."), `unknown event ${event}`);
    }
  }
  claim(layers !== null, "pads were never begun");
  return `${products + (spent?.products ?? 0)} products by an accelerator that sees none of their inputs`;
}
