import { expect, test } from "vitest";
import type { Column, ColumnType, Table } from "../src/api/columns";
import {
  axesOf,
  axesText,
  bothFilters,
  brushAt,
  drawingOrder,
  fromFilter,
  logarithmicNames,
  logTicks,
  matchesOf,
  metricsOf,
  moved,
  numberAt,
  placeOf,
  ranksOf,
  shownAxes,
  ticksOf,
  toFilter,
} from "../src/state/relations";

type Values = (number | string | null)[];

function table(columns: Record<string, Values>, types: Record<string, ColumnType> = {}): Table {
  const made = Object.entries(columns).map(([name, values]): Column => {
    const type = types[name] ?? (values.some((value) => typeof value === "string") ? "text" : "number");
    return { name, type, varies: new Set(values).size > 1, at: (row) => values[row] ?? null };
  });
  const rows = Object.values(columns)[0]?.length ?? 0;
  return { rows, total: rows, matched: rows, revision: 1, columns: made };
}

const SPACE = {
  lr: { _type: "loguniform", _value: [1e-4, 1] },
  x: { _type: "uniform", _value: [0.001, 100] },
  model: {
    _type: "choice",
    _value: [{ _name: "cnn", width: { _type: "loguniform", _value: [1, 8] } }, { _name: "mlp" }],
  },
};
const TABLE = table(
  {
    no: [0, 1, 2, 3],
    value: [0.5, 0.9, null, 0.1],
    "parameter.lr": [1e-4, 1e-2, 1, 1e-3],
    "parameter.x": [0.001, 100, 50, 25],
    "parameter.model": ["cnn", "mlp", "cnn", 'a "b"'],
    "parameter.model.width": [1, null, 8, null],
    "parameter.same": [3, 3, 3, 3],
    "parameter.flag": ["true", "false", '"auto"', "2"],
    "value.loss": [1, 2, null, 4],
  },
  { "parameter.flag": "json" },
);
const AXES = axesOf(TABLE, SPACE, "value");
const named = (name: string) => {
  const found = AXES.find((axis) => axis.name === name);
  if (!found) throw new Error(name);
  return found;
};

test("parameters that differ are axes, and the value is the last one", () => {
  expect(AXES.map((axis) => axis.label)).toEqual(["lr", "x", "model", "model.width", "flag", "value"]);
  expect(metricsOf(TABLE)).toEqual(["value", "value.loss"]);
});

test("the search space says which axes are logarithmic, nested ones too, and without it the range does", () => {
  expect(Object.fromEntries(logarithmicNames(SPACE))).toEqual({
    lr: true,
    x: false,
    model: false,
    "model.width": true,
  });
  expect([named("parameter.lr").log, named("parameter.x").log, named("parameter.model.width").log]).toEqual([
    true,
    false,
    true,
  ]);
  expect([...named("parameter.lr").places].map((place) => Number(place.toFixed(4)))).toEqual([0, 0.5, 1, 0.25]);
  expect(axesOf(TABLE, null, "value").find((axis) => axis.label === "x")?.log).toBe(true);
});

test("a trial without a parameter has no place on its axis", () => {
  expect([...named("parameter.model.width").places].map(Number.isNaN)).toEqual([false, true, false, true]);
});

test("ranks follow the direction, equal values are equal, and trials without a value have none", () => {
  expect([...ranksOf([0.5, 0.9, null, 0.1], true)]).toEqual([0.5, 0, Number.NaN, 1]);
  expect([...ranksOf([1, 1, 2], false)]).toEqual([0, 0, 1]);
  expect([...ranksOf([3], false)]).toEqual([0]);
});

test("the best is drawn last, after those without a value and the worst", () => {
  expect([...drawingOrder(ranksOf([0.5, 0.9, null, 0.1], true))]).toEqual([2, 3, 0, 1]);
});

test("one diverged trial does not flatten the values of the others", () => {
  const values = Array.from({ length: 40 }, (_, i) => (i ? i : -1e9));
  const axis = axesOf(table({ value: values }), null, "value")[0];
  expect(axis?.low).toBeGreaterThan(-1000);
  expect(axis?.places[0]).toBe(0);
});

test("a range chosen on an axis is a filter, and the filter is that range again", () => {
  const brushes = new Map([
    ["parameter.lr", brushAt(named("parameter.lr"), 0.25, 0.5)],
    ["value", brushAt(named("value"), 0.5, 1.2)],
    ["parameter.model", { words: ['a "b"'] }],
    ["parameter.flag", { words: ['"auto"', "true"] }],
  ] as [string, NonNullable<ReturnType<typeof brushAt>>][]);
  const filter = toFilter(brushes, AXES);
  expect(filter).toBe(
    'parameter.lr >= 0.001 and parameter.lr <= 0.01 and value >= 0.5 and parameter.model in ("a \\"b\\"")' +
      ' and parameter.flag in ("auto", true)',
  );
  const again = fromFilter(filter, AXES);
  expect(toFilter(again, AXES)).toBe(filter);
  expect([...matchesOf(AXES, new Map([["parameter.lr", { from: 0.001, to: 0.01 }]]), 4)]).toEqual([0, 1, 0, 1]);
  expect([...matchesOf(AXES, new Map([["parameter.model", { words: ["cnn"] }]]), 4)]).toEqual([1, 0, 1, 0]);
  expect([...matchesOf(AXES, new Map([["parameter.model.width", { from: null, to: 8 }]]), 4)]).toEqual([1, 0, 1, 0]);
});

test("a name with signs stands in backticks, and other filters give no ranges", () => {
  const axes = axesOf(table({ "parameter.learning rate": [1, 2], value: [1, 2] }), null, "value");
  const filter = toFilter(new Map([["parameter.learning rate", { from: 1.5, to: null }]]), axes);
  expect(filter).toBe("`parameter.learning rate` >= 1.5");
  expect(fromFilter(filter, axes).get("parameter.learning rate")).toEqual({ from: 1.5, to: null });
  for (const other of ["lr < 3 or lr > 4", "nonsense", "value >= x", "(", "in in in"]) {
    expect(fromFilter(other, AXES).size).toBe(0);
  }
  expect(bothFilters("a = 1 or b = 2", "c <= 3")).toBe("(a = 1 or b = 2) and c <= 3");
  expect([bothFilters("", "c <= 3"), bothFilters("a = 1", "")]).toEqual(["c <= 3", "a = 1"]);
});

test("choosing all or nothing of an axis is no range", () => {
  expect(brushAt(named("parameter.lr"), -0.2, 1.3)).toBeNull();
  expect(brushAt(named("parameter.model"), 0, 1)).toBeNull();
  expect(brushAt(named("parameter.model"), 0, 0.01)).toBeNull();
  expect(brushAt(named("parameter.lr"), 0.5, 1.1)).toEqual({ from: 0.01, to: null });
});

test("numbers and places belong together, on either scale", () => {
  for (const axis of [named("parameter.lr"), named("parameter.x")]) {
    expect(placeOf(axis, numberAt(axis, 0.3))).toBeCloseTo(0.3, 3);
  }
});

test("ticks are round numbers, powers of ten, or words", () => {
  expect(ticksOf(named("parameter.lr")).map(([, value]) => value)).toEqual([1e-4, 1e-3, 0.01, 0.1, 1]);
  expect(ticksOf(named("parameter.x")).map(([, value]) => value)).toEqual([20, 40, 60, 80, 100]);
  expect(ticksOf(named("parameter.flag")).map(([, value]) => value)).toContain("auto");
});

test("the order of the axes and which are flipped are in the address", () => {
  const shown = shownAxes(AXES, "");
  expect(shown.map(({ axis }) => axis.label)).toEqual(AXES.map((axis) => axis.label));
  const changed = moved(shown, 5, 0).map((one, i) => ({ ...one, flipped: i === 1 }));
  expect(axesText(changed)).toBe(
    "value,-parameter.lr,parameter.x,parameter.model,parameter.model.width,parameter.flag",
  );
  expect(shownAxes(AXES, axesText(changed))).toEqual(changed);
  expect(shownAxes(AXES, "nothing,-value")).toEqual([{ axis: named("value"), flipped: true }]);
});

test("ticks of a logarithmic axis are 1 to 9 times each power of ten, or round steps in a small part of one", () => {
  expect(logTicks(0.096, 0.35)).toEqual([0.1, 0.2, 0.3]);
  expect(logTicks(7.5, 31)).toEqual([8, 9, 10, 20, 30]);
  expect(logTicks(1.21, 1.79)).toEqual([1.4, 1.6]);
  expect(logTicks(0, 1)).toEqual([]);
  expect(logTicks(1, Number.POSITIVE_INFINITY)).toEqual([]);
});
