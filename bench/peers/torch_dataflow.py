"""Batches of JPEG images with torchvision's transforms and torch's DataLoader."""

import dataflow_timer as timer

FORMS = ["pil", "v2-tensor"]


def main():
    args = timer.arguments(__doc__, FORMS)

    import torch
    import torchvision
    from torchvision.transforms import v2

    torch.set_num_threads(1)
    strength = timer.STRENGTH
    steps = [
        v2.RandomResizedCrop(timer.SIDE, scale=timer.AREA, antialias=args.form == "pil"),
        v2.RandomHorizontalFlip(),
        v2.ColorJitter(strength, strength, strength),
    ]

    class Photographs(torch.utils.data.IterableDataset):
        """Yields this worker's share of the files forever."""

        def __init__(self):
            self.files = timer.photographs(args)
            self.transform = v2.Compose([*steps, v2.PILToTensor()] if args.form == "pil" else steps)

        def load(self, file):
            if args.form == "pil":
                from PIL import Image

                return Image.open(file).convert("RGB")
            data = torchvision.io.read_file(file)
            return torchvision.io.decode_jpeg(data, torchvision.io.ImageReadMode.RGB)

        def __iter__(self):
            worker = torch.utils.data.get_worker_info()
            while True:
                for file in self.files[worker.id :: worker.num_workers]:
                    yield self.transform(self.load(file))

    batches = iter(torch.utils.data.DataLoader(Photographs(), batch_size=args.batch, num_workers=args.workers))
    version = f"torch {torch.__version__}, torchvision {torchvision.__version__}"
    timer.measure(args, "torch", version, lambda: next(batches))


if __name__ == "__main__":
    main()
