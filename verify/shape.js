// Shapes of documents: small functions that say whether a parsed value has a form.

import { fromBase64, seconds } from "./bytes.js";
import { HIDDEN } from "./characters.js";
import { ERROR_CODES } from "./codes.js";

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

/** An object with exactly the fields of `fields` and any of `optional`. */
export function record(fields, optional = {}) {
  const required = Object.keys(fields);
  return (value) =>
    isObject(value) &&
    required.every((key) => key in value) &&
    Object.keys(value).every((key) => {
      if (Object.hasOwn(fields, key)) return fields[key](value[key]);
      return Object.hasOwn(optional, key) && optional[key](value[key]);
    });
}

export const list =
  (item, { min = 0, max = Infinity } = {}) =>
  (value) =>
    Array.isArray(value) && value.length >= min && value.length <= max && value.every(item);

/** An object whose keys and values have forms. */
export const map =
  (key, item, { min = 0, max = Infinity } = {}) =>
  (value) =>
    isObject(value) &&
    Object.keys(value).length >= min &&
    Object.keys(value).length <= max &&
    Object.keys(value).every((name) => key(name) && item(value[name]));

export const match = (pattern) => (value) => typeof value === "string" && pattern.test(value);
export const literal =
  (...values) =>
  (value) =>
    values.includes(value);
export const nullable = (item) => (value) => value === null || item(value);
export const either =
  (...forms) =>
  (value) =>
    forms.some((form) => form(value));
export const integer =
  (min, max = 2 ** 53 - 1) =>
  (value) =>
    Number.isSafeInteger(value) && value >= min && value <= max;
export const number =
  (holds = () => true) =>
  (value) =>
    typeof value === "number" && Number.isFinite(value) && holds(value);
export const string = (value) => typeof value === "string";
export const boolean = (value) => typeof value === "boolean";
export const anyObject = isObject;
/** A code of the closed list: a word of its form could hold anything. */
export const errorCode = literal(...ERROR_CODES);

export const hex32 = match(/^[0-9a-f]{32}$/);
export const hex40 = match(/^[0-9a-f]{40}$/);
export const hex64 = match(/^[0-9a-f]{64}$/);
export const hex96 = match(/^[0-9a-f]{96}$/);
export const ownerName = match(/^[a-z0-9][a-z0-9-]{0,62}$/);
export const timestamp = match(/^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$/);
export const realTime = (value) => seconds(value) !== null;
export const count = integer(0);
/** Base64 of so many bytes, or of any number. */
export const base64 = (length) => (value) => {
  const bytes = fromBase64(value);
  return bytes !== null && (length === undefined || bytes.length === length);
};
/** Base64 whose length is that of so many bytes at most, and is not empty. */
export const encoded = (most) => (value) =>
  string(value) && value.length >= 4 && value.length <= Math.ceil(most / 3) * 4 && fromBase64(value) !== null;
/** Text of a deployment document. */
export const compose = (value) => string(value) && value.length >= 2 && value.length <= 4 * 2 ** 20;
/** Text that the table of visible characters admits (spec/key-release.md §1). */
export const visible = (value) => value.search(HIDDEN) < 0;

/** One line of visible text of at most so many characters. */
export const line =
  (most, least = 0) =>
  (value) => {
    if (typeof value !== "string") return false;
    const length = [...value].length;
    return length >= least && length <= most && visible(value);
  };
