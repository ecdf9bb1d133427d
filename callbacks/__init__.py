"""Callbacks for any Lightning project, imported as ``zoo.callbacks``."""

from zoo.callbacks.backward_compatibility import BackwardCompatibility
from zoo.callbacks.embedding_writer import EmbeddingWriter

__all__ = ["BackwardCompatibility", "EmbeddingWriter"]
