"""A small convolutional network on handwritten digits."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(812)

with np.load("mnist.npz") as data:
    x_train, y_train = data["x_train"], data["y_train"]
    x_test, y_test = data["x_test"], data["y_test"]
x_train = x_train[..., None].astype("float32") / 255
x_test = x_test[..., None].astype("float32") / 255
y_train = keras.utils.to_categorical(y_train, 10)
y_test = keras.utils.to_categorical(y_test, 10)

model = keras.Sequential(
    [
        keras.Input(shape=(28, 28, 1)),
        layers.Conv2D(16, kernel_size=3, activation="relu"),
        layers.MaxPooling2D(pool_size=2),
        layers.Conv2D(32, kernel_size=3, activation="relu"),
        layers.MaxPooling2D(pool_size=2),
        layers.Flatten(),
        layers.Dropout(0.2),
        layers.Dense(10, activation="softmax"),
    ]
)
model.summary()
rate = keras.optimizers.schedules.CosineDecay(3e-3, decay_steps=340)
model.compile(
    loss="categorical_crossentropy", optimizer=keras.optimizers.Adam(rate), metrics=["accuracy"]
)
model.fit(x_train, y_train, batch_size=64, epochs=4, validation_split=0.1, verbose=2)

loss, accuracy = model.evaluate(x_test, y_test, verbose=0)
print("Test loss:", loss)
print("Test accuracy:", accuracy)
model.save("convnet.keras")
