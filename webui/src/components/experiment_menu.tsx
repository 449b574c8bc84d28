// What is done to an experiment but to run it: tags, the archive, deleting it.

import { useMutation } from "@tanstack/react-query";
import { useState } from "react";
import { deleteExperiment, isDeletable, lostWith, setArchived, setTags, storageOf, tagsOf } from "../api/labels";
import type { Experiment } from "../api/schema";
import { isOver } from "../state/progress";
import { Dialog } from "./dialog";
import { Problems } from "./problems";

/** A button for the dialog; for those who may change something. */
export function ExperimentMenu({ experiment }: { experiment: Experiment }) {
  const [isOpen, setOpen] = useState(false);
  return (
    <>
      <button
        type="button"
        className="more"
        title="Tags, archive, delete"
        aria-label={`Tags, archive, delete: ${experiment.name}`}
        aria-haspopup="dialog"
        onClick={() => setOpen(true)}
      >
        …
      </button>
      {isOpen && <MenuDialog experiment={experiment} onClose={() => setOpen(false)} />}
    </>
  );
}

function MenuDialog({ experiment, onClose }: { experiment: Experiment; onClose: () => void }) {
  const [isDeleting, setDeleting] = useState(false);
  return (
    <Dialog
      title={isDeleting ? `Delete ${experiment.name}?` : experiment.name}
      className="experiment-menu"
      onClose={onClose}
    >
      {isDeleting ? (
        <Deletion experiment={experiment} onCancel={() => setDeleting(false)} onDeleted={onClose} />
      ) : (
        <Labels experiment={experiment} onClose={onClose} onDelete={() => setDeleting(true)} />
      )}
    </Dialog>
  );
}

interface LabelsProps {
  experiment: Experiment;
  onClose: () => void;
  onDelete: () => void;
}

function Labels({ experiment, onClose, onDelete }: LabelsProps) {
  const [before] = useState(experiment.tags ?? []); // what is edited; the experiment may change meanwhile
  const [text, setText] = useState(before.join(", "));
  const save = useMutation({
    mutationFn: async () => {
      const tags = tagsOf(text);
      if (tags.join(",") !== before.join(",")) await setTags(experiment, tags);
    },
    onSuccess: onClose,
  });
  const archive = useMutation({
    mutationFn: () => setArchived(experiment, !experiment.archived),
    onSuccess: onClose,
  });
  return (
    <form
      className="fields"
      onSubmit={(event) => {
        event.preventDefault();
        save.mutate();
      }}
    >
      <label>
        <span>Tags, with commas between them</span>
        <input value={text} onChange={(event) => setText(event.target.value)} />
      </label>
      <Problems error={save.error ?? archive.error} />
      {!isOver(experiment) && (
        <p className="soft">
          {experiment.archived
            ? "It is archived: lists leave it out once it has ended."
            : "Archived, it is listed until it has ended. It can be deleted when it is stopped."}
        </p>
      )}
      <div className="bar">
        <button type="button" disabled={archive.isPending} onClick={() => archive.mutate()}>
          {experiment.archived ? "Bring back" : "Archive"}
        </button>
        {isDeletable(experiment) && (
          <button type="button" className="bad" onClick={onDelete}>
            Delete …
          </button>
        )}
        <span className="spring" />
        <button type="button" onClick={onClose}>
          Cancel
        </button>
        <button type="submit" className="strong" disabled={save.isPending}>
          Save tags
        </button>
      </div>
    </form>
  );
}

/** What a deletion has left, until it was read. */
function Left({ sentences, onClose }: { sentences: string[]; onClose: () => void }) {
  return (
    <>
      <p>The experiment is deleted. Not everything was:</p>
      <ul>
        {sentences.map((sentence) => (
          <li key={sentence}>{sentence}</li>
        ))}
      </ul>
      <div className="bar">
        <button type="button" className="strong" onClick={onClose}>
          Close
        </button>
      </div>
    </>
  );
}

interface DeletionProps {
  experiment: Experiment;
  onCancel: () => void;
  onDeleted: () => void;
}

function Deletion({ experiment, onCancel, onDeleted }: DeletionProps) {
  const [keepsCheckpoints, setKeeping] = useState(false);
  const storage = storageOf(experiment);
  const deletion = useMutation({
    mutationFn: () => deleteExperiment(experiment, keepsCheckpoints),
    onSuccess: (left) => left.length === 0 && onDeleted(),
  });
  if (deletion.data) return <Left sentences={deletion.data} onClose={onDeleted} />;
  return (
    <>
      <p>This is lost, and cannot be brought back:</p>
      <ul>
        {lostWith(experiment, keepsCheckpoints).map((line) => (
          <li key={line}>{line}</li>
        ))}
      </ul>
      {storage && (
        <label>
          <input type="checkbox" checked={keepsCheckpoints} onChange={(event) => setKeeping(event.target.checked)} />{" "}
          keep the checkpoints in {storage}
        </label>
      )}
      <Problems error={deletion.error} />
      <div className="bar">
        <button type="button" disabled={deletion.isPending} onClick={onCancel}>
          Cancel
        </button>
        <button type="button" className="strong" disabled={deletion.isPending} onClick={() => deletion.mutate()}>
          {deletion.isPending ? "Deleting …" : "Delete"}
        </button>
      </div>
    </>
  );
}
