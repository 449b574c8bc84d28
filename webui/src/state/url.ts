// The state of a page lives in its address, so that a copied link shows the same.

import { useCallback, useMemo } from "react";
import { useLocation, useSearch } from "wouter";
import { hashSearch } from "./hash";
import { SAVED } from "./root";

/** One parameter of the address and a function that sets it; what equals the default is left out. */
export function useUrlState(name: string, byDefault = ""): [string, (value: string) => void] {
  const search = useSearch();
  const [path, navigate] = useLocation();
  const value = new URLSearchParams(search).get(name) ?? byDefault;
  const set = useCallback(
    (next: string) => {
      const query = new URLSearchParams(SAVED ? hashSearch() : window.location.search);
      if (next === byDefault) query.delete(name);
      else query.set(name, next);
      const text = query.toString();
      navigate(text ? `${path}?${text}` : path, { replace: true });
    },
    [name, byDefault, path, navigate],
  );
  return [value, set];
}

/** A parameter that holds several texts without commas. */
export function useUrlList(name: string): [string[], (list: string[]) => void] {
  const [text, setText] = useUrlState(name);
  const list = useMemo(() => text.split(",").filter(Boolean), [text]);
  const set = useCallback((next: string[]) => setText(next.join(",")), [setText]);
  return [list, set];
}
