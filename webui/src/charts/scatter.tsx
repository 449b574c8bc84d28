// Points of trials by two of their axes, colored by the order of their values.

import { type PointerEvent, useCallback, useState } from "react";
import { formatNumber, formatParameter } from "../format";
import { type Axis, ticksOf } from "../state/relations";
import { inPieces, type Palette, useCanvas, usePalette } from "./drawing";

const [LEFT, RIGHT, TOP, BOTTOM] = [64, 14, 10, 34];
const NEAR_PIXELS = 14;
const LONGEST_WORD = 9;

interface ScatterProps {
  x: Axis;
  y: Axis;
  order: Uint32Array;
  ranks: Float64Array;
  matches: Uint8Array;
  height: number;
  label: string;
  /** What is said about a row, and what a click on it does. */
  textOf: (row: number) => string;
  onOpen: (row: number) => void;
}

export function Scatter({ x, y, order, ranks, matches, height, label, textOf, onOpen }: ScatterProps) {
  const palette = usePalette();
  const [near, setNear] = useState<number | null>(null);
  const draw = useCallback(
    (context: CanvasRenderingContext2D, width: number) => {
      context.clearRect(0, 0, width, height);
      drawFrame(context, x, y, width, height, palette);
      const size = ranks.length > 2000 ? 2 : 3.5;
      const alpha = ranks.length > 2000 ? 0.6 : 0.85;
      return inPieces(order, (row) => {
        const [px, py] = pointOf(x, y, row, width, height);
        if (Number.isNaN(px) || Number.isNaN(py)) return;
        const rank = ranks[row] ?? Number.NaN;
        const isBright = matches[row] && !Number.isNaN(rank);
        context.fillStyle = isBright ? `rgb(${palette.of(rank)})` : palette.soft;
        context.globalAlpha = isBright ? alpha : 0.15;
        context.beginPath();
        context.arc(px, py, size, 0, 2 * Math.PI);
        context.fill();
      });
    },
    [x, y, order, ranks, matches, palette, height],
  );
  const { place, canvas, width } = useCanvas(height, draw);
  const nearest = (event: PointerEvent) => {
    const box = canvas.current?.getBoundingClientRect();
    const [cx, cy] = [event.clientX - (box?.left ?? 0), event.clientY - (box?.top ?? 0)];
    let [found, least] = [null as number | null, NEAR_PIXELS ** 2];
    for (const row of order) {
      const [px, py] = pointOf(x, y, row, width, height);
      const far = (px - cx) ** 2 + (py - cy) ** 2;
      if (far <= least) [found, least] = [row, far];
    }
    return found;
  };
  const [px, py] = near === null ? [0, 0] : pointOf(x, y, near, width, height);
  return (
    <div ref={place} style={{ position: "relative" }}>
      <canvas
        ref={canvas}
        role="img"
        aria-label={label}
        style={{ height, width: "100%", display: "block", cursor: near === null ? "" : "pointer" }}
        onPointerMove={(event) => setNear(nearest(event))}
        onPointerLeave={() => setNear(null)}
        onPointerUp={(event) => {
          const row = nearest(event);
          if (row !== null) onOpen(row);
        }}
      />
      {near !== null && near < ranks.length && (
        <>
          <div className="ring" style={{ left: px - 6, top: py - 6 }} />
          <div className="plot-note" style={px > width / 2 ? { left: LEFT } : { right: RIGHT }}>
            {textOf(near)}
          </div>
        </>
      )}
    </div>
  );
}

function pointOf(x: Axis, y: Axis, row: number, width: number, height: number): [number, number] {
  return [
    LEFT + ((x.places[row] ?? Number.NaN) + spread(x, row, 0)) * (width - LEFT - RIGHT),
    TOP + (1 - (y.places[row] ?? Number.NaN) - spread(y, row, 1)) * (height - TOP - BOTTOM),
  ];
}

/** Moves the points of one word apart, always in the same way. */
function spread(axis: Axis, row: number, salt: number): number {
  if (!axis.words) return 0;
  return (((row * 0.618034 + salt * 0.37) % 1) - 0.5) * (0.5 / axis.words.length);
}

function drawFrame(
  context: CanvasRenderingContext2D,
  x: Axis,
  y: Axis,
  width: number,
  height: number,
  palette: Palette,
): void {
  context.globalAlpha = 1;
  context.font = "11px system-ui, sans-serif";
  context.lineWidth = 1;
  const [w, h] = [width - LEFT - RIGHT, height - TOP - BOTTOM];
  context.textAlign = "center";
  context.textBaseline = "top";
  let free = Number.NEGATIVE_INFINITY;
  for (const [share, value] of ticksOf(x)) {
    const at = LEFT + share * w;
    context.fillStyle = palette.edge;
    context.fillRect(at, TOP, 1, h);
    const text = tickText(value);
    const half = context.measureText(text).width / 2;
    if (at - half < free) continue;
    free = at + half + 6;
    context.fillStyle = palette.soft;
    context.fillText(text, at, TOP + h + 4);
  }
  context.fillStyle = palette.soft;
  context.fillText(x.label.slice(0, 60) + (x.log ? " (log)" : ""), LEFT + w / 2, TOP + h + 19);
  context.textAlign = "right";
  context.textBaseline = "middle";
  for (const [share, value] of ticksOf(y)) {
    const at = TOP + (1 - share) * h;
    context.fillStyle = palette.edge;
    context.fillRect(LEFT, at, w, 1);
    context.fillStyle = palette.soft;
    context.fillText(tickText(value), LEFT - 5, at);
  }
}

function tickText(value: number | string): string {
  const text = typeof value === "number" ? formatParameter(Number(value.toPrecision(10))) : value;
  return text.length > LONGEST_WORD ? `${text.slice(0, LONGEST_WORD - 1)}…` : text;
}

/** A value of an axis as text. */
export function valueText(value: number | string | null): string {
  return typeof value === "number" ? formatNumber(value) : (value ?? "–");
}
