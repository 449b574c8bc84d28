import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { describe, expect, test } from "vitest";
import type { Column, ColumnType, Table } from "../src/api/columns";
import type { ExperimentChanges } from "../src/api/schema";
import { runOnAll, TRIAL_ACTIONS } from "../src/api/trial_actions";
import { bestPoints } from "../src/state/best";
import { compareParameters, numbersIn, onOneAxis } from "../src/state/comparison";
import { namesOf, toggled } from "../src/state/selection";
import { changedParameters, fieldsOf, parametersOf, textsOf } from "../src/state/space";
import { inOrderOf, isWhole, onlyRowsOf, withChanges } from "../src/table/merge";
import { experiment } from "./samples";

type Value = number | string | null;

function table(columns: Record<string, [ColumnType, Value[]]>): Table {
  const rows = Object.values(columns)[0]?.[1].length ?? 0;
  const made = Object.entries(columns).map(
    ([name, [type, values]]): Column => ({
      name,
      type,
      varies: new Set(values).size > 1,
      at: (row) => values[row] ?? null,
    }),
  );
  return { rows, total: rows, matched: rows, revision: 7, columns: made };
}

function changes(values: Partial<ExperimentChanges>): ExperimentChanges {
  return { revision: 9, reset: false, experiment: null, rows: null, filtered_out: [], points: [], ...values };
}

function rows(columns: [string, ColumnType][], data: unknown[][]): ExperimentChanges["rows"] {
  const described = columns.map(([name, type]) => ({ name, type, varies: true }));
  return { columns: described, rows: data as never, total: 0, matched: 0, revision: 9 };
}

const cells = (found: Table, name: string) => {
  const column = found.columns.find((each) => each.name === name);
  return Array.from({ length: found.rows }, (_, row) => column?.at(row));
};

describe("changed rows in a table", () => {
  const before = table({
    no: ["number", [2, 0, 1]],
    value: ["number", [0.9, 0.5, null]],
    started: ["time", [1, 2, 3]],
    reason: ["json", [null, null, null]],
    "parameter.lr": ["number", [1, 1, 1]],
  });

  test("take their places in the order, and new ones theirs", () => {
    const found = withChanges(
      before,
      changes({
        experiment: experiment({ trial_counts: { SUCCEEDED: 3, RUNNING: 1 } }),
        rows: rows(
          [
            ["no", "number"],
            ["value", "number"],
            ["started", "time"],
            ["reason", "text"],
          ],
          [
            [1, 0.7, "2001-09-09T01:46:40Z", "late"],
            [3, null, null, null],
          ],
        ),
      }),
      "-value",
    );
    expect(cells(found, "no")).toEqual([2, 1, 0, 3]);
    expect(cells(found, "value")).toEqual([0.9, 0.7, 0.5, null]);
    expect(cells(found, "started")).toEqual([1, 1e9, 2, null]);
    expect(cells(found, "reason")).toEqual([null, "late", null, null]);
    expect([found.total, found.matched, found.revision]).toEqual([4, 4, 9]);
    expect(found.columns.map(({ name, type, varies }) => [name, type, varies])).toEqual([
      ["no", "number", true],
      ["value", "number", true],
      ["started", "time", true],
      ["reason", "text", true],
      ["parameter.lr", "number", true],
    ]);
  });

  test("keep nothing of the tables before", async () => {
    setFlagsFromString("--expose-gc");
    const collectGarbage = runInNewContext("gc") as () => void;
    const none = rows([["no", "number"]], []);
    let now: Table | null = table({ no: ["number", [0, 1, 2]] });
    const first = new WeakRef((now.columns[0] as Column).at);
    for (let turn = 0; turn < 3; turn++) now = withChanges(now, changes({ rows: none }), "no");
    await new Promise((resolve) => setTimeout(resolve)); // a WeakRef holds what it refers to until then
    collectGarbage();
    expect(first.deref()).toBeUndefined();
    expect(cells(now, "no")).toEqual([0, 1, 2]);
  });

  test("leave it where the filter no longer lets them through", () => {
    const found = withChanges(before, changes({ filtered_out: [0, 77] }), "no");
    expect(cells(found, "no")).toEqual([2, 1]);
  });

  test("a column that is new, or gets values of another type, is one of the table", () => {
    const found = withChanges(
      before,
      changes({
        rows: rows(
          [
            ["no", "number"],
            ["parameter.lr", "text"],
            ["parameter.new", "number"],
          ],
          [[3, "auto", 5]],
        ),
      }),
      "no",
    );
    expect(cells(found, "parameter.lr")).toEqual(["1", "1", "1", '"auto"']);
    expect(cells(found, "parameter.new")).toEqual([null, null, null, 5]);
  });

  test("a table that is a part of what was found is read again", () => {
    expect([isWhole(before), isWhole({ ...before, matched: 4 })]).toEqual([true, false]);
  });

  test("any sequence of changes gives what reading the whole table gives", () => {
    const all = new Map<number, number | null>();
    let found = table({ no: ["number", []], value: ["number", []] });
    let seed = 1;
    const random = (below: number) => {
      seed = (seed * 48271) % 2147483647;
      return seed % below;
    };
    for (let round = 0; round < 200; round++) {
      const changed = new Map(
        Array.from({ length: 1 + random(5) }, () => [random(60), random(4) ? random(20) : null] as const),
      );
      for (const [number, value] of changed) all.set(number, value);
      const heads: [string, ColumnType][] = [
        ["no", "number"],
        ["value", "number"],
      ];
      found = withChanges(found, changes({ rows: rows(heads, [...changed]) }), "-value");
    }
    const wanted = [...all].sort(
      ([a, x], [b, y]) => (y ?? Number.NEGATIVE_INFINITY) - (x ?? Number.NEGATIVE_INFINITY) || a - b,
    );
    expect(cells(found, "no")).toEqual(wanted.map(([number]) => number));
  });
});

test("a table is put in order as the manager does: numbers before texts, what is missing last", () => {
  const mixed = table({
    no: ["number", [0, 1, 2, 3, 4]],
    "parameter.a": ["json", ['"b"', null, "10", "9", "9"]],
  });
  expect(cells(inOrderOf(mixed, "a"), "no")).toEqual([3, 4, 2, 0, 1]);
  expect(cells(inOrderOf(mixed, "-parameter.a"), "no")).toEqual([0, 2, 3, 4, 1]);
  expect(cells(inOrderOf(mixed, "gone"), "no")).toEqual([0, 1, 2, 3, 4]);
});

test("only the rows with the numbers of another table, in the order as it is, and what varies in them", () => {
  const all = table({
    no: ["number", [3, 0, 2, 1]],
    status: ["text", ["FAILED", "SUCCEEDED", "FAILED", "SUCCEEDED"]],
    lr: ["number", [1, 2, 3, 4]],
  });
  const found = onlyRowsOf(all, table({ no: ["number", [2, 3, 9]] }));
  expect([found.rows, found.matched, found.total]).toEqual([2, 2, 4]);
  expect(cells(found, "no")).toEqual([3, 2]);
  expect(cells(found, "lr")).toEqual([1, 3]);
  expect(found.columns.map(({ varies }) => varies)).toEqual([true, false, true]);
  expect(onlyRowsOf(all, table({ no: ["number", []] })).rows).toBe(0);
});

test("the best so far follows the order of the ends", () => {
  const ended = table({
    no: ["number", [4, 1, 5, 3, 2]],
    status: ["text", ["SUCCEEDED", "EARLY_STOPPED", "FAILED", "SUCCEEDED", "SUCCEEDED"]],
    value: ["number", [2, 1, 0, 3, null]],
  });
  expect(bestPoints(ended, false).map(({ best }) => best)).toEqual([2, 1, 1]);
  expect(bestPoints(ended, true).map(({ number, best }) => [number, best])).toEqual([
    [4, 2],
    [1, 2],
    [3, 3],
  ]);
});

describe("the selection", () => {
  test("is turned over row by row, and set like the newest one over a range", () => {
    const shown = [9, 7, 5, 3];
    const one = toggled(new Set(), shown, 1, null);
    expect([...one]).toEqual([7]);
    expect([...toggled(one, shown, 3, 1)].sort()).toEqual([3, 5, 7]);
    expect([...toggled(one, shown, 1, null)]).toEqual([]);
    expect([...toggled(new Set([9, 7, 5]), shown, 0, 2)]).toEqual([]);
  });

  test("is named in a question, as far as that can be read", () => {
    expect(namesOf([3])).toBe("trial 3");
    expect(namesOf([3, 5, 8])).toBe("trials 3, 5 and 8");
    expect(namesOf(Array.from({ length: 100 }, (_, i) => i))).toContain("19 and 80 more");
  });

  test("a trial that cannot be changed does not keep the action from the others", async () => {
    const [kill] = TRIAL_ACTIONS;
    if (!kill) throw new Error("no actions");
    const done: string[] = [];
    const run = async (id: string) => {
      if (id === "b") throw new Error("it has ended");
      done.push(id);
    };
    const selected = ["a", "b", "c"].map((id, number) => ({ id, number, status: "RUNNING" }));
    const outcome = await runOnAll({ ...kill, run }, selected);
    expect(outcome).toEqual({ done: 2, problems: [[1, "it has ended"]] });
    expect(done.sort()).toEqual(["a", "c"]);
  });
});

describe("parameters of a new trial", () => {
  const space = {
    lr: { _type: "uniform", _value: [0, 1] },
    units: { _type: "choice", _value: [16, "auto"] },
    model: {
      _type: "choice",
      _value: [{ _name: "cnn", width: { _type: "choice", _value: [1, 2] } }, { _name: "mlp" }],
    },
  };

  test("have a field each, those of the chosen part of a nested choice too", () => {
    const names = (texts: Record<string, string>) => fieldsOf(space, texts)?.map(({ path }) => path.join("."));
    expect(names({})).toEqual(["lr", "units", "model"]);
    expect(names({ model: "cnn" })).toEqual(["lr", "units", "model", "model.width"]);
    expect(fieldsOf([1, 2], {})).toBeNull();
    expect(fieldsOf({ lr: [0, 1] }, {})).toBeNull();
  });

  test("are what was written, by the types of the space", () => {
    const parameters = { lr: 0.25, units: 16, model: { _name: "cnn", width: 2 } };
    const texts = textsOf(parameters);
    expect(texts).toEqual({ lr: "0.25", units: "16", model: "cnn", "model.width": "2" });
    const fields = fieldsOf(space, texts) ?? [];
    expect(parametersOf(fields, texts)).toEqual(parameters);
    const changed = parametersOf(fields, { ...texts, lr: "many", units: "auto" });
    expect(changed).toEqual({ ...parameters, lr: "many", units: "auto" });
    expect(changedParameters(parameters, changed)).toEqual({ lr: "many", units: "auto" });
  });
});

describe("compared trials", () => {
  test("differences come first", () => {
    const found = compareParameters([
      { a: 1, b: { _name: "x" } },
      { a: 1, b: { _name: "y", c: 2 } },
    ]);
    expect(found.map(({ name, differs }) => [name, differs])).toEqual([
      ["b", true],
      ["b.c", true],
      ["a", false],
    ]);
    expect(found[1]?.values).toEqual([undefined, 2]);
  });

  test("curves share an axis", () => {
    const curve = (...points: [number, number][]) => points.map(([x, y]) => ({ x, y }));
    expect(onOneAxis([curve([0, 1], [2, 3]), curve([1, 5])])).toEqual([
      [0, 1, 2],
      [
        [1, null, 3],
        [null, 5, null],
      ],
    ]);
  });

  test("an address names each once, and what is no number is left out", () => {
    expect(numbersIn("17,4,17,x,-1,")).toEqual([17, 4]);
  });
});
