// Axes of the parameters and values of trials, the order of trials by their value, and the ranges chosen on the axes.

import type { Column, Table } from "../api/columns";
import { rangeOf } from "../charts/ranges";

const PARAMETER = "parameter.";
const LOGARITHMIC_TYPES = new Set(["loguniform", "qloguniform", "lognormal", "qlognormal"]);
const LOGARITHMIC_RATIO = 1000; // of an axis whose scale is not known
const MOST_WORDS = 40; // an axis with more is a name or an id, and is left out
const SIGNIFICANT_DIGITS = 4;

/** One axis. A row's place on it is a number from 0 to 1, or NaN where the trial has no such value. */
export interface Axis {
  /** The column. */
  name: string;
  label: string;
  /** A number axis from `low` to `high`; an axis of `words` otherwise, in their order. */
  words: string[] | null;
  low: number;
  high: number;
  log: boolean;
  /** Its words are JSON: of a column of several types. */
  json: boolean;
  places: Float64Array;
}

/** What was chosen on an axis: a range, whose ends may be open, or words. */
export type Brush = { from: number | null; to: number | null } | { words: string[] };

/** The axes of all parameters that differ between trials, and of the value `metric` last. */
export function axesOf(table: Table, space: unknown, metric: string): Axis[] {
  const logarithmic = logarithmicNames(space);
  return table.columns
    .flatMap((column) => {
      const isParameter = column.name.startsWith(PARAMETER) && column.varies;
      if (!isParameter && column.name !== metric) return [];
      return toAxis(column, table.rows, logarithmic.get(column.name.slice(PARAMETER.length)), !isParameter) ?? [];
    })
    .sort((a, b) => Number(a.name === metric) - Number(b.name === metric));
}

/** Columns of numbers in the final metric. */
export function metricsOf(table: Table): string[] {
  const found = table.columns.filter((column) => column.name.startsWith("value.") && column.type === "number");
  return ["value", ...found.map((column) => column.name)];
}

/** By the dotted names of a search space, whether their scale is logarithmic. */
export function logarithmicNames(space: unknown): Map<string, boolean> {
  const found = new Map<string, boolean>();
  const visit = (parameters: unknown, prefix: string) => {
    if (typeof parameters !== "object" || parameters === null) return;
    for (const [name, described] of Object.entries(parameters)) {
      const { _type, _value } = (described ?? {}) as { _type?: string; _value?: unknown };
      if (name.startsWith("_") || _type === undefined) continue;
      const path = prefix + name;
      found.set(path, LOGARITHMIC_TYPES.has(_type) || (found.get(path) ?? false));
      if (_type === "choice" && Array.isArray(_value)) for (const branch of _value) visit(branch, `${path}.`);
    }
  };
  visit(space, "");
  return found;
}

function toAxis(column: Column, rows: number, log: boolean | undefined, isValue: boolean): Axis | null {
  const label = column.name.startsWith(PARAMETER) ? column.name.slice(PARAMETER.length) : column.name;
  const base = { name: column.name, label, places: new Float64Array(rows).fill(Number.NaN) };
  return column.type === "number" ? numberAxis(base, column, log, isValue) : wordAxis(base, column);
}

type Base = Pick<Axis, "name" | "label" | "places">;

function numberAxis(base: Base, column: Column, known: boolean | undefined, isValue: boolean): Axis | null {
  const { places } = base;
  const values = Float64Array.from(places, (_, row) => (column.at(row) as number | null) ?? Number.NaN);
  const sorted = values.filter((value) => !Number.isNaN(value)).sort();
  const [least, greatest] = [sorted[0], sorted.at(-1)];
  if (least === undefined || greatest === undefined) return null;
  const log = least > 0 && (known ?? greatest >= least * LOGARITHMIC_RATIO);
  let [low, high] = [least, greatest];
  // One diverged trial must not flatten the others: what is beyond the range is drawn at its end.
  if (isValue && !log) {
    const range = rangeOf([...sorted]);
    [low, high] = [Math.max(least, range[0]), Math.min(greatest, range[1])];
  }
  const axis: Axis = { ...base, words: null, low, high, log, json: false };
  for (let row = 0; row < places.length; row++) places[row] = placeOf(axis, values[row] ?? Number.NaN);
  return axis;
}

function wordAxis(base: Base, column: Column): Axis | null {
  const { places } = base;
  const texts = Array.from(places, (_, row) => column.at(row) as string | null);
  const words = [...new Set(texts.filter((text) => text !== null))].sort(compareWords);
  if (words.length === 0 || words.length > MOST_WORDS) return null;
  const at = new Map(words.map((word, place) => [word, place]));
  const axis: Axis = { ...base, words, low: 0, high: words.length - 1, log: false, json: column.type === "json" };
  for (const [row, text] of texts.entries()) {
    places[row] = text === null ? Number.NaN : placeOf(axis, at.get(text) ?? 0);
  }
  return axis;
}

function compareWords(a: string, b: string): number {
  return a.localeCompare(b, "en", { numeric: true });
}

/** Where a number is on an axis, from 0 to 1; on an axis of words the number of the word. */
export function placeOf(
  { low, high, log, words }: Omit<Axis, "places" | "name" | "label" | "json">,
  value: number,
): number {
  if (words) return (value + 0.5) / words.length;
  const scale = log ? Math.log : (x: number) => x;
  if (high === low) return Number.isNaN(value) ? value : 0.5;
  return Math.min(1, Math.max(0, (scale(value) - scale(low)) / (scale(high) - scale(low))));
}

/** The number at a place, with four significant digits; the other way round of `placeOf`. */
export function numberAt({ low, high, log }: Axis, place: number): number {
  const value = log ? low * (high / low) ** place : low + (high - low) * place;
  return Number(value.toPrecision(SIGNIFICANT_DIGITS));
}

/** Ticks of an axis: places with what they say. */
export function ticksOf(axis: Axis): [place: number, value: number | string][] {
  if (axis.words) return axis.words.map((word, number) => [placeOf(axis, number), axis.json ? wordText(word) : word]);
  const { low, high, log } = axis;
  if (low === high) return [[0.5, low]];
  const inside = log ? powersOf(low, high) : stepsOf(low, high);
  return inside.map((value) => [placeOf(axis, value), value]);
}

function powersOf(low: number, high: number): number[] {
  const [first, last] = [Math.ceil(Math.log10(low) - 1e-9), Math.floor(Math.log10(high) + 1e-9)];
  if (last - first < 1) return [low, high];
  const step = Math.ceil((last - first) / 6);
  return Array.from({ length: Math.floor((last - first) / step) + 1 }, (_, i) => Number(`1e${first + i * step}`));
}

/**
 * Ticks of a logarithmic axis for uPlot, which leaves out those without room: 1 to 9 times each power of ten or, in a small
 * part of one, round steps. Its own ticks start at the end of the range, and never end where that is 0.095 to 0.1.
 */
export function logTicks(low: number, high: number): number[] {
  if (!(low > 0 && high < Number.POSITIVE_INFINITY)) return [];
  const found: number[] = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++) {
    for (let digit = 1; digit < 10; digit++) {
      const tick = Number(`${digit}e${power}`);
      if (tick >= low && tick <= high) found.push(tick);
    }
  }
  return found.length > 2 ? found : stepsOf(low, high);
}

function stepsOf(low: number, high: number): number[] {
  const rough = (high - low) / 5;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = ([1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999) ?? 10) * power;
  const found: number[] = [];
  for (let number = Math.ceil(low / step - 1e-9); number * step <= high + step * 1e-9; number++) {
    found.push(Number((number * step).toPrecision(10)));
  }
  return found;
}

/** A word of an axis as it is shown: a text of a column of several types is JSON. */
export function wordText(word: string): string {
  return /^"(.*)"$/s.test(word) ? String(JSON.parse(word)) : word;
}

/** By row, the order of its value: 0 is the best, 1 the worst, NaN for none. Equal values have equal ranks. */
export function ranksOf(values: ArrayLike<number | null>, maximize: boolean): Float64Array {
  const rows = Array.from({ length: values.length }, (_, row) => row).filter((row) => !isMissing(values[row]));
  const of = (row: number) => values[row] as number;
  rows.sort((a, b) => (maximize ? of(b) - of(a) : of(a) - of(b)) || a - b);
  const ranks = new Float64Array(values.length).fill(Number.NaN);
  let last = 0;
  for (const [place, row] of rows.entries()) {
    if (place === 0 || of(row) !== of(rows[place - 1] ?? row)) last = place;
    ranks[row] = rows.length > 1 ? last / (rows.length - 1) : 0;
  }
  return ranks;
}

function isMissing(value: number | null | undefined): boolean {
  return value === null || value === undefined || Number.isNaN(value);
}

/** The rows in the order in which they are drawn: those without a value, then from the worst to the best. */
export function drawingOrder(ranks: Float64Array): Uint32Array {
  const key = (row: number) => (Number.isNaN(ranks[row]) ? 2 : (ranks[row] ?? 2));
  return Uint32Array.from(ranks, (_, row) => row).sort((a, b) => key(b) - key(a) || a - b);
}

/** By row, whether it is in all of the chosen ranges. */
export function matchesOf(axes: Axis[], brushes: ReadonlyMap<string, Brush>, rows: number): Uint8Array {
  const matches = new Uint8Array(rows).fill(1);
  for (const axis of axes) {
    const brush = brushes.get(axis.name);
    if (!brush) continue;
    const [from, to] = placesOf(axis, brush);
    const chosen = "words" in brush ? new Set(brush.words.map((word) => axis.words?.indexOf(word))) : null;
    for (let row = 0; row < rows; row++) {
      const place = axis.places[row] ?? Number.NaN;
      const isIn =
        chosen && axis.words ? chosen.has(Math.floor(place * axis.words.length)) : from <= place && place <= to;
      if (!isIn) matches[row] = 0;
    }
  }
  return matches;
}

/** From where to where the chosen part of an axis goes. */
export function placesOf(axis: Axis, brush: Brush): [from: number, to: number] {
  if ("words" in brush) {
    const chosen = brush.words.map((word) => axis.words?.indexOf(word) ?? -1).filter((number) => number >= 0);
    const size = axis.words?.length ?? 1;
    return [Math.min(...chosen) / size, (Math.max(...chosen) + 1) / size];
  }
  return [brush.from === null ? 0 : placeOf(axis, brush.from), brush.to === null ? 1 : placeOf(axis, brush.to)];
}

/** What a part of an axis, dragged from one place to the other, chooses; null for all or nothing of it. */
export function brushAt(axis: Axis, from: number, to: number): Brush | null {
  const [low, high] = [Math.max(0, Math.min(from, to)), Math.min(1, Math.max(from, to))];
  if (axis.words) {
    const size = axis.words.length;
    const words = axis.words.filter((_, number) => (number + 0.5) / size >= low && (number + 0.5) / size <= high);
    return words.length === 0 || words.length === size ? null : { words };
  }
  const range = { from: low <= 0 ? null : numberAt(axis, low), to: high >= 1 ? null : numberAt(axis, high) };
  return range.from === null && range.to === null ? null : range;
}

// ---- as a filter ----

/** The chosen ranges in the language of filters. */
export function toFilter(brushes: ReadonlyMap<string, Brush>, axes: Axis[]): string {
  const parts: string[] = [];
  const json = new Set(axes.filter((axis) => axis.json).map((axis) => axis.name));
  for (const [name, brush] of brushes) {
    const column = quoteName(name);
    if ("words" in brush)
      parts.push(`${column} in (${brush.words.map((word) => literal(word, json.has(name))).join(", ")})`);
    else {
      if (brush.from !== null) parts.push(`${column} >= ${brush.from}`);
      if (brush.to !== null) parts.push(`${column} <= ${brush.to}`);
    }
  }
  return parts.join(" and ");
}

const TOKEN = /\s*(?:`([^`]*)`|"((?:[^"\\]|\\.)*)"|(>=|<=|[(),])|([^\s(),<>=`"]+))/y;

/** The ranges of a filter that `toFilter` has made; none for any other. */
export function fromFilter(text: string, axes: Axis[]): Map<string, Brush> {
  const tokens: string[] = [];
  TOKEN.lastIndex = 0;
  for (let found = TOKEN.exec(text); found; found = TOKEN.exec(text)) {
    const [, name, quoted, sign, word] = found;
    tokens.push(name ?? (quoted === undefined ? undefined : quoted.replace(/\\(.)/gs, "$1")) ?? sign ?? word ?? "");
  }
  const found = new Map<string, Brush>();
  const next = () => tokens.shift() ?? "";
  while (tokens.length) {
    const [name, sign] = [next(), next()];
    const axis = axes.find((each) => each.name === name);
    const before = found.get(name) ?? { from: null, to: null };
    if (sign === "in" && next() === "(") {
      const words: string[] = [];
      do words.push(next());
      while (next() === ",");
      const known = axis?.words?.filter((word) => words.includes(axis.json ? wordText(word) : word));
      if (known?.length) found.set(name, { words: known });
    } else if ((sign === ">=" || sign === "<=") && !("words" in before)) {
      const number = Number(next());
      if (Number.isNaN(number)) return new Map();
      if (axis && !axis.words) found.set(name, sign === ">=" ? { ...before, from: number } : { ...before, to: number });
    } else return new Map();
    if (tokens.length && next() !== "and") return new Map();
  }
  return found;
}

/** Both filters at once. */
export function bothFilters(first: string, second: string): string {
  return first.trim() && second ? `(${first.trim()}) and ${second}` : first.trim() || second;
}

function quoteName(name: string): string {
  return /^[A-Za-z_][\w.]*$/.test(name) ? name : `\`${name}\``;
}

function literal(word: string, json: boolean): string {
  if (json && /^(true|false|-?[\d.]+(e[+-]?\d+)?)$/i.test(word)) return word;
  const text = json ? wordText(word) : word;
  return `"${text.replace(/["\\]/g, "\\$&")}"`;
}

// ---- the order of the axes ----

/** An axis that is shown, and whether its greatest value is at the bottom. */
export interface Shown {
  axis: Axis;
  flipped: boolean;
}

/** The axes of an address: names with commas, "-" before a flipped one; empty: all, in their own order. */
export function shownAxes(axes: Axis[], text: string): Shown[] {
  if (!text) return axes.map((axis) => ({ axis, flipped: false }));
  const byName = new Map(axes.map((axis) => [axis.name, axis]));
  return text.split(",").flatMap((part) => {
    const flipped = part.startsWith("-");
    const axis = byName.get(decodeURIComponent(flipped ? part.slice(1) : part));
    return axis ? [{ axis, flipped }] : [];
  });
}

export function axesText(shown: Shown[]): string {
  return shown.map(({ axis, flipped }) => (flipped ? "-" : "") + encodeURIComponent(axis.name)).join(",");
}

/** The same axes with one at another place. */
export function moved(shown: Shown[], from: number, to: number): Shown[] {
  const found = [...shown];
  const [one] = found.splice(from, 1);
  if (one) found.splice(Math.max(0, Math.min(found.length, to)), 0, one);
  return found;
}
