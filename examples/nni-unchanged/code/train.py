"""Fit a polynomial to ../data/points.csv by gradient descent and report the error on the points left out.

Nothing here knows of Proctor: it is a trial as one writes it for NNI, run in its own folder.
"""

import argparse
import csv
import os
import random

import nni
from nni.utils import merge_parameter

HERE = os.path.dirname(os.path.abspath(__file__))


def read_points():
    with open("../data/points.csv", newline="") as file:
        return [(float(row["x"]), float(row["y"])) for row in csv.DictReader(file)]


def predict(weights, x):
    return sum(weight * x**power for power, weight in enumerate(weights))


def mean_error(weights, points):
    differences = [predict(weights, x) - y for x, y in points]
    return sum(difference * difference for difference in differences) / len(points)


def train_one_epoch(weights, velocity, points, args):
    size = int(args.batch_size)
    for start in range(0, len(points), size):
        batch = points[start : start + size]
        for power in range(len(weights)):
            slope = sum(2 * (predict(weights, x) - y) * x**power for x, y in batch) / len(batch)
            velocity[power] = args.momentum * velocity[power] - args.learning_rate * slope
        for power, change in enumerate(velocity):
            weights[power] += change


def main(args):
    points = read_points()
    shuffler = random.Random(0)
    shuffler.shuffle(points)
    left_out, training = points[:20], points[20:]
    weights, velocity = [0.0] * (args.degree + 1), [0.0] * (args.degree + 1)
    for _ in range(args.epochs):
        train_one_epoch(weights, velocity, training, args)
        nni.report_intermediate_result(mean_error(weights, left_out))
    error = mean_error(weights, left_out)
    with open(os.path.join(HERE, "fits.txt"), "a") as file:
        file.write(f"{nni.get_sequence_id()} {error} {weights}\n")
    nni.report_final_result(error)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--degree", type=int, default=2)
    parser.add_argument("--learning_rate", type=float, default=0.05)
    parser.add_argument("--momentum", type=float, default=0.5)
    parser.add_argument("--batch_size", type=float, default=16.0)
    main(merge_parameter(parser.parse_args(), nni.get_next_parameter()))
