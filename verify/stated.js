// What a reader of a manifest is told that it does not prove: as `sealtrain verify` lists it.

import { requiredLimits } from "./limits.js";
import { LIMIT_TEXTS } from "./limitwords.js";

const UNLOOKED = "The output files were not looked at; only their names and digests are known.";
const SHOWN_BLOCKS = 64;
const THEIRS =
  "Your trust file asks only about datasets that its own brokers released; other keys and leases were not looked at.";

/** Limits in this program's texts: a manifest can neither soften nor conceal one that it requires. */
function ofManifest(predicate, unasked) {
  const texts = new Map(predicate.limits.map(({ id, text }) => [id, LIMIT_TEXTS[id] ?? text]));
  for (const id of requiredLimits(predicate)) texts.set(id, LIMIT_TEXTS[id]);
  const asked = texts.get("owners-not-asked");
  if (unasked !== null && asked !== undefined) {
    const used = unasked.length
      ? ` Data of ${unasked.join(", ")} was used without approval.`
      : " Every owner whose data was used had approved this run.";
    texts.set("owners-not-asked", asked + used);
  }
  return [...texts].map(([id, text]) => ({ id, text }));
}

/** Of blocks that receipts rely on, where the trust file names no chain. */
function ofChain(blocks) {
  const { chain_id: chain, contract } = blocks[0];
  const named = blocks.slice(0, SHOWN_BLOCKS).map(({ number, block }) => `${number} (${block})`).join(", ");
  const more = blocks.length > SHOWN_BLOCKS ? ` and ${blocks.length - SHOWN_BLOCKS} more` : "";
  return `Owners decide on chain ${chain} by the contract ${contract}, and your trust file names no chain: that these blocks are of it was not compared: ${named}${more}.`;
}

/** Every limit and everything left open, in order: `{id, text}`, where the id of no limit is null. */
export function statedLimits({ manifest, unasked, released, chain, open }, trust, { artefacts }) {
  if (manifest === null) return [];
  const said = ofManifest(manifest.predicate, unasked);
  const add = (text, facts = {}) => said.push({ id: null, text, ...facts });
  if (released.length) add(`Brokers released keys without a demand on: ${released.join(", ")}.`, { released });
  if (chain.length) add(ofChain(chain), { chain: chain[0].chain_id });
  for (const { field, words } of open) add(`Your trust file accepts any ${words}.`, { field });
  if (trust.brokers.datasets === "theirs") add(THEIRS);
  if (artefacts === null) add(UNLOOKED);
  return said;
}
