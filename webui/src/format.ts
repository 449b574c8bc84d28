// How values read: four significant digits, short durations, local times.

import type { Usage } from "./api/schema";

const WORDS = new Set(["NaN", "Infinity", "-Infinity"]);

/** A number with four significant digits; whole numbers whole; nothing is a dash. */
export function formatNumber(value: unknown): string {
  if (value === null || value === undefined) return "–";
  if (typeof value === "string" && WORDS.has(value)) return value.replace("Infinity", "∞").replace("-", "−");
  if (typeof value !== "number") return String(value);
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e7) return minus(value.toString());
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) return minus(exponential(value));
  const text = value.toPrecision(4);
  return minus(text.includes("e") ? Math.round(value).toString() : size >= 1e4 ? Math.round(value).toString() : text);
}

/** As `formatNumber`, without zeros at the end: for parameters, which people chose. */
export function formatParameter(value: unknown): string {
  if (typeof value === "string") return value;
  if (typeof value === "number") return trimZeros(formatNumber(value));
  if (typeof value === "boolean") return value ? "true" : "false";
  if (value === null || value === undefined) return "–";
  return JSON.stringify(value);
}

function exponential(value: number): string {
  return value
    .toExponential(3)
    .replace(/\.?0+e/, "e")
    .replace("e+", "e");
}

function trimZeros(text: string): string {
  return text.includes(".") && !text.includes("e") ? text.replace(/\.?0+$/, "") : text;
}

function minus(text: string): string {
  return text.replace(/^-/, "−").replace("e-", "e−");
}

/** 4.2 s, 45 s, 3 min 20 s, 2 h 05 min, 3 d 4 h. */
export function formatDuration(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
  const length = Math.max(0, seconds);
  if (length < 9.95) return `${length.toFixed(1)} s`;
  const whole = Math.round(length);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${pad(whole % 60)} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${pad(Math.floor((whole % 3600) / 60))} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

function pad(value: number): string {
  return value.toString().padStart(2, "0");
}

/** How long ago: "just now", "5 min ago", "3 h ago", "4 d ago"; a date beyond a week. */
export function formatAgo(seconds: number, now: number): string {
  const ago = now - seconds;
  if (ago < 60) return "just now";
  if (ago < 3600) return `${Math.floor(ago / 60)} min ago`;
  if (ago < 86400) return `${Math.floor(ago / 3600)} h ago`;
  if (ago < 7 * 86400) return `${Math.floor(ago / 86400)} d ago`;
  return formatDay(seconds);
}

/** The day of a moment, in the reader's own time. */
export function formatDay(seconds: number): string {
  return new Date(seconds * 1000).toLocaleDateString();
}

/** Its time of day. */
export function formatClock(seconds: number): string {
  return new Date(seconds * 1000).toLocaleTimeString();
}

/** A moment in the reader's own time. */
export function formatTime(seconds: number | null | undefined): string {
  return seconds === null || seconds === undefined ? "–" : new Date(seconds * 1000).toLocaleString();
}

/** Seconds since 1970 of a time of the API. */
export function toSeconds(time: string): number;
export function toSeconds(time: string | null | undefined): number | null;
export function toSeconds(time: string | null | undefined): number | null {
  return time ? Date.parse(time) / 1000 : null;
}

/** "1 trial", "2 trials". */
export function countOf(count: number, noun: string): string {
  return `${count.toLocaleString("en-US")} ${noun}${count === 1 ? "" : "s"}`;
}

/** A status as a word: EARLY_STOPPED is "early stopped". */
export function statusWord(status: string): string {
  return status.replaceAll("_", " ").toLowerCase();
}

/** A sentence of the API at the beginning of a line. A name that it begins with, such as maxTrialNumber, stays as it is. */
export function capitalized(text: string): string {
  return /^[a-z]+[A-Z_]/.test(text) ? text : text.slice(0, 1).toUpperCase() + text.slice(1);
}

/** Hours of GPUs or processors. */
export function formatHours(hours: number): string {
  return hours > 0 && hours < 0.01 ? "< 0.01" : formatNumber(hours);
}

/** Hours of processors; "≥" where some jobs were not measured. */
export function formatCpuHours({ cpu_hours, unmeasured_jobs }: Usage): string {
  if (!cpu_hours && unmeasured_jobs) return "–";
  return `${unmeasured_jobs && cpu_hours >= 0.01 ? "≥ " : ""}${formatHours(cpu_hours)}`;
}

/** What became of a report that is not in a curve. */
export function lossText({ kind, value, data }: { kind: string; value?: unknown; data?: unknown }): string {
  const text = typeof data === "string" ? data : JSON.stringify(data ?? null);
  if (kind === "unreadable") return `a line of its journal is not a valid report: ${text}`;
  if (typeof value === "number") return `${countOf(value, "report")} lost: the trial's disk was full`;
  return data == null ? "reports were lost" : text;
}

/** A size in bytes. */
export function formatBytes(bytes: number | null | undefined): string {
  if (bytes === null || bytes === undefined) return "–";
  if (bytes < 1024) return `${bytes} B`;
  const units = ["KiB", "MiB", "GiB", "TiB"];
  let value = bytes / 1024;
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit++;
  }
  return `${value < 100 ? value.toPrecision(3) : Math.round(value)} ${units[unit]}`;
}
