//! The EXIF orientation tag.

/// Parses the orientation, 1 to 8, from the body of an APP1 segment.
pub(crate) fn orientation(body: &[u8]) -> Option<u8> {
    const ORIENTATION: usize = 0x0112;
    let tiff = body.strip_prefix(b"Exif\0\0")?;
    let little = match tiff.get(..4)? {
        b"II*\0" => true,
        b"MM\0*" => false,
        _ => return None,
    };
    let number = |at: usize, bytes: usize| {
        let field = tiff.get(at..at.checked_add(bytes)?)?;
        let add = |n: usize, &b: &u8| n << 8 | usize::from(b);
        Some(if little { field.iter().rev().fold(0, add) } else { field.iter().fold(0, add) })
    };
    let directory = number(4, 4)?;
    let entries = number(directory, 2)?;
    let entry =
        (0..entries).map(|i| directory + 2 + 12 * i).find(|&at| number(at, 2) == Some(ORIENTATION))?;
    u8::try_from(number(entry + 8, 2)?).ok().filter(|o| (1..=8).contains(o))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_both_byte_orders() {
        let little = b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0";
        let big = b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0";
        assert_eq!(orientation(little), Some(6));
        assert_eq!(orientation(big), Some(6));
        for n in 0..little.len() - 4 {
            assert_eq!(orientation(&little[..n]), None);
        }
    }
}
