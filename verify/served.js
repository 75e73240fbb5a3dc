// What the run log says of the rows that the recipe's code was given (spec/run-manifest.md §2.6).

import { demand } from "./bytes.js";
import { isPublic } from "./counts.js";
import { datasetsOf } from "./lock.js";

const claim = (condition, message) => demand(condition, "claim-contradicted", message);

/** Refuses rows that no guest writes; reads nothing where a check before refused log or datasets. */
export function rowsTrue({ log, datasets }, recipe) {
  if (!log || !datasets) return;
  const served = log.filter((one) => one.event === "rows.served").flatMap((one) => Object.entries(one.fields));
  if (!served.length) return;
  const pair = ({ owner, name }) => `${owner}/${name}`;
  const roles = new Map(datasetsOf(recipe).map((one) => [pair(one), one.role]));
  const opens = datasets.filter((one) => ["train", "test"].includes(roles.get(pair(one))));
  const opened = new Map(opens.map((one) => [one.dataset_id, one]));
  const listed = served.map(([id]) => id).sort().join();
  claim(listed === [...opened.keys()].sort().join(), "the log names other datasets than were opened");
  for (const [id, rows] of served) {
    const open = isPublic(recipe, opened.get(id).records);
    claim(rows !== null || !open, "the log withholds rows that the recipe lets out");
    demand(rows === null || open, "egress-refused", "the log holds a number of rows that may not leave");
  }
}
