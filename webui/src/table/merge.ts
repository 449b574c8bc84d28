// Changed rows in a table that was read before: so a page that stays open never reads the whole table again.

import type { Column, ColumnType, Table } from "../api/columns";
import type { ExperimentChanges, Table as JsonTable } from "../api/schema";
import { toSeconds } from "../format";

type Value = number | string | null;

/** Rows by their values; a column's text of type "json" is JSON. */
interface Rows {
  numbers: number[];
  columns: Map<string, { type: ColumnType; values: Value[] }>;
}

/** Whether a table has all rows that its filter lets through: else it cannot be kept up to date by what has changed. */
export function isWhole(table: Table): boolean {
  return table.rows === table.matched;
}

/** The table in the order of `sort` (a column, with "-" for the greatest first) and then of the trials' numbers. */
export function inOrderOf(table: Table, sort: string): Table {
  const name = sort.replace(/^-/, "");
  const column = table.columns.find((each) => each.name === name || each.name === `parameter.${name}`);
  const numbers = table.columns.find((each) => each.name === "no");
  if (!column) return table;
  const sign = sort.startsWith("-") ? -1 : 1;
  const keys = Array.from({ length: table.rows }, (_, row) => sortKey(column, row));
  const ties = Array.from({ length: table.rows }, (_, row) => Number(numbers?.at(row)));
  const order = Array.from({ length: table.rows }, (_, row) => row);
  order.sort(
    (a, b) => compareValues(keys[a] ?? null, keys[b] ?? null, sign) || (ties[a] as number) - (ties[b] as number),
  );
  const columns = table.columns.map((each) => ({ ...each, at: (row: number) => each.at(order[row] ?? -1) }));
  return { ...table, columns };
}

/** Those rows of the table whose numbers `wanted` has, in the table's order. It needs the column "no", and so does `wanted`. */
export function onlyRowsOf(table: Table, wanted: Table): Table {
  const numbers = new Set(numbersOf(wanted));
  const kept: number[] = [];
  numbersOf(table).forEach((number, row) => {
    if (numbers.has(number)) kept.push(row);
  });
  const columns = table.columns.map((column): Column => {
    const at = (row: number) => column.at(kept[row] ?? -1);
    return { ...column, varies: column.varies && kept.some((row) => column.at(row) !== at(0)), at };
  });
  return { ...table, rows: kept.length, matched: kept.length, columns };
}

/** The numbers of the table's trials, row by row. Raises RangeError for a table that does not have them. */
export function numbersOf(table: Table): number[] {
  const column = table.columns.find((each) => each.name === "no");
  if (!column) throw new RangeError("rows of a table without numbers cannot be found");
  return Array.from({ length: table.rows }, (_, row) => Number(column.at(row)));
}

function sortKey(column: Column, row: number): Value {
  const value = column.at(row);
  if (column.type !== "json" || value === null) return value;
  const parsed: unknown = JSON.parse(String(value));
  return typeof parsed === "number" || typeof parsed === "string" ? parsed : value;
}

/** As the manager orders: numbers before texts, what is missing last. */
function compareValues(left: Value, right: Value, sign: number): number {
  if (left === null || right === null) return Number(left === null) - Number(right === null);
  if (typeof left !== typeof right) return sign * (typeof left === "number" ? -1 : 1);
  return left < right ? -sign : left > right ? sign : 0;
}

/**
 * The table with what has changed, in the order of `sort` (a column, with "-" for the greatest first) and then of the
 * trials' numbers. It needs the column "no". Rows that did not change keep their order.
 */
export function withChanges(table: Table, changes: ExperimentChanges, sort: string): Table {
  const changed = readRows(changes.rows);
  const gone = new Set([...changed.numbers, ...changes.filtered_out]);
  const numbers = table.columns.find((column) => column.name === "no");
  if (!numbers) throw new RangeError("a table without numbers cannot be changed");
  const kept: number[] = [];
  for (let row = 0; row < table.rows; row++) if (!gone.has(Number(numbers.at(row)))) kept.push(row);
  const pairs = pairColumns(table, changed);
  const order = inOrder(pairs, kept, changed.numbers.length, sort);
  const columns = pairs.map((pair) => toColumn(pair, order));
  const counts = changes.experiment?.trial_counts ?? {};
  const total = changes.experiment ? Object.values(counts).reduce((sum, count) => sum + (count ?? 0), 0) : table.total;
  return { rows: order.length, matched: order.length, total, revision: changes.revision, columns };
}

function readRows(table: JsonTable | null): Rows {
  const columns: Rows["columns"] = new Map();
  table?.columns.forEach(({ name, type }, place) => {
    const values = table.rows.map((row) => readValue(row[place], type));
    columns.set(name, { type, values });
  });
  return { numbers: (columns.get("no")?.values ?? []) as number[], columns };
}

function readValue(value: unknown, type: ColumnType): Value {
  if (value === null || value === undefined) return null;
  if (type === "json") return JSON.stringify(value);
  return type === "time" ? toSeconds(String(value)) : (value as number | string);
}

/** A column as it was and as it is in the rows that have changed. */
interface Pair {
  name: string;
  type: ColumnType;
  varied: boolean;
  old: (row: number) => Value;
  changed: Value[];
}

function pairColumns(table: Table, changed: Rows): Pair[] {
  const none = changed.numbers.map(() => null);
  const names = new Set(table.columns.map((column) => column.name));
  const pairs = table.columns.map((column): Pair => {
    const found = changed.columns.get(column.name);
    const hasOld = column.type !== "json" || column.varies || (table.rows > 0 && column.at(0) !== null);
    const hasNew = found?.values.some((value) => value !== null);
    const { name, varies } = column;
    const pair = { name, varied: varies, old: column.at, changed: found?.values ?? none };
    if (!found || !hasNew || found.type === column.type) return { ...pair, type: column.type };
    if (!hasOld) return { ...pair, type: found.type };
    const oldText = column.type === "json" ? column.at : (row: number) => jsonOrNull(column.at(row));
    const newTexts = found.type === "json" ? found.values : found.values.map(jsonOrNull);
    return { ...pair, type: "json", old: oldText, changed: newTexts };
  });
  for (const [name, { type, values }] of changed.columns) {
    if (!names.has(name)) pairs.push({ name, type, varied: false, old: () => null, changed: values });
  }
  return pairs;
}

function jsonOrNull(value: Value): Value {
  return value === null ? null : JSON.stringify(value);
}

/** Where each row comes from: a row of the table, or -1 - i for the changed row i. */
function inOrder(pairs: Pair[], kept: number[], changed: number, sort: string): number[] {
  const byNumber = compareBy(pairs, "no");
  const byColumn = compareBy(pairs, sort.replace(/^-/, ""), sort.startsWith("-"));
  const compare = (a: number, b: number) => byColumn(a, b) || byNumber(a, b);
  const added = Array.from({ length: changed }, (_, i) => -1 - i).sort(compare);
  const order: number[] = [];
  let next = 0;
  for (const row of kept) {
    while (next < added.length && compare(added[next] as number, row) < 0) order.push(added[next++] as number);
    order.push(row);
  }
  return order.concat(added.slice(next));
}

function compareBy(pairs: Pair[], name: string, backwards = false): (a: number, b: number) => number {
  const pair = pairs.find((each) => each.name === name || each.name === `parameter.${name}`);
  if (!pair) return () => 0;
  return (a, b) => compareValues(valueAt(pair, a), valueAt(pair, b), backwards ? -1 : 1);
}

function valueAt(pair: Pair, row: number): Value {
  return row < 0 ? (pair.changed[-1 - row] ?? null) : pair.old(row);
}

/** The values in their new order, in memory of their own: nothing of the table before is kept. */
function toColumn(pair: Pair, order: number[]): Column {
  const { name, type, varied } = pair;
  const values = order.map((row) => valueAt(pair, row));
  const varies = varied || values.some((value) => value !== values[0]);
  return { name, type, varies, at: reader(values) };
}

/**
 * Made apart from where the values are: closures of one function share what any of them uses, so that one made there would
 * keep the column before, that one the column before it, and so on.
 */
function reader(values: readonly Value[]): Column["at"] {
  return (row) => values[row] ?? null;
}
