// Where curves are on a chart: smoothing, the range of an axis, and the curve nearest to a place.

import type { Curve } from "../api/curves";
import { rangeOf } from "./ranges";

/** An exponential moving average without the bias towards its beginning: weight 0 changes nothing. Gaps stay gaps. */
export function smooth(values: ArrayLike<number>, weight: number): ArrayLike<number> {
  if (weight <= 0) return values;
  const found = new Float64Array(values.length);
  let average = 0;
  let share = 1; // of the average that is still its beginning, which is 0
  for (let i = 0; i < values.length; i++) {
    const value = values[i] ?? Number.NaN;
    if (Number.isNaN(value)) {
      found[i] = Number.NaN;
      continue;
    }
    average = weight * average + (1 - weight) * value;
    share *= weight;
    found[i] = average / (1 - share);
  }
  return found;
}

/** From the least to the greatest value of an axis. */
export type Range = [low: number, high: number];

/** The range of x of some curves. On a logarithmic axis there is no place for zero and what is below. */
export function rangeOfX(curves: readonly Curve[], isLog: boolean): Range | null {
  let [low, high] = [Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY];
  for (const { x } of curves) {
    for (let i = 0; i < x.length; i++) {
      const value = x[i] ?? Number.NaN;
      if (isLog && !(value > 0)) continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  if (low > high) return null;
  if (low === high) return isLog ? [low / 2, high * 2] : [low - 0.5, high + 0.5];
  return [low, high];
}

/** The range of the values of some curves, but for curves far off the others: one that diverged must not flatten the rest. */
export function rangeOfY(curves: readonly Curve[], isLog: boolean): Range | null {
  const ends = curves.flatMap(({ y }) => {
    let [low, high] = [Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY];
    for (let i = 0; i < y.length; i++) {
      const value = y[i] ?? Number.NaN;
      if (!Number.isFinite(value) || (isLog && value <= 0)) continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
    return low > high ? [] : isLog ? [Math.log10(low), Math.log10(high)] : [low, high];
  });
  if (!ends.length) return null;
  const [low, high] = rangeOf(ends.sort((a, b) => a - b));
  return isLog ? [10 ** low, 10 ** high] : [low, high];
}

/** How one axis lies on the canvas: pixels of values. */
export interface Axis {
  range: Range;
  isLog: boolean;
  /** The pixels of the two ends of the range. */
  pixels: Range;
}

/** The pixel of a value; NaN where it has none. */
export function toPixel({ range, isLog, pixels }: Axis): (value: number) => number {
  const place = isLog ? Math.log : (value: number) => value;
  const low = place(range[0]);
  const scale = (pixels[1] - pixels[0]) / (place(range[1]) - low);
  return isLog
    ? (value) => (value > 0 ? pixels[0] + (Math.log(value) - low) * scale : Number.NaN)
    : (value) => pixels[0] + (value - low) * scale;
}

/** The points of a curve in pixels: x and y of one after the other, NaN for a gap. */
export function project({ x, y }: Curve, xAxis: Axis, yAxis: Axis): Float32Array {
  const [toX, toY] = [toPixel(xAxis), toPixel(yAxis)];
  const found = new Float32Array(2 * x.length);
  for (let i = 0; i < x.length; i++) {
    found[2 * i] = toX(x[i] ?? Number.NaN);
    found[2 * i + 1] = toY(y[i] ?? Number.NaN);
  }
  return found;
}

export interface Nearest {
  /** The place of the curve among those that were given. */
  curve: number;
  /** The place of its point, the one nearest to the cursor. */
  point: number;
}

/** The curve nearest to a place, in pixels, as far as there is one within `reach`. */
export function nearest(curves: readonly Float32Array[], x: number, y: number, reach: number): Nearest | null {
  let best = reach * reach;
  let found: Nearest | null = null;
  for (let curve = 0; curve < curves.length; curve++) {
    const points = curves[curve] as Float32Array;
    for (let i = 0; i + 1 < points.length; i += 2) {
      const [ax, ay] = [points[i] as number, points[i + 1] as number];
      const [bx, by] = [points[i + 2] ?? ax, points[i + 3] ?? ay];
      if ((ax < x - reach && bx < x - reach) || (ax > x + reach && bx > x + reach)) continue;
      const [dx, dy] = Number.isNaN(bx + by) ? [0, 0] : [bx - ax, by - ay];
      const length = dx * dx + dy * dy;
      const along = length ? Math.min(1, Math.max(0, ((x - ax) * dx + (y - ay) * dy) / length)) : 0;
      const distance = (ax + along * dx - x) ** 2 + (ay + along * dy - y) ** 2;
      if (distance < best) {
        best = distance;
        found = { curve, point: i / 2 + (along > 0.5 ? 1 : 0) };
      }
    }
  }
  return found;
}

/** A range multiplied by `scale` around its middle and moved by `by` of itself; on a logarithmic axis, of its logarithms. */
export function rescaled([low, high]: Range, isLog: boolean, scale: number, by: number): Range {
  const [from, to] = isLog ? [Math.log(low), Math.log(high)] : [low, high];
  const middle = (from + to) / 2 + (to - from) * by;
  const half = ((to - from) / 2) * scale;
  const ends: Range = [middle - half, middle + half];
  return isLog ? [Math.exp(ends[0]), Math.exp(ends[1])] : ends;
}
