//! EXIF orientation.

use super::Rect;

/// An EXIF orientation, 1 to 8. 1 is upright.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Orientation(pub(super) u8);

impl Orientation {
    /// Returns whether rows are stored as columns.
    fn is_transposed(self) -> bool {
        self.0 >= 5
    }

    /// Returns whether the stored rows and the stored columns are reversed.
    fn flips(self) -> (bool, bool) {
        (matches!(self.0, 3 | 4 | 6 | 7), matches!(self.0, 2 | 3 | 7 | 8))
    }

    /// Converts between the stored and the upright size.
    pub(super) fn size(self, (height, width): (usize, usize)) -> (usize, usize) {
        if self.is_transposed() { (width, height) } else { (height, width) }
    }

    /// Maps a rectangle of the upright image to the stored image of this size.
    pub(super) fn stored(self, rect: Rect, (height, width): (usize, usize)) -> Rect {
        let mut stored = rect;
        if self.is_transposed() {
            stored = Rect { x: rect.y, y: rect.x, width: rect.height, height: rect.width };
        }
        let (rows, columns) = self.flips();
        if rows {
            stored.y = height - stored.y - stored.height;
        }
        if columns {
            stored.x = width - stored.x - stored.width;
        }
        stored
    }

    /// Rotates a stored image of this size upright.
    pub(super) fn upright(self, stored: &[u8], size: (usize, usize), channels: usize, out: &mut [u8]) {
        let (height, width) = self.size(size);
        let pixels = (0..height).flat_map(|y| (0..width).map(move |x| Rect { x, y, width: 1, height: 1 }));
        for (out, pixel) in out.chunks_exact_mut(channels).zip(pixels) {
            let from = self.stored(pixel, size);
            let at = (from.y * size.1 + from.x) * channels;
            out.copy_from_slice(&stored[at..at + channels]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_exif_orientation_becomes_upright() {
        // An F, as stored under each orientation.
        let stored = [
            (["##", "#.", "#."], 1),
            (["##", ".#", ".#"], 2),
            ([".#", ".#", "##"], 3),
            (["#.", "#.", "##"], 4),
        ];
        for (rows, number) in stored {
            let mut out = [0; 6];
            Orientation(number).upright(rows.concat().as_bytes(), (3, 2), 1, &mut out);
            assert_eq!(&out, b"###.#.", "orientation {number}");
        }
        for (rows, number) in
            [(["###", "#.."], 5), (["#..", "###"], 6), (["..#", "###"], 7), (["###", "..#"], 8)]
        {
            let mut out = [0; 6];
            Orientation(number).upright(rows.concat().as_bytes(), (2, 3), 1, &mut out);
            assert_eq!(&out, b"###.#.", "orientation {number}");
        }
    }
}
