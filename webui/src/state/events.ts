// Events of an experiment, in words.

import type { PastEvent } from "../api/schema";

/** Kinds that people read; "metrics" says only that something was reported. */
export const KINDS = ["trial.status", "job.status", "experiment.status", "limits", "labels", "view", "notice"] as const;

const SAID = new Set(["status", "end_reason", "text", "reason", "detail", "sequence_id", "node_id"]);

/** What an event says: its status or changes, and the reason. */
export function eventText(event: PastEvent): string {
  const data = event.data;
  if (typeof data !== "object" || data === null) return String(data ?? "");
  const facts = data as Record<string, unknown>;
  const word = (name: string) => (facts[name] ? String(facts[name]) : "");
  const status = [word("status"), word("end_reason")].filter(Boolean).join(" ");
  const rest = Object.entries(facts)
    .filter(([name, value]) => !SAID.has(name) && value !== "" && value !== null)
    .map(([name, value]) => `${name} ${valueText(value)}`);
  const clause = word("text") || word("reason") || word("detail");
  const repeated = `${status.toLowerCase()}: `; // "waiting: no GPU is free" of a trial that is WAITING
  const said = status && clause.startsWith(repeated) ? clause.slice(repeated.length) : clause;
  return [status || rest.join(", "), said].filter(Boolean).join(": ");
}

function valueText(value: unknown): string {
  if (Array.isArray(value) && value.every((each) => typeof each === "string")) return value.join(", ") || "none";
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

/** The node that an event names. */
export function nodeOf({ data }: PastEvent): string {
  const node = typeof data === "object" && data !== null && "node_id" in data ? data.node_id : null;
  return typeof node === "string" ? node : "";
}

/** Who did it, unless that is the manager or not known. */
export function actorOf({ actor }: PastEvent): string {
  if (!actor || actor.name === "manager") return "";
  return actor.via ? `${actor.name} (${actor.via})` : actor.name;
}
