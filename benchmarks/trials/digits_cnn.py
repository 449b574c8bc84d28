"""The network, data and settings that the trainer's benchmarks share, and the loop written by hand."""

import time

import torch
from sklearn.datasets import load_digits
from torch.nn import functional

BATCH = 32
RATE = 0.01
SEED = 6691


def make_network() -> torch.nn.Module:
    """A small convolutional network for 8 × 8 images of ten digits."""
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 16, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Conv2d(16, 32, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(32 * 4 * 4, 64),
        torch.nn.ReLU(),
        torch.nn.Linear(64, 10),
    )


def make_dataset() -> torch.utils.data.TensorDataset:
    """1,797 images and their digits."""
    images, digits = load_digits(return_X_y=True)
    shaped = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    return torch.utils.data.TensorDataset(shaped, torch.tensor(digits))


def make_optimizer(network: torch.nn.Module) -> torch.optim.Optimizer:
    """Plain gradient descent with momentum."""
    return torch.optim.SGD(network.parameters(), lr=RATE, momentum=0.9)


def take_step(network: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: "list[torch.Tensor]") -> None:
    """One training step."""
    images, digits = batch
    optimizer.zero_grad()
    functional.cross_entropy(network(images), digits).backward()
    optimizer.step()


def train_by_hand(epochs: int) -> float:
    """Steps a second of a loop as one writes it without a trainer."""
    torch.manual_seed(SEED)
    began, steps = time.perf_counter(), 0
    network = make_network()
    optimizer = make_optimizer(network)
    loader = torch.utils.data.DataLoader(make_dataset(), batch_size=BATCH, shuffle=True)
    network.train()
    for _ in range(epochs):
        for batch in loader:
            take_step(network, optimizer, batch)
            steps += 1
    return steps / (time.perf_counter() - began)
