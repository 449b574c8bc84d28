// A dialog in which the limits of an experiment are changed while it runs.

import { useMutation } from "@tanstack/react-query";
import { useState } from "react";
import { updateExperiment } from "../api/actions";
import type { Experiment } from "../api/schema";
import { changedLimits, LIMITS, limitText } from "../state/limits";
import { Dialog } from "./dialog";
import { FormEnd } from "./parts";
import { Problems } from "./problems";

export function LimitsButton({ experiment }: { experiment: Experiment }) {
  const [isOpen, setOpen] = useState(false);
  return (
    <>
      <button type="button" data-keys="e l" onClick={() => setOpen(true)}>
        Limits
      </button>
      {isOpen && <LimitsDialog experiment={experiment} onClose={() => setOpen(false)} />}
    </>
  );
}

function LimitsDialog({ experiment, onClose }: { experiment: Experiment; onClose: () => void }) {
  const [before] = useState(experiment); // what is edited; the experiment may change meanwhile
  const [texts, setTexts] = useState(() =>
    Object.fromEntries(LIMITS.map((field) => [field.name, limitText(before, field)])),
  );
  const save = useMutation({
    mutationFn: async () => {
      const changes = changedLimits(before, texts);
      if (Object.keys(changes).length) await updateExperiment(experiment.id, changes);
    },
    onSuccess: onClose,
  });
  return (
    <Dialog title="Limits" onClose={onClose}>
      <form
        className="fields"
        onSubmit={(event) => {
          event.preventDefault();
          save.mutate();
        }}
      >
        {LIMITS.map((field) => (
          <label key={field.name}>
            <span>{field.word}</span>
            <input
              value={texts[field.name] ?? ""}
              placeholder={field.isOptional ? "no limit" : ""}
              inputMode={field.kind === "number" ? "decimal" : "text"}
              onChange={(event) => setTexts({ ...texts, [field.name]: event.target.value })}
            />
          </label>
        ))}
        <Problems error={save.error} />
        <FormEnd word="Save" isPending={save.isPending} onCancel={onClose} />
      </form>
    </Dialog>
  );
}
