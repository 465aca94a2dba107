//! A result is rounded to its dtype whether it is stored or fused into the kernel that reads it.

use super::barrier::barrier;
use tensorpack::graph::{Graph, OpDef, Spec, Tensor, TensorSpec};
use tensorpack::kir::{Class, LowerCx, View};
use tensorpack::runtime::Session;
use tensorpack::{DType, HostTensor, Result};

/// An operation whose expression has a class other than that of its result, so that storing
/// converts.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Stored {
    class: Class,
    dtype: DType,
}

impl OpDef for Stored {
    fn name(&self) -> &str {
        "Stored"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        Ok(vec![Spec { dtype: self.dtype, shape: inputs[0].shape.clone() }])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
        let x = cx.input(0);
        Ok(vec![cx.map(&[&x], |e, r| {
            let by = e.constant(1.1, self.class);
            let x = e.cast(self.class, r[0]);
            e.binary(tensorpack::kir::Binary::Mul, x, by)
        })])
    }
}

#[test]
fn a_result_has_its_declared_dtype() {
    let values: Vec<f64> = vec![0.0, 0.3, -0.7, 1.0, 2.6, -3.9];
    for class in [Class::F32, Class::F64] {
        for dtype in DType::ALL {
            for wide in [DType::F32, DType::F64] {
                let graph = Graph::new();
                let x = graph.placeholder(&TensorSpec::new("x", DType::F64, [Some(6)]));
                let y = Tensor::apply_one(Stored { class, dtype }, &[&x]);
                let z = Tensor::apply_one(Stored { class, dtype }, &[&(&x + 0.25)]);
                // One reader, and several; fused and behind barriers.
                let read =
                    |y: &Tensor, z: &Tensor| [y.cast(wide) * 2.0, z.cast(wide) * 4.0, z.cast(wide).sum()];
                let (fused, unfused) = (read(&y, &z), read(&barrier(&y), &barrier(&z)));
                let session = Session::new(graph.freeze().unwrap()).unwrap();
                let feeds = [("x", &HostTensor::new([6], values.clone()).unwrap())];
                let run = |[a, b, c]: &[Tensor; 3]| session.run(&[a, b, c], &feeds).unwrap();
                assert_eq!(run(&fused), run(&unfused), "{class:?} stored as {dtype} and read as {wide}");
            }
        }
    }
}
