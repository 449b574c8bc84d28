// The manager's binary curves: each curve is a view of one block of memory. docs/rest.md has the format.

import type { CurveStretch } from "./schema";

const MAGIC = 0x56524350; // "PCRV" as a little-endian number
const [VERSION, HEAD_BYTES] = [2, 24];
const DENSITY_MAGIC = 0x4e454450; // "PDEN"

/** What a trial has reported, as far as it counts: where each point is on the axis, and its value, NaN for none. */
export interface Curve {
  x: ArrayLike<number>;
  y: ArrayLike<number>;
}

/** The curves in `buffer`, which it keeps, by the numbers of their trials. Raises RangeError for another format. */
export function decodeCurves(buffer: ArrayBuffer): Map<number, Curve> {
  const view = new DataView(buffer);
  if (buffer.byteLength < HEAD_BYTES || view.getUint32(0, true) !== MAGIC) {
    throw new RangeError("these are no curves of the manager");
  }
  const version = view.getUint32(4, true);
  if (version !== VERSION) throw new RangeError(`the manager's curves have version ${version}; reload the page`);
  const [trials, points, base] = [view.getUint32(8, true), view.getUint32(12, true), view.getFloat64(16, true)];
  const numbers = new Uint32Array(buffer, HEAD_BYTES, 3 * trials);
  const floats = new Float32Array(buffer, HEAD_BYTES + numbers.byteLength, 2 * points);
  const found = new Map<number, Curve>();
  for (let i = 0; i < trials; i++) {
    const begin = numbers[2 * trials + i] ?? 0;
    const end = begin + (numbers[trials + i] ?? 0);
    const x = floats.subarray(begin, end);
    const exact = base === 0 ? x : Float64Array.from(x, (value) => base + value);
    found.set(numbers[i] ?? 0, { x: exact, y: floats.subarray(points + begin, points + end) });
  }
  return found;
}

/** A curve over steps with new points: what it had in their place and after it is replaced. Null: some before are missing. */
export function withNewPoints(curve: Curve, { from, steps, values }: CurveStretch): Curve | null {
  if (from > curve.x.length) return null;
  const [x, y] = [new Float64Array(from + steps.length), new Float32Array(from + steps.length)];
  for (let i = 0; i < from; i++) [x[i], y[i]] = [curve.x[i] ?? Number.NaN, curve.y[i] ?? Number.NaN];
  for (let i = 0; i < steps.length; i++) {
    x[from + i] = steps[i] ?? Number.NaN;
    y[from + i] = values[i] ?? Number.NaN;
  }
  return { x, y };
}

/** One axis of a density: what the cells span. */
export interface Span {
  from: number | null;
  to: number | null;
}

/** Through which cells of a chart how many curves pass: row by row, that of the greatest values first. */
export interface Density {
  width: number;
  height: number;
  curves: number;
  most: number;
  x: Span;
  y: Span;
  isCurrent: boolean;
  counts: ArrayLike<number>;
}

const ENCODINGS = { u8: Uint8Array, u16: Uint16Array, u32: Uint32Array };

/** The density in `buffer`, which it keeps. Raises RangeError for another format. */
export function decodeDensity(buffer: ArrayBuffer): Density {
  const view = new DataView(buffer);
  if (buffer.byteLength < 8 || view.getUint32(0, true) !== DENSITY_MAGIC) {
    throw new RangeError("this is no density of the manager");
  }
  const length = view.getUint32(4, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length)));
  if (header.version !== 1) {
    throw new RangeError(`the manager's densities have version ${header.version}; reload the page`);
  }
  const { width, height, curves, most, x, y } = header;
  const Counts = ENCODINGS[header.encoding as keyof typeof ENCODINGS];
  const counts = new Counts(buffer, 8 + length, width * height);
  return { width, height, curves, most, x, y, isCurrent: header.is_current, counts };
}
