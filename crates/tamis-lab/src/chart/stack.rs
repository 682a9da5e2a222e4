//! Stacked columns: parts of a whole, place by place.

use std::fmt::Write as _;

use super::axis::{Frame, Heading, nothing};

/// One part of every column.
#[derive(Debug, Clone)]
pub struct Layer {
    /// Its name.
    pub name: String,
    /// The class that fills it.
    pub fill: String,
    /// Its size at each place; NaN: none.
    pub sizes: Vec<f64>,
}

/// Draws columns at places (in order), each as wide as the usual distance between them. `whole`: what they
/// reach at least.
pub fn svg(heading: Heading<'_>, places: &[f64], width: f64, layers: &[Layer], whole: f64) -> String {
    let height = |place: usize| -> f64 { layers.iter().filter_map(|layer| size(layer, place)).sum() };
    let most = (0..places.len()).map(height).fold(whole, f64::max);
    let (Some(first), Some(last)) = (places.first(), places.last()) else { return nothing(heading) };
    if most <= 0.0 {
        return nothing(heading);
    }
    let frame = Frame::new((first - width / 2.0, last + width / 2.0), (0.0, most));
    let mut svg = frame.open(heading);
    let mut below = vec![0.0; places.len()];
    for layer in layers {
        let mut path = String::new();
        for (place, (&at, below)) in places.iter().zip(&mut below).enumerate() {
            let Some(size) = size(layer, place) else { continue };
            let (left, right) = (frame.x(at - width / 2.0), frame.x(at + width / 2.0));
            let (base, top) = (frame.y(*below), frame.y(*below + size));
            *below += size;
            // A hair of paper between columns, where there is room for one.
            let hair = if right - left > 4.0 { 0.5 } else { 0.0 };
            let _ = write!(path, "M{:.1} {base:.1}V{top:.1}H{:.1}V{base:.1}Z", left + hair, right - hair);
        }
        if !path.is_empty() {
            let _ = write!(svg, "<path class=\"{}\" d=\"{path}\"/>", layer.fill);
        }
    }
    svg.push_str("</svg>");
    svg
}

fn size(layer: &Layer, place: usize) -> Option<f64> {
    layer.sizes.get(place).copied().filter(|size| *size > 0.0 && size.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_stand_on_each_other() {
        let heading = Heading { id: "a", title: "t", description: "d", unit: "step" };
        let layer =
            |sizes: &[f64]| Layer { name: "l".to_owned(), fill: "f0".to_owned(), sizes: sizes.to_vec() };
        let layers = [layer(&[1.0, 2.0]), layer(&[3.0, f64::NAN])];
        let drawn = svg(heading, &[1.0, 2.0], 1.0, &layers, 0.0);
        let frame = Frame::new((0.5, 2.5), (0.0, 4.0));
        let path = format!("{:.1}V{:.1}H", frame.y(1.0), frame.y(4.0));
        assert!(drawn.contains(&path), "{path} in {drawn}");
        assert_eq!(drawn.matches("class=\"f0\"").count(), 2);
        assert!(svg(heading, &[1.0], 1.0, &[layer(&[0.0])], 0.0).contains("no values"));
        assert!(svg(heading, &[], 1.0, &[], 0.0).contains("no values"));
    }
}
