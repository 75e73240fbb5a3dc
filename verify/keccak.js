// Keccak-256 as Ethereum uses it, which WebCrypto lacks. Inputs here are a few hundred bytes.

const MASK = (1n << 64n) - 1n;
const ROTATIONS = [
  0, 1, 62, 28, 27, 36, 44, 6, 55, 20, 3, 10, 43, 25, 39, 41, 45, 15, 21, 8, 18, 2, 61, 56, 14,
];

function roundConstants() {
  const constants = [];
  let register = 1;
  for (let round = 0; round < 24; round++) {
    let value = 0n;
    for (let j = 0; j < 7; j++) {
      if (register & 1) value |= 1n << BigInt(2 ** j - 1);
      register = (register << 1) ^ (register & 0x80 ? 0x171 : 0);
    }
    constants.push(value);
  }
  return constants;
}

const CONSTANTS = roundConstants();
const rotate = (value, by) =>
  by === 0 ? value : ((value << BigInt(by)) | (value >> BigInt(64 - by))) & MASK;

function permute(a) {
  for (const constant of CONSTANTS) {
    const c = [0, 1, 2, 3, 4].map((x) => a[x] ^ a[x + 5] ^ a[x + 10] ^ a[x + 15] ^ a[x + 20]);
    for (let i = 0; i < 25; i++) a[i] ^= c[(i + 4) % 5] ^ rotate(c[((i % 5) + 1) % 5], 1);
    const b = new Array(25);
    for (let x = 0; x < 5; x++) {
      for (let y = 0; y < 5; y++) {
        b[y + 5 * ((2 * x + 3 * y) % 5)] = rotate(a[x + 5 * y], ROTATIONS[x + 5 * y]);
      }
    }
    for (let y = 0; y < 25; y += 5) {
      for (let x = 0; x < 5; x++) {
        a[y + x] = b[y + x] ^ (~b[y + ((x + 1) % 5)] & MASK & b[y + ((x + 2) % 5)]);
      }
    }
    a[0] ^= constant;
  }
}

export function keccak256(bytes) {
  const rate = 136;
  const padded = new Uint8Array(Math.floor(bytes.length / rate + 1) * rate);
  padded.set(bytes);
  padded[bytes.length] ^= 1;
  padded[padded.length - 1] ^= 0x80;
  const state = new Array(25).fill(0n);
  const view = new DataView(padded.buffer);
  for (let at = 0; at < padded.length; at += rate) {
    for (let i = 0; i < rate / 8; i++) state[i] ^= view.getBigUint64(at + 8 * i, true);
    permute(state);
  }
  const result = new Uint8Array(32);
  const out = new DataView(result.buffer);
  for (let i = 0; i < 4; i++) out.setBigUint64(8 * i, state[i], true);
  return result;
}
