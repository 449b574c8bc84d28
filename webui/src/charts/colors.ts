// Colors of the style sheet for what is drawn on a canvas, in the reader's light or dark.

import { useSyncExternalStore } from "react";

const DARK = window.matchMedia("(prefers-color-scheme: dark)");

/** Whether the page is dark; the component is drawn again when that changes. */
export function useDark(): boolean {
  return useSyncExternalStore(
    (listener) => {
      DARK.addEventListener("change", listener);
      return () => DARK.removeEventListener("change", listener);
    },
    () => DARK.matches,
  );
}

/** A color of the style sheet, such as "--busy", as one that a canvas takes. */
export function color(name: string): string {
  const probe = document.createElement("span");
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

/** The same color, seen through. */
export function transparent(rgb: string, alpha: number): string {
  return rgb.replace(/^rgb\(/, "rgba(").replace(/\)$/, `, ${alpha})`);
}
