// Within check 14: the leases of each broker, and how many were live (spec/run-manifest.md §4).

import { demand, seconds } from "./bytes.js";

const ordered = (condition, message) => demand(condition, "claim-contradicted", message);
const live = (condition, message) => demand(condition, "lease-stale", message);

/**
 * Leases that one broker granted to one guest, in the order of its receipts. A renewal says that its
 * lease was live until then: a broker renews none that has ended.
 */
export function windowsOf(receipts) {
  const windows = [];
  for (const [place, receipt] of receipts.entries()) {
    const begins = seconds(receipt.released_at);
    const ends = seconds(receipt.lease.not_after);
    const window = windows.at(-1);
    if (place === 0) {
      ordered(receipt.kind === "release", "the first receipt is a renewal");
    } else {
      const before = receipts[place - 1];
      ordered(begins >= seconds(before.released_at), "receipts go back in time");
      if (!(receipt.kind === "release" && receipt.resume)) {
        const same = receipt.kind === "renewal" && receipt.lease.lease_id === before.lease.lease_id;
        ordered(same, "a receipt belongs to another lease");
      }
    }
    if (receipt.kind === "renewal") {
      window.ends = ends;
      continue;
    }
    if (window) window.ends = Math.min(window.ends, begins);
    windows.push({ begins, ends, datasets: new Set(receipt.datasets.map((one) => one.dataset_id)) });
  }
  return windows;
}

/** Refuse unless so many windows are live from when they are for the first time until the end. */
export function liveThroughout(windows, threshold, until, name) {
  const moments = windows.flatMap(({ begins, ends }) => [[begins, 1], [ends, -1]]);
  moments.sort((one, other) => one[0] - other[0] || one[1] - other[1]);
  let now = 0;
  let lastEnd = null;
  for (const [at, change] of moments) {
    if (now >= threshold && now + change < threshold) lastEnd = at;
    now += change;
  }
  live(lastEnd !== null, `too few leases on ${name} were live at once`);
  live(until <= lastEnd, `the run went on after its lease on ${name} had ended`);
}
