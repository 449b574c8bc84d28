// Parallel coordinates: a line for each trial, across an axis for each parameter.

import { type KeyboardEvent, type PointerEvent, useCallback, useRef, useState } from "react";
import { formatNumber } from "../format";
import { type Brush, brushAt, moved, placesOf, type Shown, ticksOf } from "../state/relations";
import { inPieces, type Palette, useCanvas, usePalette } from "./drawing";

const [TOP, BOTTOM, SIDE] = [10, 10, 44];
const LEAST_AXIS_PIXELS = 84;
const LONGEST_WORD = 12;
const DRAG_PIXELS = 4;

interface ParallelProps {
  shown: Shown[];
  /** Rows from the bottom to the top, the order of their values, and which of them are in the chosen ranges. */
  order: Uint32Array;
  ranks: Float64Array;
  matches: Uint8Array;
  brushes: ReadonlyMap<string, Brush>;
  onBrush: (axis: string, brush: Brush | null) => void;
  onShown: (shown: Shown[]) => void;
  height: number;
  label: string;
}

export function Parallel(props: ParallelProps) {
  const { shown, order, ranks, matches, brushes, onBrush, height, label } = props;
  const palette = usePalette();
  const [drag, setDrag] = useState<{ axis: number; from: number; to: number } | null>(null);
  const least = SIDE * 2 + (shown.length - 1) * LEAST_AXIS_PIXELS;
  const draw = useCallback(
    (context: CanvasRenderingContext2D, width: number) => {
      const lines = new LineRaster(shown, width, height, ranks, palette);
      const faded = order.filter((row) => !matches[row]);
      const bright = order.filter((row) => matches[row]);
      const drawFaded = inPieces(faded, (row) => lines.draw(row, false));
      const drawBright = inPieces(bright, (row) => lines.draw(row, true));
      return () => {
        if (!drawFaded() || !drawBright()) return false;
        lines.show(context);
        drawAxes(context, shown, width, height, brushes, palette);
        return true;
      };
    },
    [shown, order, ranks, matches, brushes, palette, height],
  );
  const { place, canvas, width } = useCanvas(height, draw);
  const axisAt = (x: number) => {
    const gap = gapOf(shown.length, width);
    return Math.max(0, Math.min(shown.length - 1, Math.round((x - SIDE) / gap)));
  };
  const share = (event: PointerEvent, axis: number) => {
    const y = event.clientY - (canvas.current?.getBoundingClientRect().top ?? 0);
    const up = 1 - (y - TOP) / (height - TOP - BOTTOM);
    return shown[axis]?.flipped ? 1 - up : up;
  };
  const begin = (event: PointerEvent) => {
    const axis = axisAt(event.clientX - (canvas.current?.getBoundingClientRect().left ?? 0));
    canvas.current?.setPointerCapture(event.pointerId);
    setDrag({ axis, from: share(event, axis), to: share(event, axis) });
  };
  const end = () => {
    const one = drag && shown[drag.axis];
    if (one) {
      const isClick = Math.abs(drag.to - drag.from) * (height - TOP - BOTTOM) < DRAG_PIXELS;
      onBrush(one.axis.name, isClick ? null : brushAt(one.axis, drag.from, drag.to));
    }
    setDrag(null);
  };
  return (
    <div className="parallel-scroll">
      <div ref={place} style={{ minWidth: least, position: "relative" }}>
        <Heads {...props} width={width} />
        <canvas
          ref={canvas}
          role="img"
          aria-label={label}
          style={{ height, width: "100%", display: "block", touchAction: "pan-x" }}
          onPointerDown={begin}
          onPointerMove={(event) => drag && setDrag({ ...drag, to: share(event, drag.axis) })}
          onPointerUp={end}
          onPointerCancel={() => setDrag(null)}
        />
        {drag && <Selection drag={drag} shown={shown} width={width} height={height} />}
      </div>
    </div>
  );
}

function Selection(props: {
  drag: { axis: number; from: number; to: number };
  shown: Shown[];
  width: number;
  height: number;
}) {
  const { drag, shown, width, height } = props;
  const y = (share: number) => yOf(share, shown[drag.axis]?.flipped ?? false, height);
  const [a, b] = [y(Math.min(1, Math.max(0, drag.from))), y(Math.min(1, Math.max(0, drag.to)))];
  const style = {
    left: SIDE + drag.axis * gapOf(shown.length, width) - 7,
    bottom: height - Math.max(a, b),
    height: Math.abs(a - b),
  };
  return <div className="brush" style={style} />;
}

/** The names of the axes: dragged or moved by the arrow keys, flipped by a click or Enter. */
function Heads({ shown, onShown, width }: ParallelProps & { width: number }) {
  const drag = useRef<{ from: number; x: number } | null>(null);
  const [target, setTarget] = useState<number | null>(null);
  const gap = gapOf(shown.length, width);
  const targetOf = (event: PointerEvent) => {
    const by = drag.current ? Math.round((event.clientX - drag.current.x) / gap) : 0;
    return Math.max(0, Math.min(shown.length - 1, (drag.current?.from ?? 0) + by));
  };
  const flip = (index: number) =>
    onShown(shown.map((one, i) => (i === index ? { ...one, flipped: !one.flipped } : one)));
  const press = (event: KeyboardEvent, index: number) => {
    const by = event.key === "ArrowLeft" ? -1 : event.key === "ArrowRight" ? 1 : 0;
    if (!by) return;
    event.preventDefault();
    onShown(moved(shown, index, index + by));
  };
  return (
    <ul className="axis-heads" aria-label="Axes">
      {shown.map(({ axis, flipped }, index) => (
        <li key={axis.name} style={{ left: SIDE + index * gap, width: Math.min(gap, 150) }}>
          <button
            type="button"
            className={target === index ? "target" : ""}
            title={`${axis.label}: click to flip, drag or ← → to move`}
            aria-label={`${axis.label}, ${flipped ? "greatest at the bottom" : "greatest at the top"}: flip; arrow keys move it`}
            onKeyDown={(event) => press(event, index)}
            onClick={(event) => event.detail === 0 && flip(index)}
            onPointerDown={(event) => {
              drag.current = { from: index, x: event.clientX };
              event.currentTarget.setPointerCapture(event.pointerId);
            }}
            onPointerMove={(event) => {
              if (drag.current && Math.abs(event.clientX - drag.current.x) > DRAG_PIXELS) setTarget(targetOf(event));
            }}
            onPointerUp={(event) => {
              if (target === null) flip(index);
              else onShown(moved(shown, index, targetOf(event)));
              drag.current = null;
              setTarget(null);
            }}
            onPointerCancel={() => {
              drag.current = null;
              setTarget(null);
            }}
          >
            {axis.label} <span aria-hidden="true">{flipped ? "↓" : "↑"}</span>
          </button>
        </li>
      ))}
    </ul>
  );
}

function gapOf(axes: number, width: number): number {
  return axes > 1 ? (width - 2 * SIDE) / (axes - 1) : Math.max(1, width - 2 * SIDE);
}

function yOf(share: number, flipped: boolean, height: number): number {
  return TOP + (flipped ? share : 1 - share) * (height - TOP - BOTTOM);
}

/** Draws lines one pixel at a time into memory: of thousands of them that is ten times as fast as the canvas. */
class LineRaster {
  private readonly image: ImageData;
  private readonly gap: number;

  constructor(
    private readonly shown: Shown[],
    private readonly width: number,
    private readonly height: number,
    private readonly ranks: Float64Array,
    private readonly palette: Palette,
  ) {
    this.image = new ImageData(Math.max(1, Math.round(width)), height);
    const [red, green, blue] = palette.cardChannels;
    const pixel = new Uint8ClampedArray([red, green, blue, 255]);
    new Uint32Array(this.image.data.buffer).fill(new Uint32Array(pixel.buffer)[0] ?? 0);
    this.gap = gapOf(shown.length, width);
  }

  /** The line of a row. Where the trial has no such parameter the line has a gap. */
  draw(row: number, isBright: boolean): void {
    const rank = this.ranks[row] ?? Number.NaN;
    const isColored = isBright && !Number.isNaN(rank);
    const [red, green, blue] = isColored ? this.palette.of(rank) : this.palette.softChannels;
    const few = Math.min(1, 300 / Math.max(1, this.ranks.length));
    const alpha = isColored ? Math.min(1, 0.12 + 0.7 * few + 0.4 * (1 - rank) ** 30) : 0.03 + 0.2 * few;
    let [lastX, lastY] = [0, Number.NaN];
    for (const [index, { axis, flipped }] of this.shown.entries()) {
      const place = axis.places[row] ?? Number.NaN;
      const [x, y] = [SIDE + index * this.gap, yOf(place, flipped, this.height)];
      const next = this.shown[index + 1]?.axis.places[row] ?? Number.NaN;
      if (!Number.isNaN(lastY) && !Number.isNaN(y)) this.segment(lastX, lastY, x, y, red, green, blue, alpha);
      else if (!Number.isNaN(y) && Number.isNaN(next)) this.segment(x - 5, y, x + 5, y, red, green, blue, alpha);
      [lastX, lastY] = [x, y];
    }
  }

  private segment(
    x0: number,
    y0: number,
    x1: number,
    y1: number,
    red: number,
    green: number,
    blue: number,
    alpha: number,
  ) {
    const { data, width, height } = this.image;
    const [first, last] = [Math.round(x0), Math.min(width, Math.round(x1))];
    const slope = (y1 - y0) / (x1 - x0);
    for (let x = first; x < last; x++) {
      const from = y0 + slope * (x - x0);
      const to = from + slope;
      const top = Math.max(0, Math.floor(from < to ? from : to));
      const bottom = Math.min(height - 1, Math.floor(from < to ? to : from));
      for (let y = top; y <= bottom; y++) {
        const at = (y * width + x) * 4;
        const r = data[at] ?? 0;
        const g = data[at + 1] ?? 0;
        const b = data[at + 2] ?? 0;
        data[at] = r + (red - r) * alpha;
        data[at + 1] = g + (green - g) * alpha;
        data[at + 2] = b + (blue - b) * alpha;
      }
    }
  }

  /** Puts what was drawn on the canvas. */
  show(context: CanvasRenderingContext2D): void {
    const canvas = document.createElement("canvas");
    canvas.width = this.image.width;
    canvas.height = this.image.height;
    canvas.getContext("2d")?.putImageData(this.image, 0, 0);
    context.globalAlpha = 1;
    context.drawImage(canvas, 0, 0, this.width, this.height);
  }
}

function drawAxes(
  context: CanvasRenderingContext2D,
  shown: Shown[],
  width: number,
  height: number,
  brushes: ReadonlyMap<string, Brush>,
  palette: Palette,
): void {
  const gap = gapOf(shown.length, width);
  context.globalAlpha = 1;
  context.font = "11px system-ui, sans-serif";
  context.textBaseline = "middle";
  for (const [index, { axis, flipped }] of shown.entries()) {
    const x = SIDE + index * gap;
    context.fillStyle = palette.soft;
    context.fillRect(x - 0.5, TOP, 1, height - TOP - BOTTOM);
    const brush = brushes.get(axis.name);
    if (brush) {
      const [from, to] = placesOf(axis, brush);
      const [a, b] = [yOf(from, flipped, height), yOf(to, flipped, height)];
      context.globalAlpha = 0.3;
      context.fillStyle = palette.accent;
      context.fillRect(x - 7, Math.min(a, b), 14, Math.max(2, Math.abs(a - b)));
      context.globalAlpha = 1;
      context.strokeStyle = palette.accent;
      context.strokeRect(x - 7, Math.min(a, b), 14, Math.max(2, Math.abs(a - b)));
    }
    context.lineWidth = 3;
    context.lineJoin = "round";
    for (const [share, value] of ticksOf(axis)) {
      const y = yOf(share, flipped, height);
      const whole = typeof value === "number" ? trimmed(value) : value;
      const text = whole.length > LONGEST_WORD ? `${whole.slice(0, LONGEST_WORD - 1)}…` : whole;
      context.strokeStyle = palette.card;
      context.strokeText(text, x + 5, y);
      context.fillStyle = palette.text;
      context.fillText(text, x + 5, y);
      context.fillRect(x - 3, y - 0.5, 6, 1);
    }
  }
}

function trimmed(value: number): string {
  const text = formatNumber(value);
  return text.includes(".") && !text.includes("e") ? text.replace(/\.?0+$/, "") : text;
}
