// Where in a curve another attempt of its trial begins.

import type { Curve } from "../api/curves";
import type { XKind } from "../api/shown-curves";
import { toSeconds } from "../format";

/** What is known of an attempt: see `Job` of the API. */
export interface Attempt {
  number: number;
  trial_id: string;
  resumed_from_job?: string | null;
  resumed_from_step?: number | null;
  started_at?: string | null;
}

export interface Mark {
  /** The place of the first point that the attempt has reported. */
  point: number;
  /** Whether it began with the checkpoint of another trial. */
  isClone: boolean;
}

/** The points with which attempts continue a curve. An attempt that began at the start has replaced the curve before it. */
export function marksOf(curve: Curve, x: XKind, attempts: readonly Attempt[]): Mark[] {
  const first = toSeconds(attempts[0]?.started_at);
  return attempts.flatMap((attempt) => {
    const isClone = attempt.resumed_from_job != null && !attempt.resumed_from_job.startsWith(`${attempt.trial_id}.`);
    const begin = beginOf(attempt, x, first);
    if (begin === null || (attempt.number === 1 && !isClone)) return [];
    const point = Array.prototype.findIndex.call(curve.x, (at: number) => (x === "step" ? at > begin : at >= begin));
    return point < 0 ? [] : [{ point, isClone }];
  });
}

/** Where on the axis an attempt begins; null: nowhere within a curve. */
function beginOf(attempt: Attempt, x: XKind, first: number | null): number | null {
  if (attempt.resumed_from_step == null) return null;
  const started = toSeconds(attempt.started_at);
  if (x === "step") return attempt.resumed_from_step;
  if (x === "time" || started === null) return started;
  return first === null ? null : started - first;
}
