// Who held what on a node, as bars of a timeline.

import type { JobOnNode, NodeOccupancy } from "../api/schema";
import { toSeconds } from "../format";

/** A job in a row of the timeline; `from` and `to` are shares of the time that is shown. */
export interface Bar {
  job: JobOnNode;
  from: number;
  to: number;
}

/** A GPU, or the jobs without one in one place. */
export interface Lane {
  key: string;
  name: string;
  bars: Bar[];
}

/** The rows of a timeline: GPUs by index, then places of jobs without a GPU. */
export function lanesOf(found: NodeOccupancy): Lane[] {
  const begin = toSeconds(found.since);
  const length = toSeconds(found.until) - begin;
  const lanes = new Map<string, Lane>();
  for (const gpu of found.gpus) {
    lanes.set(gpu.uuid, { key: gpu.uuid, name: gpu.index === null ? "GPU gone" : `GPU ${gpu.index}`, bars: [] });
  }
  const share = (time: string | null) =>
    time === null ? 1 : Math.min(1, Math.max(0, (toSeconds(time) - begin) / length));
  const places = new Map<number, Lane>();
  for (const job of found.jobs) {
    const bar = { job, from: share(job.started_at), to: share(job.ended_at) };
    for (const uuid of job.gpus ?? []) lanes.get(uuid)?.bars.push(bar);
    if (job.slot === null) continue;
    const lane = places.get(job.slot) ?? { key: `slot ${job.slot}`, name: `slot ${job.slot}`, bars: [] };
    places.set(job.slot, lane);
    lane.bars.push(bar);
  }
  const ordered = [...places.entries()].sort(([a], [b]) => a - b).map(([, lane]) => lane);
  return [...lanes.values(), ...ordered];
}

/** How much of the time that is shown jobs held each row, as a share; `ofExperiment`: only its jobs. */
export function heldShare(lane: Lane, ofExperiment?: string): number {
  let held = 0;
  let end = 0;
  const bars = lane.bars.filter((bar) => !ofExperiment || bar.job.experiment_id === ofExperiment);
  for (const bar of bars.sort((a, b) => a.from - b.from)) {
    held += Math.max(0, bar.to - Math.max(end, bar.from));
    end = Math.max(end, bar.to);
  }
  return held;
}
