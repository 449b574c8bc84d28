// What a person may do to a trial or an experiment, and in which status.

import { useMutation } from "@tanstack/react-query";
import { client, read } from "./client";
import type { Experiment, Node, SaveView, Trial, UpdateExperiment } from "./schema";

export interface Action {
  word: string;
  /** The keys that do it. */
  keys?: string;
  /** What is asked before it is done; empty: nothing. */
  question: string;
  /** What can be written beside the question; undefined: nothing. */
  field?: string;
  /** `text`: what was written. */
  run: (text: string) => Promise<unknown>;
}

const ENDED = new Set<string>(["SUCCEEDED", "EARLY_STOPPED", "FAILED", "USER_CANCELED", "SYS_CANCELED"]);

/** What can be done with a trial now. */
export function trialActions(trial: Trial): Action[] {
  const params = { path: { trial_id: trial.id } };
  const number = trial.sequence_id;
  if (ENDED.has(trial.status)) {
    return [
      {
        word: "Retry",
        keys: "a t",
        question: "",
        run: () => read(client.POST("/api/v1/trials/{trial_id}/retry", { params })),
      },
      {
        word: "Retry from checkpoint",
        keys: "a c",
        question: "",
        run: () =>
          read(
            client.POST("/api/v1/trials/{trial_id}/retry", { params: { ...params, query: { from_checkpoint: true } } }),
          ),
      },
    ];
  }
  const kill: Action = {
    word: "Kill",
    keys: "a k",
    question: `Kill trial ${number}? Its processes are stopped; its reports stay.`,
    run: () => read(client.POST("/api/v1/trials/{trial_id}/kill", { params })),
  };
  const pause: Action = {
    word: "Pause",
    keys: "a p",
    question: "",
    run: () => read(client.POST("/api/v1/trials/{trial_id}/pause", { params })),
  };
  if (trial.status === "PAUSED") {
    if (trial.paused_by === "SCHEDULER") return [pause, kill]; // which has it run again by itself
    const resume = () => read(client.POST("/api/v1/trials/{trial_id}/resume", { params }));
    return [{ word: "Resume", keys: "a r", question: "", run: resume }, kill];
  }
  if (trial.status === "RUNNING") return [pause, kill];
  return [kill];
}

/** What can be done with an experiment now. */
export function experimentActions(experiment: Experiment): Action[] {
  const params = { path: { experiment_id: experiment.id } };
  const resume: Action = {
    word: "Resume",
    keys: "e r",
    question: "",
    run: () => read(client.POST("/api/v1/experiments/{experiment_id}/resume", { params })),
  };
  const stop: Action = {
    word: "Stop",
    keys: "e s",
    question: `Stop experiment ${experiment.name}? Its running trials are canceled; it can be resumed later.`,
    run: () => read(client.POST("/api/v1/experiments/{experiment_id}/stop", { params })),
  };
  const pause: Action = {
    word: "Pause",
    keys: "e p",
    question: "",
    run: () => read(client.POST("/api/v1/experiments/{experiment_id}/pause", { params })),
  };
  switch (experiment.status) {
    case "RUNNING":
      return [pause, stop];
    case "INITIALIZED":
    case "NO_MORE_TRIAL":
    case "TUNER_NO_MORE_TRIAL":
      return [stop];
    case "PAUSED":
      return [resume, stop];
    case "STOPPED":
    case "ERROR":
      return [resume];
    default:
      return [];
  }
}

/** Change limits of an experiment, its tags, or whether it is archived; what is left out stays. */
export function updateExperiment(id: string, changes: UpdateExperiment) {
  const params = { path: { experiment_id: id } };
  return read(client.PATCH("/api/v1/experiments/{experiment_id}", { params, body: changes }));
}

/** Save a page's address as a view, in place of the one of this name. */
export function saveView(id: string, name: string, view: SaveView) {
  const params = { path: { experiment_id: id, name } };
  return read(client.PUT("/api/v1/experiments/{experiment_id}/views/{name}", { params, body: view }));
}

export function deleteView(id: string, name: string) {
  const params = { path: { experiment_id: id, name } };
  return read(client.DELETE("/api/v1/experiments/{experiment_id}/views/{name}", { params }));
}

/** What can be done with a node now. */
export function nodeActions(node: Node): Action[] {
  const params = { path: { node_id: node.id } };
  const check: Action = {
    word: "Check",
    question: "",
    run: () => read(client.POST("/api/v1/nodes/{node_id}/check", { params })),
  };
  if (node.hold) {
    const resume = () => read(client.POST("/api/v1/nodes/{node_id}/resume", { params }));
    return [check, { word: "Resume", question: "", run: resume }];
  }
  return [
    check,
    {
      word: "Drain",
      question: `Drain node ${node.id}? Its trials continue; it gets no new ones until it is resumed.`,
      field: "Reason, for everyone who sees the node",
      run: (reason) => read(client.POST("/api/v1/nodes/{node_id}/drain", { params, body: { reason } })),
    },
  ];
}

/** Does an action; its outcome arrives by the stream. */
export function useAction() {
  return useMutation({ mutationFn: ({ action, text }: { action: Action; text: string }) => action.run(text) });
}
