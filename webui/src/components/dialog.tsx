// A dialog that is open as long as it is shown.

import { type ReactNode, useEffect, useId, useRef } from "react";

/** `onClose` is called when it is closed by Escape, too. */
export function Dialog(props: { title: string; className?: string; onClose: () => void; children: ReactNode }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const id = useId();
  useEffect(() => {
    dialog.current?.showModal();
  }, []);
  return (
    <dialog ref={dialog} onClose={props.onClose} aria-labelledby={id} className={props.className}>
      <h2 id={id}>{props.title}</h2>
      {props.children}
    </dialog>
  );
}
