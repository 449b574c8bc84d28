import { describe, expect, test } from "vitest";
import { isDeletable, lostWith, tagsOf } from "../src/api/labels";
import { subjectsOf } from "../src/api/live";
import type { CurvePoint } from "../src/api/schema";
import { KINDS } from "../src/api/stream";
import { rangeOf, rangeWith } from "../src/charts/ranges";
import { formatCpuHours } from "../src/format";
import { aligned, bestLine, flatSpace, labelsOf, spaceDifferences, unitFor } from "../src/state/compared";
import { experiment } from "./samples";

const ended = (seconds: number) => new Date(seconds * 1000).toISOString();
const points: CurvePoint[] = [
  { sequence_id: 0, value: "NaN", best: "NaN", ended_at: ended(1005) },
  { sequence_id: 1, value: 0.5, best: 0.5, ended_at: ended(1010) },
  { sequence_id: 3, value: 0.4, best: 0.5, ended_at: ended(1020) },
  { sequence_id: 2, value: 0.7, best: 0.7, ended_at: ended(1030) },
  { sequence_id: 4, value: 0.1, best: 0.7, ended_at: ended(1050) },
];

describe("the best value so far", () => {
  test("is kept where it changes and at the end, over trials or over time", () => {
    expect(bestLine(points, "trials", 1000)).toEqual({ x: [2, 4, 5], best: [0.5, 0.7, 0.7] });
    expect(bestLine(points, "time", 1000)).toEqual({ x: [10, 30, 50], best: [0.5, 0.7, 0.7] });
    expect(bestLine([], "time", 1000)).toEqual({ x: [], best: [] });
  });

  test("of several is known at the same places, from the beginning to the end of each", () => {
    const lines = [
      { x: [1, 4], best: [0.5, 0.7] },
      { x: [2, 3], best: [9, 8] },
      { x: [], best: [] },
    ];
    expect(aligned(lines)).toEqual({
      x: [1, 2, 3, 4],
      best: [
        [0.5, 0.5, 0.5, 0.7],
        [null, 9, 8, null],
        [null, null, null, null],
      ],
    });
  });

  test.each([
    [90, "seconds"],
    [120, "minutes"],
    [7200, "hours"],
    [200_000, "days"],
    [0, "seconds"],
  ])("over %s seconds is drawn in %s", (seconds, word) => {
    expect(unitFor(seconds).word).toBe(word);
  });
});

test("experiments of the same name are told apart by their ids", () => {
  const named = (id: string, name: string) => experiment({ id, name });
  expect(labelsOf([named("a", "x"), named("b", "y"), named("c", "x")])).toEqual(["a x", "y", "c x"]);
});

test("the best value of each experiment is in the chart, poor first values need not be", () => {
  const sorted = [-1e9, 0.7, 0.71, 0.72, 0.73, 0.74, 0.75, 0.76, 0.77];
  expect(rangeWith(sorted, [0.77])).toEqual(rangeOf(sorted));
  const [low, high] = rangeWith(sorted, [0.77, 0.01, 5]);
  expect([low < 0.01, low > -1, high > 5]).toEqual([true, true, true]);
});

describe("search spaces", () => {
  const space = {
    lr: { _type: "loguniform", _value: [1e-4, 0.1] },
    model: {
      _type: "choice",
      _value: [{ _name: "cnn", width: { _type: "choice", _value: [16, 32] } }, { _name: "mlp" }],
    },
  };

  test("are flat lists of parameters, those of an option with its name", () => {
    expect([...flatSpace(space)]).toEqual([
      ["lr", "loguniform(0.0001, 0.1)"],
      ["model", "choice(cnn, mlp)"],
      ["model=cnn.width", "choice(16, 32)"],
    ]);
    expect([...flatSpace([1])]).toEqual([["space", "[1]"]]);
    expect([...flatSpace({ own: 7 })]).toEqual([["own", "7"]]);
  });

  test("differ in a bound, and where a parameter is not searched", () => {
    const other = { ...space, lr: { _type: "loguniform", _value: [1e-4, 0.10001] }, decay: space.lr };
    expect(spaceDifferences([space, other, space])).toEqual({
      differing: [
        { name: "lr", texts: ["loguniform(0.0001, 0.1)", "loguniform(0.0001, 0.10001)", "loguniform(0.0001, 0.1)"] },
        { name: "decay", texts: ["", "loguniform(0.0001, 0.1)", ""] },
      ],
      same: 2,
    });
    expect(spaceDifferences([space]).differing).toEqual([]);
  });
});

describe("labels and deletion", () => {
  test("tags are what is between commas, each once", () => {
    expect(tagsOf(" baseline,, two  words , baseline")).toEqual(["baseline", "two words"]);
    expect(tagsOf(" ")).toEqual([]);
  });

  test("a change of tags makes what is shown stale", () => {
    expect(KINDS).toContain("labels");
    expect(subjectsOf([{ id: 1, kind: "labels", experimentId: "a", trialId: null }])).toContain("experiment a");
  });

  test.each([
    ["DONE", true],
    ["STOPPED", true],
    ["ERROR", true],
    ["VIEWED", true],
    ["RUNNING", false],
    ["PAUSED", false],
    ["STOPPING", false],
  ] as const)("one that is %s can be deleted: %s", (status, can) => {
    expect(isDeletable(experiment({ status }))).toBe(can);
  });

  test("what is lost is named: trials, checkpoints and the folder", () => {
    const stopped = experiment({ status: "STOPPED", trial_counts: { SUCCEEDED: 2, WAITING: 1 }, directory: "/home/x" });
    expect(lostWith(stopped, false)).toEqual([
      "3 trials, 1 of them not ended: parameters, metrics, logs and outputs",
      "the folder /home/x",
      "all its checkpoints, which are in that folder",
    ]);
    const stored = experiment({ ...stopped, config: { checkpoint_storage: { location: "s3://bucket/all" } } });
    expect(lostWith(stored, false)).toContain("all its checkpoints in s3://bucket/all/Ab3dE5f7");
    expect(lostWith(stored, true).join()).not.toContain("checkpoints");
  });
});

test("CPU-hours say when some jobs were not measured", () => {
  expect(formatCpuHours({ gpu_hours: 0, cpu_hours: 2, unmeasured_jobs: 0 })).toBe("2");
  expect(formatCpuHours({ gpu_hours: 0, cpu_hours: 2, unmeasured_jobs: 1 })).toBe("≥ 2");
  expect(formatCpuHours({ gpu_hours: 0, cpu_hours: 0, unmeasured_jobs: 1 })).toBe("–");
});
