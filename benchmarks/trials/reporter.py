"""Reports argv[1] times, every argv[2] seconds, what time it is."""

import sys
import time

import proctor

for _ in range(int(sys.argv[1])):
    proctor.report_intermediate_result(time.time())
    time.sleep(float(sys.argv[2]))
proctor.report_final_result(1.0)
