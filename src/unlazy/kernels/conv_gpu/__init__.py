"""Convolutional kernels on a card, displacement planes on chip [C1, C2]: `stages` says which networks and who computes.

`program` runs on any card (Triton), `warps` on Hopper cards (Mosaic GPU; `walk` is one warp, `machine` what it can do,
`lanes` how it shares pairs); `layout` and `pooling` say where planes and pooled pairs lie, `dual` is ReLU's.
"""
