"""Checkpoints of real trials: whole or not there, registered in the journal after they are in place."""

import json
import os
from collections.abc import Callable
from typing import Any

from proctor.sdk.checkpoints.manifest import verify_checkpoint

MakeJob = Callable[..., Any]

SAVE = """
import os, proctor, tempfile

def save(value, **options):
    with tempfile.TemporaryDirectory() as folder:
        os.mkdir(folder + "/model")
        with open(folder + "/model/weights", "w") as file:
            file.write(str(value) * 100_000)
        proctor.report({"default": value}, checkpoint=folder, **options)
"""


def test_a_checkpoint_is_in_place_before_the_journal_names_it_and_outlives_its_source(job: Any) -> None:
    job.run(f"{SAVE}\nsave(1)\nsave(2, step=20)\nassert proctor.get_checkpoint().endswith('/output/checkpoints/2')")
    kinds = [
        (record["kind"], record.get("path"), record.get("step"), record.get("with_metric")) for record in job.records()
    ]
    assert kinds == [
        ("intermediate", None, None, None),
        ("checkpoint", "output/checkpoints/1", None, True),
        ("intermediate", None, 20, None),
        ("checkpoint", "output/checkpoints/2", 20, True),
    ]
    for record in job.records()[1::2]:
        number = record["path"][-1]
        assert record["bytes"] == 100_000
        assert verify_checkpoint(str(job.folder / record["path"]), record["manifest"]) == ""
        assert (job.folder / record["path"] / "model" / "weights").read_text() == number * 100_000


def test_a_checkpoint_over_the_quota_is_refused_before_it_is_copied_and_the_trial_continues(make_job: MakeJob) -> None:
    job = make_job(PROCTOR_CHECKPOINT_QUOTA_MB="1")
    done = job.run(
        f"""{SAVE}
save(1)
import proctor.sdk.trial
os.mkdir("large")
os.truncate(os.open("large/weights", os.O_WRONLY | os.O_CREAT), 100 * 10**9)  # takes no room
proctor.report(2, checkpoint="large")
proctor.report(3, checkpoint="large")
proctor.sdk.trial.save_checkpoint("large")
proctor.report_final_result(4)
""",
        cwd=job.folder,
    )
    why = (
        "a checkpoint of 100.0 GB was not saved: all checkpoints of the experiment may take 1.0 MB together "
        "(checkpointQuotaMb); the trial continues with its earlier ones"
    )
    assert done.stderr == f"proctor: {why}\n"
    found = [(record["kind"], record.get("why")) for record in job.records()]
    reported = ("intermediate", None)
    assert found == [reported, ("checkpoint", None), reported, ("lost", why), reported, ("final", None)]
    assert os.listdir(job.folder / "output" / "checkpoints") == ["1"]


def test_the_lost_record_of_a_checkpoint_is_told_and_does_not_count_as_a_report(make_job: MakeJob) -> None:
    job = make_job(PROCTOR_REPORT_WAIT_SECONDS="0")
    done = job.run(
        f"""{SAVE}
import proctor.sdk.trial
journal = os.path.join(os.environ["PROCTOR_JOB_DIR"], "journal")
os.symlink("/dev/full", journal)
os.mkdir("model")
proctor.sdk.trial.save_checkpoint("model")
save(2)
os.unlink(journal)
proctor.report_final_result(4)
""",
        cwd=job.folder,
    )
    assert "No space left on device" in done.stderr
    found = [(record["kind"], record.get("count") or record.get("why")) for record in job.records()]
    assert found == [
        ("lost", 1),
        ("lost", "2 checkpoints are not registered: the record could not be written"),
        ("final", None),
    ]


def test_the_copy_does_not_follow_later_writes_to_the_source(job: Any) -> None:
    job.run(
        """
import os, pathlib, proctor
folder = pathlib.Path("work-in-progress"); folder.mkdir()
(folder / "weights").write_text("first")
proctor.report(1, checkpoint=folder)
with open(folder / "weights", "r+") as file:
    file.write("SECOND")
assert open(proctor.get_checkpoint() + "/weights").read() == "first"
""",
        cwd=job.folder,
    )


def test_a_trial_killed_in_the_middle_of_a_copy_leaves_no_checkpoint_and_the_next_copy_cleans_up(job: Any) -> None:
    job.run(
        f"""{SAVE}
import proctor.sdk.checkpoints.saving as saving
save(1)
saving.os.fsync = lambda descriptor: os.kill(os.getpid(), 9)
save(2)
""",
        expect=-9,
    )
    folder = job.folder / "output" / "checkpoints"
    assert len(os.listdir(folder)) == 2
    assert [record["kind"] for record in job.records()] == ["intermediate", "checkpoint"]
    job.run(f"{SAVE}\nassert proctor.get_checkpoint().endswith('/1')\nsave(3)")
    assert sorted(os.listdir(folder)) == ["1", "2"]


def test_processes_that_save_at_once_get_different_numbers(job: Any) -> None:
    job.run(f"""{SAVE}
children = []
for value in range(4):
    child = os.fork()
    if child == 0:
        for _ in range(5):
            save(value)
        os._exit(0)
    children.append(child)
assert all(os.waitpid(child, 0)[1] == 0 for child in children)
""")
    paths = [record["path"] for record in job.records() if record["kind"] == "checkpoint"]
    assert len(set(paths)) == len(paths) == 20
    assert sorted(int(name) for name in os.listdir(job.folder / "output" / "checkpoints")) == list(range(1, 21))


def test_a_job_continues_from_the_checkpoint_it_was_given_until_it_has_its_own(make_job: MakeJob) -> None:
    job = make_job(PROCTOR_RESUME_CHECKPOINT="/earlier/job/output/checkpoints/4")
    done = job.run(f"{SAVE}\nprint(proctor.get_checkpoint())\nsave(1)\nprint(proctor.get_checkpoint())")
    assert done.stdout.split() == ["/earlier/job/output/checkpoints/4", f"{job.folder}/output/checkpoints/1"]


def test_without_any_checkpoint_there_is_none(job: Any) -> None:
    assert job.run("import proctor; print(proctor.get_checkpoint())").stdout == "None\n"


def test_what_is_no_folder_of_its_own_is_refused_and_nothing_is_recorded(job: Any) -> None:
    (job.folder / "file").touch()
    (job.folder / "dangling").mkdir()
    (job.folder / "dangling" / "link").symlink_to("nowhere")
    done = job.run(
        """
import os, proctor
for checkpoint in ("missing", "file", ".", os.environ["PROCTOR_OUTPUT_DIR"], "dangling"):
    try:
        proctor.report(1, checkpoint=checkpoint)
    except proctor.CheckpointError as error:
        print(error)
""",
        cwd=job.folder,
    )
    first, second, third, fourth, fifth = done.stdout.splitlines()
    assert "found nothing at missing" in first
    assert "found a file at file" in second
    assert "must not contain" in third
    assert "must not contain" in fourth
    assert "dangling/link" in fifth
    assert not job.journal.exists()
    assert os.listdir(job.folder / "output" / "checkpoints") == []


def test_a_checkpoint_that_finds_no_room_is_given_up_and_the_metric_is_reported(make_job: MakeJob) -> None:
    job = make_job(PROCTOR_REPORT_WAIT_SECONDS="0")
    done = job.run(f"""{SAVE}
import errno
import proctor.sdk.checkpoints.saving as saving

def full(descriptor):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

saving.os.fsync = full
save(1)
""")
    assert "a checkpoint could not be stored" in done.stderr
    reported, lost = job.records()
    assert (reported["kind"], lost["kind"]) == ("intermediate", "lost")
    assert "a checkpoint could not be stored" in lost["why"]
    assert os.listdir(job.folder / "output" / "checkpoints") == []


def test_steps_must_be_integers(job: Any) -> None:
    done = job.run("import proctor; proctor.report(1, step=1.5)", expect=1)
    assert "a step must be an integer; found 1.5 of type float" in done.stderr
    assert not job.journal.exists()


def test_a_metric_is_recorded_once_even_if_the_record_of_its_checkpoint_is_cut_short(job: Any) -> None:
    job.run(f"""{SAVE}
import proctor.sdk.journal as journal

class CutsOnce:
    cuts = 0

    def __getattr__(self, name):
        return getattr(os, name)

    def write(self, descriptor, data):
        if b'"path"' in data and not self.cuts:
            self.cuts += 1
            return os.write(descriptor, data[:-10])
        return os.write(descriptor, data)

save(1)
journal.os = CutsOnce()
save(2)
assert journal.os.cuts == 1
""")
    lines = job.journal.read_bytes().splitlines()
    kinds = [json.loads(line)["kind"] for line in lines if line.endswith(b"}")]
    assert kinds == ["intermediate", "checkpoint"] * 2
    assert len(lines) == 5  # the half record is recognized as such


def test_a_forked_process_may_report_a_checkpoint_first(job: Any) -> None:
    job.run(f"""{SAVE}
import proctor
proctor.get_next_parameter()
if os.fork() == 0:
    save(1)
    os._exit(0)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
""")
    assert [record["kind"] for record in job.records()] == ["intermediate", "checkpoint"]
