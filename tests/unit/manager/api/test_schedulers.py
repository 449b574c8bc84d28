"""What a trial scheduler shows, and what it has decided of trials."""

from collections.abc import Iterator
from typing import Any

import pytest

from proctor.manager.lifecycle.trial import DecisionKind
from proctor.manager.store.rows import DecisionRow
from proctor.manager.store.tables import dispatcher_inputs

pytestmark = pytest.mark.anyio
ASHA = {"name": "ASHA", "class_args": {"max_t": 9, "grace_period": 1, "reduction_factor": 3}}


async def shown(api: Any, experiment_id: str) -> dict[str, Any]:
    """What there is once the dispatcher has left."""
    while True:
        bell = api.manager.feed.next_change()
        answer = await api.get(f"/api/v1/experiments/{experiment_id}/scheduler", status=200)
        if answer["updated_at"] or answer["name"] is None:
            return dict(answer)
        await bell.wait()


async def test_the_last_tables_of_a_scheduler_are_kept(api: Any) -> None:
    found = await shown(api, (await api.ran(trial_scheduler=ASHA)).id)
    assert found["name"] == "ASHA"
    (table,) = found["tables"]
    assert (table["title"], table["trial_columns"]) == ("Rungs", [])
    assert table["columns"] == ["milestone", "trials", "best value", "stopped"]
    assert [row[0] for row in table["rows"]] == [1, 3, 9]


async def test_a_population_names_trials_by_their_numbers(api: Any) -> None:
    arguments = {"perturbation_interval": 1, "time_attr": "training_iteration", "population_size": 3}
    created = (await api.create(trial_scheduler={"name": "PBT", "class_args": arguments}))["id"]
    assert (await shown(api, created))["tables"][0]["trial_columns"] == [0, 4]
    await api.ended(created)


async def test_without_a_trial_scheduler_there_is_nothing(api: Any) -> None:
    created = (await api.create())["id"]
    assert await shown(api, created) == {"name": None, "tables": [], "trial_ids": {}, "updated_at": None}


async def test_a_trial_says_what_was_decided_of_it(api: Any) -> None:
    created = (await api.ran()).id
    rows = (await api.get(f"/api/v1/experiments/{created}/trials"))["items"]
    donor, trial = rows[0], rows[2]
    assert "decisions" not in trial

    def decisions() -> Iterator[DecisionRow]:
        base = {"experiment_id": created, "trial_id": trial["id"]}
        why = "promoted to rung 9: 2nd of 7 in rung 3"
        yield DecisionRow(
            **base, parameter_id=90, position=90, kind=DecisionKind.RESUME, decided_at=1.0, reason=why, job=2
        )
        clone = base | {"kind": DecisionKind.CLONE, "donor_trial": donor["id"], "reason": "the donor is at 0.91"}
        yield DecisionRow(**clone, parameter_id=91, position=91, decided_at=2.0, donor_job=f"{donor['id']}.1")
        yield DecisionRow(**clone, parameter_id=92, position=92, decided_at=3.0, job=0)

    for row in decisions():
        await api.manager.control.write(lambda c, row=row: dispatcher_inputs.record(c, row))
    found = (await api.get(f"/api/v1/trials/{trial['id']}"))["decisions"]
    assert [(each["kind"], each["reason"], each["job"]) for each in found] == [
        ("resume", "promoted to rung 9: 2nd of 7 in rung 3", 2),
        ("clone", "the donor is at 0.91", None),
        ("clone", "the donor is at 0.91", 0),
    ]
    assert [each["donor_sequence_id"] for each in found] == [None, 0, 0]
    assert [each["donor_trial_id"] for each in found] == [None, donor["id"], donor["id"]]
    assert [each["has_donor_checkpoint"] for each in found] == [False, True, False]
    assert found[0]["decided_at"].startswith("1970-01-01T00:00:01")
