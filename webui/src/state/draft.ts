// Text that is being typed, before it is applied.

import { useCallback, useEffect, useRef, useState } from "react";

/** A value that is applied when the user stops typing, or at once, and that follows changes made elsewhere. */
export function useDraft(value: string, apply: (value: string) => void, milliseconds: number) {
  const [draft, setDraft] = useState(value);
  const applied = useRef(value);
  useEffect(() => {
    // Changed elsewhere: by a button, or by going back.
    if (value !== applied.current) setDraft(value);
    applied.current = value;
  }, [value]);
  const applyNow = useCallback(() => {
    if (draft === applied.current) return;
    applied.current = draft;
    apply(draft);
  }, [draft, apply]);
  useEffect(() => {
    const timer = setTimeout(applyNow, milliseconds);
    return () => clearTimeout(timer);
  }, [applyNow, milliseconds]);
  return [draft, setDraft, applyNow] as const;
}
