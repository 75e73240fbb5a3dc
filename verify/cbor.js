// A reader of CBOR, as far as documents of Nitro use it (spec/evidence-nitro.md, rule 2).

import { concat, hex, text, u16be, u32be } from "./bytes.js";

/** Bytes that are not one item of the CBOR that this reader knows; the caller names the refusal. */
export class BadCbor extends Error {}

const LEVELS = 16;
const SIZES = { 24: 1, 25: 2, 26: 4, 27: 8 };
const INDEFINITE = 31;
const BREAK = 0xff;

function fail(message) {
  throw new BadCbor(message);
}

class Reader {
  constructor(bytes) {
    this.bytes = bytes;
    this.at = 0;
  }

  take(size) {
    if (this.at + size > this.bytes.length) fail("truncated");
    this.at += size;
    return this.bytes.subarray(this.at - size, this.at);
  }

  argument(detail) {
    if (detail < 24) return detail;
    const size = SIZES[detail] ?? fail("an unknown length");
    const bytes = this.take(size);
    if (size === 1) return bytes[0];
    if (size === 2) return u16be(bytes, 0);
    const high = u32be(bytes, 0);
    if (size === 4) return high;
    const whole = high * 2 ** 32 + u32be(bytes, 4);
    return Number.isSafeInteger(whole) ? whole : (BigInt(high) << 32n) | BigInt(u32be(bytes, 4));
  }

  value(level) {
    if (level > LEVELS) fail("nested too deeply");
    const [first] = this.take(1);
    const [major, detail] = [first >> 5, first & 31];
    if (major === 7) {
      if (detail === 20 || detail === 21) return detail === 21;
      return detail === 22 ? null : fail("a float or another simple value");
    }
    if (major === 6) fail("a tag");
    if (detail === INDEFINITE) {
      return major === 4 || major === 5 ? this.items(major, Infinity, level) : fail("a string in chunks");
    }
    const count = this.argument(detail);
    if (major === 0) return count;
    if (major === 1) return typeof count === "bigint" ? -1n - count : -1 - count;
    if (typeof count === "bigint" || count > this.bytes.length) fail("a length beyond the end");
    if (major === 2) return this.take(count);
    if (major === 3) return this.text(count);
    return this.items(major, count, level);
  }

  text(size) {
    try {
      return text(this.take(size));
    } catch (error) {
      if (error instanceof TypeError) fail("text that is not UTF-8");
      throw error;
    }
  }

  ended(place, count) {
    if (count !== Infinity) return place === count;
    if (this.bytes[this.at] !== BREAK) return false;
    this.at++;
    return true;
  }

  items(major, count, level) {
    if (major === 4) {
      const list = [];
      while (!this.ended(list.length, count)) list.push(this.value(level + 1));
      return list;
    }
    const map = new Map();
    const seen = new Set();
    while (!this.ended(map.size, count)) {
      const key = this.value(level + 1);
      const name = key instanceof Uint8Array ? `bytes ${hex(key)}` : `${typeof key} ${key}`;
      if (typeof key === "object" && !(key instanceof Uint8Array)) fail("a key that is no scalar");
      if (seen.has(name)) fail("a key occurs twice");
      seen.add(name);
      map.set(key, this.value(level + 1));
    }
    return map;
  }
}

/** The value of bytes that are exactly one item: maps are `Map`, byte strings `Uint8Array`. */
export function parseCbor(bytes) {
  const reader = new Reader(bytes);
  const value = reader.value(0);
  return reader.at === bytes.length ? value : fail("bytes follow the item");
}

/** The shortest head of a byte string, and the bytes. */
export function byteString(bytes) {
  const size = bytes.length;
  if (size < 24) return concat(new Uint8Array([0x40 | size]), bytes);
  if (size < 256) return concat(new Uint8Array([0x58, size]), bytes);
  return concat(new Uint8Array([0x59, size >> 8, size & 255]), bytes);
}
