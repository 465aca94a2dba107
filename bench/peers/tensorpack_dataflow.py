"""Batches of JPEG images with Tensorpack's dataflow and OpenCV."""

import dataflow_timer as timer

FORMS = ["runner", "map-and-batch", "map"]


def main():
    args = timer.arguments(__doc__, FORMS)
    files = timer.photographs(args)

    import cv2
    import numpy
    import tensorpack
    from tensorpack import dataflow
    from tensorpack.dataflow import imgaug

    cv2.setNumThreads(0)
    low, high = 1 - timer.STRENGTH, 1 + timer.STRENGTH
    augmentors = imgaug.AugmentorList(
        [
            imgaug.GoogleNetRandomCropAndResize(timer.AREA, target_shape=timer.SIDE, interp=cv2.INTER_LINEAR),
            imgaug.Flip(horiz=True),
            imgaug.BrightnessScale((low, high)),
            imgaug.Contrast((low, high)),
            imgaug.Saturation(timer.STRENGTH, rgb=False),
        ]
    )

    def load(sample):
        image = cv2.imdecode(numpy.fromfile(sample[0], dtype=numpy.uint8), cv2.IMREAD_COLOR)
        return [augmentors.augment(image)]

    data = dataflow.DataFromList([[f] for f in files], shuffle=False)
    data = dataflow.RepeatedData(data, -1)
    if args.form == "runner":
        data = dataflow.BatchData(dataflow.MapData(data, load), args.batch)
        data = dataflow.MultiProcessRunnerZMQ(data, args.workers)
    elif args.form == "map-and-batch":
        data = dataflow.MultiProcessMapAndBatchDataZMQ(data, args.workers, load, args.batch, buffer_size=4 * args.batch)
    else:
        data = dataflow.MultiProcessMapDataZMQ(data, args.workers, load, buffer_size=4 * args.batch)
        data = dataflow.BatchData(data, args.batch)
    data.reset_state()
    batches = iter(data)
    version = f"tensorpack {tensorpack.__version__}, OpenCV {cv2.__version__}"
    timer.measure(args, "tensorpack", version, lambda: next(batches)[0])


if __name__ == "__main__":
    main()
