// What the run log says of the records that trained (spec/run-manifest.md §2.5).

import { demand } from "./bytes.js";
import { datasetsOf } from "./lock.js";

const claim = (condition, message) => demand(condition, "claim-contradicted", message);
const PARTS = ["whole", "truncated", "filtered", "empty"];
/** Settings of a collaboration whose noise hides records. */
const HIDES = ["patient_privacy", "sequence_privacy"];

/** Whether counts of a dataset with so many records, null where unstated, may stand in the log. */
export function isPublic(recipe, records) {
  const hides = HIDES.some((name) => (recipe.collaboration?.[name] ?? null) !== null);
  return records !== null && recipe.release_policy.logs === "structured" && recipe.privacy.dp === "none" && !hides;
}

/** Refuses counts that no guest writes; reads nothing where a check before refused log or datasets. */
export function countsTrue({ log, datasets }, recipe) {
  if (!log || !datasets) return;
  const counted = log.filter((one) => one.event === "data.counted").flatMap((one) => Object.entries(one.fields));
  if (!counted.length) return;
  const pair = ({ owner, name }) => `${owner}/${name}`;
  const roles = new Map(datasetsOf(recipe).map((one) => [pair(one), one.role]));
  const trains = datasets.filter((one) => roles.get(pair(one)) === "train");
  const trained = new Map(trains.map((one) => [one.dataset_id, one]));
  const listed = counted.map(([id]) => id).sort().join();
  claim(listed === [...trained.keys()].sort().join(), "the log counts other datasets than were trained on");
  for (const [id, counts] of counted) {
    const { records } = trained.get(id);
    const open = isPublic(recipe, records);
    if (counts === null) {
      claim(!open, "the log withholds counts that the recipe lets out");
      continue;
    }
    demand(open, "egress-refused", "the log holds counts of records that may not leave");
    const total = PARTS.reduce((sum, part) => sum + counts[part], 0);
    claim(total === counts.records && total === records, "the counts of a dataset are not those of its records");
    claim(total === 0 || counts.whole + counts.truncated > 0, "no record of a dataset trained");
  }
}
