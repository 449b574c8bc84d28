// The part of the values that a chart shows.

const LEAST_FOR_OUTLIERS = 8;

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
