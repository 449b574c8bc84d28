// A search space as fields of a form, and what was written into them as parameters.

export interface SpaceField {
  /** Names from the outermost to its own; the key of a problem is these with dots. */
  path: string[];
  /** What it is chosen from; null: it is a number. */
  options: unknown[] | null;
  /** Of a choice of sub-spaces: the fields are those of the chosen one. */
  isBranch: boolean;
  /** What is expected, in a few words. */
  hint: string;
}

type Dictionary = Record<string, unknown>;
export type Texts = Record<string, string>;

function isDictionary(value: unknown): value is Dictionary {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** The fields for what is chosen now; null: the space is no dictionary of types, so that only JSON describes parameters. */
export function fieldsOf(space: unknown, texts: Texts, above: string[] = []): SpaceField[] | null {
  if (!isDictionary(space)) return null;
  const found: SpaceField[] = [];
  for (const [name, member] of Object.entries(space)) {
    if (name === "_name") continue;
    if (!isDictionary(member) || typeof member._type !== "string" || !Array.isArray(member._value)) return null;
    const path = [...above, name];
    if (member._type !== "choice") {
      const hint = `${member._type} ${member._value.join(" … ")}`;
      found.push({ path, options: null, isBranch: false, hint });
      continue;
    }
    const isBranch = member._value.some((each) => isDictionary(each) && "_name" in each);
    const options = isBranch ? member._value.map((each) => (isDictionary(each) ? each._name : each)) : member._value;
    found.push({ path, options, isBranch, hint: "" });
    if (!isBranch) continue;
    const chosen = member._value[options.findIndex((option) => textOf(option) === texts[path.join(".")])];
    const inner = chosen === undefined ? [] : fieldsOf(chosen, texts, path);
    if (inner === null) return null;
    found.push(...inner);
  }
  return found;
}

/** A value as its field shows it. */
export function textOf(value: unknown): string {
  return value === undefined ? "" : typeof value === "string" ? value : JSON.stringify(value);
}

/** What fields show of parameters. */
export function textsOf(parameters: unknown, above = ""): Texts {
  const texts: Texts = {};
  if (!isDictionary(parameters)) return texts;
  for (const [name, value] of Object.entries(parameters)) {
    const key = above ? `${above}.${name}` : name;
    if (name === "_name" && above) texts[above] = textOf(value);
    else if (isDictionary(value) && "_name" in value) Object.assign(texts, textsOf(value, key));
    else texts[key] = textOf(value);
  }
  return texts;
}

/** The parameters that the fields say. What is no number stays a text, which the manager refuses at its key. */
export function parametersOf(fields: readonly SpaceField[], texts: Texts): Dictionary {
  const parameters: Dictionary = {};
  for (const { path, options, isBranch } of fields) {
    const text = texts[path.join(".")] ?? "";
    let place = parameters;
    for (const name of path.slice(0, -1)) place = place[name] as Dictionary;
    const own = path.at(-1) ?? "";
    const option = options?.find((each) => textOf(each) === text);
    if (isBranch) place[own] = { _name: option ?? text };
    else if (options) place[own] = option === undefined ? text : option;
    else place[own] = text.trim() && Number.isFinite(Number(text)) ? Number(text) : text;
  }
  return parameters;
}

/** Those that differ from the ones before: what a clone is asked for. */
export function changedParameters(before: unknown, now: Dictionary): Dictionary {
  const old = isDictionary(before) ? before : {};
  return Object.fromEntries(
    Object.entries(now).filter(([name, value]) => JSON.stringify(value) !== JSON.stringify(old[name])),
  );
}
