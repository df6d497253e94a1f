"""Networks at any width, and which axes of each parameter grow with width: answers from definitions, not from code.

Widths are multiples of 8; input and output sizes never grow. A torch or Flax network takes the batch; an Equinox
network takes one point and is mapped over the leading axis of `inputs()`. A tuple of inputs is a tuple of
arguments. `truth` names the trainable parameters alone, tied ones once, as `named_parameters` does.

- "matrix": fan-in is what is summed over (receptive field included), fan-out is what one such sum yields a feature of.
  A convolution of groups has the fan-in of one group and the fan-out of all channels: the norm sqrt(n_out / n_in) of
  the array (n_out, n_in) then asks for the same entries as a norm of 1 for each block.
- "lookup": a table indexed by integers; fan-in is one row, which never grows.
- "vector": added or multiplied entrywise; `fan_in_grows` is always False.
- "ambiguous": two answers that prescribe different sizes are equally right, so that refusing is right; both flags are
  False and mean nothing.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import torch
import torch.nn.functional as F
from flax import nnx
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm


class Role(NamedTuple):
    """What a parameter does, and which sides of it grow with width."""

    kind: Literal["matrix", "lookup", "vector", "ambiguous"]
    fan_in_grows: bool
    fan_out_grows: bool


@dataclass(frozen=True)
class AxesCase:
    """A network at any width, example inputs, and the role of each trainable parameter."""

    name: str
    make: Callable[[int], Any]
    inputs: Callable[[], Any]
    truth: dict[str, Role]


ROLES = {
    "first": Role("matrix", False, True), "hidden": Role("matrix", True, True), "last": Role("matrix", True, False),
    "table": Role("lookup", False, True), "vector": Role("vector", False, True), "fixed": Role("matrix", False, False),
    "fixed_table": Role("lookup", False, False), "fixed_vector": Role("vector", False, False),
    "ambiguous": Role("ambiguous", False, False),
}  # fmt: skip

BATCH = 5


def cases() -> list[AxesCase]:
    """All cases; names are unique and begin with the library."""
    return [
        *_torch_dense(), *_torch_convolution(), *_torch_recurrent(), *_torch_attention(), *_torch_lookup(),
        *_torch_by_hand(), *_torch_ambiguous(), *_equinox(), *_flax(),
    ]  # fmt: skip


def _parts(kind: str, flax: bool) -> dict[str, str]:
    """The parameters of a module, named relative to it, and their roles. A kind is a role or one of those below."""
    role = kind.removesuffix("_cell")
    if kind.endswith("norm"):
        return dict.fromkeys(("scale" if flax else "weight", "bias"), kind.replace("norm", "vector"))
    if kind.endswith("cell"):  # a recurrent layer: "first_cell" takes inputs, "hidden_cell" features
        return {"weight_ih": role, "weight_hh": "hidden", "bias_ih": "vector", "bias_hh": "vector"}
    matrix, vector = ("fixed", "fixed_vector") if kind.startswith("fixed") else ("hidden", "vector")
    if kind.endswith("attention"):
        return {"in_proj_weight": matrix, "in_proj_bias": vector, "out_proj.weight": matrix, "out_proj.bias": vector}
    return {"kernel" if flax else "weight": kind, "bias": "vector" if ROLES[kind].fan_out_grows else "fixed_vector"}


def _case(name: str, make: Callable[[int], Any], inputs: Callable[[], Any], words: str) -> AxesCase:
    """Each word says "parameter=role" or "module:kind"; * stands for a parameter's name inside its module."""
    truth: dict[str, Role] = {}
    for word in words.split():
        where, kind = re.split("[:=]", word)
        pattern = where if "*" in where else f"{where}.*"
        parts = _parts(kind, name.startswith("flax")) if ":" in word else {}
        named = {pattern.replace("*", part): ROLES[role] for part, role in parts.items()} or {where: ROLES[kind]}
        assert not named.keys() & truth.keys(), f"{name}: {word} names a parameter again"
        truth |= named
    return AxesCase(name, make, inputs, truth)


# PyTorch


class Net(nn.Module):
    """Parts under their names, and how they are called: run(net, *inputs)."""

    def __init__(self, run: Callable[..., Tensor], **parts: nn.Module | nn.Parameter) -> None:
        super().__init__()
        self.run = run
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.run(self, *inputs)


def _rows(*shape: int, below: int = 0) -> Callable[[], Tensor]:
    """A batch of normal numbers, or of integers below `below`."""
    random, shape = np.random.default_rng(0), (BATCH, *shape)
    batch = random.integers(below, size=shape) if below else random.standard_normal(shape, np.float32)
    return lambda: torch.tensor(batch)


def _weight(*shape: int) -> nn.Parameter:
    return nn.Parameter(0.3 * torch.randn(shape))


def _torch_dense() -> list[AxesCase]:
    S, L, R = nn.Sequential, nn.Linear, nn.ReLU
    return [
        _case("torch mlp", lambda n: S(L(3, n), R(), L(n, n), R(), L(n, 2)), _rows(3), "0:first 2:hidden 4:last"),
        _case("torch ten inputs and ten outputs", lambda n: S(L(10, n), nn.Tanh(), L(n, 10, bias=False)), _rows(10),
              "0:first 2.weight=last"),
        # At width 16 all axes are 16 long, at 24 and 8 only those that grow differ from it.
        _case("torch fixed stem of 16", lambda n: S(L(16, 16), R(), L(16, n), R(), L(n, 16)), _rows(16),
              "0:fixed 2:first 4:last"),
        _case("torch bottleneck of 8", lambda n: S(L(8, n), R(), L(n, 8), R(), L(8, n), R(), L(n, 2)), _rows(8),
              "0:first 2:last 4:first 6:last"),
        _case("torch widths by ratio and offset", lambda n: S(L(3, 2 * n), nn.GLU(), L(n, n + 8), R(), L(n + 8, n // 4),
              nn.Tanh(), L(n // 4, 2)), _rows(3), "0:first 2:hidden 4:hidden 6:last"),
        _case("torch inputs beside features", lambda n: Net(lambda m, x: m.c(torch.cat([m.b(torch.cat([m.a(x).relu(),
              x], 1)).relu(), x], 1)), a=L(8, n), b=L(n + 8, n), c=L(n + 8, 2)), _rows(8), "a:first b:hidden c:last"),
        _case("torch norms", lambda n: S(nn.LayerNorm(3), L(3, n), nn.LayerNorm(n), R(), L(n, n), nn.BatchNorm1d(n),
              nn.PReLU(n), L(n, n), nn.RMSNorm(n), nn.PReLU(), L(n, 2)), _rows(3),
              "0:fixed_norm 9.weight=fixed_vector 1:first 2:norm 5:norm 4:hidden "
              "6.weight=vector 8.weight=vector 7:hidden 10:last"),
        # The direction `original1` keeps the axes of the weight it stands for; the gain `original0` is one per output.
        _case("torch weight norm and spectral norm", lambda n: S(weight_norm(L(3, n)), R(), spectral_norm(L(n, n)), R(),
              weight_norm(L(n, n)), R(), L(n, 2)), _rows(3),
              "0.parametrizations.weight.original1=first 2.parametrizations.weight.original=hidden "
              "4.parametrizations.weight.original1=hidden 0.bias=vector 0.parametrizations.weight.original0=vector "
              "2.bias=vector 4.bias=vector 4.parametrizations.weight.original0=vector 6:last"),
        _case("torch mixer, channels grow", lambda n: Net(lambda m, x: m.head((h := (e := m.embed(x))
              + m.b(m.a(e.mT).relu()).mT).add(m.d(m.c(h).relu())).mean(1)), embed=L(3, n), a=L(6, 24), b=L(24, 6),
              c=L(n, 4 * n), d=L(4 * n, n), head=L(n, 2)), _rows(6, 3),
              "a:fixed b:fixed embed:first c:hidden d:hidden head:last"),
        _case("torch bilinear, one side grows", lambda n: Net(lambda m, x: m.d(m.c(m.b(m.a(x).tanh(), x).tanh(),
              x).tanh()), a=L(3, n), b=nn.Bilinear(n, 3, n), c=nn.Bilinear(n, 3, 4), d=L(4, 2)), _rows(3),
              "a:first b:hidden c:last d:fixed"),
        # A frozen base layer is not trained, so that truth does not name it.
        _case("torch low-rank adapter of a frozen layer", lambda n: Net(
              lambda m, x: m.c((h := m.a(x).relu()) + m.base(h) + h @ m.down @ m.up), a=L(3, n),
              base=L(n, n).requires_grad_(False), down=_weight(n, 8), up=_weight(8, n), c=L(n, 2)), _rows(3),
              "a:first down=last up=first c:last"),
    ]  # fmt: skip


def _torch_convolution() -> list[AxesCase]:
    S, R, C1, C2, C3, T2 = nn.Sequential, nn.ReLU, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d
    L, image = nn.Linear, _rows(3, 6, 6)
    return [
        _case("torch conv1d, pixels flattened", lambda n: S(C1(8, n, 3), R(), C1(n, n, 3, stride=2), R(), nn.Flatten(),
              L(3 * n, 2)), _rows(8, 10), "0:first 2:hidden 5:last"),
        _case("torch conv2d, batch norm, one-by-one readout", lambda n: S(C2(3, n, 3, bias=False), nn.BatchNorm2d(n),
              R(), C2(n, 2 * n, 3, bias=False), nn.BatchNorm2d(2 * n), nn.PReLU(2 * n), C2(2 * n, 2, 1)), image,
              "0.weight=first 3.weight=hidden 5.weight=vector 1:norm 4:norm 6:last"),
        _case("torch conv3d", lambda n: S(C3(1, n, 2), R(), C3(n, n, 2), R(), C3(n, 2, 1)), _rows(1, 3, 3, 3),
              "0:first 2:hidden 4:last"),
        _case("torch transposed conv decoder", lambda n: S(L(16, 4 * n), nn.Unflatten(1, (n, 2, 2)), R(),
              T2(n, n, 3, groups=2), R(), T2(n, 16, 3)), _rows(16), "0:first 3:hidden 5:last"),
        _case("torch transposed conv from inputs", lambda n: S(T2(3, n, 3), R(), T2(n, 3, 3)), image, "0:first 2:last"),
        _case("torch two groups, group norm and instance norm", lambda n: S(C2(3, n, 3), nn.GroupNorm(2, n), R(),
              C2(n, n, 3, groups=2), nn.InstanceNorm2d(n, affine=True), R(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
              L(n, 2)), image, "0:first 3:hidden 1:norm 4:norm 8:last"),
        # One input channel for each output: fan-in is the nine taps. The transposed layout is (in, out / groups).
        _case("torch depthwise and pointwise", lambda n: S(C2(3, n, 1), R(), C2(n, n, 3, groups=n), R(), C2(n, n, 1),
              R(), T2(n, n, 3, groups=n), R(), C2(n, 2, 1)), image, "0:first 2:first 4:hidden 6:first 8:last"),
        _case("torch groups of four channels", lambda n: S(C1(3, n, 1), R(), C1(n, n, 3, groups=n // 4), R(),
              C1(n, 2, 1)), _rows(3, 6), "0:first 2:first 4:last"),
    ]  # fmt: skip


def _torch_recurrent() -> list[AxesCase]:
    L, series = nn.Linear, _rows(6, 8)

    def pooled(m: Net, x: Tensor) -> Tensor:
        return m.c(m.rnn(x)[0].mean(1))

    def cells(m: Net, x: Tensor) -> Tensor:
        h, c = m.start.expand(len(x), -1), torch.zeros(len(x), m.start.shape[-1])
        for step in x.unbind(1):
            h, c = m.lstm(step, (h, c))
            h = m.plain(h, m.gru(step, h))
        return m.c(h)

    def state_space(m: Net, x: Tensor) -> Tensor:
        state = torch.zeros(len(x), 1, 1)
        for step in x.unbind(1):
            state = torch.exp(-m.rate.exp()) * state + m.a(step)[:, :, None] * m.enter(step)[:, None, :]
        return m.c((state * m.leave(x[:, -1])[:, None, :]).sum(-1).tanh())

    return [
        _case("torch lstm, two layers, both directions", lambda n: Net(pooled,
              rnn=nn.LSTM(8, n, 2, batch_first=True, bidirectional=True), c=L(2 * n, 2)), series,
              "rnn.*_l0:first_cell rnn.*_l0_reverse:first_cell rnn.*_l1:hidden_cell "
              "rnn.*_l1_reverse:hidden_cell c:last"),
        _case("torch lstm with a state of four", lambda n: Net(pooled, rnn=nn.LSTM(8, n, batch_first=True, proj_size=4),
              c=L(4, 2)), series,
              "rnn.weight_ih_l0=first rnn.weight_hh_l0=first rnn.bias_ih_l0=vector rnn.bias_hh_l0=vector "
              "rnn.weight_hr_l0=last c:fixed"),
        _case("torch gru before rnn", lambda n: Net(lambda m, x: m.c(m.rnn(m.gru(x)[0])[0][:, -1]),
              gru=nn.GRU(8, n, batch_first=True), rnn=nn.RNN(n, n, batch_first=True), c=L(n, 2)), series,
              "gru.*_l0:first_cell rnn.*_l0:hidden_cell c:last"),
        _case("torch cells from a learned state", lambda n: Net(cells, start=_weight(1, n), lstm=nn.LSTMCell(8, n),
              gru=nn.GRUCell(8, n), plain=nn.RNNCell(n, n), c=L(n, 2)), series,
              "start=vector lstm:first_cell gru:first_cell plain:hidden_cell c:last"),
        # `rate` has two axes, but multiplies the state (feature, 4) entrywise.
        _case("torch state space", lambda n: Net(state_space, a=L(8, n), rate=_weight(n, 4), enter=L(8, 4),
              leave=L(8, 4), c=L(n, 2)), series, "a:first rate=vector enter:fixed leave:fixed c:last"),
    ]  # fmt: skip


def _torch_attention() -> list[AxesCase]:
    L, MHA, words = nn.Linear, nn.MultiheadAttention, _rows(6, 8)

    def encoder(width: int, hidden: int) -> nn.Module:
        return nn.TransformerEncoderLayer(width, 2, hidden, dropout=0.0, batch_first=True)

    def vision(m: Net, x: Tensor) -> Tensor:
        patches = m.patch(x).flatten(2).mT
        h = torch.cat([m.token.expand(len(x), -1, -1), patches], 1) + m.position
        return m.head(m.norm(m.block(h)[:, 0]))

    def perceiver(m: Net, x: Tensor) -> Tensor:
        return m.c(m.attend(m.latent.expand(len(x), -1, -1), x[:, :, :6], x[:, :, 1:], need_weights=False)[0].mean(1))

    return [
        _case("torch self-attention", lambda n: Net(lambda m, x: m.c(m.attend(h := m.a(x), h, h,
              need_weights=False)[0].mean(1)), a=L(8, n), attend=MHA(n, 2, batch_first=True, add_bias_kv=True),
              c=L(n, 2)), words, "a:first attend:attention c:last attend.bias_k=vector attend.bias_v=vector"),
        _case("torch cross-attention from learned tokens to inputs", lambda n: Net(perceiver, latent=_weight(1, 4, n),
              attend=MHA(n, 2, kdim=6, vdim=7, batch_first=True), c=L(n, 2)), words,
              "latent=vector attend.q_proj_weight=hidden attend.k_proj_weight=first attend.v_proj_weight=first "
              "attend.in_proj_bias=vector attend.out_proj:hidden c:last"),
        _case("torch encoder layer, hidden layer of 32", lambda n: Net(lambda m, x: m.c(m.block(m.a(x)).mean(1)),
              a=L(8, n), block=encoder(n, 32), c=L(n, 2)), words,
              "a:first block.self_attn:attention block.linear1:last block.linear2:first block.norm1:norm "
              "block.norm2:norm c:last"),
        _case("torch encoder layer, only the hidden layer grows", lambda n: Net(lambda m, x: m.c(m.block(x).mean(1)),
              block=encoder(8, n), c=L(8, 2)), words,
              "block.self_attn:fixed_attention block.linear1:first block.linear2:last block.norm1:fixed_norm "
              "block.norm2:fixed_norm c:fixed"),
        _case("torch vision transformer", lambda n: Net(vision, patch=nn.Conv2d(3, n, 4, 4), token=_weight(1, 1, n),
              position=_weight(1, 5, n), block=encoder(n, 4 * n), norm=nn.LayerNorm(n), head=L(n, 2)), _rows(3, 8, 8),
              "patch:first token=vector position=vector block.self_attn:attention block.linear1:hidden "
              "block.linear2:hidden block.norm1:norm block.norm2:norm norm:norm head:last"),
    ]  # fmt: skip


def _torch_lookup() -> list[AxesCase]:
    L, E, text = nn.Linear, nn.Embedding, _rows(6, below=16)

    def modulated(m: Net, x: Tensor, label: Tensor) -> Tensor:
        gain, shift = m.table(label).chunk(2, -1)
        return m.c((m.a(x) * (1 + gain) + shift).relu())

    def relative(m: Net, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in m.qkv(x).chunk(3, -1))
        steps = torch.arange(6)
        bias = m.table(steps[:, None] - steps[None] + 5).permute(2, 0, 1)
        h = F.scaled_dot_product_attention(q, k, v, attn_mask=bias + m.per_head[:, None, None] * m.slope)
        return m.c(h.transpose(1, 2).flatten(2).mean(1))

    return [
        _case("torch words and places", lambda n: Net(lambda m, x: m.c((m.word(x)
              + m.place(torch.arange(6))).relu().mean(1)), word=E(16, n), place=E(6, n), c=L(n, 16)), text,
              "word.weight=table place.weight=table c:last"),
        _case("torch bag of words", lambda n: nn.Sequential(nn.EmbeddingBag(24, n, mode="sum"), nn.ReLU(), L(n, 2)),
              _rows(6, below=24), "0.weight=table 2:last"),
        _case("torch table indexed by hand", lambda n: Net(lambda m, x: m.c(m.table[x].tanh().mean(1)),
              table=_weight(16, n), c=L(n, 2)), text, "table=table c:last"),
        # Nothing is indexed: a matrix whose data vector is one-hot.
        _case("torch one-hot times table", lambda n: Net(lambda m, x: m.c((F.one_hot(x, 16).float()
              @ m.table).tanh().mean(1)), table=_weight(16, n), c=L(n, 2)), text, "table=first c:last"),
        _case("torch gain and shift by label", lambda n: Net(modulated, a=L(3, n), table=E(8, 2 * n), c=L(n, 2)),
              lambda: (_rows(3)(), _rows(below=8)()), "a:first table.weight=table c:last"),
        _case("torch bias by distance, two heads", lambda n: Net(relative, qkv=L(8, 3 * n), table=E(11, 2),
              per_head=_weight(2), slope=_weight(6, 6), c=L(n, 2)), _rows(6, 8),
              "qkv:first table.weight=fixed_table per_head=fixed_vector slope=fixed_vector c:last"),
    ]  # fmt: skip


def _torch_by_hand() -> list[AxesCase]:
    P, L = _weight, nn.Linear

    def experts(m: Net, x: Tensor) -> Tensor:
        h = torch.tanh(torch.einsum("bi,eio->beo", x, m.enter) + m.shift)
        h = torch.tanh(torch.bmm(h.transpose(0, 1), m.mix)).transpose(0, 1)
        gate = torch.softmax(m.gate(h.mean(1)), -1)
        return torch.einsum("be,bei,eio->bo", gate, h, m.leave)

    return [
        _case("torch @, F.linear and a transpose", lambda n: Net(lambda m, x: F.linear((x @ m.a).relu(), m.b).relu()
              @ m.c.T + m.d, a=P(3, n), b=P(2 * n, n), c=P(2, 2 * n), d=P(2)), _rows(3),
              "a=first b=hidden c=last d=fixed_vector"),
        _case("torch two shapes (n, 10), two roles", lambda n: Net(lambda m, x: F.linear(x, m.a).relu() @ m.b,
              a=P(n, 10), b=P(n, 10)), _rows(10), "a=first b=last"),
        _case("torch einsum over heads", lambda n: Net(lambda m, x: torch.einsum("bhe,heo->bo",
              torch.einsum("bhd,hde->bhe", torch.einsum("bi,ihd->bhd", x, m.a).relu(), m.b).relu(), m.c), a=P(8, 2, n),
              b=P(2, n, n), c=P(2, n, 2)), _rows(8), "a=first b=hidden c=last"),
        # (n,) arrays that are not vectors: each is summed over the features.
        _case("torch readout by a dot product", lambda n: Net(lambda m, x: torch.einsum("bi,i->b", m.a(x).relu(), m.c),
              a=L(3, n), c=P(n)), _rows(3), "a:first c=last"),
        _case("torch readout by product and sum", lambda n: Net(lambda m, x: (m.a(x).relu() * m.c).sum(-1), a=L(3, n),
              c=P(n)), _rows(3), "a:first c=last"),
        _case("torch gates and scales", lambda n: Net(lambda m, x: m.scale * m.c((h := m.a(x).relu() * m.gate.sigmoid())
              + m.branch * m.gamma * m.b(h)), a=L(3, n), gate=P(n), b=L(n, n), branch=P(), gamma=P(1, n), c=L(n, 2),
              scale=P(1)), _rows(3),
              "a:first b:hidden c:last gate=vector gamma=vector branch=fixed_vector scale=fixed_vector"),
        _case("torch four experts", lambda n: Net(experts, enter=P(4, 3, n), shift=P(4, n), mix=P(4, n, n),
              gate=L(n, 4), leave=P(4, n, 2)), _rows(3), "enter=first shift=vector mix=hidden leave=last gate:last"),
    ]  # fmt: skip


def _torch_ambiguous() -> list[AxesCase]:
    P, L, E = _weight, nn.Linear, nn.Embedding

    def tied(n: int) -> Net:
        net = Net(lambda m, x: m.c(m.b(m.e(x).mean(1)).relu()), e=E(16, n), b=L(n, n), c=L(n, 16, bias=False))
        net.c.weight = net.e.weight
        return net

    def hyper(m: Net, x: Tensor) -> Tensor:
        return m.c(torch.einsum("bij,bj->bi", m.hyper(x).unflatten(-1, (m.c.in_features, -1)), m.a(x).tanh()))

    return [
        # Entries of order 1 as a table, of order 1 / n as a readout.
        _case("torch tied embedding and readout", tied, _rows(6, below=16), "e.weight=ambiguous b:hidden"),
        # From inputs to features and back: fan-in is 8 in the one use, n in the other.
        _case("torch tied autoencoder", lambda n: Net(lambda m, x: F.linear(x, m.w).tanh() @ m.w, w=P(n, 8)), _rows(8),
              "w=ambiguous"),
        # A sum over n^2 products: its size depends on how the two factors are correlated.
        _case("torch bilinear in two growing factors", lambda n: Net(
              lambda m, x: m.c(m.b(m.a(x).tanh(), m.a2(x).tanh())), a=L(3, n), a2=L(3, n),
              b=nn.Bilinear(n, n, n, bias=False), c=L(n, 2)), _rows(3), "a:first a2:first b.weight=ambiguous c:last"),
        # No use, no role.
        _case("torch unused matrix", lambda n: Net(lambda m, x: m.c(m.a(x).relu()), a=L(3, n), spare=P(n, n),
              c=L(n, 2)), _rows(3), "a:first spare=ambiguous c:last"),
        # Its outputs are a matrix of fan-in n; its bias is one too, though it is added entrywise.
        _case("torch network that writes a matrix", lambda n: Net(hyper, hyper=L(3, n * n), a=L(3, n), c=L(n, 2)),
              _rows(3), "hyper.weight=ambiguous hyper.bias=ambiguous a:first c:last"),
        # Subtracted entrywise, and, with the square written out, a readout.
        _case("torch distances to prototypes", lambda n: Net(lambda m, x: -(m.a(x)[:, None] - m.p).square().sum(-1),
              a=L(3, n), p=P(4, n)), _rows(3), "a:first p=ambiguous"),
    ]  # fmt: skip


# Equinox


class EqxNet(eqx.Module):
    """Parts a, b, c and how they are called on one point: run(net, x)."""

    run: Callable[..., jax.Array] = eqx.field(static=True)
    a: Any = None
    b: Any = None
    c: Any = None

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.run(self, x)


def _jax_rows(*shape: int, below: int = 0) -> Callable[[], jax.Array]:
    return lambda: jnp.asarray(_rows(*shape, below=below)().numpy())


def _equinox() -> list[AxesCase]:
    N, K = eqx.nn, jax.random.split(jax.random.key(2), 4)
    S, relu = N.Sequential, N.Lambda(jax.nn.relu)

    def L(n_in: Any, n_out: Any, i: int = 0) -> eqx.Module:
        return N.Linear(n_in, n_out, key=K[i])

    def stack(m: EqxNet, x: jax.Array) -> jax.Array:
        return m.c(jax.lax.scan(lambda h, layer: (jnp.tanh(layer(h)), None), m.a(x), m.b)[0])

    def steps(m: EqxNet, x: jax.Array) -> jax.Array:
        size = m.b.hidden_size
        start = (jnp.zeros(size),) * 2 if isinstance(m.b, N.LSTMCell) else jnp.zeros(size)
        return m.c(jax.tree.leaves(jax.lax.scan(lambda h, step: (m.b(step, h), None), start, x)[0])[0])

    def attend(m: EqxNet, x: jax.Array) -> jax.Array:
        return m.c(m.b(h := jax.vmap(m.a)(x), h, x).mean(0))

    return [
        _case("equinox mlp", lambda n: N.MLP(8, 2, n, 2, key=K[0]), _jax_rows(8),
              "layers.0:first layers.1:hidden layers.2:last"),
        _case("equinox norms", lambda n: S([L(3, n), N.LayerNorm(n), relu, L(n, n, 1), N.RMSNorm(n),
              N.Lambda(N.PReLU()), L(n, n, 2), N.GroupNorm(2, n), relu, L(n, "scalar", 3)]), _jax_rows(3),
              "layers.0:first layers.1:norm layers.4:norm layers.7:norm layers.3:hidden "
              "layers.5.fn.negative_slope=fixed_vector layers.6:hidden layers.9:last"),
        _case("equinox convolutions", lambda n: S([N.Conv2d(3, n, 3, key=K[0]), relu,
              N.Conv2d(n, n, 3, groups=n, key=K[1]), relu, N.Conv2d(n, n, 3, groups=2, key=K[2]), relu,
              N.Lambda(jnp.ravel), L(4 * n, 2)]), _jax_rows(3, 8, 8),
              "layers.0:first layers.2:first layers.4:hidden layers.7:last"),
        # Transposed weights are (out, in, ...) here, unlike in PyTorch.
        _case("equinox transposed convolutions", lambda n: S([N.ConvTranspose1d(16, n, 3, key=K[0]), relu,
              N.Conv1d(n, n, 3, key=K[1]), relu, N.ConvTranspose1d(n, 16, 3, key=K[2])]), _jax_rows(16, 5),
              "layers.0:first layers.2:hidden layers.4:last"),
        _case("equinox embedding", lambda n: EqxNet(lambda m, x: m.c(jnp.tanh(jax.vmap(m.a)(x) + m.b).mean(0)),
              a=N.Embedding(16, n, key=K[0]), b=jnp.ones((6, n)), c=L(n, 16)), _jax_rows(6, below=16),
              "a.weight=table b=vector c:last"),
        # Values come from the inputs, queries and keys from the features.
        _case("equinox attention", lambda n: EqxNet(attend, a=L(8, n), c=L(n, 2),
              b=N.MultiheadAttention(2, n, value_size=8, use_output_bias=True, key=K[1])), _jax_rows(6, 8),
              "a:first b.query_proj.weight=hidden b.key_proj.weight=hidden b.value_proj.weight=first "
              "b.output_proj:hidden c:last"),
        _case("equinox gru", lambda n: EqxNet(steps, b=N.GRUCell(8, n, key=K[0]), c=L(n, 2)), _jax_rows(6, 8),
              "b.weight_ih=first b.weight_hh=hidden b.bias=vector b.bias_n=vector c:last"),
        _case("equinox lstm", lambda n: EqxNet(steps, b=N.LSTMCell(8, n, key=K[0]), c=L(n, 2)), _jax_rows(6, 8),
              "b.weight_ih=first b.weight_hh=hidden b.bias=vector c:last"),
        _case("equinox scan over eight layers", lambda n: EqxNet(stack, a=L(8, n), c=L(n, 2, 1),
              b=eqx.filter_vmap(lambda k: N.Linear(n, n, key=k))(jax.random.split(K[2], 8))), _jax_rows(8),
              "a:first b:hidden c:last"),
    ]  # fmt: skip


# Flax


class NnxNet(nnx.Module):
    """Parts under their names, and how they are called on a batch: run(net, x)."""

    def __init__(self, run: Callable[..., jax.Array], **parts: Any) -> None:
        self.run = run
        for name, part in parts.items():
            setattr(self, name, part)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.run(self, x)


def _flax() -> list[AxesCase]:
    S, relu = nnx.Sequential, nnx.relu

    def made(kind: Any, *sizes: Any, seed: int = 0, **options: Any) -> Any:
        return kind(*sizes, rngs=nnx.Rngs(seed), **options)

    def L(n_in: int, n_out: int, seed: int = 0) -> nnx.Linear:
        return made(nnx.Linear, n_in, n_out, seed=seed)

    def stacked(n: int) -> NnxNet:
        layers = nnx.vmap(lambda rngs: nnx.Linear(n, n, rngs=rngs), in_axes=0)(nnx.Rngs(1).fork(split=8))
        scan = nnx.scan(lambda h, layer: jnp.tanh(layer(h)), in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        return NnxNet(lambda m, x: m.c(scan(m.a(x), m.b)), a=L(8, n), b=layers, c=L(n, 2))

    general, conv, up, attention = nnx.LinearGeneral, nnx.Conv, nnx.ConvTranspose, nnx.MultiHeadAttention
    return [
        _case("flax mlp", lambda n: S(L(16, n), relu, L(n, n, 1), relu, L(n, 16, 2)), _jax_rows(16),
              "layers.0:first layers.2:hidden layers.4:last"),
        _case("flax norms", lambda n: S(L(3, n), made(nnx.LayerNorm, n), relu, L(n, n, 1), made(nnx.BatchNorm, n), relu,
              L(n, n, 2), made(nnx.RMSNorm, n), nnx.PReLU(), L(n, 2, 3)), _jax_rows(3),
              "layers.0:first layers.1:norm layers.4:norm layers.3:hidden layers.6:hidden layers.7.scale=vector "
              "layers.8.negative_slope=fixed_vector layers.9:last"),
        _case("flax linear over several axes", lambda n: S(made(general, (4, 3), (2, n), axis=(-2, -1)), relu,
              made(general, (2, n), (n, 8), axis=(-2, -1)), relu, made(general, (n, 8), 2, axis=(-2, -1))),
              _jax_rows(4, 3), "layers.0:first layers.2:hidden layers.4:last"),
        _case("flax convolutions", lambda n: S(made(conv, 3, n, (3, 3)), relu,
              made(conv, n, n, (3, 3), feature_group_count=n), relu, made(conv, n, n, (3, 3), feature_group_count=2),
              relu, made(conv, n, 2, (1, 1))), _jax_rows(5, 5, 3),
              "layers.0:first layers.2:first layers.4:hidden layers.6:last"),
        # With `transpose_kernel` a kernel is (taps, out, in), without (taps, in, out).
        _case("flax transposed convolutions", lambda n: S(made(up, 3, n, (3,)), relu,
              made(up, n, 8, (3,), transpose_kernel=True), relu, made(up, 8, n, (3,), transpose_kernel=True), relu,
              made(up, n, 3, (3,))), _jax_rows(6, 3), "layers.0:first layers.4:first layers.2:last layers.6:last"),
        _case("flax embedding", lambda n: NnxNet(lambda m, x: m.c(relu(m.a(x) + m.b[...]).mean(1)),
              a=made(nnx.Embed, 16, n), b=nnx.Param(jnp.ones((6, n))), c=L(n, 2)), _jax_rows(6, below=16),
              "a.embedding=table b=vector c:last"),
        # A table in the one use, a readout in the other.
        _case("flax tied embedding and readout", lambda n: NnxNet(lambda m, x: m.a.attend(relu(m.b(m.a(x).mean(1)))),
              a=made(nnx.Embed, 16, n), b=L(n, n)), _jax_rows(6, below=16), "a.embedding=ambiguous b:hidden"),
        _case("flax attention, two heads", lambda n: NnxNet(lambda m, x: m.c(m.b(m.a(x)).mean(1)), a=L(8, n), c=L(n, 2),
              b=made(attention, num_heads=2, in_features=n, decode=False)), _jax_rows(6, 8),
              "a:first b.query:hidden b.key:hidden b.value:hidden b.out:hidden c:last"),
        # Heads of four: their number grows, and with it the features of all heads.
        _case("flax attention to inputs, heads of four", lambda n: NnxNet(lambda m, x: m.b(m.a(x), x).mean(1),
              a=L(8, n), b=made(attention, num_heads=n // 4, in_features=n, in_kv_features=8, out_features=2,
              decode=False)), _jax_rows(6, 8), "a:first b.key:first b.value:first b.query:hidden b.out:last"),
        _case("flax gru", lambda n: NnxNet(lambda m, x: m.c(m.b(x)[:, -1]), b=nnx.RNN(made(nnx.GRUCell, 8, n)),
              c=L(n, 2)), _jax_rows(6, 8), "b.cell.dense_i:first b.cell.dense_h.kernel=hidden c:last"),
        # `lora_b` is 0 at first, and the base kernel is trained too.
        _case("flax low-rank adapter", lambda n: S(L(3, n), relu, made(nnx.LoRALinear, n, n, lora_rank=2), relu,
              L(n, 2)), _jax_rows(3),
              "layers.0:first layers.2:hidden layers.2.lora.lora_a=last layers.2.lora.lora_b=first layers.4:last"),
        _case("flax scan over eight layers", stacked, _jax_rows(8), "a:first b:hidden c:last"),
    ]  # fmt: skip
