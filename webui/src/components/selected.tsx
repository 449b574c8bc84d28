// What can be done with the selected trials, and what came of it.

import { useMutation } from "@tanstack/react-query";
import { useState } from "react";
import { Link } from "wouter";
import { readTrials, useSession } from "../api/queries";
import { runOnAll, TRIAL_ACTIONS, type TrialAction, type TrialRow } from "../api/trial_actions";
import { capitalized, countOf } from "../format";
import { copyTextOfAll, type Format, toClipboard } from "../state/copies";
import { SAVED } from "../state/root";
import { namesOf } from "../state/selection";
import { Dialog } from "./dialog";
import { CopyButtons } from "./parts";

const MOST_COMPARED = 20;
const MOST_COPIED = 1000;

interface SelectedProps {
  experimentId: string;
  rows: TrialRow[];
  onClear: () => void;
  /** Shows the form for a trial with other parameters; for one selected trial. */
  onAdd: (row: TrialRow, clone: boolean) => void;
}

export function SelectedTrials({ experimentId, rows, onClear, onAdd }: SelectedProps) {
  const [asked, setAsked] = useState<TrialAction | null>(null);
  const mayChange = useSession().data?.access === "full";
  const action = useMutation({
    mutationFn: async ({ what, on }: { what: TrialAction; on: TrialRow[] }) => ({
      what,
      ...(await runOnAll(what, on)),
    }),
  });
  const names = rows.map((row) => row.number).join(",");
  const [only] = rows.length === 1 ? rows : [];
  const root = `/experiments/${experimentId}`;
  const affected = (each: TrialAction) => rows.filter((row) => each.appliesTo(row.status));
  return (
    <section className="selected" aria-label="Selected trials">
      <div className="bar">
        <strong>{countOf(rows.length, "trial")} selected</strong>
        {mayChange &&
          TRIAL_ACTIONS.filter((each) => affected(each).length).map((each) => (
            <button
              key={each.word}
              type="button"
              data-keys={each.keys}
              disabled={action.isPending}
              onClick={() => setAsked(each)}
            >
              {each.word} {affected(each).length.toLocaleString("en-US")}
            </button>
          ))}
        {mayChange && only && (
          <>
            <button type="button" data-keys="a n" onClick={() => onAdd(only, false)}>
              Add a trial like it
            </button>
            <button type="button" data-keys="a o" onClick={() => onAdd(only, true)}>
              Clone
            </button>
          </>
        )}
        {rows.length <= MOST_COMPARED && rows.length > 1 && (
          <Link href={`${root}/compare?trials=${names}`} data-keys="a m">
            compare
          </Link>
        )}
        {!SAVED && rows.length <= MOST_COMPARED && (
          <Link href={`${root}/curves?trials=${names}`} data-keys="a u">
            curves
          </Link>
        )}
        <CopyParameters experimentId={experimentId} rows={rows} />
        <span className="spring" />
        <button type="button" className="link" data-keys="a x" onClick={onClear}>
          clear
        </button>
      </div>
      {action.isPending && <p role="status">Waiting for the manager …</p>}
      {action.data && (
        <div role="status">
          {action.data.what.word}: done for {countOf(action.data.done, "trial")}
          {action.data.problems.length > 0 && `, not for ${action.data.problems.length}:`}
          <ul className="failure">
            {action.data.problems.map(([number, message]) => (
              <li key={number}>
                Trial {number}: {message}
              </li>
            ))}
          </ul>
        </div>
      )}
      {asked && (
        <Dialog title={`${asked.word} ${countOf(affected(asked).length, "trial")}?`} onClose={() => setAsked(null)}>
          <p>
            {capitalized(namesOf(affected(asked).map((row) => row.number)))}. {asked.consequence}
          </p>
          {affected(asked).length < rows.length && (
            <p className="soft">The other {rows.length - affected(asked).length} selected are in another status.</p>
          )}
          <div className="bar">
            <button type="button" onClick={() => setAsked(null)}>
              Cancel
            </button>
            <button
              type="button"
              className="strong"
              onClick={() => {
                action.mutate({ what: asked, on: affected(asked) });
                setAsked(null);
              }}
            >
              {asked.word}
            </button>
          </div>
        </Dialog>
      )}
    </section>
  );
}

function CopyParameters({ experimentId, rows }: { experimentId: string; rows: TrialRow[] }) {
  const [refused, setRefused] = useState("");
  const copy = useMutation({
    mutationFn: async (format: Format) => {
      const numbers = rows.map((row) => row.number);
      if (numbers.length > MOST_COPIED) throw new RangeError(`at most ${MOST_COPIED} trials can be copied at once`);
      const trials = await readTrials(experimentId, numbers);
      const text = copyTextOfAll(
        trials.map((trial) => trial.parameters),
        format,
      );
      if (!(await toClipboard(text))) setRefused(text);
      return format;
    },
  });
  return (
    <span className="copy">
      copy as
      <CopyButtons onCopy={(format) => copy.mutate(format)} />
      <span role="status" className={copy.error ? "failure" : "soft"}>
        {copy.error ? ` ${capitalized(copy.error.message)}` : copy.data && !refused ? ` ${copy.data} copied` : ""}
      </span>
      {refused && (
        <Dialog title="Parameters" className="wide" onClose={() => setRefused("")}>
          <p className="soft">The browser does not let this page write to the clipboard.</p>
          <textarea readOnly aria-label="Parameters" rows={16} value={refused} onFocus={(e) => e.target.select()} />
          <form method="dialog" className="bar">
            <button type="submit">Close</button>
          </form>
        </Dialog>
      )}
    </span>
  );
}
