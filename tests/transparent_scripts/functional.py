"""The functional API: two inputs, two outputs, class weights for one of them."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(7)

with np.load("mnist.npz") as data:
    images, digits = data["x_train"] / np.float32(255), data["y_train"]
    test_images, test_digits = data["x_test"] / np.float32(255), data["y_test"]


def brightness(pictures):
    return pictures.mean(axis=(1, 2), keepdims=True)[..., 0]


picture = keras.Input(shape=(28, 28), name="picture")
bright = keras.Input(shape=(1,), name="bright")
x = layers.Flatten()(picture)
x = layers.Dense(64, activation="relu")(x)
x = layers.BatchNormalization()(x)
x = layers.concatenate([x, bright])
digit = layers.Dense(10, name="digit")(x)
round_ = layers.Dense(1, activation="sigmoid", name="round")(x)
model = keras.Model(inputs=[picture, bright], outputs={"digit": digit, "round": round_})

model.compile(
    optimizer=keras.optimizers.RMSprop(1e-3),
    loss={
        "digit": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        "round": "binary_crossentropy",
    },
    loss_weights={"digit": 1.0, "round": 0.3},
    metrics={"digit": ["accuracy"], "round": [keras.metrics.AUC()]},
)
model.fit(
    {"picture": images, "bright": brightness(images)},
    {"digit": digits, "round": np.isin(digits, (0, 6, 8, 9)).astype("float32")},
    sample_weight={"digit": np.where(digits == 1, 0.8, 1.0), "round": np.ones(len(digits))},
    batch_size=50,
    epochs=5,
    verbose=2,
)
results = model.evaluate(
    {"picture": test_images, "bright": brightness(test_images)},
    {"digit": test_digits, "round": np.isin(test_digits, (0, 6, 8, 9)).astype("float32")},
    verbose=0,
    return_dict=True,
)
print("Test loss:", results["loss"])
print("Test accuracy:", results["digit_accuracy"])
