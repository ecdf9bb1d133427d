"""Retrieval across model generations: metrics, compatibility scores, and a gallery that outlives its model."""

from zoo.retrieval.compatibility import (
    CompatibilityScore,
    average_accuracy,
    average_compatibility,
    p_com,
    p_up,
    satisfied,
)
from zoo.retrieval.gallery import Block, GalleryIndex, SearchResult
from zoo.retrieval.metrics import CrossModelRetrieval, RetrievalCMC, RetrievalScores, retrieval_scores, similarity

__all__ = [
    "Block",
    "CompatibilityScore",
    "CrossModelRetrieval",
    "GalleryIndex",
    "RetrievalCMC",
    "RetrievalScores",
    "SearchResult",
    "average_accuracy",
    "average_compatibility",
    "p_com",
    "p_up",
    "retrieval_scores",
    "satisfied",
    "similarity",
]
