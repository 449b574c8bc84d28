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
  ["Esc", "leave a field, close this list"],
];

const SECOND_KEY_MILLISECONDS = 1000;
const GO_TO: Record<string, string> = SAVED ? {} : { e: "/", n: "/nodes", l: "/log" };

/** Listens to the keys; `isHelpShown` with `toggleHelp` is the list. */
export function useKeys() {
  const [isHelpShown, setHelpShown] = useState(false);
  const [, navigate] = useLocation();
  const toggleHelp = useCallback(() => setHelpShown((shown) => !shown), []);
  useEffect(() => {
    let goAt = Number.NEGATIVE_INFINITY;
    const listen = (event: KeyboardEvent) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (isField(event.target)) {
        if (event.key === "Escape") (event.target as HTMLElement).blur();
        return;
      }
      const target = GO_TO[event.key];
      if (target !== undefined && performance.now() - goAt < SECOND_KEY_MILLISECONDS) navigate(target);
      else if (event.key === "g") goAt = performance.now();
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
  return (
    target instanceof HTMLElement && (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName))
  );
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
