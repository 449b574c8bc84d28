// Parameters of several trials side by side.

import { flatParameters } from "./parameters";

export interface ComparedRow {
  name: string;
  /** Of each trial; undefined where it does not have the parameter. */
  values: unknown[];
  differs: boolean;
}

/** A row for each parameter that one of them has; those in which they differ come first. */
export function compareParameters(all: readonly unknown[]): ComparedRow[] {
  const flat = all.map((parameters) => new Map(flatParameters(parameters)));
  const names = [...new Set(flat.flatMap((each) => [...each.keys()]))];
  const rows = names.map((name): ComparedRow => {
    const values = flat.map((each) => each.get(name));
    return { name, values, differs: new Set(values.map((value) => JSON.stringify(value))).size > 1 };
  });
  return [...rows.filter((row) => row.differs), ...rows.filter((row) => !row.differs)];
}

/** Curves on one axis: all steps, and the value of each curve at them, null where it has none. */
export function onOneAxis(curves: readonly { x: number; y: number | null }[][]): [number[], (number | null)[][]] {
  const steps = [...new Set(curves.flatMap((curve) => curve.map(({ x }) => x)))].sort((a, b) => a - b);
  const values = curves.map((curve) => {
    const byStep = new Map(curve.map(({ x, y }) => [x, y]));
    return steps.map((step) => byStep.get(step) ?? null);
  });
  return [steps, values];
}

const MOST = 20;

/** The trials that an address names: "17,4". */
export function numbersIn(text: string): number[] {
  const words = text.split(",").filter((word) => /^\d{1,9}$/.test(word));
  return [...new Set(words.map(Number))].slice(0, MOST);
}
