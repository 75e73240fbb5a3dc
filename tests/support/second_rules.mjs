// Hold many run logs to the rules of their kinds: a JSON object a line in, a code or null out.

import { createInterface } from "node:readline";

import { CannotCheck, Refusal } from "../../verify/bytes.js";
import { consortiumId, ownersOf } from "../../verify/consortium.js";
import { mergedRounds } from "../../verify/federated.js";
import { RULES } from "../../verify/kinds.js";
import { travelled } from "../../verify/travelling.js";

/** The rules that our functions judge: what the manifest counts beside the log is left out. */
const OF_LOGS = { ...RULES, federated: mergedRounds, travelling: travelled };

async function judged({ kind, entries, recipe, run = {}, parties = [], datasets = [], consortium, deployment = {} }) {
  const predicate = {
    run,
    run_log: { entries },
    collaboration: { kind, parties },
    deployment,
    recipe: { recipe_hash: deployment.recipe_hash },
  };
  const facts = { lock: { recipe }, datasets };
  const state = { predicate, need: (name) => facts[name] };
  if (consortium) {
    state.consortiumId = await consortiumId(consortium);
    state.owners = await ownersOf(consortium);
  }
  await OF_LOGS[kind](state);
}

for await (const line of createInterface({ input: process.stdin })) {
  let code = null;
  try {
    await judged(JSON.parse(line));
  } catch (error) {
    if (error instanceof Refusal) code = error.code;
    else if (error instanceof CannotCheck) code = "not-checked";
    else code = `fault ${error.stack}`;
  }
  process.stdout.write(`${JSON.stringify(code)}\n`);
}
