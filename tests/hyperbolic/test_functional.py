"""The geometry against geoopt in float64, its identities, and its precision and safety in float32."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from zoo.hyperbolic import functional as H
from zoo.hyperbolic.manifold import geoopt, lorentz_manifold

CURVATURES = [0.1, 1.0, 2.5]
radii = st.floats(0.0, 6.0)
curvatures = st.floats(0.05, 5.0)
seeds = st.integers(0, 2**31)
no_deadline = settings(deadline=None)  # the first call of anything in torch is slow


def directions(n: int, dim: int, seed: int = 0) -> Tensor:
    """Unit vectors, float64."""
    normal = torch.randn(n, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.normalize(normal, dim=-1)


def vectors(n: int, dim: int, c: float = 1.0, seed: int = 0, low: float = 0.1, high: float = 4.0) -> Tensor:
    """Vectors of random direction whose R = sqrt(c) |v| is uniform in [low, high], float64."""
    generator = torch.Generator().manual_seed(seed + 1)
    scale = torch.rand(n, 1, dtype=torch.float64, generator=generator) * (high - low) + low
    return directions(n, dim, seed) * scale / math.sqrt(c)


def lift(v: Tensor, c: float) -> Tensor:
    """geoopt's exponential map at the origin."""
    return lorentz_manifold(c).expmap0(torch.cat([torch.zeros_like(v[..., :1]), v], dim=-1))


# ---------------------------------------------------------------- against geoopt in float64


@pytest.mark.parametrize("c", CURVATURES)
def test_maps_agree_with_geoopt(c: float) -> None:
    v = vectors(200, 8, c)
    h = H.exp_map0(v, c)
    torch.testing.assert_close(h, lift(v, c), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(H.log_map0(h, c), v, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(H.log_map0(h, c), lorentz_manifold(c).logmap0(h)[..., 1:], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(H.lorentz_inner(h, h), torch.full((200,), -1 / c, dtype=torch.float64))


@pytest.mark.parametrize("c", CURVATURES)
def test_distances_agree_with_geoopt(c: float) -> None:
    x, y = vectors(60, 8, c), vectors(80, 8, c, seed=5)
    expected = lorentz_manifold(c).dist(lift(x, c)[:, None], lift(y, c))
    for got in (H.dist(x[:, None], y, c), H.pairwise_dist(x, y, c), H.pairwise_dist(x, y, c, exact=True)):
        torch.testing.assert_close(got, expected, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(H.dist(torch.zeros_like(x), x, c), x.norm(dim=-1), rtol=1e-14, atol=0)


def test_curvature_may_be_a_tensor_and_gets_a_gradient() -> None:
    c = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    x, y = vectors(5, 4), vectors(5, 4, seed=9)
    torch.testing.assert_close(H.dist(x, y, c), H.dist(x, y, 0.7))
    assert torch.autograd.gradcheck(lambda c: H.dist(x, y, c), (c,))
    assert torch.autograd.gradcheck(lambda c: H.pairwise_dist(x, y, c), (c,))


# ---------------------------------------------------------------- identities


@no_deadline
@given(radii, curvatures, seeds)
def test_uncertainty_is_one_minus_the_poincare_norm(radius: float, c: float, seed: int) -> None:
    v = directions(1, 5, seed) * radius / math.sqrt(c)
    h = H.exp_map0(v, c)
    ball = math.sqrt(c) * h[..., 1:].norm(dim=-1) / (1 + math.sqrt(c) * h[..., 0])  # stereographic projection
    torch.testing.assert_close(H.poincare_norm(v, c), ball, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(H.uncertainty(v, c), 1 - ball, rtol=1e-12, atol=1e-12)


def test_clip_uncertainty() -> None:
    v = torch.tensor([[0.0, 0.0], [1.5, 2.0], [3.0, 4.0]])
    torch.testing.assert_close(H.uncertainty(v, kind="clip", clip_radius=5.0), torch.tensor([1.0, 0.5, 0.0]))


@no_deadline
@given(radii, radii, curvatures, seeds)
def test_distance_is_a_metric(rx: float, ry: float, c: float, seed: int) -> None:
    x, y, z = directions(3, 4, seed) * torch.tensor([[rx], [ry], [1.0]])
    torch.testing.assert_close(H.dist(x, y, c), H.dist(y, x, c), rtol=1e-12, atol=1e-12)
    assert H.dist(x, x, c) == 0
    assert H.dist(x, y, c) <= H.dist(x, z, c) + H.dist(z, y, c) + 1e-12
    assert H.dist(x, y, c) >= (x.norm() - y.norm()).abs() - 1e-12
    # Negative curvature only spreads. (Lengths below 1e-15 are not resolved.)
    assert H.dist(x, y, c) >= (x - y).norm() * (1 - 1e-12) - 1e-15


@no_deadline
@given(st.floats(0.05, 5.0), st.floats(0.05, 5.0), curvatures, seeds)
def test_exterior_angle_forms(rx: float, ry: float, c: float, seed: int) -> None:
    x, y = directions(2, 4, seed) * torch.tensor([[rx], [ry]]) / math.sqrt(c)
    hx, hy = H.exp_map0(x, c), H.exp_map0(y, c)
    inner = c * H.lorentz_inner(hx, hy)
    cosine = (hy[0] + hx[0] * inner) / (hx[1:].norm() * (inner.square() - 1).sqrt())
    torch.testing.assert_close(H.exterior_angle(x, y, c), cosine.clamp(-1, 1).acos(), rtol=1e-6, atol=1e-6)

    # Pi minus the angle at x between the geodesics to the origin and to y, from geoopt's logarithmic map.
    manifold = lorentz_manifold(c)
    origin = lift(torch.zeros_like(x), c)
    to_origin, to_y = manifold.logmap(hx, origin), manifold.logmap(hx, hy)
    cosine = manifold.inner(hx, to_origin, to_y) / (manifold.norm(to_origin) * manifold.norm(to_y))
    torch.testing.assert_close(H.exterior_angle(x, y, c), math.pi - cosine.clamp(-1, 1).acos(), rtol=1e-5, atol=1e-5)


def test_exterior_angle_at_its_limits() -> None:
    x = vectors(50, 6)
    assert (H.exterior_angle(x, x) == 0).all()
    torch.testing.assert_close(H.exterior_angle(x, 2 * x), torch.zeros(50).double(), rtol=0, atol=1e-7)
    for inside in (x / 2, -x, torch.zeros_like(x)):
        torch.testing.assert_close(H.exterior_angle(x, inside), torch.full((50,), math.pi).double())


@no_deadline
@given(st.floats(0.01, 6.0), st.floats(0.0, 1.0), curvatures, seeds)
def test_no_point_nearer_the_origin_is_in_the_cone(rx: float, shrink: float, c: float, seed: int) -> None:
    u = directions(2, 3, seed)
    x, y = u[0] * rx, u[1] * rx * shrink
    assert H.exterior_angle(x, y, c) > math.pi / 2


@pytest.mark.parametrize("min_radius", [0.1, 0.4])
@pytest.mark.parametrize("c", [0.5, 1.0])
def test_cones_are_transitive(min_radius: float, c: float) -> None:
    def in_cone(x: Tensor, y: Tensor) -> Tensor:
        return H.exterior_angle(x, y, c) <= H.half_aperture(x, c, min_radius)

    def near_cone(x: Tensor, seed: int) -> Tensor:
        """Further out than x, in a direction that its cone may or may not hold."""
        step, aside = torch.rand(2, len(x), 1, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        u = torch.nn.functional.normalize(x, dim=-1)
        across = directions(len(x), 3, seed)
        across = torch.nn.functional.normalize(across - (across * u).sum(-1, keepdim=True) * u, dim=-1)
        angle = 1.2 * aside * H.max_cone_angle(x, c, min_radius)[:, None]
        return (x.norm(dim=-1, keepdim=True) + 3 * step) * (angle.cos() * u + angle.sin() * across)

    smallest = math.asinh(2 * min_radius)
    x = vectors(5000, 3, c, low=smallest, high=smallest + 1)
    y = near_cone(x, 1)
    z = near_cone(y, 2)
    chain = in_cone(x, y) & in_cone(y, z)
    assert chain.sum() > 500
    assert not in_cone(x, z).all()
    assert in_cone(x, z)[chain].all()


@pytest.mark.parametrize(
    ("min_radius", "radius", "degrees"),
    [(0.1, 0.5, 13.8), (0.1, 1.0, 3.6), (0.1, 2.0, 0.43), (0.1, 4.0, 0.01), (0.4, 1.0, 16.5), (0.4, 2.0, 1.7)],
)
def test_max_cone_angle_bounds_every_point_of_the_cone(min_radius: float, radius: float, degrees: float) -> None:
    c = 2.0
    x = torch.tensor([radius / math.sqrt(c), 0.0], dtype=torch.float64)
    limit = H.max_cone_angle(x, c, min_radius)
    assert math.degrees(limit) == pytest.approx(degrees, rel=0.04, abs=0.005)

    def inside(angle: Tensor) -> Tensor:
        out = torch.linspace(radius, radius + 12, 400, dtype=torch.float64)[:, None] / math.sqrt(c)
        y = out * torch.stack([angle.cos(), angle.sin()])
        return (H.exterior_angle(x, y, c) <= H.half_aperture(x, c, min_radius)).any()

    assert not inside(1.001 * limit)
    assert inside(0.999 * limit)  # and the bound is tight


def test_half_aperture() -> None:
    x = torch.tensor([[0.0, 0.0], [0.05, 0.0], [1.0, 0.0], [3.0, 0.0]], dtype=torch.float64)
    psi = H.half_aperture(x, 4.0, min_radius=0.1)
    assert (psi[:2] == math.asin(1 - 1e-4)).all()
    assert psi[2:].tolist() == pytest.approx([math.asin(0.2 / math.sinh(r)) for r in (2, 6)])


@pytest.mark.parametrize("c", CURVATURES)
def test_centroid_is_the_normalised_mean(c: float) -> None:
    x, weights = vectors(30, 6, c).reshape(3, 10, 6), torch.rand(3, 10, dtype=torch.float64)
    mean = (weights[..., None] * lift(x, c)).sum(1) / weights.sum(1, keepdim=True)
    expected = mean / (math.sqrt(c) * (-H.lorentz_inner(mean, mean)).sqrt())[:, None]
    torch.testing.assert_close(H.exp_map0(H.lorentz_centroid(x, c, weights), c), expected, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(H.lorentz_centroid(x[:, :1], c), x[:, 0], rtol=1e-12, atol=1e-12)


def test_centroid_far_from_the_origin_in_float32() -> None:
    x = 8 * directions(1, 8) + 0.3 * directions(20, 8, seed=1)
    torch.testing.assert_close(H.lorentz_centroid(x.float()).double(), H.lorentz_centroid(x), rtol=0, atol=2e-6)


def test_clip_norm() -> None:
    v = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
    torch.testing.assert_close(H.clip_norm(v, 1.0), torch.tensor([[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]]))
    assert torch.equal(H.clip_norm(v, 1.0)[1:], v[1:])


# ---------------------------------------------------------------- gradients


@pytest.mark.parametrize(
    "function",
    [
        H.dist,
        H.pairwise_dist,
        lambda x, y, c: H.pairwise_dist(x, y, c, exact=True, chunk_size=3),
        H.exterior_angle,
        lambda x, y, c: H.half_aperture(x, c) + H.max_cone_angle(y, c) + H.uncertainty(x, c),
        lambda x, y, c: H.lorentz_centroid(torch.stack([x, y]), c),
        lambda x, y, c: H.log_map0(H.exp_map0(x, c) + H.exp_map0(y, c), c),
    ],
    ids=["dist", "pairwise", "exact", "exterior", "radial", "centroid", "maps"],
)
def test_gradcheck(function: Callable[..., Tensor]) -> None:
    x = vectors(4, 3, low=0.5, high=2).requires_grad_()
    y = vectors(4, 3, seed=3, low=0.5, high=2).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, y: function(x, y, 0.8), (x, y))


def test_pairwise_has_second_derivatives() -> None:
    x, y = vectors(3, 3).requires_grad_(), vectors(4, 3, seed=3).requires_grad_()
    assert torch.autograd.gradgradcheck(H.pairwise_dist, (x, y))


def test_pairwise_passes_no_gradient_between_points_it_cannot_tell_apart() -> None:
    x = (3 * directions(64, 32)).float().requires_grad_()
    (grad,) = torch.autograd.grad(H.pairwise_dist(x, x.detach()).diagonal().sum(), x)
    assert grad.norm(dim=-1).median() == 0
    # A true gradient would be as long as sinh(R) / R; rounding must not make up more than a small part of that.
    assert grad.norm(dim=-1).max() < 0.1 * math.sinh(3) / 3


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from([torch.float32, torch.float64]),
    st.sampled_from([0.0, 1e-30, 1e-18, 1e-9, 1e-4, 0.3, 1.0, 4.0, 8.0, 20.0, 100.0, 1e6]),
    st.sampled_from(["equal", "opposite", "collinear", "origin", "other", "next", "near"]),
    st.sampled_from([0.1, 1.0, 2.5]),
    seeds,
)
def test_values_and_gradients_are_finite_everywhere(
    dtype: torch.dtype, radius: float, relation: str, c: float, seed: int
) -> None:
    u, v = directions(2, 5, seed)
    x = (radius * u).to(dtype)
    y = {
        "equal": x.clone(),
        "opposite": -x,
        "collinear": 0.5 * x,
        "origin": torch.zeros_like(x),
        "other": (3 * v).to(dtype),
        "next": torch.nextafter(x, torch.full_like(x, math.inf)),
        "near": (radius * (u + 1e-4 * v)).to(dtype),
    }[relation]
    x, y = x[None].requires_grad_(), y[None].requires_grad_()
    outputs = [
        H.dist(x, y, c),
        H.pairwise_dist(x, y, c),
        H.pairwise_dist(x, y, c, exact=True),
        H.exterior_angle(x, y, c),
        H.half_aperture(x, c) + H.max_cone_angle(y, c),
        H.uncertainty(x, c) + H.poincare_norm(y, c),
        H.lorentz_centroid(torch.cat([x, y]), c),
        H.log_map0(H.exp_map0(x, c), c) + y,
    ]
    for output in outputs:
        assert output.isfinite().all()
        for grad in torch.autograd.grad(output.sum(), (x, y), retain_graph=True, allow_unused=True):
            assert grad is None or grad.isfinite().all()


def test_beyond_the_range_of_float32_points_stay_at_its_edge() -> None:
    x = torch.tensor([[30.0, 0.0], [1e6, 0.0]])
    edge = math.log(torch.finfo(torch.float32).max) / 4
    assert edge > 2 * H.MAX_RADIUS
    torch.testing.assert_close(H.dist(torch.zeros(2, 2), x), torch.full((2,), edge))


# ---------------------------------------------------------------- precision in float32


@pytest.mark.parametrize("radius", [1.0, 2.0, 4.0, 8.0])
@pytest.mark.parametrize("gap", [1e-6, 1e-4, 1e-2, 1.0])
def test_distance_error_is_relative(radius: float, gap: float) -> None:
    x = (radius * directions(1000, 32)).float()
    y = (x.double() + gap * directions(1000, 32, seed=1)).float()
    exact = H.dist(x.double(), y.double())
    assert ((H.dist(x, y).double() - exact).abs() / exact).max() < 2e-6
    assert (H.dist(x, x) == 0).all()


@pytest.mark.parametrize(("radius", "bound"), [(1.0, 2e-7), (4.0, 1e-6), (8.0, 4e-5)])
def test_exact_pairwise_error(radius: float, bound: float) -> None:
    x = (radius * directions(300, 32)).float()
    for gap in (1e-4, 1e-3):
        y = (x.double() + gap * radius * directions(300, 32, seed=1)).float()
        error = H.pairwise_dist(x, y, exact=True).double() - H.dist(x.double()[:, None], y.double())
        assert error.diagonal().abs().max() < bound
        assert error.abs().max() < max(bound, 4e-6)
    assert (H.pairwise_dist(x, x, exact=True).diagonal() == 0).all()


def test_fast_pairwise_error() -> None:
    x, y = vectors(300, 128, low=0.0).float(), vectors(400, 128, seed=3, low=0.0).float()
    error = (H.pairwise_dist(x, y).double() - H.dist(x.double()[:, None], y.double())).abs().max()
    assert error < 1e-5  # the acosh of a Lorentz product reaches 1e-4 here

    # What it cannot do, so that nobody looks for duplicates with it; the acosh form is no better.
    x = (4 * directions(300, 128)).float()
    assert 1e-3 < H.pairwise_dist(x, x).diagonal().max() < 0.05
    near_origin = 1e-3 * x
    assert H.pairwise_dist(near_origin, near_origin).diagonal().max() < 1e-5


@pytest.mark.parametrize("radius", [1.0, 4.0, 8.0])
@pytest.mark.parametrize("gap", [1e-6, 1e-4, 1e-2, 1.0])
def test_exterior_angle_error(radius: float, gap: float) -> None:
    x = (radius * directions(2000, 32)).float()
    for further in (1.0, 1.02):  # towards anywhere, and nearly straight out
        y = (further * x.double() + gap * directions(2000, 32, seed=1)).float()
        error = (H.exterior_angle(x, y).double() - H.exterior_angle(x.double(), y.double())).abs().max()
        assert error < 2e-5


def test_why_not_geoopt_in_float32() -> None:
    """Passes as long as geoopt needs our forms: its distance from a point to itself."""
    manifold = geoopt.Lorentz(k=torch.tensor(1.0))
    x = (8 * directions(100, 32)).float()
    h = manifold.expmap0(torch.cat([torch.zeros(100, 1), x], dim=-1))
    self_distance = manifold.dist(h, h)
    assert not (self_distance < 0.5).all()  # NaN or large


# ---------------------------------------------------------------- dtypes, autocast, compilation


@pytest.mark.parametrize("function", [H.dist, H.pairwise_dist, H.exterior_angle, lambda x, y: H.half_aperture(x)])
def test_autocast_changes_nothing(function: Callable[[Tensor, Tensor], Tensor]) -> None:
    x, y = vectors(6, 8).bfloat16(), vectors(6, 8, seed=2).bfloat16()
    expected = function(x.float(), y.float())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = function(x, y)
    assert got.dtype == torch.float32
    assert torch.equal(got, expected)
    assert function(x.double(), y).dtype == torch.float64


@pytest.mark.slow
def test_compiles_without_graph_breaks() -> None:
    def total(x: Tensor, y: Tensor) -> Tensor:
        return H.pairwise_dist(x, y).mean() + H.dist(x, y).mean() + H.exterior_angle(x, y).mean()

    x, y = vectors(5, 4).float().requires_grad_(), vectors(5, 4, seed=2).float()
    compiled = torch.compile(total, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, y), total(x, y))
    (got,) = torch.autograd.grad(compiled(x, y), x)
    torch.testing.assert_close(got, *torch.autograd.grad(total(x, y), x))


def test_chunks_do_not_change_the_result() -> None:
    x, y = vectors(23, 4), vectors(7, 4, seed=1)
    whole = H.pairwise_dist(x, y, exact=True)
    for chunk_size in (1, 5, 23, 100):
        chunked = H.pairwise_dist(x, y, exact=True, chunk_size=chunk_size)
        torch.testing.assert_close(chunked, whole, rtol=1e-13, atol=0)
    assert H.pairwise_dist(x[:0], y).shape == H.pairwise_dist(x[:0], y, exact=True).shape == (0, 7)


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize("c", [0.0, -1.0, math.nan, math.inf])
def test_curvature_must_be_positive(c: float) -> None:
    with pytest.raises(ValueError, match=f"c must be positive and finite.*{c}"):
        H.dist(torch.ones(2), torch.ones(2), c)


def test_bad_arguments() -> None:
    x = torch.ones(3, 4)
    with pytest.raises(ValueError, match=r"0-d tensor, got shape \(3,\)"):
        H.dist(x, x, torch.ones(3))
    for function in (H.dist, H.exterior_angle, H.lorentz_inner, H.pairwise_dist):
        with pytest.raises(ValueError, match=r"same last dimension, got \(3, 4\) and \(3, 5\)"):
            function(x, torch.ones(3, 5))
    with pytest.raises(ValueError, match=r"\(N, D\) and \(M, D\), got \(4,\)"):
        H.pairwise_dist(x[0], x)
    with pytest.raises(ValueError, match="chunk_size must be at least 1, got 0"):
        H.pairwise_dist(x, x, exact=True, chunk_size=0)
    with pytest.raises(ValueError, match=r"min_radius must be positive and finite, got 0\.0"):
        H.half_aperture(x, min_radius=0.0)
    with pytest.raises(ValueError, match="kind must be 'poincare' or 'clip', got 'norm'"):
        H.uncertainty(x, kind="norm")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="needs a positive clip_radius, got None"):
        H.uncertainty(x, kind="clip")
    with pytest.raises(ValueError, match=r"at least one vector, got \(0, 4\)"):
        H.lorentz_centroid(x[:0])
