"""Readers of data sets in the folders and files in which they are published.

    from dlguide.data import formats
    from dlcourse.readers import imagenet

    with formats.create("packed", "tfrecord") as writer:
        for sample in imagenet.read("imagenet", "train").samples():
            writer.append(sample)

`samples()` of each reader gives the files' own bytes with labels and a key, checked, for any of
the formats; `items()` lists the files with their labels for an input pipeline that reads them.
"""
