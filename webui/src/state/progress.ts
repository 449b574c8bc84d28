// How far an experiment is, and when it will be over.

import type { Experiment, Job, Trial, TrialStatus } from "../api/schema";
import { toSeconds } from "../format";

const ENDED: TrialStatus[] = ["SUCCEEDED", "EARLY_STOPPED", "FAILED", "USER_CANCELED", "SYS_CANCELED"];
const ACTIVE = new Set<string>(["INITIALIZED", "RUNNING", "NO_MORE_TRIAL", "TUNER_NO_MORE_TRIAL", "STOPPING"]);
const RUNS = new Set<string>(["RUNNING", "STOPPING", "UNKNOWN"]);
const OVER = new Set<string>(["DONE", "STOPPED", "ERROR", "VIEWED"]);

/** How many trials it has. */
export function totalTrials(experiment: Experiment): number {
  return Object.values(experiment.trial_counts).reduce((sum, count) => sum + (count ?? 0), 0);
}

/** How many of its trials have ended. */
export function endedTrials(experiment: Experiment): number {
  return ENDED.reduce((sum, status) => sum + (experiment.trial_counts[status] ?? 0), 0);
}

export function isOver(experiment: Experiment): boolean {
  return OVER.has(experiment.status);
}

/** How long it has run: `active_seconds` as it was read at `readAt`, counted up to `now` while it runs. */
export function elapsedSeconds(experiment: Experiment, readAt: number, now: number): number {
  const since = ACTIVE.has(experiment.status) && experiment.status !== "INITIALIZED" ? Math.max(0, now - readAt) : 0;
  return experiment.active_seconds + since;
}

type Run = Pick<Trial | Job, "status" | "started_at" | "ended_at" | "run_seconds">;

/** How long a trial or a job has run: `run_seconds` as they were read at `readAt`, counted up to `now` while it runs.
 * Where they are not known, its times tell; null before it begins. */
export function ranSeconds(run: Run, readAt: number, now: number): number | null {
  if (run.run_seconds == null || !run.started_at) return spanSeconds(run.started_at, run.ended_at, now);
  return run.run_seconds + (RUNS.has(run.status) ? Math.max(0, now - readAt) : 0);
}

export interface TimeLeft {
  seconds: number;
  limit: "trials" | "time" | "gpuHours";
}

/** When its trials, its time or its GPU-hours are used up, at the pace so far; null where that cannot be said. */
export function timeLeft(experiment: Experiment, elapsed: number): TimeLeft | null {
  if (!ACTIVE.has(experiment.status)) return null;
  const found: TimeLeft[] = [];
  const add = (limit: TimeLeft["limit"], most: number | null | undefined, used: number) => {
    if (most !== null && most !== undefined && used > 0) {
      found.push({ limit, seconds: (Math.max(0, most - used) * elapsed) / used });
    }
  };
  add("trials", experiment.max_trial_number, endedTrials(experiment));
  add("time", experiment.max_experiment_duration_seconds, elapsed);
  add("gpuHours", experiment.max_gpu_hours, experiment.usage.gpu_hours);
  return found.toSorted((a, b) => a.seconds - b.seconds)[0] ?? null;
}

/** How long something took, or takes until now. */
export function spanSeconds(
  started: string | null | undefined,
  ended: string | null | undefined,
  now: number,
): number | null {
  const from = toSeconds(started);
  return from === null ? null : Math.max(0, (toSeconds(ended) ?? now) - from);
}
