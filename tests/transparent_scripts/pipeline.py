"""Input with tf.data: shuffled, mapped, batched, prefetched; validation from a second one."""

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(11)

with np.load("mnist.npz") as data:
    train = tf.data.Dataset.from_tensor_slices((data["x_train"], data["y_train"]))
    test = tf.data.Dataset.from_tensor_slices((data["x_test"], data["y_test"]))


def normalize(image, label):
    return tf.cast(image, tf.float32) / 255.0, label


train = train.map(normalize, num_parallel_calls=tf.data.AUTOTUNE).cache()
train = train.shuffle(4000).batch(48).prefetch(tf.data.AUTOTUNE)
test = test.map(normalize, num_parallel_calls=tf.data.AUTOTUNE).batch(128)

model = keras.models.Sequential(
    [
        keras.layers.Flatten(),
        keras.layers.Dense(96, activation="relu"),
        keras.layers.Dense(10),
    ]
)
model.compile(
    optimizer=keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.1, 625), momentum=0.9),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=[keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
    steps_per_execution=4,
)
model.fit(train, epochs=5, validation_data=test, verbose=2)
loss, accuracy = model.evaluate(test, verbose=0)
print("Test loss:", loss)
print("Test accuracy:", accuracy)
