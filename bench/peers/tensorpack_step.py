#!/usr/bin/env python3
"""One training step of the reference models with Tensorpack's own layers, in TensorFlow's graph mode on the CPU."""

import os

import step_timer

FORMS = ["graph"]
args = step_timer.arguments(__doc__, FORMS)
os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
import tensorpack
from tensorpack.models import BatchNorm, Conv2D, FullyConnected, GlobalAvgPooling, MaxPooling
from tensorpack.tfutils.argscope import argscope
from tensorpack.tfutils.tower import TowerContext


def mlp(x):
    x = FullyConnected("fc0", x, 512, activation=tf.nn.relu)
    x = FullyConnected("fc1", x, 512, activation=tf.nn.relu)
    return FullyConnected("fc2", x, step_timer.CLASSES)


def mnist(x):
    with argscope(Conv2D, kernel_size=3, activation=tf.nn.relu, filters=32):
        x = Conv2D("conv0", x)
        x = MaxPooling("pool0", x, 2)
        x = Conv2D("conv1", x)
        x = Conv2D("conv2", x)
        x = MaxPooling("pool1", x, 2)
        x = Conv2D("conv3", x)
    x = FullyConnected("fc0", x, 512, activation=tf.nn.relu)
    return FullyConnected("fc1", x, step_timer.CLASSES)


def conv_bn(name, x, channels, stride=1):
    x = Conv2D(name, x, channels, 3, strides=stride, use_bias=False)
    return BatchNorm(name + "_bn", x, momentum=step_timer.BN_MOMENTUM, epsilon=step_timer.BN_EPSILON)


def resnet32(x):
    x = tf.nn.relu(conv_bn("conv0", x, 16))
    for stage, channels in enumerate((16, 32, 64)):
        for block in range(5):
            widen = stage > 0 and block == 0
            with tf.variable_scope(f"stage{stage}_block{block}"):
                y = tf.nn.relu(conv_bn("conv1", x, channels, 2 if widen else 1))
                y = conv_bn("conv2", y, channels)
                if widen:
                    before = channels // 4
                    x = tf.pad(x[:, ::2, ::2], [[0, 0], [0, 0], [0, 0], [before, channels // 2 - before]])
                x = tf.nn.relu(x + y)
    return FullyConnected("fc", GlobalAvgPooling("gap", x), step_timer.CLASSES)


# The data are in variables: a constant could be folded.
x, labels = (
    tf.get_variable(name, initializer=value, trainable=False, collections=[tf.GraphKeys.LOCAL_VARIABLES])
    for name, value in zip(("x", "labels"), step_timer.synthetic(args))
)
step_count = tf.train.get_or_create_global_step()
with TowerContext("", is_training=True):
    logits = {"mlp": mlp, "mnist": mnist, "resnet32": resnet32}[args.model](tf.identity(x))
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(logits=logits, labels=labels))
updates = tf.get_collection(tf.GraphKeys.UPDATE_OPS)
assert len(updates) == (62 if args.model == "resnet32" else 0), "every running mean and variance is updated"
with tf.control_dependencies(updates):
    train = tf.train.AdamOptimizer(step_timer.LEARNING_RATE).minimize(loss, global_step=step_count)

config = tf.ConfigProto(intra_op_parallelism_threads=args.threads, inter_op_parallelism_threads=args.threads)
session = tf.Session(config=config)
session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
parameters = sum(v.shape.num_elements() for v in tf.trainable_variables())
run = session.make_callable([loss, train])

step_timer.measure(
    args, "tensorpack", f"{tensorpack.__version__} (tensorflow {tf.__version__})", parameters, lambda: float(run()[0])
)
