"""Reports argv[1] intermediate metrics as fast as it can, then says in its final metric when it began and how long
one report took."""

import sys
import time

import proctor

count = int(sys.argv[1])
began = time.time()
durations = []
for step in range(count):
    before = time.perf_counter_ns()
    proctor.report_intermediate_result(step / count)
    durations.append(time.perf_counter_ns() - before)
ended = time.time()
durations.sort()
proctor.report_final_result(
    {
        "default": 1.0,
        "began": began,
        "ended": ended,
        "median_us": durations[count // 2] / 1000,
        "p99_us": durations[count * 99 // 100] / 1000,
    }
)
