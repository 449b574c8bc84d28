// The limits of an experiment as fields that a person edits.

import type { Experiment, UpdateExperiment } from "../api/schema";

export type LimitName = Exclude<keyof UpdateExperiment, "search_space" | "search_space_text" | "tags" | "archived">;

export interface LimitField {
  name: LimitName;
  word: string;
  kind: "number" | "duration";
  /** Whether it can be left empty, which is no limit. */
  isOptional: boolean;
}

export const LIMITS: LimitField[] = [
  { name: "trial_concurrency", word: "Concurrent trials", kind: "number", isOptional: false },
  { name: "max_trial_number", word: "Trials at most", kind: "number", isOptional: true },
  { name: "max_experiment_duration_seconds", word: "Duration at most", kind: "duration", isOptional: true },
  { name: "max_trial_duration_seconds", word: "Duration of a trial at most", kind: "duration", isOptional: true },
  { name: "max_gpu_hours", word: "GPU-hours at most", kind: "number", isOptional: true },
  { name: "priority", word: "Priority", kind: "number", isOptional: false },
];

const SECONDS: Record<string, number> = { s: 1, m: 60, h: 3600, d: 86400 };

/** What a field shows of an experiment. */
export function limitText(experiment: Experiment, field: LimitField): string {
  const value = experiment[field.name];
  if (value === null || value === undefined) return "";
  return field.kind === "duration" ? durationText(value) : String(value);
}

/** "2h 30m"; exact. */
function durationText(seconds: number): string {
  const parts: string[] = [];
  let rest = seconds;
  for (const [unit, length] of [
    ["d", 86400],
    ["h", 3600],
    ["m", 60],
  ] as const) {
    if (rest >= length) {
      parts.push(`${Math.floor(rest / length)}${unit}`);
      rest %= length;
    }
  }
  if (rest || !parts.length) parts.push(`${rest}s`);
  return parts.join(" ");
}

/** Seconds of "90", "45m", "2h 30m". Raises RangeError for anything else. */
export function parseDuration(text: string): number {
  const wrong = () => new RangeError(`expected a duration such as 45m or 2h 30m, found ${text}`);
  const parts = text.trim().split(/\s+/);
  return parts.reduce((sum, part) => {
    const match = /^(\d+(?:\.\d+)?)([smhd]?)$/.exec(part);
    if (!match || (!match[2] && parts.length > 1)) throw wrong();
    return sum + Number(match[1]) * (SECONDS[match[2] || "s"] ?? 1);
  }, 0);
}

/** What was changed, as the API takes it. Raises RangeError with a sentence about a field that cannot be read. */
export function changedLimits(experiment: Experiment, texts: Record<string, string>): UpdateExperiment {
  const changes: Partial<Record<LimitName, number | null>> = {};
  for (const field of LIMITS) {
    const text = (texts[field.name] ?? "").trim();
    if (text === limitText(experiment, field)) continue;
    if (!text && field.isOptional) changes[field.name] = null;
    else if (field.kind === "duration") changes[field.name] = named(field, () => parseDuration(text));
    else if (text && Number.isFinite(Number(text))) changes[field.name] = Number(text);
    else throw new RangeError(`${field.word}: expected a number, found ${text || "nothing"}`);
  }
  return changes as UpdateExperiment;
}

function named(field: LimitField, parse: () => number): number {
  try {
    return parse();
  } catch (error) {
    throw new RangeError(`${field.word}: ${(error as Error).message}`);
  }
}
