//! Drawn shapes for examples: which pixel belongs to which rectangle, ellipse or triangle.

use tensorpack::dataflow::SampleRng;

/// The number of kinds of shapes: rectangles, ellipses and triangles.
pub(crate) const KINDS: usize = 3;

/// What scenes look like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Style {
    /// Height and width in pixels.
    pub(crate) side: usize,
    /// The smallest and the largest number of shapes. There may be fewer where they have no room.
    pub(crate) shapes: (usize, usize),
    /// The smallest and the largest extent of a shape in pixels.
    pub(crate) extent: (f64, f64),
    /// Whether later shapes may hide parts of earlier ones.
    pub(crate) overlap: bool,
}

struct Shape {
    kind: usize,
    center: [f64; 2],
    half: [f64; 2],
}

impl Shape {
    fn covers(&self, x: f64, y: f64) -> bool {
        let (x, y) = ((x - self.center[0]) / self.half[0], (y - self.center[1]) / self.half[1]);
        match self.kind {
            0 => x.abs() <= 1.0 && y.abs() <= 1.0,
            1 => x * x + y * y <= 1.0,
            // The tip is above.
            _ => y <= 1.0 && 2.0 * x.abs() <= y + 1.0,
        }
    }

    /// Returns whether less than two pixels are between the boxes around two shapes.
    fn touches(&self, other: &Shape) -> bool {
        (0..2).all(|k| (self.center[k] - other.center[k]).abs() < self.half[k] + other.half[k] + 2.0)
    }
}

/// A scene: the shape that each pixel belongs to.
pub(crate) struct Scene {
    pub(crate) side: usize,
    /// The kind of each shape.
    pub(crate) kinds: Vec<usize>,
    /// For each pixel, row by row, the shape that is visible there; `None` for the background.
    pub(crate) visible: Vec<Option<usize>>,
}

impl Scene {
    /// Draws a scene.
    pub(crate) fn new(style: Style, rng: &mut SampleRng) -> Scene {
        let Style { side, shapes: (least, most), extent, overlap } = style;
        let count = least + rng.below((most - least + 1) as u64) as usize;
        let mut shapes: Vec<Shape> = Vec::new();
        for _ in 0..8 * count {
            let kind = rng.below(KINDS as u64) as usize;
            let half = [0; 2].map(|_| rng.uniform_range(extent.0, extent.1) / 2.0);
            let center = half.map(|h| rng.uniform_range(h + 1.0, side as f64 - h - 1.0));
            let shape = Shape { kind, center, half };
            if overlap || !shapes.iter().any(|other| shape.touches(other)) {
                shapes.push(shape);
            }
            if shapes.len() == count {
                break;
            }
        }
        let visible = (0..side * side).map(|i| {
            let (x, y) = ((i % side) as f64 + 0.5, (i / side) as f64 + 0.5);
            shapes.iter().rposition(|shape| shape.covers(x, y))
        });
        Scene { side, visible: visible.collect(), kinds: shapes.iter().map(|s| s.kind).collect() }
    }

    /// Returns the pixels at the edges: those that belong to something else than the pixel to the right or
    /// below.
    pub(crate) fn edges(&self) -> Vec<bool> {
        let (side, visible) = (self.side, &self.visible);
        let differs = |i: usize| {
            let right = i % side + 1 < side && visible[i] != visible[i + 1];
            right || (i / side + 1 < side && visible[i] != visible[i + side])
        };
        (0..side * side).map(differs).collect()
    }
}
