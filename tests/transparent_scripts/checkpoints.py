"""Callbacks: the best model kept, the rate lowered, training stopped and logged, a log by hand."""

import json
import os

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(21)

with np.load("mnist.npz") as data:
    x_train, y_train = data["x_train"].reshape(-1, 784) / np.float32(255), data["y_train"]
    x_test, y_test = data["x_test"].reshape(-1, 784) / np.float32(255), data["y_test"]

if not os.path.exists("checkpoints"):
    os.mkdir("checkpoints")

model = keras.Sequential(
    [
        keras.Input((784,)),
        layers.Dense(48, activation="tanh", kernel_regularizer="l2"),
        layers.Dense(10, activation="softmax"),
    ]
)
model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
callbacks = [
    keras.callbacks.ModelCheckpoint("checkpoints/{epoch:02d}.weights.h5", save_weights_only=True),
    keras.callbacks.ModelCheckpoint("best.keras", monitor="val_accuracy", save_best_only=True),
    keras.callbacks.ReduceLROnPlateau(patience=1),
    keras.callbacks.EarlyStopping(monitor="val_loss", min_delta=0.02, patience=2),
    keras.callbacks.CSVLogger("log.csv"),
    keras.callbacks.BackupAndRestore("backup"),
]
history = model.fit(
    x_train, y_train, batch_size=32, epochs=8, validation_split=0.2, callbacks=callbacks, verbose=2
)
with open("history.json", "w") as file:
    json.dump({key: [float(v) for v in values] for key, values in history.history.items()}, file)
with open("history.json") as file:
    assert len(json.load(file)["loss"]) == len(history.epoch)

best = keras.models.load_model("best.keras")
loss, accuracy = best.evaluate(x_test, y_test, verbose=0)
model.save("last.keras")
print("Epochs:", len(history.epoch))
print("Test loss:", loss)
print("Test accuracy:", accuracy)
