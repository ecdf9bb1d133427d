from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from zoo.retrieval import (
    CompatibilityScore,
    average_accuracy,
    average_compatibility,
    p_com,
    p_up,
    retrieval_scores,
    satisfied,
)

# CMC@1 on CIFAR-100, arXiv 2506.05826, Table 1: (M(o,o), M(*,*)) of each scenario and geometry, and
# (self, cross, P_up, P_com) of each method.
PUBLISHED = {
    ("Ext-class", "Euclidean"): (0.376, 0.716),
    ("Ext-class", "hyperbolic"): (0.425, 0.722),
    ("New-arch", "Euclidean"): (0.714, 0.900),
    ("New-arch", "hyperbolic"): (0.723, 0.897),
}
ROWS = [
    ("Ext-class", "Euclidean", "independent", 0.716, 0.019, 0, -1.052),
    ("Ext-class", "Euclidean", "l2", 0.712, 0.478, -0.005, 0.302),
    ("Ext-class", "Euclidean", "BCT", 0.695, 0.447, -0.029, 0.210),
    ("Ext-class", "Euclidean", "Hot-Refresh", 0.715, 0.498, -0.001, 0.360),
    ("Ext-class", "Euclidean", "AdvBCT", 0.708, 0.459, -0.011, 0.244),
    ("Ext-class", "Euclidean", "HOC", 0.713, 0.490, -0.003, 0.336),
    ("Ext-class", "hyperbolic", "independent", 0.722, 0.002, 0, -1.428),
    ("Ext-class", "hyperbolic", "HBCT w/o entailment", 0.726, 0.555, 0.006, 0.435),
    ("Ext-class", "hyperbolic", "HBCT", 0.722, 0.572, -0.001, 0.495),
    ("New-arch", "Euclidean", "independent", 0.900, 0.021, 0, -3.706),
    ("New-arch", "Euclidean", "l2", 0.896, 0.778, -0.005, 0.343),
    ("New-arch", "Euclidean", "BCT", 0.897, 0.830, -0.004, 0.623),
    ("New-arch", "Euclidean", "Hot-Refresh", 0.897, 0.810, -0.003, 0.517),
    ("New-arch", "Euclidean", "AdvBCT", 0.891, 0.797, -0.011, 0.449),
    ("New-arch", "Euclidean", "HOC", 0.895, 0.813, -0.006, 0.534),
    ("New-arch", "hyperbolic", "independent", 0.897, 0.009, 0, -4.085),
    ("New-arch", "hyperbolic", "HBCT w/o entailment", 0.898, 0.6915, 0.001, -0.178),
    ("New-arch", "hyperbolic", "HBCT", 0.893, 0.886, -0.004, 0.937),
]


if __name__ == "__main__":
    for scen, geo, name, own, cross, up, com in ROWS:
        o, i = PUBLISHED[scen, geo]
        print(scen, geo, name, round(p_up(own, i) - up, 4), round(p_com(cross, o, i) - com, 4))
