"""Points of the plane around a ring of places: a distribution that one can see."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dlguide.errors import require, require_count, require_positive

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


@dataclass(frozen=True)
class Ring:
    """A mixture of equally likely normal distributions around the places of a ring.

        p(x) = 1/m sum_k N(x; c_k, deviation^2), c_k = radius (cos 2 pi k/m, sin 2 pi k/m)

    It is the usual touchstone of a GAN (Metz et al. 2016, arXiv:1611.02163, section 3.1): one that
    always gives the same few answers has modes that it never visits, and the eye sees which.
    """

    modes: int = 8
    radius: float = 2.0
    deviation: float = 0.15

    def __post_init__(self):
        require_count(self.modes, "modes")
        require_positive(self.radius, "radius")
        require_positive(self.deviation, "deviation")

    @property
    def centres(self) -> np.ndarray:
        """The places, shape (modes, 2)."""
        angles = 2 * np.pi * np.arange(self.modes) / self.modes
        return self.radius * np.stack([np.cos(angles), np.sin(angles)], axis=1)

    def places(self, seed: Any, samples: int) -> Any:
        """Draw which place each point belongs to, inside a TensorFlow graph or outside."""
        import tensorflow as tf

        return tf.random.stateless_uniform((samples,), seed, 0, self.modes, tf.int32)

    def draw(self, seed: Any, samples: int) -> Any:
        """Draw points, inside a TensorFlow graph or outside."""
        import tensorflow as tf

        centres = tf.gather(tf.constant(self.centres, tf.float32), self.places(seed, samples))
        # another stream of the same seed, or the distance would depend on the place
        apart = tf.random.stateless_normal((samples, 2), tf.stack(seed) + tf.constant([0, 2**20]))
        return centres + self.deviation * apart

    def density(self, points: ArrayLike) -> np.ndarray:
        """Return the probability density at points."""
        square = ((np.asarray(points, float)[..., None, :] - self.centres) ** 2).sum(-1)
        normal = np.exp(-square / (2 * self.deviation**2)) / (2 * np.pi * self.deviation**2)
        return normal.mean(-1)

    def visited(self, points: ArrayLike) -> tuple[int, float]:
        """Count the places that points visit, and the share of good points.

        A point is good when it lies within 3 deviations of a place; of the true ones
        1 - exp(-9/2), or 98.9 %, are. A place is visited when a fifth of its fair share of all
        points are good points near it.
        """
        points = np.asarray(points, float)
        flat = points.ndim == 2 and points.shape[1:] == (2,) and len(points) > 0
        require(flat, "points", "have the shape (samples, 2)", points.shape)
        apart = np.linalg.norm(points[:, None, :] - self.centres, axis=2)
        nearest, good = apart.argmin(axis=1), apart.min(axis=1) <= 3 * self.deviation
        near = np.bincount(nearest[good], minlength=self.modes)
        return int((near >= 0.2 * len(points) / self.modes).sum()), float(good.mean())
