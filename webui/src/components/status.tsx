// A status by word, color and shape: no one needs to tell two colors apart.

import type { Experiment } from "../api/schema";
import { statusWord } from "../format";
import { endedTrials, totalTrials } from "../state/progress";

type Tone = "busy" | "good" | "early" | "wait" | "held" | "bad";

const TONES: Record<string, Tone> = {
  RUNNING: "busy",
  INITIALIZED: "busy",
  SUBMITTED: "busy",
  CONNECTING: "busy",
  SUCCEEDED: "good",
  DONE: "good",
  CONNECTED: "good",
  EARLY_STOPPED: "early",
  NO_MORE_TRIAL: "busy",
  TUNER_NO_MORE_TRIAL: "busy",
  PAUSED: "held",
  STOPPING: "held",
  USER_CANCELED: "held",
  SYS_CANCELED: "held",
  SILENT: "held",
  RELEASED: "wait",
  FAILED: "bad",
  ERROR: "bad",
  LOST: "bad",
  UNKNOWN: "bad",
};

const SHAPES: Record<Tone, string> = {
  busy: "M6 1.5a4.5 4.5 0 1 0 0 9a4.5 4.5 0 1 0 0-9z",
  good: "M1.5 6.5 4.8 9.8 10.5 2.6",
  early: "M2 6h8",
  wait: "M6 2.2a3.8 3.8 0 1 0 0 7.6a3.8 3.8 0 1 0 0-7.6z",
  held: "M4 2v8M8 2v8",
  bad: "M2.4 2.4l7.2 7.2M9.6 2.4l-7.2 7.2",
};

/** The class of a status's color. */
export function toneOf(status: string): Tone {
  return TONES[status] ?? "wait";
}

/** A small sign with the word beside it; `short`: the word only for screen readers and as a title. */
export function Status({ status, short = false }: { status: string; short?: boolean }) {
  const tone = toneOf(status);
  return (
    <span className={`status ${tone}`} title={short ? statusWord(status) : undefined}>
      <svg viewBox="0 0 12 12" aria-hidden="true">
        <path d={SHAPES[tone]} className={tone === "busy" ? "filled" : ""} />
      </svg>
      <span className={short ? "hidden" : ""}>{statusWord(status)}</span>
    </span>
  );
}

const IN_BAR = [
  "SUCCEEDED",
  "EARLY_STOPPED",
  "RUNNING",
  "PAUSED",
  "FAILED",
  "USER_CANCELED",
  "SYS_CANCELED",
  "UNKNOWN",
];

/** The trials of an experiment as parts of a bar; what is left of the budget stays empty. */
export function StatusBar({ counts, total }: { counts: Partial<Record<string, number>>; total: number }) {
  const shown = IN_BAR.flatMap((status) => (counts[status] ? [{ status, count: counts[status] ?? 0 }] : []));
  const label = shown.map(({ status, count }) => `${count} ${statusWord(status)}`).join(", ") || "no trials yet";
  const whole = Math.max(total, 1);
  let x = 0;
  const parts = shown.map(({ status, count }) => {
    const width = (count / whole) * 100;
    x += width;
    return <rect key={status} className={toneOf(status)} x={x - width} width={width} height="1" />;
  });
  return (
    <svg className="status-bar" viewBox="0 0 100 1" preserveAspectRatio="none" role="img" aria-label={label}>
      <title>{label}</title>
      {parts}
    </svg>
  );
}

/** A cell: the trials of an experiment as a bar, and how many have ended. */
export function Progress({ item }: { item: Experiment }) {
  return (
    <td className="progress">
      <StatusBar counts={item.trial_counts} total={Math.max(item.max_trial_number ?? 0, totalTrials(item))} />
      <span className="count">
        {endedTrials(item)}
        {item.max_trial_number !== null && <small> / {item.max_trial_number}</small>}
      </span>
    </td>
  );
}
