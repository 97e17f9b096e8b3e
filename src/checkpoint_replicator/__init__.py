"""Checkpoint replicator: makes checkpoints in ramdisks survive their node.

This package is the library that the four services share: the vocabulary as types, the pure decisions, the ports to
ZeroMQ, Redis and the backup store, and the operator's command. It knows no service.
"""

from importlib.metadata import version

__all__ = ["__version__"]

__version__ = version("checkpoint-replicator")
