"""Copies a folder of argv[2] MB, copies it and syncs the copy, and reports it as a checkpoint, by turns, argv[3] times;
writes the seconds of each to argv[1], three a line."""

import os
import shutil
import sys
import tempfile
import time

import proctor
from proctor.sdk.files import sync_file, sync_folder

megabytes, rounds = int(sys.argv[2]), int(sys.argv[3])
with tempfile.TemporaryDirectory(dir=".") as folder, open(sys.argv[1], "w") as seconds:
    source = f"{folder}/source"
    os.mkdir(source)
    for number in range(4):
        with open(f"{source}/{number}", "wb") as file:
            file.write(os.urandom((megabytes << 20) // 4))
    for number in range(rounds + 1):
        begin = time.perf_counter()
        shutil.copytree(source, f"{folder}/copy-{number}")
        copied = time.perf_counter()
        synced = f"{folder}/synced-{number}"
        shutil.copytree(source, synced)
        for name in os.listdir(synced):
            with open(f"{synced}/{name}", "rb") as file:
                sync_file(file.fileno())
        sync_folder(synced)
        sync_folder(folder)
        kept = time.perf_counter()
        proctor.report(0.0, checkpoint=source)
        end = time.perf_counter()
        if number:  # the first one finds cold caches
            seconds.write(f"{copied - begin} {kept - copied} {end - kept}\n")
        time.sleep(0.2)
proctor.report_final_result(0.0)
