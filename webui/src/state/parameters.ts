// Parameters as columns: a nested choice is one name with dots.

export type Flat = [name: string, value: unknown][];

/** `{model: {_name: "cnn", lr: 0.1}}` as `model` "cnn" and `model.lr` 0.1. What is no object is one value. */
export function flatParameters(parameters: unknown): Flat {
  if (!isObject(parameters)) return [["value", parameters]];
  const found: Flat = [];
  const visit = (values: Record<string, unknown>, prefix: string) => {
    for (const [name, value] of Object.entries(values)) {
      const path = prefix ? `${prefix}.${name}` : name;
      if (name === "_name" && prefix) found.push([prefix, value]);
      else if (isObject(value)) visit(value, path);
      else found.push([path, value]);
    }
  };
  visit(parameters, "");
  return found;
}

export function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
