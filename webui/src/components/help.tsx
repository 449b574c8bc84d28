// Keys that work on every page, and the list of them.

import { useCallback, useEffect, useRef, useState } from "react";
import { useLocation } from "wouter";
import { SAVED } from "../state/root";

/** What leads to pages that a saved file does not have. */
const GOING: [keys: string, does: string][] = [
  ["g e", "go to the experiments"],
  ["g n", "go to the nodes"],
  ["g l", "go to the manager's log"],
];

/** What each key does; the list that `?` shows. */
export const KEYS: [keys: string, does: string][] = [
  ["?", "show or hide this list"],
  ["/", "search"],
  ...(SAVED ? [] : GOING),
  ["j  k", "next and previous row"],
  ["Enter", "open the row"],
  ["x", "select the row; with Shift all rows from the last one"],
  ["a a", "select all rows, or none"],
  ["a x", "clear the selection"],
  ["a k", "kill the selected trials, or this one"],
  ["a p", "pause them"],
  ["a r", "resume them"],
  ["a t", "retry them from the start"],
  ["a c", "retry them from their checkpoints"],
  ["a n", "add a trial"],
  ["a o", "clone the selected trial"],
  ["a m", "compare what is selected"],
  ["a u", "curves of the selected trials"],
  ["y y", "copy the parameters as YAML"],
  ["y j", "copy the parameters as JSON"],
  ["y l", "copy the parameters as a command line"],
  ["+  -", "enlarge the middle of the curves, show more of them"],
  ["Shift+Arrow", "move what is enlarged"],
  ["0", "show all of the curves"],
  ["l x", "logarithmic x axis of the curves"],
  ["l y", "logarithmic y axis of the curves"],
  ["e p", "pause the experiment"],
  ["e r", "resume the experiment"],
  ["e s", "stop the experiment"],
  ["e l", "change its limits"],
  ["e e", "edit its search space"],
  ["Esc", "leave a field, close this list"],
];

const SECOND_KEY_MILLISECONDS = 1000;
const FIRST_KEYS = new Set(["g", "a", "e", "y", "l"]);
const GO_TO: Record<string, string> = SAVED ? {} : { e: "/", n: "/nodes", l: "/log" };

/** Listens to the keys; `isHelpShown` with `toggleHelp` is the list. */
export function useKeys() {
  const [isHelpShown, setHelpShown] = useState(false);
  const [, navigate] = useLocation();
  const toggleHelp = useCallback(() => setHelpShown((shown) => !shown), []);
  useEffect(() => {
    let before = "";
    let beforeAt = Number.NEGATIVE_INFINITY;
    const listen = (event: KeyboardEvent) => {
      if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]:not(.help)")) return;
      if (isField(event.target)) {
        if (event.key === "Escape") (event.target as HTMLElement).blur();
        return;
      }
      const key = event.shiftKey && event.key.startsWith("Arrow") ? `Shift+${event.key}` : event.key;
      const keys = performance.now() - beforeAt < SECOND_KEY_MILLISECONDS ? `${before} ${key}` : key;
      [before, beforeAt] = FIRST_KEYS.has(keys) ? [keys, performance.now()] : ["", Number.NEGATIVE_INFINITY];
      if (before || press(keys)) return;
      const target = keys.startsWith("g ") ? GO_TO[event.key] : undefined;
      if (target !== undefined) navigate(target);
      else if (event.key === "x" || event.key === "X") chooseRow(event.shiftKey);
      else if (event.key === "?") toggleHelp();
      else if (event.key === "/") focusSearch(event);
      else if (event.key === "j") moveRow(1);
      else if (event.key === "k") moveRow(-1);
    };
    window.addEventListener("keydown", listen);
    return () => window.removeEventListener("keydown", listen);
  }, [navigate, toggleHelp]);
  return { isHelpShown, toggleHelp };
}

function isField(target: EventTarget | null): boolean {
  if (target instanceof HTMLInputElement && target.type === "checkbox") return false;
  return (
    target instanceof HTMLElement && (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName))
  );
}

/** Clicks what is marked with these keys. Returns whether there is such a thing. */
function press(keys: string): boolean {
  const found = document.querySelector<HTMLElement>(`[data-keys="${CSS.escape(keys)}"]`);
  found?.click();
  return found !== null;
}

/** Selects the row whose link has the focus. */
function chooseRow(isRange: boolean): void {
  const box = document.activeElement?.closest("[role=row], tr")?.querySelector("[data-row-box]");
  box?.dispatchEvent(new MouseEvent("click", { bubbles: true, shiftKey: isRange }));
}

function focusSearch(event: KeyboardEvent): void {
  const field = document.querySelector<HTMLInputElement>("input[type=search]");
  if (!field) return;
  event.preventDefault();
  field.focus();
  field.select();
}

/** The links that open a row are marked with `data-row`. */
function moveRow(by: number): void {
  const rows = [...document.querySelectorAll<HTMLElement>("[data-row]")];
  const at = rows.indexOf(document.activeElement as HTMLElement);
  rows[at < 0 ? 0 : Math.min(rows.length - 1, Math.max(0, at + by))]?.focus();
}

export function Help({ onClose }: { onClose: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    dialog.current?.showModal();
  }, []);
  return (
    <dialog ref={dialog} onClose={onClose} aria-labelledby="help-title" className="help">
      <h2 id="help-title">Keys</h2>
      <dl>
        {KEYS.map(([keys, does]) => (
          <div key={keys}>
            <dt>
              {keys.split(/\s+/).map((key) => (
                <kbd key={key}>{key}</kbd>
              ))}
            </dt>
            <dd>{does}</dd>
          </div>
        ))}
      </dl>
      <form method="dialog">
        <button type="submit">Close</button>
      </form>
    </dialog>
  );
}
