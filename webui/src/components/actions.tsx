// Buttons for what can be done, and what came of it.

import { type ReactNode, useEffect, useRef, useState } from "react";
import { type Action, useAction } from "../api/actions";
import { useSession } from "../api/queries";

export function Actions({ actions, children }: { actions: Action[]; children?: ReactNode }) {
  const [asked, setAsked] = useState<Action | null>(null);
  const action = useAction();
  const session = useSession();
  if (session.data?.access !== "full") return null;
  return (
    <span className="actions">
      {actions.map((each) => (
        <button
          key={each.word}
          type="button"
          data-keys={each.keys}
          disabled={action.isPending}
          onClick={() => (each.question ? setAsked(each) : action.mutate(each))}
        >
          {each.word}
        </button>
      ))}
      {children}
      {action.error && (
        <span className="failure" role="alert">
          {action.error.message}
        </span>
      )}
      {asked && (
        <Question
          action={asked}
          onAnswer={(yes) => {
            if (yes) action.mutate(asked);
            setAsked(null);
          }}
        />
      )}
    </span>
  );
}

function Question({ action, onAnswer }: { action: Action; onAnswer: (yes: boolean) => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    dialog.current?.showModal();
  }, []);
  return (
    <dialog ref={dialog} aria-label={action.word} onClose={() => onAnswer(dialog.current?.returnValue === "yes")}>
      <p>{action.question}</p>
      <form method="dialog" className="bar">
        <button type="submit" value="no">
          Cancel
        </button>
        <button type="submit" value="yes" className="strong">
          {action.word}
        </button>
      </form>
    </dialog>
  );
}
