// Which trials of a table are selected, by their numbers.

export type Selection = ReadonlySet<number>;

/** The selection after one row was chosen: turned over, or with `from` as the row before, all between set like it. */
export function toggled(selection: Selection, rows: readonly number[], row: number, from: number | null): Selection {
  const number = rows[row];
  if (number === undefined) return selection;
  const next = new Set(selection);
  const isOn = !selection.has(number);
  const [first, last] = from === null ? [row, row] : [Math.min(from, row), Math.max(from, row)];
  for (const each of rows.slice(first, last + 1)) {
    if (isOn) next.add(each);
    else next.delete(each);
  }
  return next;
}

const MOST_NAMED = 20;

/** "trial 3", "trials 3, 5 and 8", "trials 0, 1, …, 19 and 80 more". */
export function namesOf(numbers: readonly number[]): string {
  if (numbers.length === 1) return `trial ${numbers[0]}`;
  if (numbers.length > MOST_NAMED) {
    return `trials ${numbers.slice(0, MOST_NAMED).join(", ")} and ${numbers.length - MOST_NAMED} more`;
  }
  return `trials ${numbers.slice(0, -1).join(", ")} and ${numbers.at(-1)}`;
}
