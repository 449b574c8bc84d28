// A table of very many rows: only those in sight are elements.

import { useVirtualizer } from "@tanstack/react-virtual";
import { useMemo, useRef } from "react";
import { Link } from "wouter";
import type { Column, Table } from "../api/columns";
import { Status, toneOf } from "../components/status";
import { type Selection, toggled } from "../state/selection";
import { cellText, headOf, isNumeric, widthOf } from "../state/view";
import { numbersOf } from "./merge";

const ROW_PIXELS = 26;
const HEAD_PIXELS = 28;
const BOX_PIXELS = 32;

interface GridProps {
  table: Table;
  columns: Column[];
  /** The column that the rows are in the order of, with "-" for the greatest first. */
  sort: string;
  onSort: (column: string) => void;
  height: number;
  /** The selected trials, by their numbers. */
  selection: Selection;
  onSelect: (selection: Selection) => void;
}

export function Grid({ table, columns, sort, onSort, height, selection, onSelect }: GridProps) {
  const numbers = useMemo(() => numbersOf(table), [table]);
  const lastChosen = useRef<number | null>(null); // by its number: rows move while trials run
  const choose = (row: number, isRange: boolean) => {
    const from = isRange && lastChosen.current !== null ? numbers.indexOf(lastChosen.current) : -1;
    onSelect(toggled(selection, numbers, row, from < 0 ? null : from));
    lastChosen.current = numbers[row] ?? null;
  };
  const isAll = numbers.length > 0 && numbers.every((number) => selection.has(number));
  const place = useRef<HTMLDivElement>(null);
  const virtual = useVirtualizer({
    count: table.rows,
    getScrollElement: () => place.current,
    estimateSize: () => ROW_PIXELS,
    overscan: 12,
    paddingStart: HEAD_PIXELS,
  });
  const widths = useMemo(() => columns.map((column) => widthOf(column, table.rows)), [columns, table]);
  const template = [
    `${BOX_PIXELS}px`,
    ...widths.map((width, i) =>
      isWide(columns[i], i === widths.length - 1) ? `minmax(${width}px, 1fr)` : `${width}px`,
    ),
  ].join(" ");
  const ids = table.columns.find((column) => column.name === "id");
  const total = widths.reduce((sum, width) => sum + width, BOX_PIXELS);
  return (
    // biome-ignore lint/a11y/useSemanticElements: rows that are not in sight are not in the document
    <div
      ref={place}
      className="grid"
      role="table"
      aria-label="Trials"
      aria-rowcount={table.rows + 1}
      // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reachable by the keyboard
      tabIndex={0}
      style={{ height }}
    >
      {/* biome-ignore lint/a11y/useSemanticElements: as above */}
      <div role="rowgroup" style={{ height: virtual.getTotalSize(), minWidth: total, position: "relative" }}>
        {/* biome-ignore lint/a11y/useSemanticElements: as above */}
        {/* biome-ignore lint/a11y/useFocusableInteractive: its cells have buttons */}
        <div role="row" aria-rowindex={1} className="grid-row grid-head" style={{ gridTemplateColumns: template }}>
          {/* biome-ignore lint/a11y/useSemanticElements: as above */}
          {/* biome-ignore lint/a11y/useFocusableInteractive: the box in it is */}
          <div role="columnheader" className="box">
            <input
              type="checkbox"
              aria-label="All trials"
              data-keys="a a"
              checked={isAll}
              onChange={() => onSelect(new Set(isAll ? [] : numbers))}
            />
          </div>
          {columns.map((column) => (
            <Head key={column.name} column={column} sort={sort} onSort={onSort} />
          ))}
        </div>
        {virtual.getVirtualItems().map((item) => (
          // biome-ignore lint/a11y/useSemanticElements: as above
          // biome-ignore lint/a11y/useFocusableInteractive: its first cell has a link
          <div
            key={item.index}
            role="row"
            aria-rowindex={item.index + 2}
            className="grid-row"
            aria-selected={selection.has(numbers[item.index] ?? -1)}
            style={{ gridTemplateColumns: template, transform: `translateY(${item.start}px)` }}
          >
            {/* biome-ignore lint/a11y/useSemanticElements: as above */}
            <div role="cell" className="box">
              <input
                type="checkbox"
                tabIndex={-1}
                data-row-box
                aria-label={`Trial ${numbers[item.index]}`}
                checked={selection.has(numbers[item.index] ?? -1)}
                onClick={(event) => choose(item.index, event.shiftKey)}
                onChange={() => undefined}
              />
            </div>
            {columns.map((column) => (
              <Cell key={column.name} column={column} row={item.index} id={String(ids?.at(item.index) ?? "")} />
            ))}
          </div>
        ))}
      </div>
    </div>
  );
}

/** Whether a column takes what is left of the width: a text that is the last one. */
function isWide(column: Column | undefined, isLast: boolean): boolean {
  return isLast && column !== undefined && !isNumeric(column);
}

function Head({ column, sort, onSort }: { column: Column; sort: string; onSort: (column: string) => void }) {
  const direction = sort === column.name ? "ascending" : sort === `-${column.name}` ? "descending" : "none";
  return (
    // biome-ignore lint/a11y/useSemanticElements: as above
    // biome-ignore lint/a11y/useFocusableInteractive: the button in it is
    <div role="columnheader" aria-sort={direction} className={isNumeric(column) ? "number" : ""} title={column.name}>
      <button type="button" onClick={() => onSort(column.name)}>
        {headOf(column.name)}
        <span aria-hidden="true">{direction === "ascending" ? " ↑" : direction === "descending" ? " ↓" : ""}</span>
      </button>
    </div>
  );
}

function Cell({ column, row, id }: { column: Column; row: number; id: string }) {
  if (column.name === "no") {
    return (
      // biome-ignore lint/a11y/useSemanticElements: as above
      // biome-ignore lint/a11y/useFocusableInteractive: the link in it is
      <div role="rowheader" className="number">
        <Link href={`/trials/${id}`} data-row>
          {column.at(row)}
        </Link>
      </div>
    );
  }
  if (column.name === "status") {
    const status = String(column.at(row) ?? "");
    return (
      // biome-ignore lint/a11y/useSemanticElements: as above
      <div role="cell" className={toneOf(status)}>
        <Status status={status} />
      </div>
    );
  }
  const text = cellText(column, row);
  return (
    // biome-ignore lint/a11y/useSemanticElements: as above
    <div role="cell" className={isNumeric(column) ? "number" : ""} title={text.length > 12 ? text : undefined}>
      {text}
    </div>
  );
}
