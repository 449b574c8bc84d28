// A menu of saved views: links to an experiment's pages with a filter, an order and columns, and a field to save one.

import { useMutation } from "@tanstack/react-query";
import { type KeyboardEvent, useRef, useState } from "react";
import { Link, useLocation, useSearch } from "wouter";
import { deleteView, saveView } from "../api/actions";
import { useSession, useViews } from "../api/queries";
import type { SavedView } from "../api/schema";
import { SAVED } from "../state/root";
import { canonicalQuery, pageAt, pageWord, type ViewPage, viewPath } from "../state/views";
import { Actions } from "./actions";
import { Waiting } from "./parts";

const LONGEST_NAME = 80;

/** What the address shows. */
type Place = { page: ViewPage; query: string };

export function ViewsMenu({ experiment }: { experiment: string }) {
  const menu = useRef<HTMLDetailsElement>(null);
  const [isOpen, setOpen] = useState(false);
  if (SAVED) return null;
  const close = () => {
    if (menu.current) menu.current.open = false;
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key !== "Escape" || !menu.current?.open || (event.target as HTMLElement).closest("dialog")) return;
    close();
    menu.current.querySelector("summary")?.focus();
  };
  return (
    <details
      ref={menu}
      className="files views"
      onToggle={() => setOpen(menu.current?.open ?? false)}
      onKeyDown={onKeyDown}
    >
      <summary>views</summary>
      {isOpen && <Menu experiment={experiment} onChoose={close} />}
    </details>
  );
}

function Menu({ experiment, onChoose }: { experiment: string; onChoose: () => void }) {
  const root = `/experiments/${experiment}`;
  const [path] = useLocation();
  useSearch(); // read again when it changes; it is decoded, so the address itself is asked
  const page = pageAt(path, root);
  const here: Place | null = page && { page, query: canonicalQuery(window.location.search) };
  const { data, error } = useViews(experiment);
  const session = useSession();
  const mayChange = session.data?.access === "full";
  if (!data) {
    return (
      <div>
        <Waiting error={error} what="the views" />
      </div>
    );
  }
  return (
    <div>
      {mayChange && here && <SaveForm experiment={experiment} here={here} views={data.items} />}
      {data.items.length === 0 && <p className="soft">No views are saved yet.</p>}
      <ul>
        {data.items.map((view) => (
          <li key={view.name}>
            <Link
              href={viewPath(root, view)}
              aria-current={here && isShown(view, here) ? "page" : undefined}
              title={`${view.name}\n${decoded(view.query)}`}
              onClick={onChoose}
            >
              {view.name}
            </Link>
            <span className="soft">{pageWord(view.page)}</span>
            <Actions actions={viewActions(experiment, view, here)} />
          </li>
        ))}
      </ul>
      {mayChange && !here && <p className="soft">Trials, curves and relations can be saved as views.</p>}
    </div>
  );
}

function isShown(view: SavedView, here: Place): boolean {
  return view.page === here.page && canonicalQuery(view.query) === here.query;
}

function decoded(query: string): string {
  return [...new URLSearchParams(query)].map(([name, value]) => `${name}: ${value}`).join("\n");
}

function viewActions(experiment: string, view: SavedView, here: Place | null) {
  const replace = {
    word: "Replace",
    question: `Replace view ${view.name} with what is shown now?`,
    run: () => (here ? saveView(experiment, view.name, here) : Promise.resolve()),
  };
  const remove = {
    word: "Delete",
    question: `Delete view ${view.name}?`,
    run: () => deleteView(experiment, view.name),
  };
  return here && !isShown(view, here) ? [replace, remove] : [remove];
}

function SaveForm({ experiment, here, views }: { experiment: string; here: Place; views: SavedView[] }) {
  const [name, setName] = useState("");
  const save = useMutation({
    mutationFn: () => saveView(experiment, name.trim(), here),
    onSuccess: () => setName(""),
  });
  const isTaken = views.some((view) => view.name === name.trim());
  return (
    <form
      className="bar"
      onSubmit={(event) => {
        event.preventDefault();
        if (name.trim()) save.mutate();
      }}
    >
      <input
        aria-label="Name of the view"
        placeholder="Save this page as"
        autoComplete="off"
        maxLength={LONGEST_NAME}
        value={name}
        onChange={(event) => setName(event.target.value)}
      />
      <button type="submit" disabled={save.isPending || !name.trim()}>
        {isTaken ? "Replace" : "Save"}
      </button>
      {save.error && (
        <p className="failure" role="alert">
          {save.error.message}
        </p>
      )}
    </form>
  );
}
