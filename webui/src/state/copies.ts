// Parameters as text to paste elsewhere.

import { flatParameters } from "./parameters";

export const FORMATS = ["YAML", "JSON", "command line"] as const;
export type Format = (typeof FORMATS)[number];

/** The parameters of a trial as YAML, as JSON, or as options of a command (`--lr=0.1 --model.width=32`). */
export function copyText(parameters: unknown, format: Format): string {
  if (format === "JSON") return JSON.stringify(parameters, null, 2);
  if (format === "YAML") return yaml(parameters, "").trimStart();
  return flatParameters(parameters)
    .map(([name, value]) => shellWord(`--${name}=${typeof value === "string" ? value : JSON.stringify(value)}`))
    .join(" ");
}

/** Those of several trials: a list, or a line for each. */
export function copyTextOfAll(all: readonly unknown[], format: Format): string {
  if (all.length === 1) return copyText(all[0], format);
  if (format === "JSON") return JSON.stringify(all, null, 2);
  if (format === "YAML") return all.map((each) => `-${yamlItem(each)}`).join("");
  return all.map((each) => copyText(each, format)).join("\n");
}

function yamlItem(value: unknown): string {
  return yaml(value, "  ").replace(/^\n {2}/, " ");
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

function shellWord(text: string): string {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`;
}

/** Whether it was written to the clipboard: without https a page may not, unless it is on this machine. */
export async function toClipboard(text: string): Promise<boolean> {
  if (!navigator.clipboard) return false;
  return navigator.clipboard.writeText(text).then(
    () => true,
    () => false,
  );
}
