// What a person may do to several trials at once.

import { client, read } from "./client";

/** A trial as the table has it. */
export interface TrialRow {
  number: number;
  id: string;
  status: string;
}

export interface TrialAction {
  word: string;
  /** The keys that do it. */
  keys: string;
  /** What follows the names of the trials in the question. */
  consequence: string;
  appliesTo: (status: string) => boolean;
  run: (id: string) => Promise<unknown>;
}

const NOT_ENDED = new Set(["WAITING", "RUNNING", "PAUSED"]);
const ENDED = new Set(["SUCCEEDED", "EARLY_STOPPED", "FAILED", "USER_CANCELED", "SYS_CANCELED"]);
const params = (id: string) => ({ path: { trial_id: id } });
const retry = (id: string, fromCheckpoint: boolean) =>
  read(
    client.POST("/api/v1/trials/{trial_id}/retry", {
      params: { ...params(id), query: { from_checkpoint: fromCheckpoint } },
    }),
  );

export const TRIAL_ACTIONS: TrialAction[] = [
  {
    word: "Kill",
    keys: "a k",
    consequence: "Their processes are stopped; their reports stay.",
    appliesTo: (status) => NOT_ENDED.has(status),
    run: (id) => read(client.POST("/api/v1/trials/{trial_id}/kill", { params: params(id) })),
  },
  {
    word: "Pause",
    keys: "a p",
    consequence: "They may save first, and keep no place and no GPUs until they are resumed.",
    appliesTo: (status) => status === "RUNNING",
    run: (id) => read(client.POST("/api/v1/trials/{trial_id}/pause", { params: params(id) })),
  },
  {
    word: "Resume",
    keys: "a r",
    consequence: "They wait for a place, and continue from their newest checkpoints.",
    appliesTo: (status) => status === "PAUSED",
    run: (id) => read(client.POST("/api/v1/trials/{trial_id}/resume", { params: params(id) })),
  },
  {
    word: "Retry",
    keys: "a t",
    consequence: "New trials run the same parameters from the start.",
    appliesTo: (status) => ENDED.has(status),
    run: (id) => retry(id, false),
  },
  {
    word: "Retry from checkpoint",
    keys: "a c",
    consequence: "New trials run the same parameters from the newest checkpoints.",
    appliesTo: (status) => ENDED.has(status),
    run: (id) => retry(id, true),
  },
];

export interface Outcome {
  done: number;
  /** By the trial's number, what went wrong. */
  problems: [number: number, message: string][];
}

const AT_ONCE = 4; // a browser has six connections to a host

/** Does it to each of the trials; one that fails does not keep it from the others. */
export async function runOnAll(action: TrialAction, rows: readonly TrialRow[]): Promise<Outcome> {
  const outcome: Outcome = { done: 0, problems: [] };
  const waiting = [...rows];
  const work = async () => {
    for (let row = waiting.shift(); row; row = waiting.shift()) {
      try {
        await action.run(row.id);
        outcome.done++;
      } catch (error) {
        outcome.problems.push([row.number, (error as Error).message]);
      }
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, work));
  outcome.problems.sort((a, b) => a[0] - b[0]);
  return outcome;
}
