// BLAKE3 with 32 bytes of output, which WebCrypto lacks.

const IV = [
  0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19,
];
const PERMUTATION = [2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8];
const SCHEDULE = [Array.from({ length: 16 }, (_, i) => i)];
for (let round = 1; round < 7; round++) SCHEDULE.push(PERMUTATION.map((i) => SCHEDULE[round - 1][i]));
const MIXES = [
  [0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15],
  [0, 5, 10, 15], [1, 6, 11, 12], [2, 7, 8, 13], [3, 4, 9, 14],
];
const START = 1;
const END = 2;
const PARENT = 4;
const ROOT = 8;

function compress(chain, words, counter, length, flags) {
  const v = new Uint32Array(16);
  v.set(chain);
  v.set(IV.slice(0, 4), 8);
  v[12] = counter >>> 0;
  v[13] = Math.floor(counter / 2 ** 32);
  v[14] = length;
  v[15] = flags;
  for (const order of SCHEDULE) {
    for (let i = 0; i < 8; i++) {
      const [a, b, c, d] = MIXES[i];
      v[a] = v[a] + v[b] + words[order[2 * i]];
      v[d] ^= v[a];
      v[d] = (v[d] >>> 16) | (v[d] << 16);
      v[c] = v[c] + v[d];
      v[b] ^= v[c];
      v[b] = (v[b] >>> 12) | (v[b] << 20);
      v[a] = v[a] + v[b] + words[order[2 * i + 1]];
      v[d] ^= v[a];
      v[d] = (v[d] >>> 8) | (v[d] << 24);
      v[c] = v[c] + v[d];
      v[b] ^= v[c];
      v[b] = (v[b] >>> 7) | (v[b] << 25);
    }
  }
  return v.subarray(0, 8).map((word, i) => word ^ v[i + 8]);
}

function blockWords(bytes, at, length) {
  const block = new Uint8Array(64);
  block.set(bytes.subarray(at, at + length));
  const view = new DataView(block.buffer);
  return Uint32Array.from({ length: 16 }, (_, i) => view.getUint32(4 * i, true));
}

function chunk(bytes, start, end, counter, root) {
  let chain = Uint32Array.from(IV);
  for (let at = start; ; at += 64) {
    const length = Math.min(64, end - at);
    const last = at + 64 >= end;
    const flags = (at === start ? START : 0) | (last ? END | root : 0);
    chain = compress(chain, blockWords(bytes, at, length), counter, length, flags);
    if (last) return chain;
  }
}

function tree(bytes, start, end, counter, root) {
  const length = end - start;
  if (length <= 1024) return chunk(bytes, start, end, counter, root);
  const left = 1024 * 2 ** Math.floor(Math.log2((length - 1) / 1024));
  const words = new Uint32Array(16);
  words.set(tree(bytes, start, start + left, counter, 0));
  words.set(tree(bytes, start + left, end, counter + left / 1024, 0), 8);
  return compress(Uint32Array.from(IV), words, 0, 64, PARENT | root);
}

export function blake3(bytes) {
  const words = tree(bytes, 0, bytes.length, 0, ROOT);
  const result = new Uint8Array(32);
  const view = new DataView(result.buffer);
  words.forEach((word, i) => view.setUint32(4 * i, word, true));
  return result;
}
