// A dialog in which the search space of an experiment is changed while it runs.

import { useMutation } from "@tanstack/react-query";
import { useState } from "react";
import { updateExperiment } from "../api/actions";
import type { Experiment } from "../api/schema";
import { countOf } from "../format";
import { Dialog } from "./dialog";
import { FormEnd } from "./parts";
import { Problems } from "./problems";

export function SpaceButton({ experiment }: { experiment: Experiment }) {
  const [isOpen, setOpen] = useState(false);
  return (
    <>
      <button type="button" data-keys="e e" onClick={() => setOpen(true)}>
        Search space
      </button>
      {isOpen && <SpaceDialog experiment={experiment} onClose={() => setOpen(false)} />}
    </>
  );
}

function SpaceDialog({ experiment, onClose }: { experiment: Experiment; onClose: () => void }) {
  const [text, setText] = useState(() => JSON.stringify(experiment.search_space, null, 2));
  const { RUNNING = 0, WAITING = 0, PAUSED = 0 } = experiment.trial_counts;
  const save = useMutation({
    mutationFn: () => updateExperiment(experiment.id, { search_space_text: text }),
    onSuccess: onClose,
  });
  return (
    <Dialog title="Search space" className="wide" onClose={onClose}>
      <p className="soft">
        YAML or JSON. {countOf(RUNNING + WAITING + PAUSED, "trial")} that exist keep their parameters; the tuner
        proposes the next ones from the new space.
      </p>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          save.mutate();
        }}
      >
        <textarea
          aria-label="Search space"
          rows={18}
          spellCheck={false}
          value={text}
          onChange={(event) => setText(event.target.value)}
        />
        <Problems error={save.error} />
        <FormEnd word="Save" isPending={save.isPending} onCancel={onClose} />
      </form>
    </Dialog>
  );
}
