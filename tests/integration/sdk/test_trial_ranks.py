"""Processes of one trial that a launcher has given ranks: each has a journal of its own."""

import json
from typing import Any


def journals(job: Any) -> dict[str, list[Any]]:
    """The values in every journal of a job, by its name."""
    return {
        path.name: [json.loads(line)["value"] for line in path.read_text().splitlines()]
        for path in sorted(job.folder.glob("journal*"))
    }


LAUNCHER = """
import os, subprocess, sys

def launch(code, size=2):
    for rank in range(size):
        ranks = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_PORT": "41234"}
        subprocess.run([sys.executable, "-c", code], env={**os.environ, **ranks}, check=True)
"""


def test_every_rank_writes_to_a_journal_of_its_own(job: Any) -> None:
    job.run(f"""{LAUNCHER}
import proctor
launch("import proctor, os; proctor.report_intermediate_result(int(os.environ['RANK']) + 0.5)", size=3)
proctor.report_final_result(9)
""")
    assert journals(job) == {"journal": [0.5, 9], "journal.1": [1.5], "journal.2": [2.5]}


def test_the_workers_of_a_rank_report_as_their_rank_whether_forked_or_spawned(job: Any) -> None:
    job.run(f"""{LAUNCHER}
launch('''
import multiprocessing, os, proctor
rank = int(os.environ["RANK"])
if __name__ == "__main__":
    proctor.report_intermediate_result(rank)
    for method in ("fork", "spawn"):
        process = multiprocessing.get_context(method).Process(
            target=proctor.report_intermediate_result, args=(rank + 0.5,)
        )
        process.start(); process.join(); assert process.exitcode == 0
''')
""")
    assert journals(job) == {"journal": [0, 0.5, 0.5], "journal.1": [1, 1.5, 1.5]}


def test_forked_processes_that_are_given_ranks_afterwards_have_journals_of_their_own(job: Any) -> None:
    job.run("""
import os, proctor

proctor.report_intermediate_result(-1)  # the launcher has opened its journal before it forks
for rank in (0, 1):
    if os.fork() == 0:
        os.environ.update(RANK=str(rank), WORLD_SIZE="2")
        proctor.report_intermediate_result(rank)
        os._exit(0)
    os.wait()
proctor.report_intermediate_result(-2)
""")
    assert journals(job) == {"journal": [-1, 0, -2], "journal.1": [1]}
