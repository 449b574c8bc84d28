// Order among experiments: tags, the archive, and what is deleted for good.

import { countOf } from "../format";
import { endedTrials, isOver, totalTrials } from "../state/progress";
import { updateExperiment } from "./actions";
import { client, read } from "./client";
import type { Experiment } from "./schema";

const STOP_MILLISECONDS = 60_000;
const POLL_MILLISECONDS = 500;

/** Tags as they are written in a field: with commas between them, each once. */
export function tagsOf(text: string): string[] {
  const tags = text.split(",").map((tag) => tag.trim().replace(/\s+/g, " "));
  return [...new Set(tags.filter(Boolean))];
}

/** Gives an experiment these tags, and no others. */
export function setTags(experiment: Experiment, tags: string[]) {
  return updateExperiment(experiment.id, { tags });
}

/** Takes an experiment out of lists once it has ended, or brings it back. */
export function setArchived(experiment: Experiment, archived: boolean) {
  return updateExperiment(experiment.id, { archived });
}

/** Whether an experiment can be deleted: when nothing of it runs. */
export function isDeletable(experiment: Experiment): boolean {
  return isOver(experiment);
}

/** What is lost when an experiment is deleted, a line each. */
export function lostWith(experiment: Experiment, keepsCheckpoints: boolean): string[] {
  const [trials, ended] = [totalTrials(experiment), endedTrials(experiment)];
  const unfinished = trials > ended ? `, ${trials - ended} of them not ended` : "";
  const storage = storageOf(experiment);
  const lines = [
    `${countOf(trials, "trial")}${unfinished}: parameters, metrics, logs and outputs`,
    `the folder ${experiment.directory}`,
  ];
  if (!storage) return [...lines, "all its checkpoints, which are in that folder"];
  return keepsCheckpoints ? lines : [...lines, `all its checkpoints in ${storage}/${experiment.id}`];
}

/** Where its checkpoints are, if not in its folder. */
export function storageOf(experiment: Experiment): string {
  const storage = experiment.config.checkpoint_storage;
  const location = typeof storage === "object" && storage && "location" in storage ? storage.location : "";
  return String(location ?? "");
}

/**
 * Deletes it for good. One that is DONE or in ERROR is stopped first, as `proctor experiment delete` does. What was left
 * because nothing shows that it is the experiment's, a sentence each.
 */
export async function deleteExperiment(experiment: Experiment, keepsCheckpoints: boolean): Promise<string[]> {
  const path = { experiment_id: experiment.id };
  if (experiment.status === "DONE" || experiment.status === "ERROR") {
    await read(client.POST("/api/v1/experiments/{experiment_id}/stop", { params: { path } }));
    await untilStopped(experiment.id);
  }
  const query = { keep_checkpoints: keepsCheckpoints };
  const { left } = await read(client.DELETE("/api/v1/experiments/{experiment_id}", { params: { path, query } }));
  return left;
}

async function untilStopped(id: string): Promise<void> {
  const until = performance.now() + STOP_MILLISECONDS;
  while (performance.now() < until) {
    const params = { path: { experiment_id: id } };
    const { status } = await read(client.GET("/api/v1/experiments/{experiment_id}", { params }));
    if (status === "STOPPED") return;
    await new Promise((resolve) => setTimeout(resolve, POLL_MILLISECONDS));
  }
  throw new Error("It is still being stopped; delete it when it is stopped.");
}
