//! The operations and how their trials are drawn.

use super::draw::{Domain, Draw};
use super::trial::{Elements, Input, Trial};
use crate::graph::Tensor;
use crate::kir::ReduceKind;
use crate::ops::{Conv2dOptions, Padding, PoolOptions};
use Domain::{Any, Apart, AwayFromZero, Halves, Positive};
use tensorpack_tensor::DType;

/// Whether an operation can be differentiated.
#[derive(Clone, Copy, Debug)]
pub(super) enum Gradient {
    /// Twice, on the inputs that are drawn. What is linear by parts has second gradients too: those of the weights.
    Twice,
    /// Not at all, and why.
    #[expect(dead_code, reason = "the reason is for those who read the list")]
    Never(&'static str),
}
use Gradient::{Never, Twice};

/// One operation.
pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) gradient: Gradient,
    pub(super) draw: Box<dyn Fn(&mut Draw<'_>) -> Trial>,
}

fn case(name: &'static str, gradient: Gradient, draw: impl Fn(&mut Draw<'_>) -> Trial + 'static) -> Case {
    Case { name, gradient, draw: Box::new(draw) }
}

fn unary(name: &'static str, gradient: Gradient, domain: Domain, op: fn(&Tensor) -> Tensor) -> Case {
    case(name, gradient, move |draw| {
        let rank = draw.below(4);
        let sizes = draw.sizes(rank);
        Trial::new(vec![Input::floats(draw, sizes, domain)], move |x| vec![op(&x[0])])
    })
}

fn binary(
    name: &'static str,
    gradient: Gradient,
    domains: [Domain; 2],
    op: fn(&Tensor, &Tensor) -> Tensor,
) -> Case {
    case(name, gradient, move |draw| {
        let inputs = pair(draw, domains.map(Elements::Floats));
        Trial::new(inputs, move |x| vec![op(&x[0], &x[1])])
    })
}

fn logical(name: &'static str, op: fn(&Tensor, &Tensor) -> Tensor) -> Case {
    case(name, Never("a truth value"), move |draw| {
        let inputs = pair(draw, [Elements::Bools; 2]);
        Trial::new(inputs, move |x| vec![op(&x[0], &x[1])])
    })
}

/// Two inputs that broadcast against each other.
fn pair(draw: &mut Draw<'_>, elements: [Elements; 2]) -> Vec<Input> {
    let rank = draw.below(4);
    let full = draw.sizes(rank);
    elements
        .map(|e| {
            let sizes = draw.broadcasting(&full);
            Input::new(draw, sizes, e)
        })
        .into()
}

/// Functions of one, two or three elements.
pub(super) fn elementwise() -> Vec<Case> {
    let comparison = Never("a truth value");
    let steps = Never("constant by parts: no gradient on purpose");
    vec![
        unary("Neg", Twice, Any, |x| -x),
        unary("Abs", Twice, AwayFromZero, Tensor::abs),
        unary("Sign", steps, Halves, Tensor::sign),
        unary("Exp", Twice, Any, Tensor::exp),
        unary("Log", Twice, Positive, Tensor::log),
        unary("Log1p", Twice, Positive, Tensor::log1p),
        unary("Sqrt", Twice, Positive, Tensor::sqrt),
        unary("Rsqrt", Twice, Positive, Tensor::rsqrt),
        unary("Reciprocal", Twice, AwayFromZero, Tensor::reciprocal),
        unary("Square", Twice, Any, Tensor::square),
        unary("Tanh", Twice, Any, Tensor::tanh),
        unary("Sigmoid", Twice, Any, Tensor::sigmoid),
        unary("Erf", Twice, Any, Tensor::erf),
        unary("Sin", Twice, Any, Tensor::sin),
        unary("Cos", Twice, Any, Tensor::cos),
        unary("Floor", steps, Halves, Tensor::floor),
        unary("Round", steps, Halves, Tensor::round),
        unary("Relu", Twice, AwayFromZero, Tensor::relu),
        unary("IsFinite", comparison, Any, |x| (x / (x - x.floor())).is_finite()),
        // Sums over several towers are tested in tests/towers.rs; over one tower it is the tower's own part.
        unary("AllReduce", Twice, Any, |x| x.all_reduce("sum".into(), 1)),
        unary("StopGradient", Never("it ends gradients on purpose"), Any, Tensor::stop_gradient),
        unary("Cast", Never("each type has its own rounding: see integers"), Halves, |x| x.cast(DType::I32)),
        unary("RandomUniform", Never("the input is there for its shape"), Any, |x| {
            x.random_uniform_like(DType::F32)
        }),
        case("Not", comparison, |draw| {
            let rank = draw.below(4);
            let sizes = draw.sizes(rank);
            Trial::new(vec![Input::new(draw, sizes, Elements::Bools)], |x| vec![x[0].logical_not()])
        }),
        binary("Add", Twice, [Any, Any], |a, b| a + b),
        binary("Sub", Twice, [Any, Any], |a, b| a - b),
        binary("Mul", Twice, [Any, Any], |a, b| a * b),
        binary("Div", Twice, [Any, AwayFromZero], |a, b| a / b),
        binary("Pow", Twice, [Positive, Any], Tensor::pow),
        binary("Maximum", Twice, [Apart, Apart], Tensor::maximum),
        binary("Minimum", Twice, [Apart, Apart], Tensor::minimum),
        binary("Equal", comparison, [Halves, Halves], Tensor::equal),
        binary("NotEqual", comparison, [Halves, Halves], Tensor::not_equal),
        binary("Less", comparison, [Halves, Halves], Tensor::less),
        binary("LessEqual", comparison, [Halves, Halves], Tensor::less_equal),
        binary("Greater", comparison, [Halves, Halves], Tensor::greater),
        binary("GreaterEqual", comparison, [Halves, Halves], Tensor::greater_equal),
        logical("And", Tensor::logical_and),
        logical("Or", Tensor::logical_or),
        case("Select", Twice, |draw| {
            let mut inputs = pair(draw, [Elements::Floats(Any); 2]);
            let sizes = draw.broadcasting(&broadcast(&inputs));
            inputs.push(Input::new(draw, sizes, Elements::Bools));
            Trial::new(inputs, |x| vec![x[2].select(&x[0], &x[1])])
        }),
        // A chain with a repeated input, for fusion and for gradients that add up.
        binary("Mul twice", Twice, [Any, Positive], |a, b| (a * b).tanh() * a + b.log() * a),
    ]
}

/// The sizes that two inputs broadcast to.
fn broadcast(inputs: &[Input]) -> Vec<usize> {
    let rank = inputs.iter().map(|i| i.sizes.len()).max().unwrap_or(0);
    let size = |i: &Input, d: usize| (d + i.sizes.len()).checked_sub(rank).map_or(1, |at| i.sizes[at]);
    let dim = |d| inputs.iter().map(|i| size(i, d)).find(|&n| n != 1).unwrap_or(1);
    (0..rank).map(dim).collect()
}

/// What moves elements without computing any.
pub(super) fn rearranging() -> Vec<Case> {
    vec![
        case("Transpose", Twice, |draw| {
            let rank = draw.below(5);
            let (sizes, order) = (draw.sizes(rank), draw.order(rank));
            Trial::new(vec![Input::floats(draw, sizes, Any)], move |x| vec![x[0].transpose(&order).square()])
        }),
        case("Reshape", Twice, |draw| {
            let rank = draw.between(1, 4);
            let sizes = draw.solid(rank);
            // The product of some dims, then the rest; dims of size 1 come in too.
            let cut = draw.between(0, rank);
            let front = sizes[..cut].iter().product::<usize>() as isize;
            let target: Vec<isize> = match draw.below(3) {
                0 => vec![-1],
                1 => vec![front, 1, -1],
                _ => vec![1, front, sizes[cut..].iter().product::<usize>() as isize],
            };
            Trial::new(vec![Input::floats(draw, sizes, Any)], move |x| vec![x[0].reshape(&target).square()])
        }),
        case("Flatten", Twice, |draw| {
            let rank = draw.between(1, 4);
            let axis = draw.between(0, rank);
            let sizes = draw.solid(rank);
            Trial::new(vec![Input::floats(draw, sizes, Any)], move |x| vec![x[0].flatten(axis).square()])
        }),
        case("Dims of size 1", Twice, |draw| {
            let rank = draw.below(4);
            let (sizes, axis) = (draw.sizes(rank), draw.below(rank + 1) as isize);
            Trial::new(vec![Input::floats(draw, sizes, Any)], move |x| {
                let more = x[0].square().expand_dims(axis);
                vec![more.squeeze(axis).exp(), more]
            })
        }),
        case("ReshapeLike", Twice, |draw| {
            let rank = draw.between(1, 3);
            let sizes = draw.sizes(rank);
            let flat = vec![sizes.iter().product::<usize>()];
            let inputs = vec![Input::floats(draw, sizes, Any), Input::floats(draw, flat, Any)];
            Trial::new(inputs, |x| vec![x[0].square().reshape_like(&x[1])])
        }),
        case("BroadcastLike", Twice, |draw| {
            let rank = draw.below(4);
            let full = draw.sizes(rank);
            let sizes = draw.broadcasting(&full);
            let inputs = vec![Input::floats(draw, sizes, Any), Input::floats(draw, full, Any)];
            Trial::new(inputs, |x| vec![x[0].square().broadcast_like(&x[1])])
        }),
        case("SumLike", Twice, |draw| {
            let rank = draw.below(4);
            let full = draw.sizes(rank);
            let sizes = draw.broadcasting(&full);
            let inputs = vec![Input::floats(draw, full, Any), Input::floats(draw, sizes, Any)];
            Trial::new(inputs, |x| vec![x[0].square().sum_like(&x[1])])
        }),
        case("Slice", Twice, |draw| {
            let rank = draw.below(4);
            let sizes = draw.sizes(rank);
            let begin: Vec<usize> = sizes.iter().map(|&n| draw.below(n + 1)).collect();
            let end: Vec<Option<usize>> = sizes
                .iter()
                .zip(&begin)
                .map(|(&n, &b)| if draw.below(2) == 0 { None } else { Some(draw.between(b, n)) })
                .collect();
            let step: Vec<usize> = (0..rank).map(|_| draw.between(1, 3)).collect();
            Trial::new(vec![Input::floats(draw, sizes, Any)], move |x| {
                vec![x[0].square().strided_slice(&begin, &end, &step)]
            })
        }),
        case("Pad", Twice, |draw| {
            let rank = draw.below(4);
            let sizes = draw.sizes(rank);
            let mut some = || (0..rank).map(|_| draw.below(3)).collect::<Vec<usize>>();
            let (low, high, interior) = (some(), some(), some());
            Trial::new(vec![Input::floats(draw, sizes, Any)], move |x| {
                vec![x[0].square().pad(&low, &high, &interior)]
            })
        }),
        case("OneHot", Never("of integers"), |draw| {
            let (rank, classes) = (draw.below(3), draw.below(6));
            let sizes = draw.sizes(rank);
            // Classes past the end too: those are nowhere 1.
            let dtype = draw.of(&[DType::I32, DType::I64, DType::U8]);
            let labels = Input::new(draw, sizes, Elements::Below(dtype, classes + 2));
            Trial::new(vec![labels], move |x| vec![x[0].one_hot(classes, DType::F32)])
        }),
        case("Constant", Twice, |draw| {
            let rank = draw.below(3);
            let sizes = draw.sizes(rank);
            Trial::new(vec![Input::floats(draw, sizes, Any)], |x| vec![(&x[0] * 3.0 - 1.0).square() + 0.25])
        }),
    ]
}

fn reduction(
    name: &'static str,
    gradient: Gradient,
    domain: Domain,
    empty: bool,
    op: fn(&Tensor, &[isize]) -> Vec<Tensor>,
) -> Case {
    case(name, gradient, move |draw| {
        let rank = draw.below(5);
        let (mut sizes, axes) = (draw.sizes(rank), draw.axes(rank));
        if !empty {
            for a in &axes {
                let n = &mut sizes[a.rem_euclid(rank as isize) as usize];
                *n = (*n).max(1);
            }
        }
        Trial::new(vec![Input::floats(draw, sizes, domain)], move |x| op(&x[0], &axes))
    })
}

/// What makes one number of many.
pub(super) fn reductions() -> Vec<Case> {
    let place = Never("a place, not a value");
    let along = |name, op: fn(&Tensor, isize) -> Tensor| {
        case(name, place, move |draw| {
            let rank = draw.between(1, 3);
            let (sizes, axis) = (draw.solid(rank), draw.below(rank) as isize);
            // Halves are often equal: the first of them is the one.
            Trial::new(vec![Input::floats(draw, sizes, Halves)], move |x| vec![op(&x[0], axis)])
        })
    };
    vec![
        reduction("Sum", Twice, Any, true, |x, axes| {
            vec![x.square().sum_axes(axes), x.sum_keep(axes), x.sum()]
        }),
        reduction("Mean", Twice, Any, false, |x, axes| vec![x.square().mean_axes(axes)]),
        reduction("Prod", Never("not needed by any layer so far: an error"), Any, true, |x, axes| {
            // Near 1, so that many of them have a product f32 holds.
            vec![(x * 0.01 + 1.0).reduce(ReduceKind::Prod, axes, false)]
        }),
        reduction("Max", Twice, Apart, false, |x, axes| vec![x.max_axes(axes), x.exp().max_keep(axes)]),
        reduction("Min", Twice, Apart, false, |x, axes| vec![x.min_axes(axes)]),
        reduction("Max of equals", Never("equal extremes are a kink"), Halves, false, |x, axes| {
            vec![x.max_axes(axes), x.min_axes(axes)]
        }),
        reduction("Moments", Twice, Any, false, |x, axes| {
            let (mean, variance) = x.moments(axes);
            vec![mean, variance]
        }),
        along("ArgMax", Tensor::argmax),
        along("ArgMin", Tensor::argmin),
        // Two reductions of one space, which share a pass, and what reads them both.
        reduction("Sums that meet", Twice, Any, true, |x, axes| {
            let (a, b) = (x.square().sum_keep(axes), x.exp().sum_keep(axes));
            vec![(x * &a) + &b, a, b]
        }),
    ]
}

/// A padding under which a window of `reach` fits an image of `n`; the image grows if it must.
fn padding(draw: &mut Draw<'_>, n: &mut [usize; 2], reach: [usize; 2], at_most: [usize; 2]) -> Padding {
    let padding = match draw.below(3) {
        0 => Padding::Valid,
        1 => Padding::Same,
        _ => Padding::Explicit([0, 1].map(|i| [0, 1].map(|_| draw.below(at_most[i].min(4))))),
    };
    for i in 0..2 {
        let around = match padding {
            Padding::Same => continue,
            Padding::Valid => 0,
            Padding::Explicit(p) => p[i][0] + p[i][1],
        };
        n[i] = n[i].max(reach[i].saturating_sub(around)).max(1);
    }
    padding
}

fn pool(name: &'static str, domain: Domain, op: fn(&Tensor, PoolOptions) -> Tensor) -> Case {
    case(name, Twice, move |draw| {
        let mut two = |low, high| [draw.between(low, high), draw.between(low, high)];
        let (mut n, window, stride) = (two(1, 7), two(1, 4), two(1, 3));
        let padding = padding(draw, &mut n, window, window);
        let sizes = [draw.of(&[1, 2, 0]), n[0], n[1], draw.of(&[1, 3, 2, 0, 17])];
        let options = PoolOptions { window, stride, padding };
        Trial::new(vec![Input::floats(draw, sizes, domain)], move |x| vec![op(&x[0], options)])
    })
}

/// Products, convolutions, and windows that slide.
pub(super) fn contractions() -> Vec<Case> {
    vec![
        case("MatMul", Twice, |draw| {
            let mut size = || draw.of(&[1, 2, 3, 5, 0, 8, 17]);
            let [m, k, n, b] = [size(), size(), size(), size()];
            let (a, c) = match draw.below(5) {
                1 => (vec![b, m, k], vec![k, n]),
                2 => (vec![m, k], vec![b, k, n]),
                3 => (vec![b, m, k], vec![b, k, n]),
                4 => (vec![2, b, m, k], vec![2, b, k, n]),
                _ => (vec![m, k], vec![k, n]),
            };
            let inputs = vec![Input::floats(draw, a, Any), Input::floats(draw, c, Any)];
            Trial::new(inputs, |x| vec![x[0].matmul(&x[1])])
        }),
        case("MatMul and what follows", Twice, |draw| {
            let mut size = || draw.of(&[1, 2, 3, 5, 0, 8, 17]);
            let [m, k, n] = [size(), size(), size()];
            let inputs = vec![
                Input::floats(draw, [m, k], Any),
                Input::floats(draw, [k, n], Any),
                Input::floats(draw, [n], Any),
            ];
            Trial::new(inputs, |x| vec![(x[0].matmul(&x[1]) + &x[2]).tanh()])
        }),
        case("Conv2d", Twice, |draw| {
            let mut two = |low, high| [draw.between(low, high), draw.between(low, high)];
            let (mut n, kernel, stride, dilation) = (two(1, 6), two(1, 3), two(1, 3), two(1, 2));
            let reach = [0, 1].map(|i| (kernel[i] - 1) * dilation[i] + 1);
            let padding = padding(draw, &mut n, reach, [4, 4]);
            let (inner, outer) = (draw.of(&[1, 2, 3, 0]), draw.of(&[1, 2, 5, 17, 0]));
            let image = [draw.of(&[1, 2, 0]), n[0], n[1], inner];
            let filter = [kernel[0], kernel[1], inner, outer];
            let inputs = vec![Input::floats(draw, image, Any), Input::floats(draw, filter, Any).closed()];
            let options = Conv2dOptions { stride, dilation, padding };
            Trial::new(inputs, move |x| vec![x[0].conv2d(&x[1], options)])
        }),
        pool("MaxPool", Apart, Tensor::max_pool_with),
        pool("AveragePool", Any, Tensor::average_pool_with),
        case("Global average pool", Twice, |draw| {
            let sizes = draw.solid(4);
            Trial::new(vec![Input::floats(draw, sizes, Any)], |x| vec![x[0].global_average_pool().square()])
        }),
    ]
}

/// Softmax and what is made of it.
pub(super) fn losses() -> Vec<Case> {
    let last = |name, op: fn(&Tensor) -> Tensor| {
        case(name, Twice, move |draw| {
            let rank = draw.between(1, 3);
            let mut sizes = draw.sizes(rank);
            sizes[rank - 1] = sizes[rank - 1].max(1);
            Trial::new(vec![Input::floats(draw, sizes, Any)], move |x| vec![op(&x[0])])
        })
    };
    vec![
        last("LogSumExp", Tensor::log_sum_exp),
        last("LogSoftmax", Tensor::log_softmax),
        last("Softmax", Tensor::softmax),
        unary("Clip", Twice, Apart, |x| x.clip(-0.613, 0.717)),
        unary("Relu6", Twice, AwayFromZero, |x| (x * 3.7).relu6()),
        unary("LeakyRelu", Twice, AwayFromZero, |x| x.leaky_relu(0.2)),
        unary("Elu", Twice, AwayFromZero, Tensor::elu),
        unary("Gelu", Twice, Any, Tensor::gelu),
        unary("Silu", Twice, Any, Tensor::silu),
        unary("Softplus", Twice, AwayFromZero, Tensor::softplus),
        binary("SigmoidCrossEntropy", Twice, [AwayFromZero, Any], Tensor::sigmoid_cross_entropy),
        binary("SquaredError", Twice, [Any, Any], Tensor::squared_error),
        binary("HuberLoss", Twice, [Apart, Apart], |x, y| (x * 3.0).huber_loss(&(y * 3.0), 0.611)),
        case("SoftmaxCrossEntropy", Twice, |draw| {
            let rank = draw.between(1, 3);
            let mut sizes = draw.sizes(rank);
            sizes[rank - 1] = sizes[rank - 1].max(1);
            let inputs = vec![Input::floats(draw, sizes.clone(), Any), Input::floats(draw, sizes, Positive)];
            Trial::new(inputs, |x| vec![x[0].softmax_cross_entropy(&x[1])])
        }),
        case("CheckLabels", Twice, |draw| {
            let (rank, classes) = (draw.between(1, 2), draw.between(1, 7));
            let labels = draw.sizes(rank);
            let logits: Vec<usize> = labels.iter().copied().chain([classes]).collect();
            let dtype = draw.of(&[DType::I32, DType::I64]);
            let inputs = vec![
                Input::floats(draw, logits, Any),
                Input::new(draw, labels, Elements::Below(dtype, classes)),
            ];
            Trial::new(inputs, |x| vec![x[0].sparse_softmax_cross_entropy(&x[1])])
        }),
        case("Batch normalisation", Twice, |draw| {
            let rank = draw.between(2, 4);
            let sizes = draw.solid(rank);
            let channels = [sizes[rank - 1]];
            let inputs = vec![
                Input::floats(draw, sizes, Any),
                Input::floats(draw, channels, Positive),
                Input::floats(draw, channels, Any),
            ];
            Trial::new(inputs, move |x| {
                let axes: Vec<isize> = (0..rank as isize - 1).collect();
                let (mean, variance) = x[0].moments(&axes);
                vec![(&x[0] - mean) * (variance + 0.1).rsqrt() * &x[1] + &x[2]]
            })
        }),
    ]
}
