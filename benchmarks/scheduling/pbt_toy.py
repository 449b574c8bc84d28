"""PBT against fixed schedules on the toy problem of its paper (Jaderberg et al. 2017, figure 2): examples/pbt-toy.

Both have the same two trials of as many steps, with the same h to choose from, (1, 0) and (0, 1), the paper's. Grid
search trains one trial with each; under PBT the trials begin like that, and the worse one takes over the weights of the
better one with an h that is drawn again.
"""

import random
from collections.abc import Iterator
from statistics import median

from benchmarks import harness
from benchmarks.scheduling.examples import load_code, load_config, read_parameters, read_saved, save
from benchmarks.table import Row, spread
from proctor.manager.lifecycle.states import ExperimentStatus
from proctor.manager.settings import Home
from proctor.manager.simulation.simulation import Simulation
from proctor.manager.simulation.virtual_time import VirtualTimeLoop, run_virtual
from proctor.manager.store.tables import trials
from proctor.training_services.base import TrialJobForm
from proctor.training_services.in_memory.scripts import Final, ScriptedReport, Step

SEEDS = 10
EXAMPLE = "pbt-toy"


def best_of(seed: int, *, is_fixed: bool) -> float:
    """The best result of the example, with or without its scheduler."""
    code, config = load_code(EXAMPLE), load_config(EXAMPLE) | {"seed": seed}
    if is_fixed:
        del config["trialScheduler"]

    def script(form: TrialJobForm) -> Iterator[Step]:
        h = read_parameters(form)["h"]
        step, weights = read_saved(form, (0, code.BEGINNING))
        draw = random.Random(f"{seed} {form.sequence_id} {step}")
        while step < code.STEPS:
            step, weights = step + 1, code.ascend(weights, h, draw)
            yield ScriptedReport(1.0, code.quality(weights), step=step)
            yield from save(form, step, [step, weights])
        yield Final(0.0, code.quality(weights))

    async def main(loop: VirtualTimeLoop) -> float:
        with harness.temporary_folder() as folder:
            simulation = Simulation(Home(folder / "home"), loop, script=script)
            async with simulation.manager() as manager:
                created = await manager.create_experiment(config=config, directory=str(folder))
                ended = await simulation.ended(manager, created.id)
                if ended.status is not ExperimentStatus.DONE:
                    raise harness.BenchmarkError(f"expected DONE, found {ended.status}: {ended.reason}")
                page = await manager.control.read(lambda c: trials.page(c, created.id, limit=100))
            return max(row.final_value for row in page.items if row.final_value is not None)

    return run_virtual(main)


def measure(quick: bool) -> list[Row]:
    """One row."""
    seeds = range(3 if quick else SEEDS)
    fixed, population = ([best_of(seed, is_fixed=is_fixed) for seed in seeds] for is_fixed in (True, False))
    worst = min(population)
    return [
        Row(
            f"PBT on the toy problem of its paper (optimum 1.2), {len(seeds)} seeds: the best result",
            f"best fixed schedule, (1, 0) or (0, 1): {spread(fixed, '', 2)}",
            spread(population, "", 2),
            f"{median(population) / median(fixed):.2f}",
            "more, with every seed",
            worst > max(fixed),
        )
    ]
