"""Kernels of convolutional networks on a GPU, with covariances that never leave the chip [C1, C2].

`dispatch` decides which networks are supported and which program runs. `triton_program` runs on any CUDA GPU,
`hopper_program` on Hopper GPUs (Mosaic GPU; `warp_loop` is the code of one warp, `warp` its operations, `lanes` how its
lanes share pairs). `layout` and `pooling` define where covariances and pooled pairs are in memory, and `relu_dual` is
the dual of ReLU.
"""
