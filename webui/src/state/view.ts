// Which columns of the table are shown, in which order, and how wide.

import type { Column, Table } from "../api/columns";
import { formatDuration, formatNumber, formatParameter, formatTime } from "../format";

const FIRST = ["no", "status", "value", "latest", "reports"];
const LAST = ["time", "node", "jobs", "source", "reason"];
const ALWAYS = new Set(["no", "status", "value"]);
const PARAMETER = "parameter.";
const SAMPLE_ROWS = 300;
const PIXELS_OF_A_CHARACTER = 8; // the widest of the usual fonts
const PIXELS_OF_A_CHARACTER_IN_HEADS = 7;
const [LEAST_PIXELS, MOST_PIXELS] = [56, 280];

/** The columns that are shown unless others were chosen: those in which trials differ, parameters in the middle. */
export function defaultColumns(table: Table): string[] {
  const varying = new Set(table.columns.filter((column) => column.varies).map((column) => column.name));
  const shown = (name: string) => varying.has(name) || ALWAYS.has(name);
  const parameters = table.columns.map((column) => column.name).filter((name) => name.startsWith(PARAMETER));
  const values = table.columns.map((column) => column.name).filter((name) => name.startsWith("value."));
  return [...FIRST.filter(shown), ...values.filter(shown), ...parameters.filter(shown), ...LAST.filter(shown)];
}

/** Columns that are read only where they are asked for: they cost more than those that are stored. */
export const ON_DEMAND = ["curve.best", "gpu-hours", "cpu-hours"];

/** Of the chosen columns and the order, those that are read only where they are asked for. */
export function columnsOnDemand(chosen: string, sort: string): string[] {
  const names = [...chosen.split(","), sort.replace(/^-/, "")];
  return [...new Set(names)].filter((name) => ON_DEMAND.includes(name) || name.startsWith("curve."));
}

/** The chosen columns, or the default ones; those that the table does not have are left out. */
export function shownColumns(table: Table, chosen: string): Column[] {
  const byName = new Map(table.columns.map((column) => [column.name, column]));
  const names = chosen ? chosen.split(",") : defaultColumns(table);
  return names.flatMap((name) => byName.get(name) ?? []);
}

/** What the head of a column says. */
export function headOf(name: string): string {
  return name === "no" ? "Trial" : name.startsWith(PARAMETER) ? name.slice(PARAMETER.length) : name;
}

/** A cell as text. */
export function cellText(column: Column, row: number): string {
  const value = column.at(row);
  if (value === null) return "–";
  if (column.type === "time") return formatTime(value as number);
  if (column.name === "time") return formatDuration(value as number);
  if (column.type === "json") return jsonText(value as string);
  return column.name.startsWith(PARAMETER) ? formatParameter(value) : formatNumber(value);
}

function jsonText(json: string): string {
  return json.startsWith('"') ? String(JSON.parse(json)) : json;
}

/** Whether its cells stand at the right. */
export function isNumeric(column: Column): boolean {
  return column.type === "number";
}

/** The width in pixels that the cells of a column need, by a sample of them. */
export function widthOf(column: Column, rows: number): number {
  if (column.name === "status") return 128;
  let longest = ((headOf(column.name).length + 2) * PIXELS_OF_A_CHARACTER_IN_HEADS) / PIXELS_OF_A_CHARACTER;
  const step = Math.max(1, Math.floor(rows / SAMPLE_ROWS));
  for (let row = 0; row < rows; row += step) longest = Math.max(longest, cellText(column, row).length);
  return Math.round(Math.min(MOST_PIXELS, Math.max(LEAST_PIXELS, longest * PIXELS_OF_A_CHARACTER + 22)));
}

/** The next order after a click on a column: the greatest first, the least first, the default. */
export function nextSort(sort: string, column: string): string {
  return sort === `-${column}` ? column : sort === column ? "" : `-${column}`;
}
/** The shown columns of all rows as CSV (RFC 4180). Numbers and times are exact. */
export function toCsv(table: Table, columns: Column[]): string {
  const lines = [columns.map((column) => csvField(column.name)).join(",")];
  for (let row = 0; row < table.rows; row++) {
    lines.push(columns.map((column) => csvField(csvValue(column, column.at(row)))).join(","));
  }
  return `${lines.join("\r\n")}\r\n`;
}

function csvValue(column: Column, value: number | string | null): string {
  if (value === null) return "";
  if (column.type === "time") return new Date((value as number) * 1000).toISOString();
  return column.type === "json" ? jsonText(String(value)) : String(value);
}

/** Quoted where needed. What a spreadsheet would run as a formula is made a text. */
function csvField(text: string): string {
  const safe = /^[=+\-@\t\r]/.test(text) && Number.isNaN(Number(text)) ? `'${text}` : text;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}
