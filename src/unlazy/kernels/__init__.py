"""Kernels: each is one elementwise formula `entry(xz, xx, zz)`; Gram matrices, products and gradients are derived."""

from unlazy._lazy_exports import lazy_exports

_MODULES = {
    "algebra": ("Constant",),
    "base": ("InnerProductKernel", "Kernel"),
    "custom": ("Custom",),
    "dot_product": ("ArcCosine", "Linear", "Polynomial"),
    "metric": ("with_metric",),
    "networks.flips": ("with_flips",),
    "networks.infinite_width": ("LayerKernel", "NNGP", "NTK", "nngp_and_ntk"),
    "networks.tangent": ("TangentKernel",),
    "periodic": ("Periodic", "SpectralMixture"),
    "product_laplace": ("ProductLaplace",),
    "radial": ("Gaussian", "Laplace", "Matern", "RationalQuadratic"),
    "sphere": ("OnSphere", "polynomial_on_sphere"),
}
_WHERE = {name: f"unlazy.kernels.{module}" for module, names in _MODULES.items() for name in names}
__all__ = [*_WHERE]
__getattr__, __dir__ = lazy_exports(__name__, _WHERE)
