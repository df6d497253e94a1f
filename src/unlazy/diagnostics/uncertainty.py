"""How sure is a prediction of my trained network? `unlazy.uncertainty` [I1]."""

import numpy as np

from unlazy.diagnostics.measures.losses import as_numpy
from unlazy.models.adapt import as_model
from unlazy.models.protocol import Inputs
from unlazy.solvers.tangent.fit import TangentModel
from unlazy.solvers.tangent.options import TangentOptions
from unlazy.solvers.tangent.posterior import NetworkPosterior


def uncertainty(
    network: object,
    X: Inputs,
    y: Inputs,
    *,
    loss: str | None = None,
    prior_precision: float | None = None,
    noise_variance: float | None = None,
    reference: object | None = None,
    held_out: tuple[Inputs, Inputs] | None = None,
    options: TangentOptions | None = None,
) -> NetworkPosterior:
    """Error bars of a trained network from the linear model in its tangents, with hyperparameters by the evidence.

    The network is neither trained nor changed. The covariance is the exact one of the linearized Laplace approximation
    with the full generalized Gauss-Newton matrix, computed over rows or parameters, whichever are fewer. Predictions
    are the network's own.

    The evidence takes the trained parameters for the minimum of the loss with weight decay. Of a network that was
    stopped early or fits its training rows exactly, it misjudges the scale: pass `held_out` rows, to which scales are
    fitted. For classification, `predict` returns the class probabilities of the network itself; averaging over the
    posterior does not improve them.

    Parameters
    ----------
    network : torch.nn.Module, Equinox module, Flax nnx module, pair (apply, params) or Model
        The trained network, see `unlazy.models.as_model`.
    X : inputs
        Training rows, in the form that the network takes.
    y : array of shape (n,) or (n, c)
        Their targets: numbers, or class labels (integers) for a network with several outputs.
    loss : {"squared", "mse", "cross_entropy", "binary_cross_entropy"}, optional
        By default cross-entropy for class labels, and squared errors otherwise.
    prior_precision : float, optional
        Precision of the Gaussian prior of every parameter; the one with the largest evidence by default.
    noise_variance : float, optional
        Variance of the noise of numbers; pass it together with `prior_precision`.
    reference : network or its parameters, optional
        The network before training: the mean of the prior (0 by default), and the start of `training_gap`.
    held_out : tuple (inputs, targets), optional
        Rows that the network was not trained on, to which the scales of the variances, or the temperature of class
        probabilities, are fitted.
    options : TangentOptions, optional
        Layers, precision, method and memory.

    Returns
    -------
    NetworkPosterior
        With `predict`, `sample`, `covariance`, `log_evidence` and the linearization gap.

    Raises
    ------
    ValueError
        If rows and targets do not fit the network or the loss.

    References
    ----------
    Immer, Korzepa and Bauer (2021), Improving predictions of Bayesian neural nets via local linearization.
    MacKay (1992), A practical Bayesian framework for backpropagation networks.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import numpy as np
    >>> from unlazy import uncertainty
    >>> X = np.linspace(-1, 1, 20)[:, None]
    >>> y = X[:, 0] + 0.1 * np.sin(40 * X[:, 0])
    >>> posterior = uncertainty((lambda w, X: X @ w, jnp.ones(1)), X, y)
    >>> far, near = posterior.predict(np.array([[10.0], [0.1]])).std
    >>> bool(far > near)
    True
    """
    options = options or TangentOptions()
    model = as_model(network, output=options.output, dtype=options.dtype)
    fit = TangentModel(model, X, as_numpy(y), loss, options, unweighted=True)
    start = None if reference is None else model.stored(reference)
    posterior = NetworkPosterior(
        fit, prior_precision=prior_precision, noise_variance=noise_variance, reference=start
    )  # fmt: skip
    if held_out is not None:
        if not isinstance(held_out, tuple) or len(held_out) != 2:
            raise ValueError("held_out must be a tuple of inputs and targets")
        posterior.calibrate(held_out[0], np.asarray(as_numpy(held_out[1])))
    return posterior
