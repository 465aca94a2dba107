//! Hoists work from after max pooling's gradient to before it, where there are fewer elements:
//!
//! - A mask that depends on the pooled input, such as ReLU's gradient. Only the maxima have a
//!   gradient, so only they need the mask.
//! - A sum over each channel. The gradient moves every element to one position, so the sum does not
//!   change.

use crate::kir::{
    BufferId, BufferKind, Kernel, KernelNode, MapBody, Pool, PoolKind, Program, ReduceKind, Reg, Step, View,
};

/// Moves masks before the gradient. Maps are inlined by now, so a mask is a single map.
pub(super) fn hoist_masks(program: &mut Program) {
    for at in 0..program.kernels.len() {
        let Some((gradient, masked)) = moved_mask(program, at) else { continue };
        let (dtype, sizes) = (program.buffer(program.kernels[at].outputs[0]).dtype, masked.sizes.clone());
        let buffer = program.add_buffer(dtype, &sizes, BufferKind::Temp);
        let mask = program.kernels.remove(at);
        let node = &mut program.kernels[gradient];
        node.outputs = mask.outputs;
        if let Kernel::Pool { inputs, .. } = &mut node.kernel {
            inputs[0] = View::dense(buffer, dtype, &sizes);
        }
        let node = KernelNode { kernel: Kernel::Map(masked), outputs: vec![buffer], origin: mask.origin };
        program.kernels.insert(gradient, node);
    }
}

/// Returns the sizes of the input and of the output of a pooling.
fn image_sizes(pool: &Pool) -> [[usize; 4]; 2] {
    let sizes = |[height, width]: [usize; 2]| [pool.batch, height, width, pool.channels];
    [sizes(pool.in_size), sizes(pool.out_size)]
}

/// If kernel `at` masks a pooling's gradient with the pooled input, returns the index of the
/// gradient kernel and the equivalent mask of the gradient's own input.
///
/// Preconditions: the mask has the sizes of the pooling's image (with other sizes, elements would
/// have other channels), reads the whole gradient in order, and reads the same view that was
/// pooled; nothing else needs the unmasked gradient; types do not change.
fn moved_mask(program: &Program, at: usize) -> Option<(usize, MapBody)> {
    let KernelNode { kernel: Kernel::Map(body), outputs, .. } = &program.kernels[at] else { return None };
    let ([result], [_, _]) = (&outputs[..], &body.operands[..]) else { return None };
    let of = masked_operand(body)?;
    let (dx, x) = (&body.operands[of], &body.operands[1 - of]);
    let made = program.kernels[..at].iter().position(|n| n.outputs == [dx.buffer])?;
    let Kernel::Pool { kind: PoolKind::MaxGrad, pool, inputs } = &program.kernels[made].kernel else {
        return None;
    };
    let [dy, positions] = &inputs[..] else { return None };
    let [image, out] = image_sizes(pool);
    let pooled = program.kernels[..made].iter().find(|n| n.outputs.get(1) == Some(&positions.buffer))?;
    let Kernel::Pool { kind: PoolKind::Max, pool: same, inputs: from } = &pooled.kernel else { return None };
    let fits = same == pool
        && from[0] == *x
        && body.sizes == image
        && dx.is_whole(&image)
        && dy.sizes == out
        && dx.dtype == dy.dtype
        && program.buffer(*result).dtype == dx.dtype;
    if !fits || !only_read_by(program, dx.buffer, at) {
        return None;
    }
    let mut operands = body.operands.clone();
    operands[of] = dy.clone();
    operands[1 - of] = View::dense(pooled.outputs[0], x.dtype, &dy.sizes);
    Some((made, MapBody { sizes: dy.sizes.clone(), operands, expr: body.expr.clone() }))
}

/// Returns the operand that is masked: the result is this operand where a condition on the other
/// operand alone is true, otherwise zero.
fn masked_operand(body: &MapBody) -> Option<usize> {
    let steps = &body.expr.steps;
    let step = |r: Reg| steps[r.0 as usize];
    let [out] = body.expr.outputs[..] else { return None };
    let Step::Select(_, passes, zero) = step(out) else { return None };
    let (Step::Operand { index, .. }, Step::Const(0.0, _)) = (step(passes), step(zero)) else { return None };
    let reads = |s: &Step| match *s {
        Step::Unary(_, a) | Step::Cast(_, a) => a == passes,
        Step::Binary(_, a, b) => a == passes || b == passes,
        Step::Select(a, b, c) => [a, b, c].contains(&passes),
        _ => false,
    };
    let loads = |s: &Step| matches!(s, Step::Operand { index: i, .. } if *i == index);
    let placed = steps.iter().any(|s| matches!(s, Step::Index { .. }));
    let once =
        steps.iter().filter(|s| reads(s)).count() == 1 && steps.iter().filter(|s| loads(s)).count() == 1;
    (once && !placed).then_some(index as usize)
}

/// Returns whether only kernel `at` needs a buffer.
fn only_read_by(program: &Program, buffer: BufferId, at: usize) -> bool {
    let wanted = program.fetches.iter().chain(&program.costs).chain(&program.kept);
    let updates = program.updates.iter().map(|u| &u.value);
    let readers =
        program.kernels.iter().enumerate().filter(|(i, _)| *i != at).flat_map(|(_, n)| n.kernel.reads());
    wanted.chain(updates).chain(readers).all(|v| v.buffer != buffer)
}

/// Moves sums before the gradient.
pub(super) fn hoist_sums(program: &mut Program) {
    for at in 0..program.kernels.len() {
        if let Some(dy) = summed(program, at)
            && let Kernel::Reduce { body, .. } = &mut program.kernels[at].kernel
        {
            (body.sizes, body.operands) = (dy.sizes.clone(), vec![dy]);
        }
    }
}

/// If kernel `at` sums each channel of a pooling's gradient, returns the input of that gradient.
///
/// Preconditions: the sum has the sizes of the pooling's image, reads all of it in order, and keeps
/// the channels. The same gradient with other sizes, such as `[b, h, w, 1]` for `[b, 1, h, w]`, has
/// other channels. The gradient of every window goes to some element.
fn summed(program: &Program, at: usize) -> Option<View> {
    let Kernel::Reduce { body, reduced, kinds } = &program.kernels[at].kernel else { return None };
    let ([dx], [Step::Operand { .. }]) = (&body.operands[..], &body.expr.steps[..]) else { return None };
    let made = program.kernels[..at].iter().find(|n| n.outputs == [dx.buffer])?;
    let Kernel::Pool { kind: PoolKind::MaxGrad, pool, inputs } = &made.kernel else { return None };
    let ([image, out], dy) = (image_sizes(pool), &inputs[0]);
    let by_channel = kinds[..] == [ReduceKind::Sum] && reduced[..] == [true, true, true, false];
    let fits = by_channel
        && body.sizes == image
        && dx.is_whole(&image)
        && dy.sizes == out
        && dy.dtype == dx.dtype
        && [0, 1].into_iter().all(|axis| all_real(pool, axis));
    fits.then(|| dy.clone())
}

/// Returns whether every window contains an element along an axis that is not padding, which gets
/// its gradient.
fn all_real(pool: &Pool, axis: usize) -> bool {
    let last = pool.out_size[axis].saturating_sub(1) * pool.stride[axis];
    pool.pad_low[axis] < pool.window[axis] && last < pool.in_size[axis] + pool.pad_low[axis]
}
