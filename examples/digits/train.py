"""Classify the 8 x 8 digits that ship inside scikit-learn: one trial of an experiment, or a script of its own."""

import os
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import proctor

EPOCHS = 12
DEFAULTS = {"learning_rate": 0.01, "momentum": 0.9, "hidden": 64, "dropout": 0.1, "batch_size": 32}


def load_data() -> tuple[TensorDataset, TensorDataset]:
    """1,297 images to train on and 500 to judge by, the same in every trial."""
    digits = load_digits()
    images = torch.tensor(digits.images / 16, dtype=torch.float32).unsqueeze(1)
    labels = torch.tensor(digits.target)
    parts = train_test_split(images, labels, test_size=500, stratify=labels, random_state=0)
    train_images, valid_images, train_labels, valid_labels = parts
    return TensorDataset(train_images, train_labels), TensorDataset(valid_images, valid_labels)


def build_model(hidden: int, dropout: float) -> nn.Module:
    """A small convolutional network: 8 x 8 pixels in, ten scores out."""
    return nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 4 * 4, hidden),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(hidden, 10),
    )


def train_one_epoch(model: nn.Module, batches: DataLoader, optimizer: torch.optim.Optimizer) -> None:
    """Once through the training data."""
    model.train()
    for images, labels in batches:
        optimizer.zero_grad()
        functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


@torch.no_grad()
def accuracy(model: nn.Module, data: TensorDataset) -> float:
    """The share of the images that the model names rightly."""
    model.eval()
    images, labels = data.tensors
    return (model(images).argmax(dim=1) == labels).float().mean().item()


def save(model: nn.Module) -> None:
    """Keep the weights among the trial's files; nothing outside an experiment."""
    if folder := os.environ.get("PROCTOR_OUTPUT_DIR"):
        torch.save(model.state_dict(), Path(folder) / "model.pt")


def main() -> None:
    torch.set_num_threads(1)  # two trials at a time share the machine's cores
    torch.manual_seed(0)
    parameters = DEFAULTS | proctor.get_next_parameter()
    training, validation = load_data()
    model = build_model(parameters["hidden"], parameters["dropout"])
    optimizer = torch.optim.SGD(model.parameters(), lr=parameters["learning_rate"], momentum=parameters["momentum"])
    batches = DataLoader(training, batch_size=parameters["batch_size"], shuffle=True)
    for _ in range(EPOCHS):
        train_one_epoch(model, batches, optimizer)
        reached = accuracy(model, validation)
        proctor.report_intermediate_result(reached)
    proctor.report_final_result(reached)
    save(model)


if __name__ == "__main__":
    main()
