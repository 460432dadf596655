//! Pictures of the results, in the axes of the paper's figures: throughput over the size of requests, and over the
//! number of processes.

use super::{Report, Row};
use crate::failure::{Failure, Outcome};
use crate::quantity::bytes_text;
use plotters::coord::Shift;
use plotters::prelude::*;
use std::collections::BTreeMap;
use std::path::Path;

/// Of one panel, pixels.
const WIDTH: u32 = 620;
const HEIGHT: u32 = 400;
const TEXT: (&str, u32) = ("sans-serif", 15);

/// One panel: a line for each column over what is on the x axis.
struct Panel {
    title: String,
    x_title: &'static str,
    /// Names of the places on the x axis.
    places: Vec<String>,
    /// By name of the column: MiB/s, least and most, by place.
    lines: BTreeMap<String, Vec<(usize, f64, f64, f64)>>,
}

/// Draws all panels into an SVG file: the left ones write, the right ones read.
pub fn draw(report: &Report, path: &Path) -> Outcome<()> {
    let panels = panels(&report.results);
    let rows = panels.len().div_ceil(2).max(1);
    let size = (2 * WIDTH, HEIGHT * u32::try_from(rows).unwrap_or(1));
    let area = SVGBackend::new(path, size).into_drawing_area();
    let drawn = area.fill(&WHITE).map_err(|error| error.to_string()).and_then(|()| {
        let places = area.split_evenly((rows, 2));
        places
            .iter()
            .zip(&panels)
            .try_for_each(|(place, panel)| panel.draw(place).map_err(|error| error.to_string()))?;
        area.present().map_err(|error| error.to_string())
    });
    drawn.map_err(|error| Failure::new(format!("--plot {}: {error}", path.display())))
}

/// A panel over requests for each number of processes, and one over processes for each request, where there are
/// several; each for writes and for reads.
fn panels(rows: &[Row]) -> Vec<Panel> {
    let mut processes: Vec<usize> = rows.iter().map(|row| row.processes).collect();
    let mut requests: Vec<u64> = rows.iter().map(|row| row.request).collect();
    processes.sort_unstable();
    processes.dedup();
    requests.sort_unstable();
    requests.dedup();
    let mut panels = Vec::new();
    if requests.len() > 1 || processes.len() == 1 {
        for &count in &processes {
            for operation in ["write", "read"] {
                let title = format!("{operation}, {count} {}", if count == 1 { "process" } else { "processes" });
                let chosen = rows.iter().filter(|row| row.operation == operation && row.processes == count);
                let place = |row: &Row| requests.iter().position(|request| *request == row.request);
                let places = requests.iter().map(|request| bytes_text(*request)).collect();
                panels.push(Panel::new(title, "request", places, chosen, place));
            }
        }
    }
    if processes.len() > 1 {
        for &request in &requests {
            for operation in ["write", "read"] {
                let title = format!("{operation}, requests of {}", bytes_text(request));
                let chosen = rows.iter().filter(|row| row.operation == operation && row.request == request);
                let place = |row: &Row| processes.iter().position(|count| *count == row.processes);
                let places = processes.iter().map(ToString::to_string).collect();
                panels.push(Panel::new(title, "processes", places, chosen, place));
            }
        }
    }
    panels
}

impl Panel {
    fn new<'a>(
        title: String,
        x_title: &'static str,
        places: Vec<String>,
        rows: impl Iterator<Item = &'a Row>,
        place: impl Fn(&Row) -> Option<usize>,
    ) -> Self {
        let mib = |rate: f64| rate / f64::from(1 << 20);
        let mut lines: BTreeMap<String, Vec<_>> = BTreeMap::new();
        for row in rows {
            let Some(at) = place(row) else { continue };
            let point = (at, mib(row.bytes_per_second), mib(row.bytes_per_second_min), mib(row.bytes_per_second_max));
            lines.entry(row.column.to_string()).or_default().push(point);
        }
        Self { title, x_title, places, lines }
    }

    fn draw<B: DrawingBackend>(&self, area: &DrawingArea<B, Shift>) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
        let most = self.lines.values().flatten().map(|point| point.3).fold(1.0, f64::max);
        // Room for the names above the lines.
        let most = most * (1.1 + 0.08 * self.lines.len() as f64);
        let last = self.places.len().saturating_sub(1) as f64;
        let mut chart = ChartBuilder::on(area)
            .caption(&self.title, ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(40)
            .y_label_area_size(70)
            .build_cartesian_2d(-0.3..last + 0.3, 0.0..most)?;
        let name = |at: &f64| {
            let place = self.places.iter().enumerate().find(|(place, _)| (*place as f64 - at).abs() < 0.01);
            place.map(|(_, name)| name.clone()).unwrap_or_default()
        };
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_labels(2 * self.places.len() + 1)
            .x_label_formatter(&name)
            .y_label_formatter(&|rate| format!("{rate:.0}"))
            .x_desc(self.x_title)
            .y_desc("MiB/s (median, least to most)")
            .label_style(TEXT)
            .draw()?;
        for (number, (name, points)) in self.lines.iter().enumerate() {
            let colour = Palette99::pick(number);
            let line = points.iter().map(|point| (point.0 as f64, point.1));
            chart
                .draw_series(LineSeries::new(line.clone(), colour.stroke_width(2)))?
                .label(name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], Palette99::pick(number).stroke_width(2)));
            chart.draw_series(line.map(|at| Circle::new(at, 3, colour.filled())))?;
            let spread = |point: &(usize, f64, f64, f64)| {
                PathElement::new([(point.0 as f64, point.2), (point.0 as f64, point.3)], colour.mix(0.5))
            };
            chart.draw_series(points.iter().map(spread))?;
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.8))
            .label_font(TEXT)
            .draw()
    }
}
