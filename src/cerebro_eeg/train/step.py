"""One training step: the gradients of its micro-batches, clipped, and the update of the weights.

``gradients`` and ``update`` are the step as any textbook has it. :class:`StepComputer` calls them, on a single GPU as
CUDA graphs (``fast/capture.py``). The caller looks at the loss between both halves, so that a loss that is not a number
never reaches the weights.
"""

import contextlib
import functools
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from cerebro_eeg.batch import onto
from cerebro_eeg.fast.capture import Capture
from cerebro_eeg.train.distributed import syncing, whole

if TYPE_CHECKING:
    from cerebro_eeg.train.loop import TrainingRun

Precision = Literal["fp32", "bf16", "fp64"]


@dataclass(frozen=True)
class Inputs:
    """What the share of a micro-batch is computed from. Inputs of one form and shape can share a CUDA graph."""

    form: Hashable
    """All that is no tensor."""
    tensors: tuple[Tensor | None, ...]
    """On the device of the run."""


@dataclass(frozen=True)
class StepResult:
    """The results of a step, on the host."""

    loss: float
    values: tuple[float, ...]
    """Sums of the task's values over all processes."""
    flags: tuple[bool, bool]
    """Whether any process asks to stop, and to save."""
    norm: float
    """Norm of the gradient, before clipping."""
    losses: tuple[float, ...]
    """Shares of this process's micro-batches."""


def gradients(run: "TrainingRun", inputs: Iterable[Inputs], count: int, asked: Tensor | None = None) -> Tensor:
    """Compute the clipped gradients of ``count`` micro-batches, and return the numbers of a :class:`StepResult`.

    A task divides its losses by counts of the whole step, which every process knows beforehand. Otherwise results
    would depend on the number of processes.
    """
    processes, device = run.processes, run.processes.device
    totals = torch.zeros(len(run.task.names) + 3, dtype=totals_dtype(device), device=device)
    if asked is not None:
        totals[-2:] = asked
    losses = []
    run.optimizer.zero_grad(set_to_none=True)
    for number, one in enumerate(inputs):
        with syncing(run.wrapped, number == count - 1):
            with autocast(run):
                share, values = run.task.share(run.wrapped, one)
            (share * processes.size).backward()  # DDP and FSDP divide the summed gradients by the number of processes
        losses.append(share.detach())
        totals[0] += share.detach()
        totals[1:-2] += values
    processes.sum(totals)
    norm = torch.nn.utils.clip_grad_norm_(run.module.parameters(), run.clip)
    return torch.cat([totals, whole(norm).reshape(1).to(totals), torch.stack(losses).to(totals)])


def update(run: "TrainingRun") -> None:
    """Change the weights, at the learning rates that the optimizer has."""
    run.optimizer.step()
    run.optimizer.zero_grad(set_to_none=True)


class StepComputer:
    """Computes the steps of a run: ``begin``, then ``finish``, then ``update``."""

    def __init__(self, run: "TrainingRun") -> None:
        self._run, self._asked = run, (False, False)
        self._waiting: Callable[[], Tensor] = lambda: torch.empty(0)
        self._capture: Capture | None = None
        self._rates: Tensor | None = None
        if run.captures:
            self._rates = tensor_rates(run.optimizer, run.processes.device)
            compute, then = functools.partial(_from_tensors, run), functools.partial(update, run)
            self._capture = Capture(compute, run.processes.device, then, run.module)

    @property
    def refused(self) -> str | None:
        """Why steps of this run cannot be CUDA graphs, where that was tried."""
        return None if self._capture is None else self._capture.refused

    def begin(self, micro_batches: Sequence[Any], asked: tuple[bool, bool], rate: float) -> None:
        """Begin to compute the gradients. On a GPU this does not wait for them.

        The update will have this learning rate times the factor of each group. It is set here, because a GPU would wait
        for it between gradients and update.
        """
        run, self._asked = self._run, asked
        self._set_rates(rate)
        if self._capture is not None:
            inputs = [run.task.inputs(one) for one in micro_batches]
            form = tuple((one.form, len(one.tensors)) for one in inputs)
            self._waiting = self._capture.pending(form, [x for one in inputs for x in one.tensors])
            return
        flags = None
        if run.processes.size > 1:
            dtype, device = totals_dtype(run.processes.device), run.processes.device
            flags = onto(torch.tensor([float(flag) for flag in asked], dtype=dtype), device)
        self._waiting = gradients(run, map(run.task.inputs, micro_batches), len(micro_batches), flags).cpu

    def finish(self) -> StepResult:
        """Wait for the results. This is the only place of a step where the CPU waits for the GPU."""
        loss, *rest = self._waiting().tolist()
        values, (stop, save, norm, *losses) = rest[: len(self._run.task.names)], rest[len(self._run.task.names) :]
        flags = self._asked if self._run.processes.size == 1 else (stop > 0, save > 0)
        return StepResult(loss, tuple(values), flags, norm, tuple(losses))

    def update(self) -> None:
        """Change the weights by the last gradients."""
        if self._capture is None:
            update(self._run)
        else:
            self._capture.proceed()

    def _set_rates(self, rate: float) -> None:
        groups = self._run.optimizer.param_groups
        rates = [rate * group["factor"] for group in groups]
        if self._rates is not None:
            self._rates.copy_(onto(torch.tensor(rates), self._rates.device))
            return
        for group, own in zip(groups, rates, strict=True):
            group["lr"] = own


def _from_tensors(run: "TrainingRun", form: Hashable, tensors: Sequence[Tensor | None]) -> Tensor:
    """Compute gradients from the tensors of all micro-batches, one after the other."""
    assert isinstance(form, tuple)
    left, inputs = list(tensors), []
    for own, count in form:
        inputs.append(Inputs(own, tuple(left[:count])))
        del left[:count]
    return gradients(run, inputs, len(inputs))


def totals_dtype(device: torch.device) -> torch.dtype:
    """Return the precision of sums over a step; MPS has no float64."""
    return torch.float32 if device.type == "mps" else torch.float64


def tensor_rates(optimizer: torch.optim.Optimizer, device: torch.device) -> Tensor:
    """Give every group of an optimizer a learning rate on the device, and return all of them as one tensor.

    A CUDA graph reads a tensor anew in every step, and would repeat a number.
    """
    rates = torch.zeros(len(optimizer.param_groups), device=device)
    for group, rate in zip(optimizer.param_groups, rates.unbind(), strict=True):
        group["lr"] = rate
    return rates


def autocast(run: "TrainingRun") -> contextlib.AbstractContextManager[None]:
    """Return the context that sets the precision of the run's arithmetic."""
    return autocast_to(run.precision, run.processes.device)


def autocast_to(precision: Precision, device: torch.device) -> contextlib.AbstractContextManager[None]:
    """Return the context that sets the precision of arithmetic on a device."""
    return torch.autocast(device.type, torch.bfloat16) if precision == "bf16" else contextlib.nullcontext()
