import { describe, expect, it } from "vitest";
import type { JobOnNode, NodeOccupancy, PastEvent } from "../src/api/schema";
import { lineAt } from "../src/logs/tail";
import { eventText } from "../src/state/events";
import { heldShare, lanesOf } from "../src/state/occupancy";

function job(number: number, from: number, to: number | null, gpus: string[], slot: number | null): JobOnNode {
  const time = (minute: number) => new Date(minute * 60_000).toISOString();
  return {
    job_id: `t${number}.1`,
    trial_id: `t${number}`,
    sequence_id: number,
    experiment_id: number % 2 ? "odd" : "even",
    gpus,
    slot,
    started_at: time(from),
    ended_at: to === null ? null : time(to),
    end_reason: null,
  };
}

const gpu = { name: "", memory_total_mb: null, utilization: [], memory_used_mb: [] };
const FOUND: NodeOccupancy = {
  node_id: "n",
  since: new Date(0).toISOString(),
  until: new Date(100 * 60_000).toISOString(),
  jobs: [
    job(1, -50, 50, ["b"], null),
    job(2, 25, 75, ["a", "b"], null),
    job(3, 90, null, [], 1),
    job(4, 10, 20, [], 0),
  ],
  complete_since: null,
  times: [],
  load: [],
  memory_used_mb: [],
  cpus: null,
  memory_total_mb: null,
  gpus: [
    { ...gpu, uuid: "a", index: 0 },
    { ...gpu, uuid: "b", index: null },
  ],
};

describe("the timeline of a node", () => {
  it("has a row for each GPU and each place of jobs without one", () => {
    const lanes = lanesOf(FOUND);
    expect(lanes.map((lane) => lane.name)).toEqual(["GPU 0", "GPU gone", "slot 0", "slot 1"]);
    expect(lanes.map((lane) => lane.bars.map((bar) => [bar.from, bar.to]))).toEqual([
      [[0.25, 0.75]],
      [
        [0, 0.5],
        [0.25, 0.75],
      ],
      [[0.1, 0.2]],
      [[0.9, 1]],
    ]);
  });

  it("counts time that two jobs share once", () => {
    const [, second] = lanesOf(FOUND);
    expect(second && heldShare(second)).toBe(0.75);
    expect(second && heldShare(second, "even")).toBe(0.5);
  });
});

describe("the text of an event", () => {
  const event = (data: unknown): PastEvent => ({
    id: 1,
    time: "2026-01-01T00:00:00Z",
    experiment_id: "e",
    trial_id: null,
    sequence_id: null,
    job_id: null,
    kind: "k",
    data,
    actor: null,
  });
  it("is the status with its reason, or what was changed", () => {
    expect(eventText(event({ status: "FAILED", reason: "exit code 1", sequence_id: 3 }))).toBe("FAILED: exit code 1");
    expect(eventText(event({ status: "WAITING", reason: "waiting: no GPU is free" }))).toBe("WAITING: no GPU is free");
    expect(eventText(event({ tags: ["night", "paper"] }))).toBe("tags night, paper");
    expect(eventText(event({ trial_concurrency: 4, revision: 2 }))).toBe("trial_concurrency 4, revision 2");
    expect(eventText(event({ text: "<b>" }))).toBe("<b>");
  });
});

it("finds the line of a byte, also behind characters of several bytes", () => {
  const tail = { start: 10, end: 20, lines: ["ä", "bc", "d"] };
  expect([10, 12, 13, 15, 16, 17].map((place) => lineAt(tail, place))).toEqual([0, 0, 1, 1, 2, 2]);
  expect(lineAt(tail, 40)).toBeUndefined();
});
