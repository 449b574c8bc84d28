// The best value so far, of a table of the trials that have ended with one.

import type { Table } from "../api/columns";

export interface BestPoint {
  number: number;
  value: number;
  /** The best of all values until then. */
  best: number;
}

/** These columns of all trials, in the order of their ends. */
export const BEST_TABLE = { filter: "", sort: ["ended"], columns: "no,status,value,ended" };

const WITH_RESULT = new Set<unknown>(["SUCCEEDED", "EARLY_STOPPED"]);

export function bestPoints(table: Table, maximize: boolean): BestPoint[] {
  const [numbers, statuses, values] = ["no", "status", "value"].map((name) =>
    table.columns.find((column) => column.name === name),
  );
  const points: BestPoint[] = [];
  for (let row = 0; row < table.rows; row++) {
    const value = values?.at(row);
    if (typeof value !== "number" || !WITH_RESULT.has(statuses?.at(row))) continue;
    const before = points.at(-1)?.best ?? value;
    const best = maximize ? Math.max(before, value) : Math.min(before, value);
    points.push({ number: Number(numbers?.at(row)), value, best });
  }
  return points;
}
