// Failed trials by their cause and node.

import type { Trial } from "../api/schema";

export interface Cause {
  reason: string;
  count: number;
  /** How many on each node, the most first. */
  nodes: [node: string, count: number][];
  /** The newest one. */
  example: Trial;
}

/** The causes, the most frequent first. `trials`: failed ones, the newest first. */
export function failureCauses(trials: readonly Trial[]): Cause[] {
  return groups(trials, (trial) => trial.reason ?? "")
    .map(([reason, example, found]) => ({ reason, count: found.length, nodes: byNode(found), example }))
    .sort((a, b) => b.count - a.count);
}

function byNode(trials: readonly Trial[]): [string, number][] {
  return groups(trials, (trial) => trial.node_id ?? "no node")
    .map(([node, , found]): [string, number] => [node, found.length])
    .sort((a, b) => b[1] - a[1]);
}

/** The trials by key, each group with its first one. */
function groups(trials: readonly Trial[], key: (trial: Trial) => string): [string, Trial, Trial[]][] {
  const found = new Map<string, [string, Trial, Trial[]]>();
  for (const trial of trials) {
    const name = key(trial);
    const group = found.get(name);
    if (group) group[2].push(trial);
    else found.set(name, [name, trial, [trial]]);
  }
  return [...found.values()];
}
