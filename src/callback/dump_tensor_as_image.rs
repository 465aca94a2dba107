//! Writes tensors as images.

use super::{Callback, GraphCx, TrainCx};
use crate::graph::Fetch;
use crate::io::failed;
use crate::monitor::Image;
use tensorpack_tensor::{DType, HostTensor, Result};

/// Writes a tensor, such as a layer's filters, as images at every trigger: to `PREFIX-epEPOCH.png`
/// in the log directory (further images of a batch to `PREFIX-epEPOCH-1.png` and so on), and to the
/// monitors.
///
/// The tensor is computed in a run of its own, so it must not depend on fed inputs.
#[doc(alias = "DumpParamAsImage")]
pub struct DumpTensorAsImage {
    name: String,
    prefix: String,
    map: Map,
    scale: f64,
    tensor: Option<Fetch>,
}

type Map = Box<dyn FnMut(HostTensor) -> Result<HostTensor>>;

impl DumpTensorAsImage {
    /// Writes the tensor or variable `name`, whose values range from 0 to 1 and whose shape is
    /// `[height, width]`, `[height, width, channels]` or `[batch, height, width, channels]`. The
    /// prefix defaults to the name.
    pub fn new(name: impl Into<String>) -> DumpTensorAsImage {
        let name = name.into();
        let prefix = name.replace('/', "-");
        DumpTensorAsImage { name, prefix, map: Box::new(Ok), scale: 255.0, tensor: None }
    }

    /// Sets the prefix of the file names.
    #[must_use]
    pub fn prefix(self, prefix: impl Into<String>) -> DumpTensorAsImage {
        DumpTensorAsImage { prefix: prefix.into(), ..self }
    }

    /// Applies `map` to the value first.
    #[must_use]
    #[doc(alias = "map_func")]
    pub fn map(self, map: impl FnMut(HostTensor) -> Result<HostTensor> + 'static) -> DumpTensorAsImage {
        DumpTensorAsImage { map: Box::new(map), ..self }
    }

    /// Sets the factor that values are multiplied by before they are clamped to 0..255. Defaults to
    /// 255.
    #[must_use]
    pub fn scale(self, scale: f64) -> DumpTensorAsImage {
        DumpTensorAsImage { scale, ..self }
    }
}

impl Callback for DumpTensorAsImage {
    fn chief_only(&self) -> bool {
        true
    }

    fn name(&self) -> String {
        format!("DumpTensorAsImage({})", self.name)
    }

    fn setup_graph(&mut self, g: &mut GraphCx<'_>) -> Result<()> {
        g.need_logdir("DumpTensorAsImage")?;
        self.tensor = Some(Fetch::from(&g.tensor(&self.name)?));
        Ok(())
    }

    fn trigger(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        let (Some(tensor), Some(dir)) = (&self.tensor, cx.logdir()) else { return Ok(()) };
        let value = cx.session().run(&[tensor], &[])?.swap_remove(0);
        let value = (self.map)(value)?;
        let scaled: Vec<f64> = value.to_f64_vec().iter().map(|x| x * self.scale).collect();
        let scaled = HostTensor::from_f64(DType::F64, value.sizes(), &scaled)?;
        for (i, image) in Image::from_tensor(&scaled)?.iter().enumerate() {
            let suffix = if i > 0 { format!("-{i}") } else { String::new() };
            let path = dir.join(format!("{}-ep{:03}{suffix}.png", self.prefix, cx.epoch_num));
            std::fs::write(&path, image.to_png()?).map_err(failed("write", &path))?;
        }
        cx.put_image(&self.prefix, &scaled)
    }
}
