// Lines of the manager's log, which are JSON, as lines for people.

const COLORS: Record<string, string> = { error: "31", critical: "31", warning: "33", info: "32" };
const NAMED = ["experiment_id", "trial_id", "job_id", "node_id"];

/** A line with its time, level, message and what it is about; what is no JSON stays as it is. */
export function readable(line: string): string {
  const entry = parse(line);
  if (!entry) return line;
  const about = NAMED.flatMap((name) => (entry[name] ? [`${name.replace("_id", "")} ${entry[name]}`] : [])).join(", ");
  const level = String(entry.level ?? "");
  const time = String(entry.time ?? "").replace("T", " ");
  const error = entry.exception ? `  ${String(entry.exception).split("\n").at(-1)}` : "";
  const colored = `\u001b[${COLORS[level] ?? "39"}m${level.padEnd(7)}\u001b[0m`;
  return `\u001b[2m${time}\u001b[0m ${colored} ${entry.message}${error}${about && `  \u001b[2m${about}\u001b[0m`}`;
}

function parse(line: string): Record<string, unknown> | null {
  if (!line.startsWith("{")) return null;
  try {
    const found: unknown = JSON.parse(line);
    return typeof found === "object" ? (found as Record<string, unknown>) : null;
  } catch {
    return null; // the last line may not be whole yet
  }
}
