// Resources as the API answers them, with what a test names.

import type { Experiment, Trial } from "../src/api/schema";

export function experiment(values: Partial<Experiment> = {}): Experiment {
  return {
    id: "Ab3dE5f7",
    name: "digits",
    archived: false,
    tags: [],
    status: "RUNNING",
    reason: "",
    error: "",
    config: {},
    search_space: {},
    trial_concurrency: 2,
    max_trial_number: null,
    max_experiment_duration_seconds: null,
    max_trial_duration_seconds: null,
    max_gpu_hours: null,
    priority: 0,
    usage: { gpu_hours: 0, cpu_hours: 0, unmeasured_jobs: 0 },
    trial_counts: {},
    failure: "",
    best: null,
    no_best_reason: "",
    objective: { metric: "default", direction: "maximize" },
    created_at: "2026-11-24T00:00:00Z",
    rules: 2,
    active_seconds: 0,
    directory: "",
    url: "",
    notices: [],
    ...values,
  };
}

export function trial(values: Partial<Trial> = {}): Trial {
  return {
    id: "p3kV9xQa",
    experiment_id: "Ab3dE5f7",
    sequence_id: 0,
    status: "FAILED",
    reason: "",
    parameters: {},
    parameter_id: 0,
    source: "algorithm",
    jobs: 1,
    intermediate_count: 0,
    usage: { gpu_hours: 0, cpu_hours: 0, unmeasured_jobs: 0 },
    created_at: "2026-11-24T00:00:00Z",
    directory: "",
    ...values,
  };
}
