//! Prints a value while the graph runs.

use crate::graph::{GradCx, OpDef, OpTraits, Spec, Tensor};
use crate::kir::{CustomKernel, LowerCx, View};
use crate::onnx::{ExportCx, Value};
use crate::reference::{Array, EvaluateCx};
use serde::{Deserialize, Serialize};
use std::hash::{Hash, Hasher};
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tensorpack_tensor::{HostTensor, Result};

/// The input, printed in every n-th run.
#[derive(Debug, Serialize, Deserialize)]
struct Print(Arc<Printer>);
crate::exported!(Print, 1..=1);

#[derive(Debug, Serialize, Deserialize)]
struct Printer {
    label: String,
    every: u64,
    runs: AtomicU64,
}

/// The maximum number of elements printed.
const VALUES: usize = 8;

// Every print is distinct, whatever it prints.
impl PartialEq for Print {
    fn eq(&self, other: &Print) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}
impl Eq for Print {}
impl Hash for Print {
    fn hash<H: Hasher>(&self, h: &mut H) {
        Arc::as_ptr(&self.0).hash(h);
    }
}

impl OpDef for Print {
    fn name(&self) -> &str {
        "Print"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        Ok(vec![inputs[0].clone()])
    }

    fn grad(&self, cx: &GradCx<'_>) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![Some(cx.dy().clone())])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
        Ok(cx.custom(self.0.clone()))
    }

    fn evaluate(&self, cx: &EvaluateCx<'_>) -> Result<Vec<Array>> {
        let x = cx.input(0);
        if self.0.is_due() {
            let _ = writeln!(std::io::stderr(), "{}", self.0.line(&x.to_host()?));
        }
        Ok(vec![x.clone()])
    }

    fn onnx(&self, cx: &mut ExportCx<'_>) -> Result<Vec<Value>> {
        Ok(vec![cx.input(0)])
    }

    fn traits(&self) -> OpTraits {
        OpTraits::UNIQUE
    }
}

impl Printer {
    /// Counts a run, and returns whether it prints.
    fn is_due(&self) -> bool {
        self.runs.fetch_add(1, Ordering::Relaxed).is_multiple_of(self.every)
    }

    fn line(&self, x: &HostTensor) -> String {
        let values: Vec<String> = x.to_f64_vec().iter().take(VALUES).map(f64::to_string).collect();
        let more = if x.len() > VALUES { ", .." } else { "" };
        format!("{}: {}{:?} [{}{more}]", self.label, x.dtype(), x.sizes(), values.join(", "))
    }
}

impl CustomKernel for Printer {
    fn run(&self, inputs: &[HostTensor], outputs: &mut [HostTensor]) -> Result<()> {
        if self.is_due() {
            // A failed write must not stop training.
            let _ = writeln!(std::io::stderr(), "{}", self.line(&inputs[0]));
        }
        outputs[0].copy_from_bytes(inputs[0].as_bytes())
    }
}

impl Tensor {
    /// Returns this tensor and prints its name, type, sizes and first elements to standard error
    /// whenever a run computes it.
    ///
    /// Use the returned tensor: nothing is printed unless a run needs it.
    #[track_caller]
    #[doc(alias = "print_stat")]
    pub fn print(&self) -> Tensor {
        self.print_every(1)
    }

    /// Like [`Tensor::print`], but only in the first run and every `n`-th after it.
    #[track_caller]
    pub fn print_every(&self, n: u64) -> Tensor {
        if self.is_poison() {
            return self.clone();
        }
        let printer = Printer { label: self.name(), every: n.max(1), runs: AtomicU64::new(0) };
        Tensor::apply_one(Print(Arc::new(printer)), &[self])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op_cases::*;

    cases![unary("Print", Twice, Any, |x| {
        // Starts at the second run, so that it never prints during tests.
        let printer = Printer { label: String::new(), every: u64::MAX, runs: AtomicU64::new(1) };
        Tensor::apply_one(Print(Arc::new(printer)), &[x]).square()
    }),];

    #[test]
    fn prints_name_type_sizes_and_first_elements_every_n_runs() {
        let printer = Printer { label: "fc0/output".into(), every: 3, runs: AtomicU64::new(0) };
        let few = HostTensor::new([2], vec![1.5f32, -2.0]).unwrap();
        assert_eq!(printer.line(&few), "fc0/output: f32[2] [1.5, -2]");
        assert_eq!([(); 7].map(|()| printer.is_due()), [true, false, false, true, false, false, true]);
        let many = HostTensor::new([3, 3], (0..9).collect::<Vec<i32>>()).unwrap();
        assert_eq!(printer.line(&many), "fc0/output: i32[3, 3] [0, 1, 2, 3, 4, 5, 6, 7, ..]");
    }
}
