//! Draws plots as PNG: plotters' shapes, with antialiased lines and a font of our own. Only the crate
//! `png` is needed, which the library has anyway; plotters' own bitmaps need font files to have text.

use crate::stroke_font;
use plotters_backend::text_anchor::{HPos, VPos};
use plotters_backend::{
    BackendColor, BackendCoord, BackendStyle, BackendTextStyle, DrawingBackend, DrawingErrorKind,
    FontTransform,
};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

/// The pixels of a picture per unit of a plot, in each direction.
const SCALE: f64 = 2.0;

/// A picture that is written to a file when it is presented.
pub(crate) struct PngPicture {
    file: PathBuf,
    size: (u32, u32),
    /// The width of a row in pixels.
    width: usize,
    /// Red, green and blue of all pixels.
    pixels: Vec<[f64; 3]>,
}

type Drawn = Result<(), DrawingErrorKind<io::Error>>;

impl PngPicture {
    /// Creates a picture of a plot of this size.
    pub(crate) fn new(file: PathBuf, size: (u32, u32)) -> PngPicture {
        let [width, height] = [size.0, size.1].map(|n| (f64::from(n) * SCALE) as usize);
        PngPicture { file, size, width, pixels: vec![[1.0; 3]; width * height] }
    }

    /// Mixes a color into a pixel. Pixels outside the picture are ignored.
    fn mix(&mut self, x: i64, y: i64, color: BackendColor, coverage: f64) {
        let (Ok(x), Ok(y)) = (usize::try_from(x), usize::try_from(y)) else { return };
        if x >= self.width {
            return;
        }
        let Some(pixel) = self.pixels.get_mut(y.saturating_mul(self.width).saturating_add(x)) else { return };
        let (alpha, rgb) = (color.alpha * coverage, [color.rgb.0, color.rgb.1, color.rgb.2]);
        for (old, new) in pixel.iter_mut().zip(rgb) {
            *old += (f64::from(new) / 255.0 - *old) * alpha;
        }
    }

    /// Draws a line between two points, which are in units of the plot, as its width is.
    fn stroke(&mut self, from: (f64, f64), to: (f64, f64), width: f64, color: BackendColor) {
        let [a, b] = [from, to].map(|(x, y)| (x * SCALE, y * SCALE));
        let reach = width * SCALE / 2.0 + 0.5;
        // Nothing outside the picture is visited, however long the line is.
        let rows = self.pixels.len() / self.width.max(1);
        let range = |a: f64, b: f64, end: usize| {
            let (low, high) = (a.min(b) - reach, a.max(b) + reach);
            (low.max(0.0) as i64)..=(high.min(end as f64) as i64)
        };
        let (dx, dy) = (b.0 - a.0, b.1 - a.1);
        let length = dx * dx + dy * dy;
        for y in range(a.1, b.1, rows) {
            for x in range(a.0, b.0, self.width) {
                let (px, py) = (x as f64 + 0.5 - a.0, y as f64 + 0.5 - a.1);
                let at = if length > 0.0 { ((px * dx + py * dy) / length).clamp(0.0, 1.0) } else { 0.0 };
                let distance = (px - at * dx).hypot(py - at * dy);
                let coverage = (reach - distance).clamp(0.0, 1.0);
                if coverage > 0.0 {
                    self.mix(x, y, color, coverage);
                }
            }
        }
    }

    /// Fills a rectangle, in units of the plot.
    fn fill(&mut self, from: (f64, f64), to: (f64, f64), color: BackendColor) {
        let end = |n: f64, most: usize| ((n * SCALE).clamp(0.0, most as f64)) as i64;
        let rows = self.pixels.len() / self.width.max(1);
        for y in end(from.1, rows)..end(to.1, rows) {
            for x in end(from.0, self.width)..end(to.0, self.width) {
                self.mix(x, y, color, 1.0);
            }
        }
    }

    fn write(&self) -> io::Result<()> {
        let mut out = BufWriter::new(File::create(&self.file)?);
        let rows = self.pixels.len() / self.width.max(1);
        let mut encoder = png::Encoder::new(&mut out, self.width as u32, rows as u32);
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        let bytes: Vec<u8> = self.pixels.iter().flatten().map(|v| (v * 255.0).round() as u8).collect();
        let mut writer = encoder.write_header()?;
        writer.write_image_data(&bytes)?;
        writer.finish()?;
        out.flush()
    }
}

/// The middle of a pixel.
fn middle((x, y): BackendCoord) -> (f64, f64) {
    (f64::from(x) + 0.5, f64::from(y) + 0.5)
}

impl DrawingBackend for PngPicture {
    type ErrorType = io::Error;

    fn get_size(&self) -> (u32, u32) {
        self.size
    }

    fn ensure_prepared(&mut self) -> Drawn {
        Ok(())
    }

    fn present(&mut self) -> Drawn {
        self.write().map_err(DrawingErrorKind::DrawingError)
    }

    fn draw_pixel(&mut self, at: BackendCoord, color: BackendColor) -> Drawn {
        let from = (f64::from(at.0), f64::from(at.1));
        self.fill(from, (from.0 + 1.0, from.1 + 1.0), color);
        Ok(())
    }

    fn draw_line<S: BackendStyle>(&mut self, from: BackendCoord, to: BackendCoord, style: &S) -> Drawn {
        self.draw_path([from, to], style)
    }

    fn draw_path<S: BackendStyle, I: IntoIterator<Item = BackendCoord>>(
        &mut self,
        path: I,
        style: &S,
    ) -> Drawn {
        let width = f64::from(style.stroke_width());
        let mut last: Option<(f64, f64)> = None;
        for point in path {
            let point = middle(point);
            // A path of one point is a dot.
            self.stroke(last.unwrap_or(point), point, width, style.color());
            last = Some(point);
        }
        Ok(())
    }

    fn draw_rect<S: BackendStyle>(
        &mut self,
        from: BackendCoord,
        to: BackendCoord,
        style: &S,
        fill: bool,
    ) -> Drawn {
        if fill {
            let corner = |(x, y): BackendCoord| (f64::from(x), f64::from(y));
            let (from, to) = (corner(from), corner(to));
            self.fill(from, (to.0 + 1.0, to.1 + 1.0), style.color());
            return Ok(());
        }
        let corners = [from, (to.0, from.1), to, (from.0, to.1), from];
        self.draw_path(corners, style)
    }

    fn draw_circle<S: BackendStyle>(
        &mut self,
        center: BackendCoord,
        radius: u32,
        style: &S,
        fill: bool,
    ) -> Drawn {
        let ((x, y), radius) = (middle(center), f64::from(radius));
        if fill {
            self.stroke((x, y), (x, y), 2.0 * radius, style.color());
            return Ok(());
        }
        let point = |i: u32| {
            let (sin, cos) = (f64::from(i) * std::f64::consts::TAU / 32.0).sin_cos();
            (x + radius * cos, y + radius * sin)
        };
        let width = f64::from(style.stroke_width());
        (0..32).for_each(|i| self.stroke(point(i), point(i + 1), width, style.color()));
        Ok(())
    }

    fn draw_text<S: BackendTextStyle>(&mut self, text: &str, style: &S, at: BackendCoord) -> Drawn {
        // As the SVG backend does, so that both pictures look the same.
        let em = style.size() / 1.24;
        let (strokes, width) = stroke_font::strokes(text);
        let left = match style.anchor().h_pos {
            HPos::Left => 0.0,
            HPos::Right => -width,
            HPos::Center => -width / 2.0,
        };
        let down = match style.anchor().v_pos {
            VPos::Top => 0.76,
            VPos::Center => 0.35,
            VPos::Bottom => -0.25,
        };
        let (x0, y0) = middle(at);
        let place = |&(x, y): &(f64, f64)| {
            let (x, y) = ((x + left) * em, (y + down) * em);
            match style.transform() {
                FontTransform::None => (x0 + x, y0 + y),
                FontTransform::Rotate90 => (x0 - y, y0 + x),
                FontTransform::Rotate180 => (x0 - x, y0 - y),
                FontTransform::Rotate270 => (x0 + y, y0 - x),
            }
        };
        for stroke in strokes {
            for pair in stroke.windows(2) {
                self.stroke(place(&pair[0]), place(&pair[1]), em * 0.085, style.color());
            }
        }
        Ok(())
    }

    fn estimate_text_size<S: BackendTextStyle>(
        &self,
        text: &str,
        style: &S,
    ) -> Result<(u32, u32), DrawingErrorKind<io::Error>> {
        let em = style.size() / 1.24;
        Ok(((stroke_font::width(text) * em).ceil() as u32, em.ceil() as u32))
    }
}
