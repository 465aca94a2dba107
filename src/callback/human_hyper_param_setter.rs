//! Sets a hyper-parameter from a file that the user edits.

use super::hyper_param::{HyperParam, Setter};
use super::{Callback, GraphCx, TrainCx};
use crate::io::failed;
use serde_json::Value;
use std::io::ErrorKind::NotFound;
use tensorpack_dataflow::format::open_regular_file;
use tensorpack_tensor::Result;

/// Sets a hyper-parameter from a file that the user edits during training: a line such as
/// `learning_rate: 0.01` in `hyper.txt` in the log directory. Without such a line the value is left
/// unchanged. Anything but a regular file, such as a pipe, is an error.
#[derive(Debug)]
pub struct HumanHyperParamSetter {
    setter: Setter,
    file: String,
}

impl HumanHyperParamSetter {
    /// Sets `param`.
    pub fn new(param: impl Into<HyperParam>) -> HumanHyperParamSetter {
        HumanHyperParamSetter { setter: Setter::new(param.into()), file: "hyper.txt".into() }
    }

    /// Sets the name of the file. Defaults to `hyper.txt`.
    #[must_use]
    #[doc(alias = "file_name")]
    pub fn file(self, name: impl Into<String>) -> HumanHyperParamSetter {
        HumanHyperParamSetter { file: name.into(), ..self }
    }

    /// Returns the value in the file, if there is one.
    fn read_value(&self, cx: &TrainCx<'_>) -> Result<Option<f64>> {
        let Some(path) = cx.logdir().map(|dir| dir.join(&self.file)) else { return Ok(None) };
        let text = match open_regular_file(&path).and_then(|(file, _)| std::io::read_to_string(file)) {
            Ok(text) => text,
            Err(e) if e.kind() == NotFound => return Ok(None),
            Err(e) => return Err(failed("read", &path)(e)),
        };
        let name = self.setter.param();
        let mut lines = text.lines().filter_map(|l| l.rsplit_once(':'));
        let written = lines.find(|(n, _)| n.trim() == name).map(|(_, value)| value.trim());
        let value = written.and_then(|w| w.parse().ok()).filter(|v: &f64| v.is_finite());
        match (value, written) {
            (Some(_), _) => {}
            (None, Some(w)) => log::warn!("{}: the value {w:?} of {name} is not a number", path.display()),
            (None, None) => log::warn!("{} has no line for {name}", path.display()),
        }
        Ok(value)
    }
}

impl Callback for HumanHyperParamSetter {
    fn chief_only(&self) -> bool {
        true
    }

    fn name(&self) -> String {
        self.setter.name("HumanHyperParamSetter")
    }

    fn setup_graph(&mut self, g: &mut GraphCx<'_>) -> Result<()> {
        g.need_logdir("HumanHyperParamSetter")?;
        self.setter.setup_graph(g)
    }

    fn before_train(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        // A resumed run has the value from the checkpoint.
        if cx.resumed() { Ok(()) } else { self.trigger(cx) }
    }

    fn trigger(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        self.read_value(cx)?.map_or(Ok(()), |value| self.setter.set(cx, value))
    }

    fn state(&self) -> Value {
        self.setter.state()
    }

    fn load_state(&mut self, state: &Value) -> Result<()> {
        self.setter.load_state(state);
        Ok(())
    }
}
