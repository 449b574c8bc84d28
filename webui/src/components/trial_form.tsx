// A trial with parameters that a person chooses: fields from the search space, or JSON.

import { useMutation } from "@tanstack/react-query";
import { useEffect, useId, useState } from "react";
import { useLocation } from "wouter";
import { client, read } from "../api/client";
import { useTrialsNamed } from "../api/queries";
import type { Experiment, Trial } from "../api/schema";
import type { TrialRow } from "../api/trial_actions";
import {
  changedParameters,
  fieldsOf,
  parametersOf,
  type SpaceField,
  type Texts,
  textOf,
  textsOf,
} from "../state/space";
import { Dialog } from "./dialog";
import { FormEnd, Waiting } from "./parts";
import { Problems } from "./problems";

interface TrialFormProps {
  experiment: Experiment;
  /** The trial whose parameters the form begins with; null: the best one's, if there is one. */
  from: TrialRow | null;
  /** Whether the new trial continues `from` from its newest checkpoint. */
  clone: boolean;
  onClose: () => void;
}

export function TrialForm({ experiment, from, clone, onClose }: TrialFormProps) {
  const number = from?.number ?? experiment.best?.sequence_id;
  const found = useTrialsNamed(experiment.id, number === undefined ? [] : [number]);
  const title = clone ? `Clone trial ${from?.number}` : "Add a trial";
  return (
    <Dialog title={title} className="wide" onClose={onClose}>
      {found.data ? (
        <Form experiment={experiment} before={found.data[0]} clone={clone} onClose={onClose} />
      ) : (
        <Waiting error={found.error} what="its parameters" />
      )}
    </Dialog>
  );
}

interface FormProps {
  experiment: Experiment;
  before: Trial | undefined;
  clone: boolean;
  onClose: () => void;
}

function Form({ experiment, before, clone, onClose }: FormProps) {
  const [, navigate] = useLocation();
  const [texts, setTexts] = useState<Texts>(() => textsOf(before?.parameters));
  const [json, setJson] = useState(() => JSON.stringify(before?.parameters ?? {}, null, 2));
  const fields = fieldsOf(experiment.search_space, texts);
  const save = useMutation({
    mutationFn: () => {
      const parameters = fields ? parametersOf(fields, texts) : JSON.parse(json);
      if (!clone || !before) {
        const params = { path: { experiment_id: experiment.id } };
        return read(client.POST("/api/v1/experiments/{experiment_id}/trials", { params, body: { parameters } }));
      }
      const params = { path: { trial_id: before.id } };
      const changed = changedParameters(before.parameters, parameters);
      return read(client.POST("/api/v1/trials/{trial_id}/clone", { params, body: { parameters: changed } as never }));
    },
    onSuccess: (trial) => {
      onClose();
      navigate(`/trials/${trial.id}`);
    },
  });
  return (
    <form
      className="fields"
      onSubmit={(event) => {
        event.preventDefault();
        save.mutate();
      }}
    >
      {clone && <p className="soft">It continues from the newest checkpoint of trial {before?.sequence_id}.</p>}
      {fields ? (
        fields.map((field) => (
          <Field
            key={field.path.join(".")}
            field={field}
            text={texts[field.path.join(".")]}
            onChange={(text) => setTexts({ ...texts, [field.path.join(".")]: text })}
          />
        ))
      ) : (
        <textarea aria-label="Parameters as JSON" rows={14} value={json} onChange={(e) => setJson(e.target.value)} />
      )}
      <Problems error={save.error} />
      <FormEnd word={clone ? "Clone" : "Add"} isPending={save.isPending} onCancel={onClose} />
    </form>
  );
}

function Field(props: { field: SpaceField; text: string | undefined; onChange: (text: string) => void }) {
  const { field, onChange } = props;
  const options = field.options?.map(textOf);
  // A choice shows its first option until another one is chosen: what is shown is what is sent.
  const shown = options && !options.includes(props.text ?? "") ? (options[0] ?? "") : (props.text ?? "");
  useEffect(() => {
    if (options && shown !== props.text) onChange(shown);
  });
  const id = useId();
  return (
    <label htmlFor={id} style={{ paddingInlineStart: `${(field.path.length - 1) * 16}px` }}>
      <span>
        {field.path.join(".")} <small className="soft">{field.hint}</small>
      </span>
      {options ? (
        <select id={id} value={shown} onChange={(event) => onChange(event.target.value)}>
          {options.map((option) => (
            <option key={option}>{option}</option>
          ))}
        </select>
      ) : (
        <input id={id} value={shown} inputMode="decimal" onChange={(event) => onChange(event.target.value)} />
      )}
    </label>
  );
}
