"""Gradient descent on finite networks: the training loop, losses, stability and recorded measures."""
