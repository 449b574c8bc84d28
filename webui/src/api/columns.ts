// The manager's binary table: one block of memory, of which each column is a view. Nothing is made for a cell before it is
// shown. docs/rest.md has the format.

export const MEDIA_TYPE = "application/vnd.proctor.columns";

const MAGIC = 0x4c4f4350; // "PCOL" as a little-endian number
const NO_INTEGER = -(2 ** 31);

export type ColumnType = "number" | "text" | "time" | "json";

/** A column. A row's value: a number (times are Unix seconds), a text, or null. */
export interface Column {
  name: string;
  type: ColumnType;
  /** Whether two of the rows differ in it. */
  varies: boolean;
  at(row: number): number | string | null;
}

export interface Table {
  rows: number;
  /** Trials of the experiment, and those that the filter lets through. */
  total: number;
  matched: number;
  /** The id of the experiment's newest event. */
  revision: number;
  columns: Column[];
}

interface Described {
  name: string;
  type: ColumnType;
  varies: boolean;
  at: number;
  encoding: "f64" | "i32" | "u8" | "u16" | "u32" | "text";
  values?: string[];
}

/** The table in `buffer`, which it keeps. Raises RangeError for another format. */
export function decodeTable(buffer: ArrayBuffer): Table {
  const view = new DataView(buffer);
  if (buffer.byteLength < 8 || view.getUint32(0, true) !== MAGIC)
    throw new RangeError("this is no table of the manager");
  const length = view.getUint32(4, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length)));
  if (header.version !== 1)
    throw new RangeError(`the manager's tables have version ${header.version}; reload the page`);
  const { rows, total, matched, revision } = header;
  const described = header.columns as Described[];
  return { rows, total, matched, revision, columns: described.map((each) => toColumn(buffer, 8 + length, rows, each)) };
}

function toColumn(buffer: ArrayBuffer, data: number, rows: number, described: Described): Column {
  const { name, type, varies } = described;
  return { name, type, varies, at: reader(buffer, data + described.at, rows, described) };
}

function reader(buffer: ArrayBuffer, start: number, rows: number, described: Described): Column["at"] {
  const values = described.values ?? [];
  switch (described.encoding) {
    case "f64": {
      const block = new Float64Array(buffer, start, rows);
      return (row) => orNull(block[row], Number.isNaN(block[row]));
    }
    case "i32": {
      const block = new Int32Array(buffer, start, rows);
      return (row) => orNull(block[row], block[row] === NO_INTEGER);
    }
    case "u8":
      return words(new Uint8Array(buffer, start, rows), values);
    case "u16":
      return words(new Uint16Array(buffer, start, rows), values);
    case "u32":
      return words(new Uint32Array(buffer, start, rows), values);
    case "text": {
      const offsets = new Uint32Array(buffer, start, rows + 1);
      const texts = new Uint8Array(buffer, start + offsets.byteLength);
      const decoder = new TextDecoder();
      return (row) => decoder.decode(texts.subarray(offsets[row], offsets[row + 1]));
    }
  }
}

function orNull(value: number | undefined, isNull: boolean): number | null {
  return value === undefined || isNull ? null : value;
}

/** Indexes into a dictionary; the greatest number of their type, which is past its end, is null. */
function words(block: Uint8Array | Uint16Array | Uint32Array, values: string[]): Column["at"] {
  return (row) => values[block[row] ?? values.length] ?? null;
}
