import { describe, expect, test } from "vitest";
import { experimentActions, nodeActions, trialActions } from "../src/api/actions";
import type { Node } from "../src/api/schema";
import { rangeOf } from "../src/charts/ranges";
import {
  capitalized,
  formatAgo,
  formatBytes,
  formatDuration,
  formatNumber,
  formatParameter,
  lossText,
} from "../src/format";
import { copyText, copyTextOfAll } from "../src/state/copies";
import { changedLimits, parseDuration } from "../src/state/limits";
import { flatParameters } from "../src/state/parameters";
import { elapsedSeconds, endedTrials, ranSeconds, timeLeft } from "../src/state/progress";
import { experiment, trial } from "./samples";

describe("numbers", () => {
  test.each([
    [0.98234, "0.9823"],
    [0.9, "0.9000"],
    [123.456, "123.5"],
    [12345.6, "12346"],
    [999999.5, "1000000"],
    [-0.5, "−0.5000"],
    [0.00012345, "1.234e−4"],
    [1e-9, "1e−9"],
    [1.5e9, "1.5e9"],
    [64, "64"],
    [0, "0"],
    [null, "–"],
    ["NaN", "NaN"],
    ["-Infinity", "−∞"],
    [Number.POSITIVE_INFINITY, "∞"],
  ])("%s has four significant digits: %s", (value, text) => {
    expect(formatNumber(value)).toBe(text);
  });

  test("a parameter has no zeros at its end, and what is no number is text", () => {
    expect(formatParameter(0.9)).toBe("0.9");
    expect(formatParameter(100)).toBe("100");
    expect(formatParameter("<b>")).toBe("<b>");
    expect(formatParameter([1, "a"])).toBe('[1,"a"]');
    expect(formatParameter(false)).toBe("false");
  });
});

test.each([
  [4.21, "4.2 s"],
  [59.4, "59 s"],
  [59.6, "1 min 00 s"],
  [200, "3 min 20 s"],
  [7500, "2 h 05 min"],
  [273600, "3 d 4 h"],
  [-1, "0.0 s"],
  [null, "–"],
])("%s seconds read %s", (seconds, text) => {
  expect(formatDuration(seconds)).toBe(text);
});

test("a moment reads as the time that has passed since", () => {
  expect(formatAgo(1000, 1030)).toBe("just now");
  expect(formatAgo(1000, 1000 + 3 * 3600)).toBe("3 h ago");
});

test("a nested choice becomes a column for its name and one for each of its parameters", () => {
  const parameters = { lr: 0.1, model: { _name: "cnn", width: 32, block: { _name: "res", depth: 2 } }, sizes: [1, 2] };
  expect(flatParameters(parameters)).toEqual([
    ["lr", 0.1],
    ["model", "cnn"],
    ["model.width", 32],
    ["model.block", "res"],
    ["model.block.depth", 2],
    ["sizes", [1, 2]],
  ]);
  expect(flatParameters(7)).toEqual([["value", 7]]);
});

describe("how long a trial or a job has run", () => {
  const times = { started_at: "2026-01-01T10:00:00Z", ended_at: null };
  const run = { ...times, status: "RUNNING" as const, run_seconds: 5 };

  test("is what the manager says, and what has passed since it said so, however its clock was set", () => {
    expect(ranSeconds(run, 1000, 1007)).toBe(12);
    expect(ranSeconds({ ...run, status: "PAUSED" }, 1000, 1007)).toBe(5);
    expect(ranSeconds({ ...run, status: "SUCCEEDED", ended_at: "2026-01-01T11:00:00Z" }, 1000, 1007)).toBe(5);
  });

  test("is computed from its times where the manager does not know it, and by nothing before it begins", () => {
    const began = Date.parse(times.started_at) / 1000;
    expect(ranSeconds({ ...run, run_seconds: null }, began, began + 7)).toBe(7);
    expect(ranSeconds({ ...run, run_seconds: null, ended_at: "2026-01-01T11:00:00Z" }, began, began + 7)).toBe(3600);
    expect(ranSeconds({ ...run, started_at: null }, began, began + 7)).toBe(null);
  });
});

describe("progress", () => {
  const running = experiment({ trial_counts: { SUCCEEDED: 8, FAILED: 2, RUNNING: 2 }, active_seconds: 100 });

  test("trials that have ended are counted, whatever their end", () => {
    expect(endedTrials(running)).toBe(10);
  });

  test("time is counted up while an experiment runs, and only then", () => {
    expect(elapsedSeconds(running, 1000, 1007)).toBe(107);
    expect(elapsedSeconds({ ...running, status: "PAUSED" }, 1000, 1007)).toBe(100);
  });

  test("the limit that is reached first says how long it takes", () => {
    const limited = { ...running, max_trial_number: 40, max_experiment_duration_seconds: 5000 };
    expect(timeLeft(limited, 100)).toEqual({ limit: "trials", seconds: 300 });
    expect(timeLeft({ ...limited, max_experiment_duration_seconds: 130 }, 100)).toEqual({ limit: "time", seconds: 30 });
  });

  test("without a limit, without a pace, or when it is over, nothing is claimed", () => {
    expect(timeLeft(running, 100)).toBeNull();
    expect(timeLeft(experiment({ max_trial_number: 40 }), 100)).toBeNull();
    expect(timeLeft({ ...running, max_trial_number: 40, status: "DONE" }, 100)).toBeNull();
  });
});

test("one diverged trial does not flatten the rest of a chart", () => {
  const values = [0.7, 0.71, 0.72, 0.73, 0.74, 0.75, 0.76, 0.77, 1e9];
  const [low, high] = rangeOf(values);
  expect(low).toBeLessThan(0.7);
  expect(high).toBeLessThan(1);
  expect(rangeOf([0.5])[0]).toBeLessThan(0.5);
});

describe("parameters to paste", () => {
  const parameters = { lr: 0.1, model: { _name: "it's", on: "no: comment" }, sizes: [1, 2], yes: true };

  test("as YAML, which quotes what could be read as something else", () => {
    expect(copyText(parameters, "YAML")).toBe(
      'lr: 0.1\nmodel:\n  _name: "it\'s"\n  "on": "no: comment"\nsizes: [1,2]\n"yes": true\n',
    );
  });

  test("as options that a shell takes apart again", () => {
    expect(copyText(parameters, "command line")).toBe(
      `--lr=0.1 '--model=it'\\''s' '--model.on=no: comment' '--sizes=[1,2]' --yes=true`,
    );
  });

  test("as JSON", () => {
    expect(JSON.parse(copyText(parameters, "JSON"))).toEqual(parameters);
  });

  test("those of several trials as one list, or a line for each", () => {
    const all = [{ lr: 0.1, model: { _name: "a" } }, { lr: 0.2 }];
    expect(copyTextOfAll(all, "YAML")).toBe('- lr: 0.1\n  model:\n    _name: "a"\n- lr: 0.2\n');
    expect(JSON.parse(copyTextOfAll(all, "JSON"))).toEqual(all);
    expect(copyTextOfAll(all, "command line")).toBe("--lr=0.1 --model=a\n--lr=0.2");
    expect(copyTextOfAll([{ lr: 0.1 }], "command line")).toBe("--lr=0.1");
  });
});

test("what can be done depends on the status", () => {
  const words = (found: { word: string }[]) => found.map(({ word }) => word);
  expect(words(trialActions(trial({ status: "RUNNING" })))).toEqual(["Pause", "Kill"]);
  expect(words(trialActions(trial({ status: "PAUSED" })))).toEqual(["Resume", "Kill"]);
  expect(words(trialActions(trial({ status: "PAUSED", paused_by: "SCHEDULER" })))).toEqual(["Pause", "Kill"]);
  expect(words(trialActions(trial({ status: "WAITING" })))).toEqual(["Kill"]);
  expect(words(trialActions(trial({ status: "FAILED" })))).toEqual(["Retry", "Retry from checkpoint"]);
  expect(words(experimentActions(experiment({ status: "RUNNING" })))).toEqual(["Pause", "Stop"]);
  expect(words(experimentActions(experiment({ status: "NO_MORE_TRIAL" })))).toEqual(["Stop"]);
  expect(words(experimentActions(experiment({ status: "PAUSED" })))).toEqual(["Resume", "Stop"]);
  expect(words(experimentActions(experiment({ status: "DONE" })))).toEqual([]);
  const node: Node = {
    id: "gpu-1",
    kind: "remote",
    status: "CONNECTED",
    reason: "",
    hold: "",
    address: "",
    usage: trial().usage,
  };
  expect(words(nodeActions(node))).toEqual(["Check", "Drain"]);
  expect(words(nodeActions({ ...node, hold: "drained" }))).toEqual(["Check", "Resume"]);
});

describe("limits", () => {
  const running = experiment({ trial_concurrency: 4, max_trial_number: 30, max_experiment_duration_seconds: 9000 });
  const texts = {
    trial_concurrency: "4",
    max_trial_number: "30",
    max_experiment_duration_seconds: "2h 30m",
    max_trial_duration_seconds: "",
    max_gpu_hours: "",
    priority: "0",
  };

  test("only what was changed is sent; an empty field takes a limit away", () => {
    expect(changedLimits(running, texts)).toEqual({});
    expect(changedLimits(running, { ...texts, trial_concurrency: "8", max_trial_number: " " })).toEqual({
      trial_concurrency: 8,
      max_trial_number: null,
    });
    expect(changedLimits(running, { ...texts, max_trial_duration_seconds: "1.5h" })).toEqual({
      max_trial_duration_seconds: 5400,
    });
  });

  test("what cannot be read is named", () => {
    expect(() => changedLimits(running, { ...texts, trial_concurrency: "" })).toThrow(
      "Concurrent trials: expected a number",
    );
    expect(() => changedLimits(running, { ...texts, max_trial_duration_seconds: "soon" })).toThrow("found soon");
    expect(parseDuration("90")).toBe(90);
    expect(() => parseDuration("1h 30")).toThrow(RangeError);
  });
});

test.each([
  [{ kind: "lost", value: 3, data: null }, "3 reports lost: the trial's disk was full"],
  [{ kind: "lost", value: null, data: "2 bytes did not arrive" }, "2 bytes did not arrive"],
  [{ kind: "unreadable", value: null, data: "<b>" }, "a line of its journal is not a valid report: <b>"],
])("what became of a report", (loss, text) => {
  expect(lossText(loss)).toBe(text);
});

test("a name of a setting at the beginning of a sentence stays as it is", () => {
  expect(capitalized("stopped by the user")).toBe("Stopped by the user");
  expect(capitalized("maxTrialNumber 8 is reached")).toBe("maxTrialNumber 8 is reached");
});

test("sizes have three digits and a unit that fits", () => {
  expect([0, 1023, 1536, 5e6, 3e12].map(formatBytes)).toEqual(["0 B", "1023 B", "1.50 KiB", "4.77 MiB", "2.73 TiB"]);
});
