// Drawing very many lines or points on a canvas: in pieces, so that the page never waits, the best on top.

import { useEffect, useMemo, useRef, useState } from "react";
import { color, useDark } from "./colors";

const PIECE_MILLISECONDS = 12; // of a frame
const ROWS_AT_ONCE = 200;

/** Viridis, which people with any color vision can tell apart, from dark to light. */
const VIRIDIS = [
  "#440154",
  "#482878",
  "#3e4989",
  "#31688e",
  "#26828e",
  "#1f9e89",
  "#35b779",
  "#6ece58",
  "#b5de2b",
  "#fde725",
];
const SHADES = 64;

type Channels = [red: number, green: number, blue: number];

/** Colors by rank: of the best the one that stands out most from the page's background. */
export interface Palette {
  of(rank: number): Channels;
  softChannels: Channels;
  cardChannels: Channels;
  soft: string;
  text: string;
  edge: string;
  card: string;
  accent: string;
}

/** The colors of the reader's theme. */
export function usePalette(): Palette {
  const dark = useDark();
  return useMemo(() => {
    const shades = Array.from({ length: SHADES }, (_, i) => shadeAt(dark ? 1 - i / (SHADES - 1) : i / (SHADES - 1)));
    return {
      of: (rank: number) => shades[Math.round(rank * (SHADES - 1))] ?? [128, 128, 128],
      softChannels: channelsOf(color("--soft")),
      cardChannels: channelsOf(color("--card")),
      soft: color("--soft"),
      text: color("--text"),
      edge: color("--edge"),
      card: color("--card"),
      accent: color("--accent"),
    };
  }, [dark]);
}

function channelsOf(rgb: string): Channels {
  const [red = 0, green = 0, blue = 0] = (rgb.match(/\d+/g) ?? []).map(Number);
  return [red, green, blue];
}

/** A color between two of the scale; the lightest are left out, which a white page would swallow. */
function shadeAt(share: number): Channels {
  const place = share * (VIRIDIS.length - 1.6);
  const [low, high] = [VIRIDIS[Math.floor(place)] ?? "#440154", VIRIDIS[Math.ceil(place)] ?? "#fde725"];
  const mixed = [1, 3, 5].map((at) => {
    const [a, b] = [Number.parseInt(low.slice(at, at + 2), 16), Number.parseInt(high.slice(at, at + 2), 16)];
    return Math.round(a + (b - a) * (place % 1));
  });
  return mixed as Channels;
}

/** A canvas as wide as its place, sharp on any screen. `draw` is called when something it depends on has changed. */
export function useCanvas(
  height: number,
  draw: (context: CanvasRenderingContext2D, width: number) => (() => boolean) | undefined,
) {
  const place = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const [width, setWidth] = useState(0);
  useEffect(() => {
    const element = place.current;
    if (!element) return;
    const measure = () => setWidth(element.clientWidth);
    measure();
    const resize = new ResizeObserver(measure);
    resize.observe(element);
    return () => resize.disconnect();
  }, []);
  useEffect(() => {
    const element = canvas.current;
    const context = element?.getContext("2d");
    if (!element || !context || width === 0) return;
    const ratio = window.devicePixelRatio || 1;
    element.width = Math.round(width * ratio);
    element.height = Math.round(height * ratio);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    element.toggleAttribute("data-drawn", false);
    const piece = draw(context, width);
    let frame = 0;
    const go = () => {
      const until = performance.now() + PIECE_MILLISECONDS;
      let isOver = piece === undefined;
      while (!isOver && performance.now() < until) isOver = piece?.() ?? true;
      if (isOver) element.toggleAttribute("data-drawn", true);
      else frame = requestAnimationFrame(go);
    };
    go();
    return () => cancelAnimationFrame(frame);
  }, [draw, width, height]);
  return { place, canvas, width };
}

/** Draws some rows after the others at each call, and says whether all are drawn. */
export function inPieces(rows: ArrayLike<number>, draw: (row: number) => void): () => boolean {
  let next = 0;
  return () => {
    const end = Math.min(rows.length, next + ROWS_AT_ONCE);
    for (; next < end; next++) draw(rows[next] ?? 0);
    return next >= rows.length;
  };
}
