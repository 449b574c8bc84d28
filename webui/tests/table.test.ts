import { describe, expect, test } from "vitest";
import { decodeTable, type Table } from "../src/api/columns";
import { cellText, columnsOnDemand, defaultColumns, nextSort, shownColumns, widthOf } from "../src/state/view";

type Block = {
  name: string;
  type: string;
  encoding: string;
  varies?: boolean;
  values?: string[];
  data: ArrayBufferView;
};

/** The manager's binary table, as docs/rest.md describes it. */
function encode(rows: number, blocks: Block[], version = 1): ArrayBuffer {
  const padded = (length: number) => Math.ceil(length / 8) * 8;
  let at = 0;
  const columns = blocks.map(({ data, varies = true, ...rest }) => {
    const described = { ...rest, varies, at };
    at += padded(data.byteLength);
    return described;
  });
  let header = JSON.stringify({ version, rows, total: 9, matched: rows, revision: 7, columns });
  header = header.padEnd(padded(8 + new TextEncoder().encode(header).length) - 8);
  const head = new TextEncoder().encode(header);
  const buffer = new ArrayBuffer(8 + head.length + at);
  const bytes = new Uint8Array(buffer);
  bytes.set(new TextEncoder().encode("PCOL"));
  new DataView(buffer).setUint32(4, head.length, true);
  bytes.set(head, 8);
  blocks.forEach(({ data }, i) => {
    bytes.set(new Uint8Array(data.buffer, data.byteOffset, data.byteLength), 8 + head.length + (columns[i]?.at ?? 0));
  });
  return buffer;
}

function texts(values: string[]): Uint8Array {
  const encoded = values.map((value) => new TextEncoder().encode(value));
  const offsets = new Uint32Array(values.length + 1);
  encoded.forEach((each, i) => {
    offsets[i + 1] = (offsets[i] ?? 0) + each.length;
  });
  return new Uint8Array([...new Uint8Array(offsets.buffer), ...encoded.flatMap((each) => [...each])]);
}

function sample(): Table {
  return decodeTable(
    encode(3, [
      { name: "no", type: "number", encoding: "i32", data: new Int32Array([2, 1, 0]) },
      { name: "id", type: "text", encoding: "text", data: texts(["aa", "", "ü"]) },
      {
        name: "status",
        type: "text",
        encoding: "u8",
        varies: false,
        values: ["SUCCEEDED"],
        data: new Uint8Array([0, 0, 0]),
      },
      { name: "value", type: "number", encoding: "f64", data: new Float64Array([0.5, Number.NaN, -1e-7]) },
      { name: "reason", type: "text", encoding: "u16", values: ["=cmd()"], data: new Uint16Array([0, 65535, 65535]) },
      { name: "started", type: "time", encoding: "f64", varies: false, data: new Float64Array([1e9, Number.NaN, 1e9]) },
      { name: "parameter.lr", type: "number", encoding: "f64", data: new Float64Array([0.1, 0.2, 0.3]) },
      {
        name: "parameter.model",
        type: "json",
        encoding: "u8",
        values: ['"a,b"', "[1,2]"],
        data: new Uint8Array([0, 1, 255]),
      },
      {
        name: "parameter.seed",
        type: "number",
        encoding: "i32",
        varies: false,
        data: new Int32Array([1, 1, -(2 ** 31)]),
      },
      { name: "time", type: "number", encoding: "f64", data: new Float64Array([61, 2, 3]) },
    ]),
  );
}

const column = (table: Table, name: string) => {
  const found = table.columns.find((each) => each.name === name);
  if (!found) throw new Error(name);
  return found;
};
const values = (table: Table, name: string) => [0, 1, 2].map((row) => column(table, name).at(row));

test("every encoding of a column is read, with what is missing in it", () => {
  const table = sample();
  expect([table.rows, table.total, table.revision]).toEqual([3, 9, 7]);
  expect(values(table, "no")).toEqual([2, 1, 0]);
  expect(values(table, "id")).toEqual(["aa", "", "ü"]);
  expect(values(table, "value")).toEqual([0.5, null, -1e-7]);
  expect(values(table, "reason")).toEqual(["=cmd()", null, null]);
  expect(values(table, "parameter.model")).toEqual(['"a,b"', "[1,2]", null]);
  expect(values(table, "parameter.seed")).toEqual([1, 1, null]);
});

test("what is no table, or one of another version, is refused", () => {
  expect(() => decodeTable(new TextEncoder().encode('{"rows": []}').buffer)).toThrow("no table");
  expect(() => decodeTable(encode(0, [], 2))).toThrow("version 2");
});

describe("the view", () => {
  test("shows the columns in which trials differ, unless others were chosen", () => {
    const table = sample();
    expect(defaultColumns(table)).toEqual([
      "no",
      "status",
      "value",
      "parameter.lr",
      "parameter.model",
      "time",
      "reason",
    ]);
    expect(shownColumns(table, "parameter.seed,gone,no").map(({ name }) => name)).toEqual(["parameter.seed", "no"]);
  });

  test("reads columns on demand only where they are shown or sorted by", () => {
    expect(columnsOnDemand("", "-value")).toEqual([]);
    expect(columnsOnDemand("no,curve.best,lr", "-curve.best")).toEqual(["curve.best"]);
    expect(columnsOnDemand("no", "-gpu-hours")).toEqual(["gpu-hours"]);
    expect(columnsOnDemand("no,curve.at.20", "")).toEqual(["curve.at.20"]);
  });

  test("reads cells by their type", () => {
    const table = sample();
    expect(cellText(column(table, "value"), 2)).toBe("−1e−7");
    expect(cellText(column(table, "value"), 1)).toBe("–");
    expect(cellText(column(table, "time"), 0)).toBe("1 min 01 s");
    expect(cellText(column(table, "parameter.model"), 0)).toBe("a,b");
    expect(widthOf(column(table, "parameter.lr"), 3)).toBeGreaterThan(50);
  });

  test("a column is ordered from its greatest, then from its least, then not", () => {
    expect([nextSort("", "lr"), nextSort("-lr", "lr"), nextSort("lr", "lr"), nextSort("lr", "no")]).toEqual([
      "-lr",
      "lr",
      "",
      "-no",
    ]);
  });
});
