-- Every statement of the store. A line with its name begins each. {columns}, {values} and {assignments} stand for
-- column names, which the Python side checks against the row type.

-- ---- the control database ------------------------------------------------------------------------------------------

-- name: experiments.insert
INSERT INTO experiments ({columns}) VALUES ({values});

-- name: experiments.get
SELECT * FROM experiments WHERE id = :id;

-- name: experiments.find_by_prefix
SELECT * FROM experiments WHERE id >= :prefix AND id < :prefix || char(0x10FFFF) ORDER BY id LIMIT :limit;

-- name: experiments.page
-- newest first
SELECT * FROM experiments
WHERE (created_at, id) < (:created_at, :id)
  AND (:statuses IS NULL OR status IN (SELECT value FROM json_each(:statuses)))
  AND (:name IS NULL OR name = :name)
  AND NOT EXISTS (SELECT 1 FROM json_each(:tags) WHERE value NOT IN (SELECT value FROM json_each(experiments.tags)))
  AND (:archived IS NULL
       OR :archived = (experiments.archived AND status IN (SELECT value FROM json_each(:ended))))
ORDER BY created_at DESC, id DESC LIMIT :limit;

-- name: experiments.unmarked
SELECT experiments.* FROM experiments JOIN unmarked_storages ON experiment_id = id ORDER BY id;

-- name: experiments.settle_mark
DELETE FROM unmarked_storages WHERE experiment_id = :id;

-- name: experiments.ids
SELECT id FROM experiments;

-- name: experiments.folders
SELECT id, directory FROM experiments ORDER BY id;

-- name: experiments.active
SELECT * FROM experiments WHERE status NOT IN ('STOPPED', 'VIEWED') ORDER BY id;

-- name: experiments.needing_clean_up
SELECT id FROM experiments WHERE clean_up_owed AND status IN ('STOPPED', 'VIEWED') ORDER BY id;

-- name: experiments.end_clean_up
UPDATE experiments SET clean_up_owed = 0 WHERE id = :id AND status IN ('STOPPED', 'VIEWED');

-- name: experiments.move
UPDATE experiments SET {assignments}
WHERE id = :id AND status IN (SELECT value FROM json_each(:expected)) RETURNING *;

-- name: experiments.update
UPDATE experiments SET {assignments} WHERE id = :id;

-- name: experiments.set_limits
UPDATE experiments SET {assignments}, revision = revision + 1 WHERE id = :id RETURNING *;

-- name: experiments.delete
DELETE FROM experiments WHERE id = :id;

-- name: home.id
SELECT id FROM home;

-- name: home.accept
UPDATE home SET accepted_at = :time;

-- name: home.accepted_at
SELECT accepted_at FROM home;

-- name: home.record_deleted
INSERT INTO deleted_experiments (id, deleted_at) VALUES (:id, :time)
ON CONFLICT (id) DO UPDATE SET deleted_at = excluded.deleted_at;

-- name: home.deleted_at
SELECT deleted_at FROM deleted_experiments WHERE id = :id;

-- name: home.set_id
UPDATE home SET id = :id, accepted_at = 0;

-- name: home.has_place
SELECT 1 FROM pragma_table_info('home') WHERE name = 'lock';

-- name: home.place
SELECT path, lock FROM home;

-- name: home.set_place
UPDATE home SET path = :path, lock = :lock;

-- name: home.move_experiments
UPDATE experiments SET directory = :new || substr(directory, length(:old) + 1)
WHERE substr(directory, 1, length(:old) + 1) = :old || '/';

-- name: home.move_jobs
UPDATE trial_jobs SET resume_checkpoint = :new || substr(resume_checkpoint, length(:old) + 1)
WHERE substr(resume_checkpoint, 1, length(:old) + 1) = :old || '/';

-- name: home.move_checkpoint_offers
UPDATE trial_jobs SET checkpoints = replace(checkpoints, :old_text, :new_text) WHERE instr(checkpoints, :old_text);

-- name: home.move_trials
UPDATE trials SET origin_checkpoint = :new || substr(origin_checkpoint, length(:old) + 1)
WHERE substr(origin_checkpoint, 1, length(:old) + 1) = :old || '/';

-- name: home.move_decisions
UPDATE decisions SET donor_checkpoint = :new || substr(donor_checkpoint, length(:old) + 1)
WHERE substr(donor_checkpoint, 1, length(:old) + 1) = :old || '/';

-- name: home.forget_storages
UPDATE experiments SET config = json_set(config, '$.checkpoint_storage', NULL)
WHERE json_extract(config, '$.checkpoint_storage') IS NOT NULL;

-- name: home.forget_marks
DELETE FROM unmarked_storages;

-- name: home.forget_nodes
DELETE FROM nodes;

-- name: home.forget_clean_ups
UPDATE experiments SET clean_up_owed = 0;

-- name: trials.insert
INSERT INTO trials ({columns}) VALUES ({values});

-- name: trials.get
SELECT * FROM trials WHERE id = :id;

-- name: trials.find_by_prefix
SELECT * FROM trials WHERE id >= :prefix AND id < :prefix || char(0x10FFFF) ORDER BY id LIMIT :limit;

-- name: trials.page_by_sequence
SELECT * FROM trials WHERE experiment_id = :experiment_id AND status = :status AND sequence_id > :sequence_id
ORDER BY sequence_id;

-- name: trials.page_by_sequence_backwards
SELECT * FROM trials WHERE experiment_id = :experiment_id AND status = :status AND sequence_id < :sequence_id
ORDER BY sequence_id DESC;

-- name: trials.page_by_value
SELECT * FROM trials
WHERE experiment_id = :experiment_id AND status = :status AND (final_value, sequence_id) > (:value, :sequence_id)
ORDER BY final_value, sequence_id;

-- name: trials.page_by_value_backwards
SELECT * FROM trials
WHERE experiment_id = :experiment_id AND status = :status AND (final_value, sequence_id) < (:value, :sequence_id)
ORDER BY final_value DESC, sequence_id DESC;

-- name: trials.page_without_value
SELECT * FROM trials
WHERE experiment_id = :experiment_id AND status = :status AND final_value IS NULL AND sequence_id > :sequence_id
ORDER BY sequence_id;

-- name: trials.live
SELECT * FROM trials WHERE experiment_id = :experiment_id AND status IN ('WAITING', 'RUNNING')
ORDER BY +sequence_id;  -- by status: those that have ended are not looked at

-- name: trials.origins
-- the checkpoints of these trials with which trials began that have not ended, or that they last continued from
SELECT substr(origin_job, 1, instr(origin_job, '.') - 1), origin_checkpoint FROM trials
WHERE origin_checkpoint IS NOT NULL AND status IN ('WAITING', 'RUNNING', 'PAUSED')
  AND substr(origin_job, 1, instr(origin_job, '.') - 1) IN (SELECT value FROM json_each(:ids))
UNION
-- and all that jobs were offered that have not started
SELECT substr(offer.value ->> 'job_id', 1, instr(offer.value ->> 'job_id', '.') - 1), offer.value ->> 'path'
FROM trial_jobs JOIN json_each(trial_jobs.checkpoints) AS offer
WHERE trial_jobs.status <> 'ENDED' AND trial_jobs.started_at IS NULL
  AND substr(offer.value ->> 'job_id', 1, instr(offer.value ->> 'job_id', '.') - 1) IN (SELECT value FROM json_each(:ids))
UNION
SELECT substr(donor_job, 1, instr(donor_job, '.') - 1), donor_checkpoint
FROM decisions JOIN trials ON trials.id = decisions.trial_id
WHERE donor_job IS NOT NULL AND substr(donor_job, 1, instr(donor_job, '.') - 1) IN (SELECT value FROM json_each(:ids))
  AND trials.status IN ('WAITING', 'RUNNING', 'PAUSED')
  AND (decisions.job IS NULL OR decisions.job > 0 AND decisions.job = (
    SELECT max(newer.job) FROM decisions AS newer
    WHERE newer.trial_id = decisions.trial_id AND newer.donor_job IS NOT NULL
  ));

-- name: trials.donors
-- the trials with whose checkpoints these have continued
SELECT DISTINCT substr(donor_job, 1, instr(donor_job, '.') - 1) FROM decisions
WHERE trial_id IN (SELECT value FROM json_each(:ids)) AND donor_job IS NOT NULL;

-- name: trials.paused_with_experiment
SELECT * FROM trials WHERE experiment_id = :experiment_id AND status = 'PAUSED' AND paused_by = 'EXPERIMENT'
ORDER BY sequence_id;

-- name: trials.count_paused_by
SELECT count(*) FROM trials WHERE experiment_id = :experiment_id AND status = 'PAUSED' AND paused_by = :paused_by;

-- name: trials.held_by_scheduler
-- CROSS: by their ids. The newest job was paused by the trial scheduler, whoever else has paused the trial.
SELECT trials.id FROM json_each(:ids)
CROSS JOIN trials ON trials.id = json_each.value
JOIN trial_jobs ON trial_jobs.trial_id = trials.id AND trial_jobs.number = trials.jobs
WHERE trial_jobs.stop_reason = 'PAUSED' AND trial_jobs.stop_position IS NOT NULL;

-- name: trials.paused_by_scheduler
SELECT * FROM trials WHERE experiment_id = :experiment_id AND status = 'PAUSED' AND paused_by = 'SCHEDULER'
ORDER BY sequence_id LIMIT :limit;

-- name: trials.paused_otherwise
SELECT EXISTS (
    SELECT 1 FROM trials WHERE experiment_id = :experiment_id AND status = 'PAUSED' AND paused_by <> 'SCHEDULER'
);

-- name: trials.paused_of
-- CROSS: by their ids; there may be many thousands of paused ones.
SELECT trials.* FROM json_each(:ids) CROSS JOIN trials ON trials.id = json_each.value
WHERE experiment_id = :experiment_id AND status = 'PAUSED' ORDER BY sequence_id;

-- name: trials.counts
SELECT status, trials FROM trial_counts WHERE experiment_id = :experiment_id;

-- name: trials.lowest
SELECT * FROM trials WHERE experiment_id = :experiment_id AND status = :status AND final_value IS NOT NULL
ORDER BY final_value, sequence_id LIMIT 1;

-- name: trials.highest
SELECT * FROM trials WHERE experiment_id = :experiment_id AND status = :status AND final_value IS NOT NULL
ORDER BY final_value DESC, sequence_id LIMIT 1;

-- name: trials.values_in_time
-- place: among all trials that have ended, whatever came of them
SELECT sequence_id, ended_at, final_value, place FROM (
    SELECT sequence_id, ended_at, final_value, status, row_number() OVER (ORDER BY ended_at, sequence_id) AS place FROM trials
    WHERE experiment_id = :experiment_id AND status NOT IN ('WAITING', 'RUNNING', 'PAUSED')
)
WHERE status IN ('SUCCEEDED', 'EARLY_STOPPED') AND final_value IS NOT NULL
ORDER BY place;

-- name: trials.a_final_metric
-- of the newest trials; where there is no best trial
SELECT * FROM (
    SELECT * FROM trials WHERE experiment_id = :experiment_id AND status = :status
    ORDER BY sequence_id DESC LIMIT :limit
)
WHERE final_data IS NOT NULL LIMIT 1;

-- name: trials.newest_reasons
SELECT sequence_id, reason FROM trials WHERE experiment_id = :experiment_id AND status = :status
ORDER BY sequence_id DESC LIMIT :limit;

-- name: trials.failed
-- the newest first, with how the last job of each ended
SELECT trials.id, sequence_id, trial_jobs.end_reason, trials.reason, trial_jobs.node_id
FROM trials LEFT JOIN trial_jobs ON trial_jobs.id = trials.id || '.' || trials.jobs
WHERE trials.experiment_id = :experiment_id AND trials.status = :status
ORDER BY sequence_id DESC LIMIT :limit;

-- name: trials.move
UPDATE trials SET {assignments}
WHERE id = :id AND status IN (SELECT value FROM json_each(:expected)) RETURNING experiment_id, sequence_id;

-- name: trials.update
UPDATE trials SET {assignments} WHERE id = :id;

-- name: trials.exist
SELECT EXISTS (SELECT 1 FROM trials WHERE experiment_id = :experiment_id);

-- name: trials.numbers
SELECT id, sequence_id FROM trials WHERE id IN (SELECT value FROM json_each(:ids));

-- name: trials.starts
SELECT id, sequence_id, started_at FROM trials WHERE experiment_id = :experiment_id ORDER BY sequence_id;

-- name: trials.named
-- a word of digits is a sequence id, any other an id
SELECT words.value, trials.id, trials.sequence_id, trials.started_at FROM json_each(:words) AS words
CROSS JOIN trials ON trials.sequence_id = CAST(words.value AS INTEGER)
WHERE trials.experiment_id = :experiment_id AND words.value <> '' AND words.value NOT GLOB '*[^0-9]*'
UNION ALL
SELECT words.value, trials.id, trials.sequence_id, trials.started_at FROM json_each(:words) AS words
CROSS JOIN trials ON trials.id = words.value
WHERE trials.experiment_id = :experiment_id AND words.value GLOB '*[^0-9]*';

-- name: trials.newest_documents
SELECT parameters, final_data FROM trials WHERE experiment_id = :experiment_id ORDER BY sequence_id DESC LIMIT :limit;

-- name: trials.results
-- as JSON: parameters, final number, final metric
SELECT '[' || coalesce(parameters, 'null') || ',' || coalesce(json_quote(final_value), 'null') || ',' || coalesce(final_data, 'null') || ']'
FROM trials
WHERE experiment_id = :experiment_id AND status IN ('SUCCEEDED', 'EARLY_STOPPED')
ORDER BY sequence_id DESC LIMIT :limit;

-- name: jobs.insert
INSERT INTO trial_jobs ({columns}) VALUES ({values});

-- name: jobs.get
SELECT * FROM trial_jobs WHERE id = :id;

-- name: jobs.parameter_ids
SELECT id, parameter_id FROM trial_jobs WHERE id IN (SELECT value FROM json_each(:ids));

-- name: jobs.of_trial
SELECT * FROM trial_jobs WHERE trial_id = :trial_id ORDER BY number;

-- name: jobs.live
SELECT * FROM trial_jobs WHERE experiment_id = :experiment_id AND status <> 'ENDED' ORDER BY trial_id, number;

-- name: jobs.nodes
SELECT DISTINCT trial_jobs.node_id FROM trials JOIN trial_jobs ON trial_jobs.trial_id = trials.id
WHERE trials.experiment_id = :experiment_id AND trial_jobs.node_id IS NOT NULL;

-- name: jobs.ended_on_node
-- that held something there in a stretch of time, the newest first
SELECT trial_jobs.*, trials.sequence_id
FROM trial_jobs INDEXED BY trial_jobs_by_node JOIN trials ON trials.id = trial_jobs.trial_id
WHERE trial_jobs.status = 'ENDED' AND trial_jobs.node_id = :node_id
  AND trial_jobs.ended_at >= :since AND trial_jobs.started_at < :until
ORDER BY trial_jobs.ended_at DESC LIMIT :limit;

-- name: jobs.live_on_node
SELECT trial_jobs.*, trials.sequence_id
FROM trial_jobs INDEXED BY trial_jobs_live JOIN trials ON trials.id = trial_jobs.trial_id
WHERE trial_jobs.status <> 'ENDED' AND trial_jobs.node_id = :node_id AND trial_jobs.started_at < :until
ORDER BY trial_jobs.started_at LIMIT :limit;

-- name: jobs.for_search
-- the newest trial first, its newest job first, from one of them on
SELECT trials.id, trials.sequence_id, trial_jobs.number, trial_jobs.node_id
FROM trials JOIN trial_jobs ON trial_jobs.trial_id = trials.id
WHERE trials.experiment_id = :experiment_id AND (:trial_id IS NULL OR trials.id = :trial_id)
  AND trials.sequence_id <= :sequence_id AND (trials.sequence_id < :sequence_id OR trial_jobs.number <= :number)
ORDER BY trials.sequence_id DESC, trial_jobs.number DESC LIMIT :limit;

-- name: jobs.all_live
-- of every experiment, with the numbers of their trials
SELECT trial_jobs.*, trials.sequence_id
FROM trial_jobs INDEXED BY trial_jobs_live JOIN trials ON trials.id = trial_jobs.trial_id
WHERE trial_jobs.status <> 'ENDED' ORDER BY trial_jobs.experiment_id, trial_jobs.trial_id, trial_jobs.number;

-- name: jobs.move
UPDATE trial_jobs SET {assignments}
WHERE id = :id AND token = :fencing_token AND status IN (SELECT value FROM json_each(:expected))
RETURNING experiment_id, trial_id, detail, end_reason;

-- name: jobs.update
UPDATE trial_jobs SET {assignments} WHERE id = :id AND token = :fencing_token;

-- name: usage.by_experiment_and_node
-- of jobs that have ended, and up to now of those that run
SELECT experiment_id, node_id, sum(gpu_seconds), sum(cpu_seconds), sum(unmeasured_jobs) FROM (
    SELECT * FROM job_usage
    UNION ALL
    SELECT experiment_id, coalesce(node_id, ''), counted_gpus * max(:now - coalesce(runs_since, started_at), 0), 0, 1
    FROM trial_jobs INDEXED BY trial_jobs_live WHERE status <> 'ENDED' AND started_at IS NOT NULL
)
GROUP BY experiment_id, node_id;

-- name: usage.of_experiment
SELECT total(gpu_seconds), total(cpu_seconds), total(unmeasured_jobs) FROM (
    SELECT gpu_seconds, cpu_seconds, unmeasured_jobs FROM job_usage WHERE experiment_id = :experiment_id
    UNION ALL
    SELECT counted_gpus * max(:now - coalesce(runs_since, started_at), 0), 0, 1 FROM trial_jobs
    WHERE experiment_id = :experiment_id AND status <> 'ENDED' AND started_at IS NOT NULL
);

-- name: usage.of_ended_jobs
SELECT total(gpu_seconds) FROM job_usage WHERE experiment_id = :experiment_id;

-- name: usage.recent_jobs
-- that ended in the hour before the newest end
SELECT ended_at - coalesce(run_seconds, max(ended_at - started_at, 0)), ended_at, counted_gpus FROM trial_jobs
WHERE experiment_id = :experiment_id AND status = 'ENDED' AND counted_gpus > 0 AND started_at IS NOT NULL
  AND ended_at > (
    SELECT max(ended_at) FROM trial_jobs
    WHERE experiment_id = :experiment_id AND status = 'ENDED' AND counted_gpus > 0
  ) - 3600;

-- name: usage.of_trial
SELECT total(counted_gpus * seconds), total(cpu_seconds), total(cpu_seconds IS NULL), sum(seconds) FROM (
    SELECT counted_gpus, cpu_seconds,
        coalesce(run_seconds, max(coalesce(ended_at - started_at, :now - coalesce(runs_since, started_at)), 0)) AS seconds
    FROM trial_jobs WHERE trial_id = :trial_id AND started_at IS NOT NULL
);

-- name: usage.run_before
-- how long the ended jobs of some trials have run, without their waits for verdicts
SELECT trial_id, sum(max(coalesce(run_seconds, ended_at - started_at) - verdict_seconds, 0)) FROM trial_jobs
WHERE trial_id IN (SELECT value FROM json_each(:trial_ids)) AND status = 'ENDED' AND started_at IS NOT NULL
GROUP BY trial_id;

-- name: inputs.append
INSERT INTO dispatcher_inputs (experiment_id, position, kind, payload)
VALUES (:experiment_id, :position, :kind, :payload);

-- name: inputs.requested
SELECT ids.value FROM dispatcher_inputs, json_each(payload, '$.parameter_ids') AS ids
WHERE experiment_id = :experiment_id AND kind = 'RequestTrialJobs' AND position > :position;

-- name: states.save
INSERT INTO dispatcher_states VALUES (:experiment_id, :position, :state)
ON CONFLICT (experiment_id) DO UPDATE SET position = excluded.position, state = excluded.state;

-- name: states.get
SELECT position, state FROM dispatcher_states WHERE experiment_id = :experiment_id;

-- name: states.position
SELECT position FROM dispatcher_states WHERE experiment_id = :experiment_id;

-- name: inputs.suggestions
-- with the parameters that they began with: those of their first jobs, where they have one
SELECT ifnull(trial_jobs.parameter_id, trials.parameter_id), ifnull(trial_jobs.parameters, trials.parameters), state
FROM trials LEFT JOIN trial_jobs ON trial_jobs.trial_id = trials.id AND trial_jobs.number = 1
WHERE trials.experiment_id = :experiment_id AND position = :position ORDER BY 1;

-- name: inputs.answered
-- by what was decided on requests behind a position
SELECT parameter_id FROM trials WHERE experiment_id = :experiment_id AND position > :position
UNION ALL
SELECT parameter_id FROM decisions WHERE experiment_id = :experiment_id AND position > :position
UNION ALL  -- what cloned trials began with
SELECT trial_jobs.parameter_id FROM trials JOIN trial_jobs ON trial_jobs.trial_id = trials.id
WHERE trials.experiment_id = :experiment_id AND position > :position AND trial_jobs.number = 1;

-- name: inputs.last_news
SELECT * FROM dispatcher_inputs WHERE experiment_id = :experiment_id AND kind <> 'RequestTrialJobs'
ORDER BY position DESC LIMIT 1;

-- name: inputs.after
SELECT * FROM dispatcher_inputs WHERE experiment_id = :experiment_id AND position > :position
ORDER BY position LIMIT :limit;

-- name: inputs.imported
SELECT payload FROM dispatcher_inputs
WHERE experiment_id = :experiment_id AND kind = 'ImportData' ORDER BY position;

-- name: decisions.insert
INSERT INTO decisions VALUES (
    :experiment_id, :parameter_id, :position, :kind, :trial_id, :decided_at, :parameters, :state,
    :donor_trial, :donor_job, :donor_checkpoint, :donor_node, :donor_sequence, :job, :reason
);

-- name: decisions.at
SELECT * FROM decisions WHERE experiment_id = :experiment_id AND position = :position ORDER BY parameter_id;

-- name: decisions.pending
-- of these trials the newest that is to be carried out
SELECT *, max(position) FROM decisions
WHERE trial_id IN (SELECT value FROM json_each(:trial_ids)) AND job IS NULL GROUP BY trial_id;

-- name: decisions.newest_clone
SELECT * FROM decisions WHERE trial_id = :trial_id AND donor_job IS NOT NULL AND job BETWEEN 1 AND :job
ORDER BY job DESC LIMIT 1;

-- name: jobs.damaged_checkpoints
SELECT resume_checkpoint FROM trial_jobs
WHERE trial_id = :trial_id AND end_reason = 'CHECKPOINT_DAMAGED' AND resume_checkpoint IS NOT NULL;

-- name: decisions.carry_out
UPDATE decisions SET job = :job WHERE experiment_id = :experiment_id AND parameter_id = :parameter_id;

-- name: decisions.of_trial
-- each with the number of its donor
SELECT decisions.*, donors.sequence_id FROM decisions LEFT JOIN trials AS donors ON donors.id = decisions.donor_trial
WHERE decisions.trial_id = :trial_id ORDER BY decisions.position, decisions.parameter_id;

-- name: scheduler_tables.get
SELECT * FROM scheduler_tables WHERE experiment_id = :experiment_id;

-- name: scheduler_tables.upsert
INSERT INTO scheduler_tables (experiment_id, tables, updated_at) VALUES (:experiment_id, :tables, :updated_at)
ON CONFLICT (experiment_id) DO UPDATE SET tables = excluded.tables, updated_at = excluded.updated_at;

-- name: scheduler_tables.numbers
-- of the trials that began with these parameters; one that has not been started yet has those still
SELECT trial_jobs.parameter_id, sequence_id FROM trial_jobs JOIN trials ON trials.id = trial_jobs.trial_id
WHERE trial_jobs.experiment_id = :experiment_id AND trial_jobs.number = 1
  AND trial_jobs.parameter_id IN (SELECT value FROM json_each(:ids))
UNION ALL
SELECT parameter_id, sequence_id FROM trials
WHERE experiment_id = :experiment_id AND jobs = 0 AND parameter_id IN (SELECT value FROM json_each(:ids));

-- name: scheduler_tables.trial_ids
SELECT sequence_id, id FROM trials
WHERE experiment_id = :experiment_id AND sequence_id IN (SELECT value FROM json_each(:numbers));

-- name: events.append
INSERT INTO events (time, experiment_id, trial_id, job_id, kind, data, actor)
VALUES (:time, :experiment_id, :trial_id, :job_id, :kind, :data, :actor);

-- name: events.after
SELECT * FROM events WHERE id > :id ORDER BY id LIMIT :limit;

-- name: events.after_of_experiment
SELECT * FROM events WHERE experiment_id = :experiment_id AND id > :id ORDER BY id LIMIT :limit;

-- name: events.before
-- the newest first; with the numbers of their trials
SELECT events.*, trials.sequence_id
FROM events LEFT JOIN trials ON trials.id = events.trial_id
WHERE events.experiment_id = :experiment_id AND events.id < :id
  AND (:kinds IS NULL OR events.kind IN (SELECT value FROM json_each(:kinds)))
  AND (:text = '' OR instr(lower(events.data), :text))
ORDER BY events.id DESC LIMIT :limit;

-- name: events.notices
SELECT * FROM events WHERE experiment_id = :experiment_id AND kind = 'notice' ORDER BY id DESC LIMIT :limit;

-- name: events.pruned_to
SELECT up_to FROM pruned_events;

-- name: events.last_id
SELECT seq FROM sqlite_sequence WHERE name = 'events';

-- name: events.revision
SELECT coalesce(max(id), 0) FROM events WHERE experiment_id = :experiment_id;

-- name: events.prune
DELETE FROM events WHERE id > :begin AND id <= :end AND (kind <> 'notice' OR experiment_id IS NULL);

-- name: events.prune_notices
-- those of experiments that have notices in the stretch; only they can have more to keep than before
DELETE FROM events
WHERE kind = 'notice' AND id <= :end
  AND experiment_id IN (
    SELECT experiment_id FROM events WHERE id > :begin AND id <= :end AND kind = 'notice'
  )
  AND id <= (
    SELECT newer.id FROM events AS newer
    WHERE newer.kind = 'notice' AND newer.experiment_id = events.experiment_id
    ORDER BY newer.id DESC LIMIT 1 OFFSET :keep
  );

-- name: events.set_pruned_to
UPDATE pruned_events SET up_to = :id;

-- name: events.delete_of_experiment
DELETE FROM events WHERE experiment_id = :experiment_id;

-- name: nodes.upsert
INSERT INTO nodes (id, kind, status, reason, facts, seen_at, hold)
VALUES (:id, :kind, :status, :reason, :facts, :seen_at, :hold)
ON CONFLICT (id) DO UPDATE SET
    kind = excluded.kind, status = excluded.status, reason = excluded.reason, facts = excluded.facts,
    seen_at = excluded.seen_at, hold = excluded.hold;

-- name: nodes.write_samples
INSERT INTO node_samples (node_id, minute, samples) VALUES (:node_id, :minute, :samples)
ON CONFLICT (node_id, minute) DO UPDATE SET samples = excluded.samples;

-- name: nodes.delete_samples
DELETE FROM node_samples WHERE node_id = :node_id AND minute < :minute;

-- name: nodes.delete_all_samples
DELETE FROM node_samples WHERE minute < :minute;

-- name: nodes.samples
SELECT samples FROM node_samples WHERE node_id = :node_id AND minute >= :first AND minute <= :last ORDER BY minute;

-- name: nodes.all
SELECT * FROM nodes ORDER BY id;

-- name: nodes.get
SELECT * FROM nodes WHERE id = :id;

-- name: saved_views.of_experiment
SELECT * FROM saved_views WHERE experiment_id = :experiment_id ORDER BY name;

-- name: saved_views.upsert
INSERT INTO saved_views (experiment_id, name, page, query, saved_at, saved_by)
VALUES (:experiment_id, :name, :page, :query, :saved_at, :saved_by)
ON CONFLICT (experiment_id, name) DO UPDATE SET
    page = excluded.page, query = excluded.query, saved_at = excluded.saved_at, saved_by = excluded.saved_by;

-- name: saved_views.delete
DELETE FROM saved_views WHERE experiment_id = :experiment_id AND name = :name;

-- ---- an experiment's metrics database -----------------------------------------------------------------------------

-- name: journals.get
SELECT offset, first_sequence, resumed_from, intermediates, finals, losses, unreadables, started_at, first_seconds
FROM journals
WHERE trial_id = :trial_id AND job = :job AND member = :member;

-- name: journals.advance
INSERT INTO journals (
    trial_id, job, member, offset, first_sequence, resumed_from, intermediates, finals, losses, unreadables,
    started_at, first_seconds, damaged
) VALUES (
    :trial_id, :job, :member, :offset, :first_sequence, :resumed_from, :intermediates, :finals, :losses, :unreadables,
    :started_at, :first_seconds, :damaged
)
ON CONFLICT (trial_id, job, member) DO UPDATE SET
    offset = excluded.offset, intermediates = excluded.intermediates, finals = excluded.finals,
    losses = excluded.losses, unreadables = excluded.unreadables, damaged = coalesce(excluded.damaged, damaged);

-- name: journals.damaged
SELECT damaged FROM journals WHERE trial_id = :trial_id AND job = :job AND damaged IS NOT NULL;

-- name: journals.of_job
SELECT member, offset FROM journals WHERE trial_id = :trial_id AND job = :job ORDER BY member;

-- name: journals.lineage
-- all members of a job began at the same point
SELECT job, max(first_sequence), max(resumed_from), max(member = :member) FROM journals
WHERE trial_id = :trial_id GROUP BY job ORDER BY job DESC;

-- name: journals.has_progress
SELECT EXISTS (
    SELECT 1 FROM metrics WHERE trial_id = :trial_id AND job = :job AND kind = 'intermediate'
) OR EXISTS (SELECT 1 FROM checkpoints WHERE trial_id = :trial_id AND job = :job);

-- name: journals.of_trial
SELECT job, member, intermediates, finals FROM journals WHERE trial_id = :trial_id ORDER BY job DESC, member;

-- name: metrics.insert
-- positional: this is the hot path
INSERT INTO metrics (id, trial_id, job, member, offset, kind, sequence, step, value, data, time, seconds)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: metrics.last_id
SELECT id FROM metrics ORDER BY id DESC LIMIT 1;

-- name: metrics.page_of_kind
SELECT * FROM metrics
WHERE trial_id = :trial_id AND kind = :kind AND id > :after_id AND (:member IS NULL OR member = :member)
ORDER BY id LIMIT :limit;

-- name: metrics.intermediates
SELECT * FROM metrics
WHERE trial_id = :trial_id AND kind = 'intermediate' AND member = :member AND id > :after_id ORDER BY id;

-- name: metrics.points
SELECT job, sequence, step, value, time FROM metrics
WHERE trial_id = :trial_id AND kind = 'intermediate' AND member = :member ORDER BY id;

-- name: metrics.latest_intermediate
SELECT * FROM metrics WHERE trial_id = :trial_id AND kind = 'intermediate' AND member = :member
ORDER BY id DESC LIMIT 1;

-- name: metrics.finals
-- one for each job and member as a rule
SELECT * FROM metrics WHERE trial_id = :trial_id AND kind = 'final' ORDER BY id;

-- name: metrics.points_backwards
SELECT sequence, step FROM metrics
WHERE trial_id = :trial_id AND kind = 'intermediate' AND job = :job AND member = :member ORDER BY id DESC;

-- name: metrics.points_until
SELECT count(*) FROM metrics
WHERE trial_id = :trial_id AND kind = 'intermediate' AND job = :job AND member = :member AND time <= :time;

-- name: metrics.intermediates_between
-- with how long their trials had run
SELECT metrics.*, max(0.0, first_seconds + coalesce(metrics.seconds, time - started_at))
FROM metrics JOIN journals USING (trial_id, job, member)
WHERE id BETWEEN :first_id AND :last_id AND kind = 'intermediate' AND member = :member ORDER BY id;

-- name: metrics.seconds_at
-- of a point of the curve, as the job that this one continues, or the newest before that, has reported it
SELECT max(0.0, first_seconds + coalesce(metrics.seconds, time - started_at))
FROM metrics JOIN journals USING (trial_id, job, member)
WHERE trial_id = :trial_id AND kind = 'intermediate' AND member = :member AND sequence = :sequence AND job <= :resumed_from
ORDER BY id DESC LIMIT 1;

-- name: curves.all
-- with nulls where it is not packed, or not as it is now
SELECT state.trial_id, has_all_keys, first_time, steps, seconds, packed_curves."values", packed_keys."values" FROM (
    SELECT trial_id, count(*) AS journals, sum(offset) AS journal_bytes, total(intermediates * (member = :member)) AS points
    FROM journals GROUP BY trial_id
) AS state
LEFT JOIN packed_curves ON packed_curves.trial_id = state.trial_id AND packed_curves.member = :member
    AND packed_curves.journals = state.journals AND packed_curves.journal_bytes = state.journal_bytes
LEFT JOIN packed_keys ON packed_keys.curve = packed_curves.id AND packed_keys.key = :key
WHERE points > 0;

-- name: curves.of_trial
SELECT state.trial_id, has_all_keys, first_time, steps, seconds, packed_curves."values", packed_keys."values" FROM (
    SELECT trial_id, count(*) AS journals, sum(offset) AS journal_bytes, total(intermediates * (member = :member)) AS points
    FROM journals WHERE trial_id = :trial_id GROUP BY trial_id
) AS state
LEFT JOIN packed_curves ON packed_curves.trial_id = state.trial_id AND packed_curves.member = :member
    AND packed_curves.journals = state.journals AND packed_curves.journal_bytes = state.journal_bytes
LEFT JOIN packed_keys ON packed_keys.curve = packed_curves.id AND packed_keys.key = :key
WHERE points > 0;

-- name: curves.count_points
SELECT coalesce(sum(intermediates), 0) FROM journals WHERE member = :member;

-- name: curves.unpacked
SELECT state.trial_id FROM (
    SELECT trial_id, count(*) AS journals, sum(offset) AS journal_bytes, total(intermediates * (member = :member)) AS points
    FROM journals GROUP BY trial_id
) AS state
LEFT JOIN packed_curves ON packed_curves.trial_id = state.trial_id AND packed_curves.member = :member
    AND packed_curves.journals = state.journals AND packed_curves.journal_bytes = state.journal_bytes
WHERE points >= :fewest AND packed_curves.id IS NULL;

-- name: curves.keys
SELECT DISTINCT key FROM packed_keys
WHERE curve IN (SELECT id FROM packed_curves WHERE member = :member) AND key <> 'default';

-- name: curves.first_reports
SELECT * FROM metrics
WHERE trial_id = :trial_id AND kind = 'intermediate' AND member = :member AND data IS NOT NULL ORDER BY id LIMIT :limit;

-- name: curves.state
-- how many journals a trial has, how far they are stored, a member's points, and whether its curve is packed like that
SELECT journals, journal_bytes, points, EXISTS (
    SELECT 1 FROM packed_curves WHERE packed_curves.trial_id = :trial_id AND packed_curves.member = :member
    AND packed_curves.journals = state.journals AND packed_curves.journal_bytes = state.journal_bytes
) FROM (
    SELECT count(*) AS journals, coalesce(sum(offset), 0) AS journal_bytes, total(intermediates * (member = :member)) AS points
    FROM journals WHERE trial_id = :trial_id
) AS state;

-- name: curves.delete
DELETE FROM packed_curves WHERE trial_id = :trial_id AND member = :member;

-- name: curves.insert
INSERT INTO packed_curves (
    trial_id, member, journals, journal_bytes, has_all_keys, first_time, steps, seconds, "values"
) VALUES (:trial_id, :member, :journals, :journal_bytes, :has_all_keys, :first_time, :steps, :seconds, :values);

-- name: curves.insert_key
INSERT INTO packed_keys (curve, key, "values") VALUES (:curve, :key, :values);

-- name: checkpoints.insert
INSERT INTO checkpoints (trial_id, job, member, offset, step, path, sequence, time, with_metric, bytes, manifest, value)
VALUES (:trial_id, :job, :member, :offset, :step, :path, :sequence, :time, :with_metric, :bytes, :manifest, :value)
RETURNING *;

-- name: checkpoints.load
INSERT INTO checkpoints (
    id, trial_id, job, member, offset, step, path, sequence, time, with_metric, bytes, manifest, value
) VALUES (
    :id, :trial_id, :job, :member, :offset, :step, :path, :sequence, :time, :with_metric, :bytes, :manifest, :value
);

-- name: checkpoints.load_deletion
UPDATE checkpoints SET deleted_at = :deleted_at, removed_at = :removed_at WHERE id = :id;

-- name: metrics.value_before
-- of a member; what its later points were that it then began anew from does not count
SELECT value FROM metrics
WHERE trial_id = :trial_id AND kind = 'intermediate' AND member = :member AND sequence < :sequence
ORDER BY id DESC LIMIT 1;

-- name: metrics.latest_value
-- of any member
SELECT value FROM metrics WHERE trial_id = :trial_id AND kind = 'intermediate' ORDER BY id DESC LIMIT 1;

-- name: checkpoints.metric_after
SELECT * FROM metrics
WHERE trial_id = :trial_id AND kind = 'intermediate' AND job = :job AND member = :member AND sequence = :sequence;

-- name: checkpoints.page
SELECT * FROM checkpoints WHERE trial_id = :trial_id AND id > :after_id ORDER BY id LIMIT :limit;

-- name: checkpoints.kept
SELECT * FROM checkpoints WHERE trial_id = :trial_id AND deleted_at IS NULL ORDER BY id;

-- name: checkpoints.get
SELECT * FROM checkpoints WHERE id = :id;

-- name: checkpoints.delete
UPDATE checkpoints SET deleted_at = :time
WHERE trial_id = :trial_id AND job = :job AND path = :path AND deleted_at IS NULL;

-- name: checkpoints.remove
UPDATE checkpoints SET removed_at = :time
WHERE trial_id = :trial_id AND job = :job AND path = :path AND deleted_at IS NOT NULL AND removed_at IS NULL;

-- name: checkpoints.set_expendable
UPDATE checkpoints SET expendable = :expendable WHERE id = :id;

-- name: checkpoints.to_remove
SELECT * FROM checkpoints WHERE deleted_at IS NOT NULL AND removed_at IS NULL ORDER BY id;

-- name: checkpoints.newest_stored
SELECT * FROM checkpoints
WHERE id > (SELECT max(id) FROM checkpoints) - :limit
  AND deleted_at IS NULL AND manifest IS NOT NULL AND substr(path, 1, length(:prefix)) = :prefix
ORDER BY id DESC;

-- name: checkpoints.expendable
SELECT * FROM checkpoints WHERE deleted_at IS NULL AND expendable = :expendable ORDER BY id LIMIT :limit;

-- name: checkpoints.undecided
-- trials of which checkpoints were not decided over, or as those of a trial that had not ended
SELECT trial_id FROM checkpoints WHERE deleted_at IS NULL AND expendable IS NULL
UNION
SELECT trial_id FROM checkpoints WHERE deleted_at IS NULL AND expendable IN (SELECT value FROM json_each(:live));

-- name: checkpoints.total_bytes
SELECT bytes FROM checkpoint_total WHERE id = 1;

-- name: checkpoints.highest
SELECT id FROM checkpoints WHERE deleted_at IS NULL AND value IS NOT NULL ORDER BY value DESC LIMIT 1;

-- name: checkpoints.lowest
SELECT id FROM checkpoints WHERE deleted_at IS NULL AND value IS NOT NULL ORDER BY value LIMIT 1;

-- name: checkpoints.of_job
SELECT * FROM checkpoints WHERE trial_id = :trial_id AND job = :job;

-- name: checkpoints.newest
-- of each job first those of the rank whose reports count, then those of the others
SELECT * FROM checkpoints WHERE trial_id = :trial_id AND deleted_at IS NULL
ORDER BY job DESC, member <> :member, member, id DESC LIMIT :limit;
