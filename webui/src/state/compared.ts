// Experiments beside each other: their best values so far, and where their search spaces differ.

import type { CurvePoint, Experiment } from "../api/schema";
import { toSeconds } from "../format";
import { isObject } from "./parameters";

/** So many experiments can still be told apart beside each other. */
export const MOST_COMPARED = 8;

export type Along = "trials" | "time";

/** The best value so far where it changes, and at the end. */
export interface BestLine {
  x: number[];
  best: number[];
}

/** `began`: what "time" counts from, in seconds since 1970; times are in seconds. */
export function bestLine(points: readonly CurvePoint[], along: Along, began: number): BestLine {
  const line: BestLine = { x: [], best: [] };
  points.forEach((point, index) => {
    if (typeof point.best !== "number") return;
    const isLast = index === points.length - 1;
    if (point.best === line.best.at(-1) && !isLast) return;
    const ended = toSeconds(point.ended_at);
    if (along === "time" && ended === null) return;
    line.x.push(along === "trials" ? index + 1 : Math.max(0, (ended ?? began) - began));
    line.best.push(point.best);
  });
  return line;
}

/** All lines at the same places, as a chart takes them: each keeps its value from its beginning to its end. */
export function aligned(lines: readonly BestLine[]): { x: number[]; best: (number | null)[][] } {
  const x = [...new Set(lines.flatMap((line) => line.x))].sort((a, b) => a - b);
  const best = lines.map((line) => {
    let at = -1;
    return x.map((place) => {
      while (at + 1 < line.x.length && (line.x[at + 1] ?? 0) <= place) at += 1;
      const isOver = place > (line.x.at(-1) ?? Number.NEGATIVE_INFINITY);
      return isOver ? null : (line.best[at] ?? null);
    });
  });
  return { x, best };
}

const UNITS: [seconds: number, word: string][] = [
  [86_400, "days"],
  [3600, "hours"],
  [60, "minutes"],
  [1, "seconds"],
];

/** The largest unit in which a time is at least 2, for an axis. */
export function unitFor(seconds: number): { seconds: number; word: string } {
  const [size, word] = UNITS.find(([each]) => seconds >= 2 * each) ?? [1, "seconds"];
  return { seconds: size, word };
}

/** Their names; with the id where several have the same. */
export function labelsOf(experiments: readonly Experiment[]): string[] {
  const isTwice = (name: string) => experiments.filter((each) => each.name === name).length > 1;
  return experiments.map(({ name, id }) => (isTwice(name) ? `${id} ${name}` : name));
}

// ---- search spaces ----

/** A parameter that is not the same in all search spaces. */
export interface SpaceDifference {
  name: string;
  /** In each space, "" where it is not there. */
  texts: string[];
}

/** Where search spaces differ, in the order of the first space that has the parameter; and how much is the same. */
export function spaceDifferences(spaces: readonly unknown[]): { differing: SpaceDifference[]; same: number } {
  const flat = spaces.map(flatSpace);
  const names = [...new Set(flat.flatMap((space) => [...space.keys()]))];
  const all = names.map((name) => ({ name, texts: flat.map((space) => space.get(name) ?? "") }));
  const differing = all.filter(({ texts }) => new Set(texts).size > 1);
  return { differing, same: all.length - differing.length };
}

/** Each parameter with what it may be; those of one option of a choice are named "model=cnn.width". */
export function flatSpace(space: unknown): Map<string, string> {
  const found = new Map<string, string>();
  if (isObject(space)) visit(space, "", found);
  else found.set("space", JSON.stringify(space));
  return found;
}

function visit(space: Record<string, unknown>, prefix: string, found: Map<string, string>): void {
  for (const [name, parameter] of Object.entries(space)) {
    const path = prefix + name;
    if (!isObject(parameter) || typeof parameter._type !== "string") {
      found.set(path, JSON.stringify(parameter));
      continue;
    }
    const values = Array.isArray(parameter._value) ? parameter._value : [parameter._value];
    found.set(path, `${parameter._type}(${values.map(optionText).join(", ")})`);
    for (const option of values) {
      if (!isObject(option) || typeof option._name !== "string") continue;
      const { _name, ...inner } = option;
      visit(inner, `${path}=${_name}.`, found);
    }
  }
}

/** An option or a bound, exactly: what looks the same is the same. */
function optionText(option: unknown): string {
  if (typeof option === "string") return option;
  return isObject(option) && typeof option._name === "string" ? option._name : JSON.stringify(option);
}

/** What the values of an experiment are, and which are better. */
export function objectiveText({ objective }: Experiment): string {
  return `${objective.direction} ${objective.metric === "default" ? "value" : objective.metric}`;
}
