// The part of the values that a chart shows.

const LEAST_FOR_OUTLIERS = 8;

/** As `rangeOf`, but wide enough for some values that must be seen. */
export function rangeWith(sorted: number[], needed: number[]): [number, number] {
  const [low, high] = rangeOf(sorted);
  const [least, greatest] = [Math.min(low, ...needed), Math.max(high, ...needed)];
  const room = (greatest - least) * 0.03;
  return [least < low ? least - room : low, greatest > high ? greatest + room : high];
}

/** The range to draw sorted values in: all, or the quartiles with three times their distance where some are far off. */
export function rangeOf(sorted: number[]): [number, number] {
  const at = (share: number) => sorted[Math.round(share * (sorted.length - 1))] ?? 0;
  let [low, high] = [at(0), at(1)];
  if (sorted.length >= LEAST_FOR_OUTLIERS) {
    const reach = 3 * (at(0.75) - at(0.25)) || high - low;
    low = Math.max(low, at(0.25) - reach);
    high = Math.min(high, at(0.75) + reach);
  }
  const room = (high - low) * 0.06 || Math.abs(high) * 0.05 || 0.5;
  return [low - room, high + room];
}
