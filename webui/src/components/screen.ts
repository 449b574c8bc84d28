// How high something may be so that the page need not be scrolled.

import { useEffect, useState } from "react";

const BELOW_PIXELS = 24;
const LEAST_PIXELS = 240;

/** How many pixels there are from the top of an element to the bottom of the screen. */
export function useRestOfScreen(): [(element: HTMLElement | null) => void, number] {
  const [element, setElement] = useState<HTMLElement | null>(null);
  const [height, setHeight] = useState(LEAST_PIXELS);
  useEffect(() => {
    if (!element) return;
    const measure = () => {
      const top = element.getBoundingClientRect().top + window.scrollY;
      setHeight(Math.max(LEAST_PIXELS, window.innerHeight - top - BELOW_PIXELS));
    };
    measure();
    const resize = new ResizeObserver(measure);
    resize.observe(document.body);
    window.addEventListener("resize", measure);
    return () => {
      resize.disconnect();
      window.removeEventListener("resize", measure);
    };
  }, [element]);
  return [setElement, height];
}
