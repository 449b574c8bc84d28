import { describe, expect, test } from "vitest";
import { decodeCurves, decodeDensity, withNewPoints } from "../src/api/curves";
import { nearest, project, rangeOfX, rangeOfY, rescaled, smooth, toPixel } from "../src/charts/geometry";
import { marksOf } from "../src/state/marks";
import {
  assignStyles,
  type Choice,
  chooseShown,
  mayShowOthers,
  parseNumbers,
  rowsOf,
  type ShownTrial,
  varyingParameters,
} from "../src/state/shown";

/** Curves as docs/rest.md describes them. */
function encode(curves: [no: number, x: number[], y: number[]][], base = 0, version = 2): ArrayBuffer {
  const points = curves.reduce((sum, [, x]) => sum + x.length, 0);
  const buffer = new ArrayBuffer(24 + 12 * curves.length + 8 * points);
  new Uint8Array(buffer).set(new TextEncoder().encode("PCRV"));
  new Uint32Array(buffer, 4, 3).set([version, curves.length, points]);
  new DataView(buffer).setFloat64(16, base, true);
  let begin = 0;
  const begins = curves.map(([, x]) => {
    begin += x.length;
    return begin - x.length;
  });
  const counts = curves.map(([, x]) => x.length);
  const numbers = [...curves.map(([no]) => no), ...counts, ...begins];
  new Uint32Array(buffer, 24, numbers.length).set(numbers);
  const floats = [...curves.flatMap(([, x]) => x), ...curves.flatMap(([, , y]) => y)];
  new Float32Array(buffer, 24 + 4 * numbers.length, floats.length).set(floats);
  return buffer;
}

function trial(no: number, values: Partial<ShownTrial> = {}): ShownTrial {
  const common = { status: "SUCCEEDED", value: null, latest: null, reports: 1, jobs: 1, source: "algorithm" };
  return { no, id: `t${no}`, origin: null, ...common, ...values };
}

describe("what the manager answers", () => {
  test("curves are read by the numbers of their trials, moments exactly", () => {
    const found = decodeCurves(
      encode([
        [7, [0, 1, 2], [0.5, Number.NaN, 0.25]],
        [3, [], []],
        [9, [4], [8]],
      ]),
    );
    expect([...found.keys()]).toEqual([7, 3, 9]);
    expect([...Array.from(found.get(7)?.y ?? [])]).toEqual([0.5, Number.NaN, 0.25]);
    expect(found.get(3)?.x.length).toBe(0);
    expect([found.get(9)?.x[0], found.get(9)?.y[0]]).toEqual([4, 8]);
    const moments = decodeCurves(encode([[1, [0.5, 3], [1, 1]]], 1_790_000_000));
    expect(Array.from(moments.get(1)?.x ?? [])).toEqual([1_790_000_000.5, 1_790_000_003]);
  });

  test("what are no curves, or those of another version, is refused", () => {
    expect(() => decodeCurves(new TextEncoder().encode('{"items": [1, 2, 3, 4]}').buffer)).toThrow("no curves");
    expect(() => decodeCurves(encode([], 0, 1))).toThrow("version 1");
  });

  test("new points replace what was in their place and after it", () => {
    const curve = { x: [0, 1, 2], y: [1, 2, 3] };
    const longer = withNewPoints(curve, { no: 1, from: 2, steps: [2, 3], values: [null, 5] });
    expect([Array.from(longer?.x ?? []), Array.from(longer?.y ?? [])]).toEqual([
      [0, 1, 2, 3],
      [1, 2, Number.NaN, 5],
    ]);
    expect(Array.from(withNewPoints(curve, { no: 1, from: 0, steps: [0], values: [9] })?.y ?? [])).toEqual([9]);
    expect(withNewPoints(curve, { no: 1, from: 4, steps: [4], values: [1] })).toBeNull();
  });

  test("a density has its counts row by row", () => {
    const x = { from: 0, to: 9 };
    const facts = { version: 1, width: 2, height: 2, encoding: "u16", curves: 5, most: 3, x, y: x, is_current: false };
    let header = JSON.stringify(facts);
    header = header.padEnd(Math.ceil((8 + header.length) / 8) * 8 - 8);
    const buffer = new ArrayBuffer(8 + header.length + 8);
    new Uint8Array(buffer).set(new TextEncoder().encode(`PDEN....${header}`));
    new DataView(buffer).setUint32(4, header.length, true);
    new Uint16Array(buffer, 8 + header.length, 4).set([0, 1, 3, 300]);
    const found = decodeDensity(buffer);
    expect([Array.from(found.counts), found.curves, found.isCurrent, found.x]).toEqual([[0, 1, 3, 300], 5, false, x]);
    expect(() => decodeDensity(encode([]))).toThrow("no density");
  });
});

describe("smoothing", () => {
  test("has no bias towards the beginning, and leaves gaps", () => {
    const found = smooth([2, 2, Number.NaN, 2], 0.9);
    expect(Array.from(found).map((value) => Math.round(value * 1e9) / 1e9)).toEqual([2, 2, Number.NaN, 2]);
    expect(smooth([0, 1], 0.5)[1]).toBeCloseTo(2 / 3);
  });

  test("of weight 0 changes nothing", () => {
    const values = [1, 5];
    expect(smooth(values, 0)).toBe(values);
  });
});

describe("axes", () => {
  const curves = [
    { x: [0, 10], y: [-1, 1] },
    { x: [5, 100], y: [2, 4] },
  ];

  test("span all curves, and on a logarithmic one what is above zero", () => {
    expect(rangeOfX(curves, false)).toEqual([0, 100]);
    expect(rangeOfX(curves, true)).toEqual([5, 100]);
    const [low = 0, high = 0] = rangeOfY(curves, true) ?? [];
    expect([low > 0.8 && low < 1, high > 4 && high < 5]).toEqual([true, true]);
    expect(rangeOfX([{ x: [0], y: [1] }], true)).toBeNull();
  });

  test("are not flattened by a curve that diverged, and keep the beginning of each other one", () => {
    const learning = Array.from({ length: 9 }, () => ({ x: [0, 1, 2, 3], y: [9, 1, 0.5, 0.4] }));
    const [low = 0, high = 0] = rangeOfY([...learning, { x: [0, 1], y: [9, 1e12] }], false) ?? [];
    expect(low).toBeLessThan(0.4);
    expect([high > 9, high < 100]).toEqual([true, true]);
  });

  test("place a value in proportion, or in proportion to its logarithm", () => {
    expect(toPixel({ range: [0, 10], isLog: false, pixels: [100, 0] })(2.5)).toBe(75);
    const logarithmic = toPixel({ range: [1, 100], isLog: true, pixels: [0, 200] });
    expect(logarithmic(10)).toBeCloseTo(100);
    expect(logarithmic(0)).toBeNaN();
  });
});

test("the nearest curve is found between its points, too, but not across a gap", () => {
  const axis = { range: [0, 10] as [number, number], isLog: false, pixels: [0, 100] as [number, number] };
  const curves = [
    project({ x: [0, 10], y: [0, 10] }, axis, axis),
    project({ x: [0, 5, 10], y: [9, Number.NaN, 9] }, axis, axis),
  ];
  expect(nearest(curves, 48, 52, 20)).toEqual({ curve: 0, point: 0 });
  expect(nearest(curves, 62, 60, 20)).toEqual({ curve: 0, point: 1 });
  expect(nearest(curves, 50, 90, 20)).toBeNull();
  expect(nearest(curves, 96, 88, 20)).toEqual({ curve: 1, point: 2 });
});

describe("the shown trials", () => {
  const choice: Choice = { top: 2, running: true, selected: [5, 1], maximize: true };
  const all = [
    trial(1, { value: 0.1 }),
    trial(2, { value: 0.9 }),
    trial(3, { value: 0.8 }),
    trial(4, { status: "RUNNING" }),
    trial(5, { status: "FAILED" }),
    trial(6, { status: "RUNNING" }),
  ];
  const numbers = (trials: ShownTrial[]) => trials.map(({ no }) => no);

  test("are the best, those that run, and the selected ones", () => {
    expect(numbers(chooseShown(all, choice))).toEqual([2, 3, 6, 4, 5, 1]);
    expect(numbers(chooseShown(all, { ...choice, maximize: false }))).toEqual([1, 3, 6, 4, 5]);
    expect(numbers(chooseShown(all, { top: 0, running: false, selected: [9], maximize: true }))).toEqual([]);
  });

  test("are chosen again when one ends, begins, or is better, and not when a worse one ends", () => {
    const shown = chooseShown(all, choice);
    expect(mayShowOthers(shown, [trial(4, { status: "RUNNING", latest: 0.3 })], choice)).toBe(false);
    expect(mayShowOthers(shown, [trial(4, { status: "SUCCEEDED", value: 0.2 })], choice)).toBe(true);
    expect(mayShowOthers(shown, [trial(7, { status: "RUNNING" })], choice)).toBe(true);
    expect(mayShowOthers(shown, [trial(7, { value: 0.05 })], choice)).toBe(false);
    expect(mayShowOthers(shown, [trial(7, { value: 0.85 })], choice)).toBe(true);
  });

  test("are named as people write numbers", () => {
    expect(parseNumbers("17, 4 20-22,4 x -3")).toEqual([17, 4, 20, 21, 22]);
    expect(parseNumbers("0-999999999")).toHaveLength(100);
  });

  test("are read from a table by the names of its columns", () => {
    const columns = ["status", "no", "id", "value"].map((name) => ({ name, type: "text" as const, varies: true }));
    expect(rowsOf({ columns, rows: [["RUNNING", 3, "abc", null]] })[0]).toMatchObject({
      no: 3,
      id: "abc",
      status: "RUNNING",
      value: null,
    });
  });

  test("keep their styles while they are shown", () => {
    const first = assignStyles([10, 20, 30], new Map());
    expect([...first]).toEqual([
      [10, 0],
      [20, 1],
      [30, 2],
    ]);
    expect([...assignStyles([30, 40, 10], first)].sort()).toEqual([
      [10, 0],
      [30, 2],
      [40, 1],
    ]);
  });

  test("are told apart by the parameters in which they differ", () => {
    const parameters = new Map([
      [
        1,
        new Map<string, unknown>([
          ["lr", 0.1],
          ["seed", 1],
        ]),
      ],
      [
        2,
        new Map<string, unknown>([
          ["lr", 0.2],
          ["seed", 1],
          ["width", 3],
        ]),
      ],
    ]);
    expect(varyingParameters(parameters)).toEqual(["lr", "width"]);
  });
});

test("attempts are marked where they continue the curve, those from another trial's checkpoint as clones", () => {
  const curve = { x: [0, 1, 2, 3, 4], y: [1, 1, 1, 1, 1] };
  const attempts = [
    { number: 1, trial_id: "abc", started_at: "2026-11-24T00:00:00Z" },
    { number: 2, trial_id: "abc", resumed_from_job: "abc.1", resumed_from_step: 1, started_at: "2026-11-24T00:00:03Z" },
    { number: 3, trial_id: "abc", resumed_from_job: "xyz.2", resumed_from_step: 3, started_at: "2026-11-24T00:00:04Z" },
    { number: 4, trial_id: "abc" },
  ];
  expect(marksOf(curve, "step", attempts)).toEqual([
    { point: 2, isClone: false },
    { point: 4, isClone: true },
  ]);
  expect(marksOf(curve, "seconds", attempts).map(({ point }) => point)).toEqual([3, 4]);
});

test("a range is enlarged around its middle and moved by a part of itself", () => {
  expect(rescaled([0, 8], false, 0.5, 0)).toEqual([2, 6]);
  expect(rescaled([0, 8], false, 1, 0.25)).toEqual([2, 10]);
  const [low, high] = rescaled([1, 100], true, 0.5, 0);
  expect([low, high]).toEqual([expect.closeTo(Math.sqrt(10)), expect.closeTo(Math.sqrt(1000))]);
});
