// How curves are told apart: eight colors, with dashes for the second eight and on; each also has its number at its end.

const COLORS = 8;
const DASHES: number[][] = [[], [7, 3], [2, 3], [9, 3, 2, 3], [4, 2], [1, 2], [12, 3]];

export interface LineStyle {
  /** The custom property of the style sheet. */
  color: string;
  dash: number[];
}

/** A style by its number, from 0. */
export function lineStyle(number: number): LineStyle {
  const dash = DASHES[Math.floor(number / COLORS) % DASHES.length] ?? [];
  return { color: `--line${(number % COLORS) + 1}`, dash };
}
