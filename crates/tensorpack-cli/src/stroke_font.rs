//! A font of straight strokes for ASCII, for pictures on machines without fonts.
//!
//! Each glyph is a list of strokes, separated by spaces, of points with two digits: x, then y. The
//! baseline is at y = 2, small letters reach 6, capitals 8, and descenders 0.

/// The glyphs from `!` to `~`, in the order of ASCII.
#[rustfmt::skip]
const GLYPHS: [&str; 94] = [
    // ! " # $ % & ' ( ) * + , - . /
    "0804 0302", "0806 2826", "1218 3238 0444 0646", "473818070615354443321203 2921",
    "0248 0818160608 3444423234", "4216172837360403122244", "0806", "18060412", "08161402",
    "2723 0644 0446", "2723 0545", "1301", "0535", "0302", "0248",
    // 0 to 9
    "120307183847433212", "172822 1232", "07183847460242", "0718384746354443321203 1535", "32380444",
    "480805354443321203", "4738180703123243443505", "084812", "15060718384746351504031232434435",
    "0312324347381807061545",
    // : ; < = > ? @
    "0302 0605", "1301 1615", "370533", "0646 0444", "073503", "071838474624 2322",
    "433212030718384744343626152434",
    // A to Z
    "022842 1535", "02083847463505 3544433202", "4738180703123243", "02083847433202", "48080242 0535",
    "480802 0535", "47381807031232434525", "0208 4248 0545", "0802", "3833221203", "0208 4804 1542",
    "080242", "0208254842", "02084248", "120307183847433212", "02083847463505",
    "120307183847433212 2442", "02083847463505 2542", "473818070615354443321203", "0848 2822",
    "080312324348", "082248", "0812263248", "0842 0248", "082548 2522", "08480242",
    // [ \ ] ^ _ `
    "18080212", "0842", "08181202", "062846", "0141", "0817",
    // a to z
    "16364542 441403123243", "0802 0516364543321203", "4536160503123243", "4842 4536160503123243",
    "04444536160503123243", "28181712 0626", "4641301001 4536160503123243", "0802 0516364542",
    "0602 0807", "161100 1817", "0802 3604 1532", "0802", "0602 05162522 25364542", "0602 0516364542",
    "160503123243453616", "0600 0516364543321203", "4640 4536160503123243", "0602 051636",
    "4616051434433202", "18132232 0636", "060312324346 4642", "062246", "0612253246", "0642 0246",
    "0622 4610", "06460242",
    // { | } ~
    "28171605141322", "0901", "08171625141302", "05163445",
];

/// The glyph of a character that the font does not have: a box.
const MISSING: &str = "0208484202";
/// The height of a unit and the width of one, in em.
const UNIT: (f64, f64) = (0.095, 0.117);
/// The space after a glyph, and the width of a space character, in units.
const GAP: f64 = 1.7;
const SPACE: f64 = 2.0;

/// A stroke of a text, from point to point. Coordinates are in em, with y downwards from the baseline.
pub(crate) type Stroke = Vec<(f64, f64)>;

fn glyph(c: char) -> &'static str {
    match c {
        c if c.is_whitespace() => "",
        '!'..='~' => GLYPHS[c as usize - '!' as usize],
        _ => MISSING,
    }
}

/// Returns the width of a text in em.
pub(crate) fn width(text: &str) -> f64 {
    strokes(text).1
}

/// Returns the strokes of a text that begins at 0, and its width in em.
pub(crate) fn strokes(text: &str) -> (Vec<Stroke>, f64) {
    let (mut all, mut at) = (Vec::new(), 0.0);
    for c in text.chars() {
        let glyph = glyph(c);
        let mut right = if glyph.is_empty() { SPACE } else { 0.0 };
        for stroke in glyph.split_ascii_whitespace() {
            let digits: Vec<f64> = stroke.bytes().map(|digit| f64::from(digit - b'0')).collect();
            let point = |p: &[f64]| ((at + p[0]) * UNIT.0, (2.0 - p[1]) * UNIT.1);
            right = digits.chunks_exact(2).map(|p| p[0]).fold(right, f64::max);
            all.push(digits.chunks_exact(2).map(point).collect());
        }
        at += right + GAP;
    }
    let width = if text.is_empty() { 0.0 } else { (at - GAP) * UNIT.0 };
    (all, width)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_character_of_ascii_has_its_own_glyph() {
        for (i, glyph) in GLYPHS.iter().enumerate() {
            let c = char::from(b'!' + i as u8);
            let points = glyph.split(' ').map(str::len);
            assert!(points.clone().all(|n| n % 2 == 0 && n >= 4), "{c}");
            // Only O, 0 and I, l look the same.
            let same: String = ('!'..='~').filter(|o| super::glyph(*o) == *glyph).collect();
            assert!(same.len() == 1 || ["0O", "Il"].contains(&same.as_str()), "{same}");
        }
        assert!(width("mm") > width("ii") && width("é") == width("O") && width("") == 0.0);
    }

    #[test]
    fn glyphs_follow_each_other_and_sit_on_the_baseline() {
        let (strokes, width) = strokes("L L");
        assert_eq!(strokes.len(), 2);
        let points: Vec<(f64, f64)> = strokes.concat();
        let right = points.iter().map(|p| p.0).fold(0.0, f64::max);
        assert!((right - width).abs() < 1e-9, "{right} {width}");
        assert!(points.iter().all(|p| p.1 <= 0.0 && p.1 >= -6.0 * UNIT.1));
        assert!(strokes[1][0].0 > strokes[0][2].0);
    }
}
