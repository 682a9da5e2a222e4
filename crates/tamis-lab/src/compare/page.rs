//! A comparison as one HTML page with its charts in it.

use serde::Serialize;

use super::measure::{Choice, Over, curve, value_at};
use super::{Comparison, Measured};
use crate::Fault;
use crate::chart::lines::{Curve, CurveLook, Point, Range, chart, describe};
use crate::chart::number::figure as number;
use crate::chart::{Figure, Heading, LegendKey};
use crate::html::{Kind, document};

/// Places at which a line is drawn, at most.
const MOST_PLACES: usize = 200;

/// The mean of a variant's runs over something, with the least and the largest. Between its measurements a
/// run has its last value; a place counts once every run has one.
fn line(variant: &Measured, look: CurveLook, choice: &Choice, over: Over) -> Curve {
    let curves: Vec<Vec<(f64, f64)>> = variant
        .series
        .iter()
        .filter_map(|series| Some(curve(series, &choice.name(series)?, over)))
        .filter(|curve| !curve.is_empty())
        .collect();
    let mut places: Vec<f64> = curves.iter().flatten().map(|(at, _)| *at).collect();
    places.sort_by(f64::total_cmp);
    places.dedup();
    // Beyond the shortest run a mean would be one of others.
    let last =
        curves.iter().filter_map(|curve| curve.last()).map(|(at, _)| *at).fold(f64::INFINITY, f64::min);
    places.retain(|at| *at <= last);
    let stride = places.len().div_ceil(MOST_PLACES).max(1);
    let num_places = places.len();
    let chosen =
        places.into_iter().enumerate().filter(|(place, _)| place % stride == 0 || place + 1 == num_places);
    let point = |at: f64| {
        let values: Vec<f64> = curves.iter().map(|curve| value_at(curve, at)).collect::<Option<_>>()?;
        let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Some(Point { at, value: mean, least, most })
    };
    Curve {
        name: variant.name.clone(),
        run: 0,
        look,
        points: chosen.filter_map(|(_, at)| point(at)).collect(),
    }
}

/// The data of the page, which the template lays out.
#[derive(Serialize)]
struct Data<'a> {
    keys: Vec<LegendKey>,
    tables: Vec<Table>,
    notes: &'a [String],
}

/// A table with the charts of its metric.
#[derive(Serialize)]
struct Table {
    grid: Vec<Vec<String>>,
    charts: Vec<Figure>,
}

impl Comparison {
    /// The page: tables, then each metric over steps, tokens and time.
    ///
    /// # Errors
    /// A fault of this program.
    pub fn html(&self) -> Result<String, Fault> {
        let are_baselines: Vec<bool> = self.variants.iter().map(Measured::is_baseline).collect();
        let looks = CurveLook::of(&are_baselines);
        let variants = || self.variants.iter().zip(&looks);
        let chart = |number_of_table: usize, choice: &Choice, over: Over| {
            let lines: Vec<Curve> =
                variants().map(|(variant, look)| line(variant, *look, choice, over)).collect();
            let heading = Heading {
                id: format!("m{number_of_table}-{}", over.unit()),
                title: format!("{} over {}", choice.title(), over.unit()),
                description: describe(&lines, over.unit()),
                unit: over.unit().to_owned(),
                ..Heading::default()
            };
            // A line without points is not drawn; the table has the value of what never changes.
            let is_drawn = lines.iter().any(|line| !line.points.is_empty() && line.constant().is_none());
            is_drawn.then(|| chart(heading, &lines, Range::default(), &number))
        };
        let tables = self.tables.iter().enumerate().map(|(number, table)| Table {
            grid: self.grid(table),
            charts: Over::ALL.into_iter().filter_map(|over| chart(number, &table.choice, over)).collect(),
        });
        let data = Data {
            keys: variants().map(|(variant, look)| look.key(&variant.name, None)).collect(),
            tables: tables.collect(),
            notes: &self.notes,
        };
        document(Kind::Comparison, "Comparison", &data)
    }
}
