// How owners say that a dataset may be used, and until when (spec/approvals.md §5.1).

import { demand, seconds } from "./bytes.js";
import * as shape from "./shape.js";

const { line, list, literal, record } = shape;
const differ = (values) => new Set(values).size === values.length;
const texts = (length, most) => (value) => list(line(length, 1), { min: 1, max: most })(value) && differ(value);

export const purposeText = line(200, 1);
export const legalBasis = literal(
  "consent",
  "contract",
  "legal-obligation",
  "vital-interests",
  "public-task",
  "legitimate-interests",
  "other",
);

const STATED = record(
  {},
  {
    purposes: texts(200, 16),
    purposes_bind: literal(true),
    legal_basis: legalBasis,
    legal_basis_note: line(500, 1),
    categories: texts(100, 64),
    phi: literal("none", "de-identified", "limited", "identified"),
    retention_until: shape.realTime,
  },
);

/** Whether a value is the block `data_use` of a dataset manifest. */
export function isDataUse(value) {
  if (!STATED(value) || Object.keys(value).length === 0) return false;
  const { purposes, purposes_bind: bind, legal_basis: basis, legal_basis_note: note } = value;
  if (bind && purposes === undefined) return false;
  return note === undefined ? basis !== "other" : basis !== undefined;
}

/** Refuse a recipe whose purpose (undefined: none stated) an owner does not allow for a dataset. */
export function requirePurpose({ name, owner, data_use: use }, purpose) {
  const allowed = !use?.purposes_bind || use.purposes.includes(purpose);
  demand(allowed, "purpose-mismatch", `the recipe's purpose is none that ${owner} allows for ${name}`);
}

/** Refuse a moment after the end of a dataset's retention. */
export function requireRetained({ name, data_use: use }, at) {
  const last = use?.retention_until === undefined ? Infinity : seconds(use.retention_until);
  demand(at <= last, "retention-ended", `keys or data of ${name} in use after ${use?.retention_until}`);
}
