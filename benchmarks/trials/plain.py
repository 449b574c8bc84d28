"""What `short.py` does, without the SDK: read parameters from a file, append the result to another."""

import json
import sys

with open(sys.argv[1]) as file:
    parameters = json.load(file)
with open(sys.argv[2], "a") as file:
    file.write(json.dumps({"value": parameters["x"]}) + "\n")
