"""A subclassed model with a training step and metrics of its own."""

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(3)


class Classifier(keras.Model):
    def __init__(self, units=64):
        super().__init__()
        self.flatten = keras.layers.Flatten()
        self.hidden = keras.layers.Dense(units, activation="relu")
        self.drop = keras.layers.Dropout(0.1)
        self.scores = keras.layers.Dense(10)
        self.loss_tracker = keras.metrics.Mean(name="loss")
        self.accuracy = keras.metrics.SparseCategoricalAccuracy(name="accuracy")

    def call(self, x, training=False):
        return self.scores(self.drop(self.hidden(self.flatten(x)), training=training))

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=y_pred)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.loss_tracker.update_state(loss, sample_weight=tf.shape(x)[0])
        self.accuracy.update_state(y, y_pred)
        norm = tf.linalg.global_norm(gradients)
        return {"loss": self.loss_tracker.result(), "norm": norm}

    def test_step(self, data):
        x, y = data
        y_pred = self(x, training=False)
        self.loss_tracker.update_state(
            self.compute_loss(y=y, y_pred=y_pred), sample_weight=tf.shape(x)[0]
        )
        self.accuracy.update_state(y, y_pred)
        return {metric.name: metric.result() for metric in self.metrics}

    @property
    def metrics(self):
        return [self.loss_tracker, self.accuracy]


with np.load("mnist.npz") as data:
    x_train, y_train = data["x_train"].astype("float32") / 255, data["y_train"]
    x_test, y_test = data["x_test"].astype("float32") / 255, data["y_test"]

model = Classifier()
model.compile(
    optimizer=keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(4e-3, 300)),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
)
model.fit(x_train, y_train, batch_size=100, epochs=5, verbose=2)
results = model.evaluate(x_test, y_test, verbose=0, return_dict=True)
print("Test loss:", results["loss"])
print("Test accuracy:", results["accuracy"])
