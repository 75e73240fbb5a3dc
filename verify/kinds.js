// Check 18: the run log's rules of each kind of collaboration (spec/parties.md §5).

import { demand } from "./bytes.js";
import { cutHolds } from "./cut.js";
import { roundsHold } from "./federated.js";
import { nodesHold } from "./nodes.js";
import { padsHold } from "./pads.js";
import { tripsHold } from "./travelling.js";

/** Kind → examination of a state: returns one line for a reader, or throws what it refuses. */
export const RULES = {
  cut: cutHolds,
  federated: roundsHold,
  nodes: nodesHold,
  pads: padsHold,
  travelling: tripsHold,
};

/** (18) What the parties did together follows the rules of their kind. */
export async function collaborationHolds(state) {
  const stated = state.predicate.collaboration;
  const asked = state.need("lock").recipe.collaboration;
  if (!stated && !asked) return "one guest, no other party";
  state.need("datasets");
  state.need("log");
  const known = stated && Object.hasOwn(RULES, stated.kind);
  demand(known, "claim-contradicted", "no verifier has rules for this kind");
  return RULES[stated.kind](state);
}
