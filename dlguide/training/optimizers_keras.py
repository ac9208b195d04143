"""The Keras classes of our optimizers, made where Keras is at hand and registered for saving."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from numbers import Real
from types import SimpleNamespace
from typing import Any

from dlguide.errors import require, require_positive

# Biases, and what normalisation layers learn, by the last part of a Keras variable's path.
EXCLUDED = ("bias", "gamma", "beta", "scale")


@cache
def classes() -> SimpleNamespace:
    """Make the classes and register them, so that saved models find them."""
    import keras
    from keras import ops

    registered = keras.saving.register_keras_serializable("dlguide")

    class Decaying:
        """Weight decay inside the update instead of before it, and variables that have none."""

        def keep_decay(self, weight_decay: Any, exclude: Sequence[str]) -> None:
            is_schedule = isinstance(weight_decay, keras.optimizers.schedules.LearningRateSchedule)
            if not is_schedule and weight_decay is not None:
                _require_at_least_0(weight_decay, "weight_decay")
            listed = not isinstance(exclude, str) and all(isinstance(one, str) for one in exclude)
            require(listed, "exclude", "be a list of variables' names", exclude)
            self.weight_decay = weight_decay
            self.exclude = tuple(exclude)

        def is_adapted(self, variable: Any) -> bool:
            # With TensorFlow an update sees its variable, named "layer/bias:0", not Keras' "bias".
            name = variable.name.split(":")[0].split("/")[-1]
            return len(variable.shape) > 1 and name not in self.exclude

        def decay_of(self, variable: Any, dtype: Any) -> Any:
            if self.weight_decay is None or not self.is_adapted(variable):
                return 0.0
            if not self._use_weight_decay(variable):  # Keras' own list of exceptions
                return 0.0
            if callable(self.weight_decay):
                return ops.cast(self.weight_decay(self._iterations), dtype)
            return self.weight_decay

        def _apply_weight_decay(self, variables: Any) -> None:
            """Leave out what Keras does before the update."""

        def get_config(self) -> dict[str, Any]:
            config = super().get_config()
            if callable(self.weight_decay):
                config["weight_decay"] = keras.saving.serialize_keras_object(self.weight_decay)
            return {**config, "exclude": list(self.exclude)}

        @classmethod
        def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
            if isinstance(config.get("weight_decay"), dict):
                schedule = keras.saving.deserialize_keras_object(
                    config["weight_decay"], custom_objects=custom_objects
                )
                config = {**config, "weight_decay": schedule}
            return super().from_config(config, custom_objects=custom_objects)

    def dense(gradient: Any, dtype: Any) -> Any:
        if hasattr(gradient, "dense_shape"):  # of an embedding: the rows that were used
            import tensorflow as tf

            gradient = tf.convert_to_tensor(gradient)
        return ops.cast(gradient, dtype)

    def norm(tensor: Any) -> Any:
        # Squares of single precision overflow above 1e19 and vanish below 1e-23: divide first.
        # Half precision would lose the sum as well.
        wide = "float64" if keras.backend.standardize_dtype(tensor.dtype) == "float64" else None
        values = ops.cast(tensor, wide or "float32")
        largest = ops.max(ops.abs(values))
        divisor = ops.where(largest > 0, largest, ops.ones_like(largest))
        return largest * ops.sqrt(ops.sum(ops.square(values / divisor)))

    def ratio_or_1(above: Any, below: Any, factor: float, added: Any) -> Any:
        both = ops.logical_and(above > 0, below > 0)
        divisor = ops.where(both, below + added, ops.ones_like(below))
        return ops.where(both, factor * above / divisor, ops.ones_like(above))

    @registered
    class MomentumSGD(Decaying, keras.optimizers.Optimizer):
        """See `dlguide.training.optimizers.momentum_sgd`."""

        def __init__(
            self,
            learning_rate: Any,
            momentum: float = 0.9,
            weight_decay: Any = 1e-4,
            exclude: Sequence[str] = EXCLUDED,
            correct_momentum: bool = True,
            **options: Any,
        ) -> None:
            super().__init__(learning_rate, **options)
            self.keep_decay(weight_decay, exclude)
            self.momentum = _require_fraction(momentum, "momentum")
            self.correct_momentum = bool(correct_momentum)

        def build(self, variables: Any) -> None:
            if not self.built:
                super().build(variables)
                self._velocities = self.add_optimizer_variables(variables, "velocity")

        def local_rate(self, gradient: Any, variable: Any) -> Any:
            return ops.ones((), variable.dtype)

        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
            dtype = variable.dtype
            rate = ops.cast(learning_rate, dtype)
            gradient = dense(gradient, dtype)
            local = ops.cast(self.local_rate(gradient, variable), dtype)
            wanted = local * (gradient + self.decay_of(variable, dtype) * variable)
            velocity = self._velocities[self._get_variable_index(variable)]
            # With the correction the velocity holds no rate, so that a new one acts at once.
            added = wanted if self.correct_momentum else rate * wanted
            self.assign(velocity, self.momentum * velocity + added)
            self.assign_sub(variable, rate * velocity if self.correct_momentum else velocity)

        def get_config(self) -> dict[str, Any]:
            own = {"momentum": self.momentum, "correct_momentum": self.correct_momentum}
            return {**super().get_config(), **own}

    @registered
    class LARS(MomentumSGD):
        """See `dlguide.training.optimizers.lars`."""

        def __init__(
            self,
            learning_rate: Any,
            trust: float = 0.001,
            epsilon: float = 0.0,
            correct_momentum: bool = False,
            **options: Any,
        ) -> None:
            super().__init__(learning_rate, correct_momentum=correct_momentum, **options)
            self.trust = require_positive(trust, "trust")
            self.epsilon = _require_at_least_0(epsilon, "epsilon")

        def local_rate(self, gradient: Any, variable: Any) -> Any:
            if not self.is_adapted(variable):
                return super().local_rate(gradient, variable)
            weights, slope = norm(variable), norm(gradient)
            decay = self.decay_of(variable, weights.dtype)
            return ratio_or_1(weights, slope, self.trust, decay * weights + self.epsilon)

        def get_config(self) -> dict[str, Any]:
            return {**super().get_config(), "trust": self.trust, "epsilon": self.epsilon}

    @registered
    class LAMB(Decaying, keras.optimizers.Lamb):
        """See `dlguide.training.optimizers.lamb`."""

        def __init__(
            self,
            learning_rate: Any = 0.001,
            beta_1: float = 0.9,
            beta_2: float = 0.999,
            epsilon: float = 1e-6,
            weight_decay: Any = 0.01,
            norm_limits: Sequence[float] | None = None,
            exclude: Sequence[str] = EXCLUDED,
            **options: Any,
        ) -> None:
            betas = _require_fraction(beta_1, "beta_1"), _require_fraction(beta_2, "beta_2")
            super().__init__(learning_rate, *betas, require_positive(epsilon, "epsilon"), **options)
            self.keep_decay(weight_decay, exclude)
            self.norm_limits = None if norm_limits is None else tuple(norm_limits)
            for each in self.norm_limits or ():
                _require_at_least_0(each, "norm_limits")
            rising = norm_limits is None or (
                len(norm_limits) == 2 and norm_limits[0] < norm_limits[1]
            )
            require(rising, "norm_limits", "be a lower and a higher number", norm_limits)

        def build(self, variables: Any) -> None:
            for variable in variables:
                dtype = keras.backend.standardize_dtype(variable.dtype)
                then = 'Half precision rounds 0.999 to 1: use a policy such as "mixed_bfloat16".'
                must = "have variables of single or double precision for LAMB"
                require(dtype in ("float32", "float64"), "dtype", must, dtype, then)
            super().build(variables)

        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
            dtype = variable.dtype
            gradient = dense(gradient, dtype)
            index = self._get_variable_index(variable)
            first, second = self._momentums[index], self._velocities[index]
            self.assign(first, self.beta_1 * first + (1 - self.beta_1) * gradient)
            self.assign(second, self.beta_2 * second + (1 - self.beta_2) * ops.square(gradient))
            mean, square = (
                moment / self.learnt(beta, dtype)
                for moment, beta in ((first, self.beta_1), (second, self.beta_2))
            )
            wanted = mean / (ops.sqrt(square) + self.epsilon)
            wanted = wanted + self.decay_of(variable, dtype) * variable
            local = ops.cast(self.trust_ratio(wanted, variable), dtype)
            self.assign_sub(variable, ops.cast(learning_rate, dtype) * local * wanted)

        def learnt(self, beta: float, dtype: Any) -> Any:
            # 1 - beta^t, which would lose its digits in single precision while it is small.
            done = ops.cast(self.iterations + 1, dtype)
            return -ops.expm1(done * math.log(beta)) if beta else ops.ones_like(done)

        def trust_ratio(self, wanted: Any, variable: Any) -> Any:
            if not self.is_adapted(variable):
                return ops.ones((), variable.dtype)
            weights = norm(variable)
            if self.norm_limits is not None:
                weights = ops.clip(weights, *self.norm_limits)
            return ratio_or_1(weights, norm(wanted), 1.0, 0.0)

        def get_config(self) -> dict[str, Any]:
            limits = self.norm_limits and list(self.norm_limits)
            return {**super().get_config(), "norm_limits": limits}

    return SimpleNamespace(MomentumSGD=MomentumSGD, LARS=LARS, LAMB=LAMB)


def _require_at_least_0(value: Any, name: str) -> float:
    number = isinstance(value, Real) and not isinstance(value, bool)
    fits = number and 0 <= value < float("inf")
    require(fits, name, "be a finite number of at least 0", value)
    return float(value)


def _require_fraction(value: Any, name: str) -> float:
    must = "be at least 0 and below 1"
    require(_require_at_least_0(value, name) < 1, name, must, value)
    return float(value)
