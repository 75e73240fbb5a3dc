// Rules of a run of several nodes (spec/nodes.md §5).

import { demand, seconds } from "./bytes.js";
import { meetings, nodeRunId } from "./stays.js";

const TOLERANCE = 300;
const claim = (condition, message) => demand(condition, "claim-contradicted", message);

export async function nodesHold(state) {
  const { predicate } = state;
  const { recipe } = state.need("lock");
  const { nodes: size, resume_nodes: sizes = [] } = recipe.collaboration;
  const { ranks = 1, resume_ranks: others = [] } = recipe.backend ?? {};
  const met = meetings(predicate);
  claim(met.length > 0, "no node ever joined");
  const sessions = new Set(met.map((one) => one.session));
  claim(sessions.size === met.length, "a session occurs twice");
  const before = new Set();
  for (const { session, ranks: told, nodes, at, anew } of met) {
    const named = (own, more, number) => number === own || (anew && more.includes(number));
    claim(named(ranks, others, told), "another number of ranks than the recipe's");
    claim(named(size, sizes, nodes.length + 1), "another number of nodes than the recipe's");
    const expected = nodes.map((_, place) => place + 1);
    claim(nodes.map((one) => one.node).join() === expected.join(), "not every node joined, in order");
    for (const { node, run_id: id, from } of nodes) {
      claim(id === (await nodeRunId(predicate.run.run_id, session, node)), "another run id of a node");
      const begins = seconds(from);
      claim(begins !== null && begins <= at + TOLERANCE, "a node had its keys after it joined");
    }
    const evidence = nodes.map((one) => one.evidence);
    const keys = new Set(nodes.map((one) => one.key));
    const once = new Set(evidence).size === nodes.length && keys.size === nodes.length;
    claim(once, "two nodes with the same evidence or key");
    claim(!evidence.some((one) => before.has(one)), "evidence of an earlier session");
    for (const one of evidence) before.add(one);
  }
  const told = predicate.run.environment.world_size;
  const last = met.at(-1);
  const world = String((last.nodes.length + 1) * last.ranks);
  claim(told === world, "another number of processes than the last nodes have");
  return `${last.nodes.length + 1} nodes of ${last.ranks} ranks, met ${met.length} times`;
}
