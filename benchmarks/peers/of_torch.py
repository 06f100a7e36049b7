"""PyTorch by hand and with Lightning, on the layers of `benchmarks.workloads`."""

from __future__ import annotations

import tempfile
import warnings
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.peers.turns import LOG, Batches, Turns, loop

CLASSES = 10


class Last(nn.Module):
    """The last output of an LSTM. Keras has one bias where PyTorch has two, so one of them stays zero."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, width, batch_first=True)
        nn.init.zeros_(self.lstm.bias_hh_l0).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lstm(x)[0][:, -1]


class Block(nn.Module):
    """A residual block of two convolutions."""

    def __init__(self, before: int, filters: int, stride: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            *_conv(before, filters, 3, stride), nn.ReLU(inplace=True), *_conv(filters, filters, 3)
        )
        self.short = nn.Sequential(*(_conv(before, filters, 1, stride) if stride > 1 else []))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.short(x) + self.inner(x))


class Layer(nn.Module):
    """A layer of a transformer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width, eps=1e-3) for _ in range(2))
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.dense = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = self.norms[0](x)
        x = x + self.attention(inner, inner, inner, need_weights=False)[0]
        return x + self.dense(self.norms[1](x))


class Mean(nn.Module):
    """The mean over axes."""

    def __init__(self, *axes: int) -> None:
        super().__init__()
        self.axes = axes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(self.axes)


def _conv(before: int, filters: int, size: int, stride: int = 1) -> list[nn.Module]:
    conv = nn.Conv2d(before, filters, size, stride, padding=size // 2, bias=False)
    return [conv, nn.BatchNorm2d(filters, eps=1e-3, momentum=0.01)]


def model(name: str) -> nn.Module:
    """Return the layers of a workload."""
    if name == "mlp":
        return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, CLASSES))
    if name == "lstm":
        return nn.Sequential(nn.Embedding(1000, 32), Last(32), nn.Linear(32, CLASSES))
    if name == "transformer":
        layers = [Layer(64) for _ in range(4)]
        return nn.Sequential(nn.Embedding(1000, 64), *layers, Mean(1), nn.Linear(64, CLASSES))
    blocks, before = [], 64
    for stage, filters in enumerate((64, 128, 256, 512)):
        blocks += [Block(before, filters, 2 if stage else 1), Block(filters, filters, 1)]
        before = filters
    stem = [*_conv(3, 64, 3), nn.ReLU(inplace=True)]
    return nn.Sequential(*stem, *blocks, Mean(2, 3), nn.Linear(before, CLASSES)).to(memory_format=torch.channels_last)


def parameters_of(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def tensors(batches: Batches) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return a pair of tensors per batch; images in PyTorch's shape, with channels last in memory."""
    x, y = torch.from_numpy(batches.x), torch.from_numpy(batches.y).long()
    if x.ndim == 5:
        x = x.permute(0, 1, 4, 2, 3)
    return list(zip(x, y, strict=True))


def by_hand(name: str, batches: Batches, turns: Turns, *, compiled: bool = False) -> None:
    """Train in a Python loop that prints the loss at intervals."""
    warnings.simplefilter("ignore")
    turns.begin()
    net, data = model(name), tensors(batches)
    forward = torch.compile(net) if compiled else net
    optimizer = torch.optim.Adam(net.parameters(), 1e-3, fused=True)
    for step, index in loop(turns, batches):
        x, y = data[index]
        loss = functional.cross_entropy(forward(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % LOG == 0:
            print(step, loss.item())
        if step == turns.end:
            turns.over(loss.item(), parameters_of(net))


def lightning(name: str, batches: Batches, turns: Turns) -> None:
    """Train with Lightning's trainer, progress bar, checkpoints and a CSV log of the loss."""
    import lightning
    from lightning.pytorch.loggers import CSVLogger

    warnings.simplefilter("ignore")
    data = tensors(batches)

    class Endless(torch.utils.data.IterableDataset):  # type: ignore[misc,type-arg]
        def __iter__(self) -> Any:
            return (data[index] for _, index in loop(turns, batches))

    class Module(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = model(name)

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            loss = functional.cross_entropy(self.net(batch[0]), batch[1])
            self.log("loss", loss, prog_bar=True)
            return loss

        configure_optimizers = lambda self: torch.optim.Adam(self.net.parameters(), 1e-3, fused=True)  # noqa: E731

    class InTurns(lightning.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, *_: Any) -> None:
            if trainer.global_step == turns.end:
                turns.over(float(outputs["loss"]), parameters_of(module))

    turns.begin()
    with tempfile.TemporaryDirectory() as scratch:
        trainer = lightning.Trainer(
            accelerator="cpu",
            max_steps=turns.total,
            log_every_n_steps=LOG,
            logger=CSVLogger(scratch),
            callbacks=[InTurns()],
            default_root_dir=scratch,
        )
        trainer.fit(Module(), torch.utils.data.DataLoader(Endless(), batch_size=None))
