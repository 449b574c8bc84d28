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
          onClick={() => (each.question ? setAsked(each) : action.mutate({ action: each, text: "" }))}
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
          onAnswer={(text) => {
            if (text !== null) action.mutate({ action: asked, text });
            setAsked(null);
          }}
        />
      )}
    </span>
  );
}

/** `onAnswer`: with what was written beside the question, or null where the answer is no. */
function Question({ action, onAnswer }: { action: Action; onAnswer: (text: string | null) => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const [text, setText] = useState("");
  useEffect(() => {
    dialog.current?.showModal();
  }, []);
  return (
    <dialog
      ref={dialog}
      aria-label={action.word}
      onClose={() => onAnswer(dialog.current?.returnValue === "yes" ? text.trim() : null)}
    >
      <p>{action.question}</p>
      <form method="dialog" className="fields">
        {action.field && (
          <label>
            <span>{action.field}</span>
            <input value={text} maxLength={200} onChange={(event) => setText(event.target.value)} />
          </label>
        )}
        <div className="bar">
          {/* Enter in the field means the first button that submits. */}
          <button type="button" onClick={() => dialog.current?.close("no")}>
            Cancel
          </button>
          <button type="submit" value="yes" className="strong">
            {action.word}
          </button>
        </div>
      </form>
    </dialog>
  );
}
