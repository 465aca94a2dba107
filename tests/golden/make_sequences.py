#!/usr/bin/env python3
"""Golden values of the CTC loss, computed by PyTorch in float64; writes sequences.json next to itself.

Run:    python tests/golden/make_sequences.py            (needs `pip install torch`)
Check:  python tests/golden/make_sequences.py --check    (recomputes, compares with the file, and compares every
                                                          gradient with finite differences)

README.md beside this file describes the format, which is that of ops.json.
"""

import sys

import torch
import torch.nn.functional as F

import make_golden
from make_golden import HERE, Source, document, make_ops


def ctc_loss(attrs, logits):
    log_probs = F.log_softmax(logits, 2).transpose(0, 1)
    labels = torch.tensor(attrs["labels"], dtype=torch.int64).reshape(logits.shape[0], -1)
    return F.ctc_loss(
        log_probs, labels, attrs["input_lengths"], attrs["label_lengths"], attrs["blank"], "none",
        attrs["zero_infinity"])


def cases():
    """Yields (name, op, attrs, inputs)."""

    def case(tag, sizes, labels, input_lengths, label_lengths, blank=0, zero_infinity=False, scale=1.0):
        name = f"ctc_loss_{tag}"
        attrs = {"labels": labels, "input_lengths": input_lengths, "label_lengths": label_lengths, "blank": blank,
                 "zero_infinity": zero_infinity}
        return name, "ctc_loss", attrs, [Source(name).normal(*sizes, scale=scale)]

    yield case("plain", (2, 6, 4), [[1, 2, 3], [3, 1, 2]], [6, 6], [3, 3])
    yield case("lengths", (3, 7, 4), [[1, 2, 3], [3, 1, 1], [2, 1, 1]], [7, 4, 5], [3, 2, 1])
    yield case("repeated", (2, 6, 3), [[1, 1, 1], [2, 2, 1]], [6, 5], [3, 3])
    yield case("tight", (2, 5, 3), [[1, 1, 2], [1, 2, 1]], [4, 3], [3, 3])
    yield case("empty_label", (2, 5, 3), [[1, 2], [2, 1]], [5, 4], [0, 2])
    yield case("no_labels", (2, 3, 3), [[], []], [3, 2], [0, 0])
    yield case("one_step", (3, 1, 4), [[1], [3], [2]], [1, 1, 1], [1, 1, 0])
    yield case("last_blank", (2, 6, 4), [[0, 1, 2], [1, 1, 0]], [6, 6], [3, 3], blank=3)
    yield case("infeasible", (3, 4, 3), [[1, 1, 1], [1, 2, 1], [2, 2, 1]], [4, 4, 3], [3, 3, 3], zero_infinity=True)
    yield case("peaked", (2, 8, 5), [[1, 4, 4, 2], [3, 3, 3, 1]], [8, 8], [4, 4], scale=8.0)
    yield case("long", (1, 40, 6), [[1, 2, 3, 4, 5, 5, 4, 3, 2, 1, 1, 2]], [38], [12])


def main():
    check = "--check" in sys.argv[1:]
    torch.set_num_threads(1)
    make_golden.OPS["ctc_loss"] = ctc_loss
    text, path = document("cases", make_ops(check, cases())), HERE / "sequences.json"
    if not check:
        path.write_text(text)
        print(f"sequences.json: {len(text) / 1024:.0f} KB")
        return 0
    same = path.exists() and path.read_text() == text
    print(f"sequences.json: {'identical' if same else 'DIFFERS'}")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
