// Parameters as text to paste elsewhere.

export const FORMATS = ["YAML", "JSON", "options"] as const;
export type Format = (typeof FORMATS)[number];

/** The parameters as YAML, as JSON, or as options of a command (`--lr 0.1 --model.width 32`). */
export function copyText(parameters: unknown, flat: [string, unknown][], format: Format): string {
  if (format === "JSON") return JSON.stringify(parameters, null, 2);
  if (format === "YAML") return yaml(parameters, "").trimStart();
  return flat.map(([name, value]) => `--${name} ${quoted(value)}`).join(" ");
}

/** JSON is YAML: only mappings are written with lines of their own. */
function yaml(value: unknown, indent: string): string {
  if (typeof value !== "object" || value === null || Array.isArray(value)) return ` ${JSON.stringify(value)}\n`;
  const entries = Object.entries(value);
  if (!entries.length) return " {}\n";
  const lines = entries.map(([name, each]) => `${indent}${yamlKey(name)}:${yaml(each, `${indent}  `)}`);
  return `\n${lines.join("")}`;
}

function yamlKey(name: string): string {
  return /^[A-Za-z_][\w.-]*$/.test(name) && !/^(true|false|null|yes|no|on|off|y|n)$/i.test(name)
    ? name
    : JSON.stringify(name);
}

/** A word for a shell. */
function quoted(value: unknown): string {
  const text = typeof value === "string" ? value : JSON.stringify(value);
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`;
}
