// The escape sequences of terminals in a line of output, as styled pieces of text. Nothing of it is ever HTML.

export interface Piece {
  text: string;
  /** Classes of the style sheet: "fg1" to "fg15" for colors, "bold", "dim", "italic", "underline". */
  style: string;
}

// biome-ignore lint/suspicious/noControlCharactersInRegex: escape sequences begin with one
const SEQUENCE = /\x1b(?:\[([0-9;:]*)([@-~])|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])/g;
// biome-ignore lint/suspicious/noControlCharactersInRegex: what a terminal does not show either
const INVISIBLE = /[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]/g;
const ON: Record<number, string> = { 1: "bold", 2: "dim", 3: "italic", 4: "underline" };
const OFF: Record<number, string[]> = { 22: ["bold", "dim"], 23: ["italic"], 24: ["underline"] };

/** What a terminal leaves of a line that was written over with carriage returns, as progress bars do. */
export function overwritten(line: string): string {
  const kept = line.endsWith("\r") ? line.slice(0, -1) : line;
  return kept.slice(kept.lastIndexOf("\r") + 1);
}

/** A line without its sequences, for searching. */
export function plain(line: string): string {
  return overwritten(line).replace(SEQUENCE, "").replace(INVISIBLE, "");
}

/** A line as pieces. A style ends with its line. */
export function pieces(line: string): Piece[] {
  const text = overwritten(line);
  const found: Piece[] = [];
  const styles = new Set<string>();
  let from = 0;
  const add = (to: number) => {
    const shown = text.slice(from, to).replace(INVISIBLE, "");
    if (shown) found.push({ text: shown, style: [...styles].join(" ") });
  };
  for (const match of text.matchAll(SEQUENCE)) {
    add(match.index);
    from = match.index + match[0].length;
    if (match[2] === "m") applyCodes(styles, match[1] ?? "");
  }
  add(text.length);
  return found;
}

function applyCodes(styles: Set<string>, codes: string): void {
  const numbers = codes.split(/[;:]/).map(Number);
  for (let index = 0; index < numbers.length; index++) {
    const code = numbers[index] ?? 0;
    if (code === 0) styles.clear();
    else if (ON[code]) styles.add(ON[code]);
    else if (OFF[code]) for (const style of OFF[code]) styles.delete(style);
    else if (code >= 30 && code <= 37) setColor(styles, code - 30);
    else if (code >= 90 && code <= 97) setColor(styles, code - 82);
    else if (code === 39) setColor(styles, null);
    else if (code === 38 || code === 48) {
      // 38;5;n names one of 256 colors, 38;2;r;g;b any: the first 16 are the reader's own, the rest stays as it is
      const isPalette = numbers[index + 1] === 5;
      const color = numbers[index + 2] ?? 0;
      if (isPalette && code === 38) setColor(styles, color < 16 ? color : null);
      index += isPalette ? 2 : 4;
    }
  }
}

function setColor(styles: Set<string>, color: number | null): void {
  for (const style of styles) if (style.startsWith("fg")) styles.delete(style);
  if (color !== null) styles.add(`fg${color}`);
}
