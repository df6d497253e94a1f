"""Claim: in most networks `attribution` predicts retraining on half of the rows better than EKFAC by .05.

The linear datamodelling score (LDS) of `attribution_truth.py` for the networks of `attribution_settings.py` that were
trained with decay at α = 10 and 1. The peers get the same trained network in PyTorch, the same loss and the same
measured value, and each the damping, projection and number of iterations with its best LDS, which nobody knows without
retraining:

- EKFAC of kronfluence (of the layers that it supports), factors from ten samples of the targets of every row
- TRAK with one checkpoint and the projections of traker; each row's gradient weighted by its residual. Projections to
  2048 keep all of the smallest networks: for one output this is then the influence of `attribution` up to the damping
- influence functions of dattri, by conjugate gradients on the Hessian or by Arnoldi iteration

`attribution` gets the decay of the training and no search. "Plain" is a peer without a search: EKFAC and dattri with
the decay of the training (dattri with 50 iterations), TRAK of dimension 256 without damping. CPU-seconds are those of
one run, without the search; those of `attribution` include its compilation.

    pip install kronfluence==1.0.1 dattri==0.3.0 traker==0.3.2
    python benchmarks/attribution_peers.py [--only concrete] [--halves 50] [--record]
"""

import argparse
import contextlib
import gc
import io
import logging
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import NamedTuple

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import numpy as np  # noqa: E402
import torch  # noqa: E402
from attribution_settings import SETTINGS, Params, Rows, Setting  # noqa: E402
from attribution_truth import lds, truth_of  # noqa: E402
from record import add_option, recorder  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.func import functional_call, grad, vmap  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from unlazy import TangentOptions, attribution  # noqa: E402


class Network(nn.Module):
    """The network of `attribution_settings.network` with given parameters."""

    def __init__(self, setting: Setting, theta: Params) -> None:
        super().__init__()
        self.architecture = setting.architecture
        for name, value in theta.items():
            array = torch.tensor(np.asarray(value))
            if name == "place":
                self.place = nn.Parameter(array)
            elif name[0] != "b":
                bias = theta.get(name.replace("W", "b"))
                if array.ndim == 4:  # HWIO
                    stride, padding = (2, 0) if name == "W2" else (1, 1)
                    layer = nn.Conv2d(array.shape[2], array.shape[3], 3, stride, padding, bias=False)
                    layer.weight.data = array.permute(3, 2, 0, 1).contiguous()
                else:
                    has_bias = name[0] == "W" and bias is not None
                    layer = nn.Linear(*array.shape, bias=has_bias)
                    layer.weight.data = array.T.contiguous()
                    if has_bias:
                        layer.bias.data = torch.tensor(np.asarray(bias))
                self.add_module(name, layer)

    def forward(self, X: Tensor) -> Tensor:
        if self.architecture == "mlp":
            return self.W3(torch.tanh(self.W2(torch.tanh(self.W1(X)))))
        if self.architecture == "cnn":
            h = torch.tanh(self.W1(X.reshape(-1, 1, 8, 8)))
            h = torch.tanh(self.W2(nn.functional.pad(h, (0, 1, 0, 1))))  # as XLA pads for "SAME" with stride 2
            return self.W3(h.permute(0, 2, 3, 1).flatten(1))
        h = self.embed(X.reshape(-1, 8, 8)) + self.place
        q, k, v = self.q(h), self.k(h), self.v(h)
        attention = torch.softmax(q @ k.transpose(1, 2) / np.sqrt(q.shape[2]), -1)
        h = h + self.out(attention @ v)
        h = h + self.W2(torch.tanh(self.W1(h)))
        return self.W3(h.mean(1))


class Centered(nn.Module):
    """α (f(θ) - f(θ_0)); the second is a constant."""

    def __init__(self, setting: Setting, theta: Params, start: Params) -> None:
        super().__init__()
        self.alpha = setting.alpha
        self.network = Network(setting, theta)
        self.frozen = [Network(setting, start).requires_grad_(False)]  # in a list, so that it has no parameters here

    def forward(self, X: Tensor) -> Tensor:
        return self.alpha * (self.network(X) - self.frozen[0](X))


def right_class(f: Tensor, y: Tensor) -> Tensor:
    """Mask of the target's class."""
    return y[:, None] == torch.arange(f.shape[1])


def losses(f: Tensor, y: Tensor) -> Tensor:
    """`attribution_settings.loss_of` before the mean."""
    if y.is_floating_point():
        return (f[:, 0] - y) ** 2
    return f.logsumexp(1) - (f * right_class(f, y)).sum(1)


def measured(f: Tensor, y: Tensor) -> Tensor:
    """`attribution_settings.measured`."""
    if y.is_floating_point():
        return f[:, 0]
    mask = right_class(f, y)
    return (f * mask).sum(1) - f.masked_fill(mask, -torch.inf).logsumexp(1)


class Problem(NamedTuple):
    """What every peer gets."""

    model: Centered
    train: tuple[Tensor, Tensor]
    queries: tuple[Tensor, Tensor]
    precision: float  # λ α², the decay of the training


class Found(NamedTuple):
    """Scores (queries, n) of a peer with one choice of its numbers, and the CPU-seconds of that choice alone."""

    choice: str
    seconds: float
    scores: np.ndarray
    plain: bool = False  # what one would choose without a search: damping λ α², none for TRAK


def ekfac(problem: Problem) -> Iterator[Found]:
    """EKFAC influence of kronfluence, over dampings around λ α² and around the mean eigenvalue of every layer."""
    from kronfluence.analyzer import Analyzer, prepare_model
    from kronfluence.arguments import FactorArguments, ScoreArguments
    from kronfluence.factor import config
    from kronfluence.task import Task

    class Same(Task):
        def compute_train_loss(self, batch: list[Tensor], model: nn.Module, sample: bool = False) -> Tensor:
            X, y = batch
            f = model(X)
            if sample and y.is_floating_point():  # the density exp(-(f - y)²)
                y = f.detach()[:, 0] + np.sqrt(0.5) * torch.randn(len(y))
            elif sample:
                y = torch.multinomial(f.detach().softmax(1), 1)[:, 0]
            return losses(f, y).sum()

        def compute_measurement(self, batch: list[Tensor], model: nn.Module) -> Tensor:
            return measured(model(batch[0]), batch[1]).sum()

    logging.getLogger("kronfluence").setLevel(logging.ERROR)
    torch.manual_seed(0)
    task, rows, queries = Same(), TensorDataset(*problem.train), TensorDataset(*problem.queries)
    repeated = TensorDataset(*(leaf.repeat_interleave(10, 0) for leaf in problem.train))
    usual = config.HEURISTIC_DAMPING_SCALE
    with tempfile.TemporaryDirectory() as folder:
        began = time.process_time()
        model = prepare_model(deepcopy(problem.model), task)
        analyzer = Analyzer("peers", model, task, cpu=True, disable_tqdm=True, output_dir=folder)
        analyzer.fit_all_factors(
            "factors", repeated, per_device_batch_size=len(rows), factor_args=FactorArguments(strategy="ekfac")
        )
        factors = time.process_time() - began
        choices = [(problem.precision * 10.0**power, None) for power in np.arange(-3, 3.1, 0.5)]
        choices += [(None, 10.0**power) for power in np.arange(-8, 1.1, 0.5)]
        for i, (damping, scale) in enumerate(choices):
            began = time.process_time()
            config.HEURISTIC_DAMPING_SCALE = usual if scale is None else scale
            try:
                analyzer.compute_pairwise_scores(
                    f"scores{i}", "factors", queries, rows, per_device_query_batch_size=len(queries),
                    per_device_train_batch_size=len(rows), score_args=ScoreArguments(damping_factor=damping),
                )  # fmt: skip
            finally:
                config.HEURISTIC_DAMPING_SCALE = usual
            scores = -analyzer.load_pairwise_scores(f"scores{i}")["all_modules"].double().numpy()
            chosen = f"damping {damping:.1e}" if scale is None else f"damping {scale:.1e} of the mean"
            plain = scale is None and np.isclose(damping, problem.precision)
            yield Found(chosen, factors + time.process_time() - began, scores, plain)


def trak(problem: Problem) -> Iterator[Found]:
    """TRAK with one checkpoint, over projections of gradients by traker and dampings of their Gram matrix."""
    from trak.projectors import BasicProjector, ProjectionType

    def value(theta: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return measured(functional_call(problem.model, theta, (x[None],)), y[None])[0]

    began = time.process_time()
    theta = {name: leaf.detach() for name, leaf in problem.model.named_parameters()}
    gradients = [
        torch.cat([leaf.flatten(1) for leaf in vmap(grad(value), (None, 0, 0))(theta, *some).values()], 1)
        for some in (problem.train, problem.queries)
    ]
    X, y = problem.train
    f = problem.model(X).detach()
    residual = y - f[:, 0] if y.is_floating_point() else 1 - (f.softmax(1) * right_class(f, y)).sum(1)
    common = time.process_time() - began
    for size in (256, 512, 1024, 2048):
        began = time.process_time()
        projector = BasicProjector(
            gradients[0].shape[1], size, 0, ProjectionType.normal, torch.device("cpu"), block_size=size
        )
        train, queries = (projector.project(leaf, model_id=0).double() for leaf in gradients)
        spectrum, vectors = torch.linalg.eigh(train @ train.T)
        kernel = queries @ train.T @ vectors
        projected = common + time.process_time() - began
        for power in np.arange(-6, 2.1, 0.25):
            began = time.process_time()
            damping = 10.0**power * spectrum.mean()
            scores = ((kernel / (spectrum.clamp(min=0) + damping)) @ vectors.T) * residual
            chosen = f"dimension {size}, damping {10.0**power:.1e} of the mean"
            plain = size == 256 and power == -6
            yield Found(chosen, projected + time.process_time() - began, scores.numpy(), plain)


def dattri(problem: Problem) -> Iterator[Found]:
    """Influence functions of dattri on the Hessian of the loss, over regularizations around λ α² and iterations."""
    from dattri.algorithm.influence_function import IFAttributorArnoldi, IFAttributorCG
    from dattri.task import AttributionTask

    model = deepcopy(problem.model)

    def loss(theta: dict[str, Tensor], batch: tuple[Tensor, Tensor]) -> Tensor:
        return losses(functional_call(model, theta, (batch[0],)), batch[1]).mean()

    def target(theta: dict[str, Tensor], batch: tuple[Tensor, Tensor]) -> Tensor:
        return measured(functional_call(model, theta, (batch[0],)), batch[1]).mean()

    rows, queries = (DataLoader(TensorDataset(*t), len(t[0])) for t in (problem.train, problem.queries))
    task = AttributionTask(loss, model, model.state_dict(), target_func=target)
    for power in np.arange(-1, 2.1, 0.5):
        at = problem.precision * 10.0**power
        some = {"CG 10": (IFAttributorCG, {"max_iter": 10})}
        if 0 <= power <= 1.5:
            some["CG 50"] = (IFAttributorCG, {"max_iter": 50})
        if power in (0, 1):
            some["Arnoldi"] = (IFAttributorArnoldi, {"proj_dim": 100, "max_iter": 150})
        for method, (make, arguments) in some.items():
            began = time.process_time()
            with torch.no_grad(), contextlib.redirect_stderr(io.StringIO()):  # else it keeps every iteration's graph
                attributor = make(task, regularization=at, **arguments)
                attributor.cache(rows)
                scores = -attributor.attribute(rows, queries).T.double().numpy()
            chosen = f"{method}, regularization {at:.1e}"
            yield Found(chosen, time.process_time() - began, scores, method == "CG 50" and power == 0)


Peer = Callable[[Problem], Iterator[Found]]
PEERS: dict[str, Peer] = {"EKFAC": ekfac, "TRAK": trak, "dattri": dattri}


class Best(NamedTuple):
    """The highest LDS of a peer over its choices, what gave it, the LDS without a search, and what went wrong."""

    score: float
    found: Found | None
    plain: float
    wrong: str


def best_of(peer: Peer, problem: Problem, halves: np.ndarray, truth: np.ndarray) -> Best:
    """Try the choices of a peer."""
    best, chosen, plain, wrong = -np.inf, None, np.nan, ""
    gc.freeze()  # kronfluence collects garbage in every step: leave out the objects of JAX
    try:
        for found in peer(problem):
            score = lds(found.scores, halves, truth) if np.isfinite(found.scores).all() else -np.inf
            if score > best:
                best, chosen = score, found
            if found.plain:
                plain = score
    except Exception as error:  # another project's code: say it and go on
        wrong = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return Best(best, chosen, plain, wrong)


def own(setting: Setting, rows: Rows, f: Callable, start: Params, whole: Params) -> Found:
    """`unlazy.attribution`."""
    began = time.process_time()
    found = attribution(
        (f, whole), rows.X, rows.y, rows.queries, None if rows.y.dtype.kind == "f" else rows.targets,
        decay=setting.decay * setting.alpha**2, reference=start, options=TangentOptions(dtype="float64"),
    )  # fmt: skip
    return Found(f"gap since the start {found.training_gap:.2f}", time.process_time() - began, found.scores)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="settings whose name contains one of these")
    parser.add_argument("--halves", type=int, default=50)
    parser.add_argument("--folder", type=Path, default=Path(__file__).parents[2] / "shared" / "data")
    add_option(parser)
    options = parser.parse_args()
    note = recorder(__file__, options.record)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    table: dict[str, dict[str, float]] = {}
    for setting in SETTINGS:
        if setting.alpha not in (10, 1) or not setting.decay:
            continue
        if options.only and not any(word in setting.name for word in options.only):
            continue
        rows, f, start, whole, halves, truth = truth_of(setting, options.folder, options.halves)
        model = Centered(setting, whole, start)
        inputs, targets = torch.tensor(rows.X), torch.tensor(rows.y)
        queries = torch.tensor(rows.queries), torch.tensor(rows.targets)
        same = np.abs(model(inputs).detach().numpy() - np.asarray(f(whole, rows.X))).max()
        assert same < 1e-4, f"the networks in PyTorch and JAX differ by {same:.1e}"
        found = own(setting, rows, f, start, whole)
        scores = {"unlazy": lds(found.scores, halves, truth)}
        text = f"LDS {scores['unlazy']:.3f}               {found.seconds:6.1f} CPU-s  {found.choice}"
        print(f"{setting.name:28} unlazy  {text}", flush=True)
        problem = Problem(model, (inputs, targets), queries, setting.decay * setting.alpha**2)
        for name, peer in PEERS.items():
            best = best_of(peer, problem, halves, truth)
            if best.found is not None:
                scores[name], scores[f"{name} without a search"] = best.score, best.plain
                text = f"LDS {best.score:.3f} (plain {best.plain:.3f}) {best.found.seconds:6.1f} CPU-s"
                print(f"{setting.name:28} {name:7} {text}  best: {best.found.choice}", flush=True)
            if best.wrong or best.found is None:
                how = "stopped early" if best.found else "could not be run"
                print(f"{setting.name:28} {name:7} {how}: {best.wrong or 'no finite scores'}", flush=True)
        for name, score in scores.items():
            note(f"LDS {setting.name}, {name}", score, "rank correlation")
        table[setting.name] = scores
    for name in [name + way for name in PEERS for way in ("", " without a search")]:
        ahead = [scores["unlazy"] - scores[name] for scores in table.values() if name in scores]
        if ahead:
            text = f"higher in {sum(a > 0 for a in ahead)} of {len(ahead)} settings, by at least .05 in"
            print(f"unlazy beside {name}: {text} {sum(a >= 0.05 for a in ahead)}; median {np.median(ahead):+.3f}")
            note(f"settings above {name}", sum(a > 0 for a in ahead), f"of {len(ahead)}")
            note(f"settings above {name} by .05", sum(a >= 0.05 for a in ahead), f"of {len(ahead)}")


if __name__ == "__main__":
    main()
