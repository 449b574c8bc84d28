// A table of very many rows: only those in sight are elements.

import { useVirtualizer } from "@tanstack/react-virtual";
import { useMemo, useRef } from "react";
import { Link } from "wouter";
import type { Column, Table } from "../api/columns";
import { Status, toneOf } from "../components/status";
import { cellText, headOf, isNumeric, widthOf } from "../state/view";

const ROW_PIXELS = 26;
const HEAD_PIXELS = 28;

interface GridProps {
  table: Table;
  columns: Column[];
  /** The column that the rows are in the order of, with "-" for the greatest first. */
  sort: string;
  onSort: (column: string) => void;
  height: number;
}

export function Grid({ table, columns, sort, onSort, height }: GridProps) {
  const place = useRef<HTMLDivElement>(null);
  const virtual = useVirtualizer({
    count: table.rows,
    getScrollElement: () => place.current,
    estimateSize: () => ROW_PIXELS,
    overscan: 12,
    paddingStart: HEAD_PIXELS,
  });
  const widths = useMemo(() => columns.map((column) => widthOf(column, table.rows)), [columns, table]);
  const template = widths
    .map((width, i) => (i === widths.length - 1 ? `minmax(${width}px, 1fr)` : `${width}px`))
    .join(" ");
  const ids = table.columns.find((column) => column.name === "id");
  const total = widths.reduce((sum, width) => sum + width, 0);
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
            style={{ gridTemplateColumns: template, transform: `translateY(${item.start}px)` }}
          >
            {columns.map((column) => (
              <Cell key={column.name} column={column} row={item.index} id={String(ids?.at(item.index) ?? "")} />
            ))}
          </div>
        ))}
      </div>
    </div>
  );
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
