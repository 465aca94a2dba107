//! Winograd convolution: the tiles of an image.
//!
//! F(m x m, 3x3) divides the output into tiles of m x m pixels, each of which reads m + 2 pixels of
//! the input along each side. After the [transforms](crate::conv::winograd_transform) of input and
//! filter, the convolution is one independent matrix product for each element of such an input tile:
//! `tiles x in_channels` by `in_channels x out_channels`. A tile takes (m + 2)^2 multiplications for
//! each pair of channels instead of 9 m^2: 16 instead of 36, or 36 instead of 144.
//!
//! A *plane* holds one element of all transformed tiles.

#[cfg(target_arch = "x86_64")]
use std::ops::Range;

use crate::conv::correlation::Correlation;

/// Elements of a cache line.
const LINE: usize = 16;

/// The size of the tiles of outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum TileSize {
    /// F(2x2, 3x3).
    Two,
    /// F(4x4, 3x3).
    Four,
}

impl TileSize {
    /// Returns the outputs along each side of a tile.
    pub(crate) const fn outputs(self) -> usize {
        match self {
            TileSize::Two => 2,
            TileSize::Four => 4,
        }
    }

    /// Returns the inputs along each side of a tile.
    pub(crate) const fn inputs(self) -> usize {
        self.outputs() + 2
    }

    /// Returns the elements of an input tile, and planes of the transformed data.
    pub(crate) const fn planes(self) -> usize {
        self.inputs() * self.inputs()
    }

    /// Returns the number of tiles along each axis of an image of `size` outputs.
    pub(crate) fn count(self, size: [usize; 2]) -> [usize; 2] {
        size.map(|n| n.div_ceil(self.outputs()))
    }
}

/// A convolution, or its input gradient, whose output is divided into tiles.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WinogradTiles {
    pub(crate) work: Correlation,
    pub(crate) size: TileSize,
    /// Tiles along each axis of an image.
    pub(crate) count: [usize; 2],
    /// The first input pixel that the first tile reads, along each axis.
    first: [isize; 2],
}

impl WinogradTiles {
    /// Returns the tiles of `work`, which has 3x3 filters, stride 1 and dilation 1.
    pub(crate) fn new(work: &Correlation, size: TileSize) -> WinogradTiles {
        WinogradTiles {
            work: *work,
            size,
            count: size.count(work.out_size()),
            first: [0, 1].map(|axis| work.axis(axis, 0).offset),
        }
    }

    /// Returns the number of tile rows in the whole batch.
    pub(crate) fn rows(&self) -> usize {
        self.work.conv.batch * self.count[0]
    }

    /// Returns the first output pixel of tile row `row`, counted over all images; after the last row,
    /// the number of pixels.
    pub(crate) fn first_output(&self, row: usize) -> usize {
        let [height, width] = self.work.out_size();
        let y = (row % self.count[0] * self.size.outputs()).min(height);
        (row / self.count[0] * height + y) * width
    }

    /// Returns the input pixels that some tile rows read and the rows before them do not, counted over
    /// all images.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn new_inputs(&self, rows: &Range<usize>) -> Range<usize> {
        let [height, width] = self.work.in_size();
        let first = |row: usize| {
            let y = (row % self.count[0] * self.size.outputs() + 2).saturating_add_signed(self.first[0]);
            let rows = (row / self.count[0] * height + y.min(height)).min(self.work.conv.batch * height);
            rows * width
        };
        first(rows.start)..first(rows.end)
    }

    /// Returns the position of tile `x` of tile row `row`, counted over all images.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn position(&self, row: usize, x: usize) -> Position {
        Position { image: row / self.count[0], y: row % self.count[0], x }
    }

    /// Returns the position of the next tile.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn next(&self, at: Position) -> Position {
        let [down, across] = self.count;
        match at {
            Position { x, .. } if x + 1 < across => Position { x: x + 1, ..at },
            Position { y, .. } if y + 1 < down => Position { y: y + 1, x: 0, ..at },
            Position { image, .. } => Position { image: image + 1, y: 0, x: 0 },
        }
    }

    /// Returns the input pixels that a tile reads.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn input_tile(&self, at: Position, data: *const f32) -> InputTile {
        let first = [at.y, at.x].map(|i| (i * self.size.outputs()) as isize);
        let first = [first[0] + self.first[0], first[1] + self.first[1]];
        let (size, channels) = (self.work.in_size(), self.work.in_channels());
        InputTile::new(data, at.image, size, channels, first, self.size.inputs())
    }

    /// Returns the pixels of the output gradient in a tile.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn gradient_tile(&self, at: Position, data: *const f32) -> InputTile {
        let side = self.size.outputs();
        let first = [at.y, at.x].map(|i| (i * side) as isize);
        let (size, channels) = (self.work.out_size(), self.work.out_channels());
        InputTile::new(data, at.image, size, channels, first, side)
    }
}

/// The position of a tile. Tiles are visited one after another, because computing it takes divisions.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(crate) struct Position {
    pub(crate) image: usize,
    /// Tile row and column in the image.
    pub(crate) y: usize,
    pub(crate) x: usize,
}

/// A square of pixels to read, parts of which may be beyond the edges of the image.
#[cfg(target_arch = "x86_64")]
pub(crate) struct InputTile {
    /// Its first pixel, even if that is beyond the edges.
    pub(crate) first: *const f32,
    /// The strides between rows and between pixels.
    pub(crate) row: usize,
    pub(crate) pixel: usize,
    /// Channels to read of each pixel.
    pub(crate) channels: usize,
    /// The rows and columns inside the image.
    pub(crate) ys: Range<usize>,
    pub(crate) xs: Range<usize>,
}

#[cfg(target_arch = "x86_64")]
impl InputTile {
    /// Returns the square of `side` pixels along each side from `first` on, in an image of `size`.
    fn new(
        data: *const f32,
        image: usize,
        size: [usize; 2],
        channels: usize,
        first: [isize; 2],
        side: usize,
    ) -> InputTile {
        let [height, width] = size;
        let pixel = ((image * height) as isize + first[0]) * width as isize + first[1];
        let inside = |first: isize, size: usize| {
            let end = (size as isize - first).clamp(0, side as isize) as usize;
            (first.min(0).unsigned_abs().min(end))..end
        };
        InputTile {
            first: data.wrapping_offset(pixel * channels as isize),
            row: width * channels,
            pixel: channels,
            channels,
            ys: inside(first[0], height),
            xs: inside(first[1], width),
        }
    }

    /// Returns the same tile with some of its channels.
    pub(crate) fn channels(self, range: &Range<usize>) -> InputTile {
        InputTile { first: self.first.wrapping_add(range.start), channels: range.len(), ..self }
    }
}

/// Returns the stride between planes of `tiles` tiles: one cache line more than they take, because
/// planes a power of two apart would evict each other from the cache.
pub(crate) fn plane(tiles: usize, channels: usize) -> usize {
    (tiles * channels).next_multiple_of(LINE) + LINE
}
