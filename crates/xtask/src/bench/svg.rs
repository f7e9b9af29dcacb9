//! Draws an answer as a small SVG: one panel for each table.

use super::answer::{Answer, Plot, Table, number};
use std::fmt::Write as _;

const WIDTH: f64 = 720.0;
const MARGIN: f64 = 16.0;
/// Where bars begin, behind the names.
const NAMES: f64 = 230.0;
const BAR: f64 = 22.0;
const TITLE: f64 = 34.0;
const GROWTH_HEIGHT: f64 = 260.0;
const COLOURS: [&str; 6] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];
const GREY: &str = "#8c959f";

/// Returns the picture of all tables, below each other.
pub fn draw(answer: &Answer) -> String {
    let mut body = String::new();
    let mut top = MARGIN;
    for table in &answer.tables {
        let title = match (table.plot, table.columns.as_slice()) {
            (Plot::Bars, [first, second, ..]) if is_p99(second) => {
                format!("{}: {first}, and a line to the p99", table.title)
            }
            (Plot::Bars, [first, ..]) => format!("{}: {first}", table.title),
            (Plot::Bars | Plot::Growth, _) => table.title.clone(),
        };
        text(&mut body, MARGIN, top + 14.0, &title, "font-weight=\"600\"");
        top += TITLE;
        top += match table.plot {
            Plot::Bars => bars(&mut body, table, top),
            Plot::Growth => growth(&mut body, table, top),
        };
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {top:.0}\" \
         font-family=\"system-ui, sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n{body}</svg>\n"
    )
}

fn text(body: &mut String, x: f64, y: f64, words: &str, more: &str) {
    let words = words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let _ = writeln!(body, "<text x=\"{x:.1}\" y=\"{y:.1}\" {more}>{words}</text>");
}

fn is_p99(column: &str) -> bool {
    column.starts_with("p99")
}

/// The first column as bars, and the second as a line if it is a p99. Returns the height.
fn bars(body: &mut String, table: &Table, top: f64) -> f64 {
    let first = |values: &[Option<f64>]| values.first().copied().flatten();
    let has_p99 = table.columns.get(1).is_some_and(|it| is_p99(it));
    let second = |values: &[Option<f64>]| values.get(1).copied().flatten().filter(|_| has_p99);
    let all = table.rows.iter().flat_map(|it| [first(&it.values), second(&it.values)]);
    let longest = all.flatten().fold(f64::MIN_POSITIVE, f64::max);
    let scale = (WIDTH - NAMES - MARGIN - 90.0) / longest;
    for (index, row) in table.rows.iter().enumerate() {
        let y = top + index as f64 * BAR;
        let name = match &row.warm {
            Some(warm) => format!("{} ({warm})", row.name),
            None => row.name.clone(),
        };
        text(body, NAMES - 8.0, y + 13.0, &name, "text-anchor=\"end\"");
        let Some(value) = first(&row.values) else {
            text(body, NAMES, y + 13.0, "not measured", &format!("fill=\"{GREY}\""));
            continue;
        };
        let colour = if row.name.starts_with("tare") { COLOURS[0] } else { GREY };
        let width = (value * scale).max(1.0);
        let _ = writeln!(
            body,
            "<rect x=\"{NAMES}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"16\" fill=\"{colour}\"/>"
        );
        let end = second(&row.values).map_or(width, |it| (it * scale).max(width));
        let _ = writeln!(
            body,
            "<path d=\"M{:.1} {:.1}h{:.1}\" stroke=\"{colour}\"/>",
            NAMES + width,
            y + 8.0,
            end - width
        );
        text(body, NAMES + end + 6.0, y + 13.0, &number(Some(value)), "");
    }
    table.rows.len() as f64 * BAR + MARGIN
}

/// Each row as a line on logarithmic axes. Returns the height.
fn growth(body: &mut String, table: &Table, top: f64) -> f64 {
    let xs: Vec<f64> = table.columns.iter().map_while(|it| it.parse().ok()).collect();
    let points = |values: &[Option<f64>]| -> Vec<(f64, f64)> {
        let pairs = xs.iter().zip(values);
        pairs.filter_map(|(x, y)| Some((*x, (*y)?))).filter(|it| it.1 > 0.0).collect()
    };
    let all: Vec<(f64, f64)> = table.rows.iter().flat_map(|it| points(&it.values)).collect();
    let (left, right) = (MARGIN + 44.0, WIDTH - 190.0);
    let (high, low) = (top + 6.0, top + GROWTH_HEIGHT - 40.0);
    let x_of = axis(all.iter().map(|it| it.0), left, right);
    let y_of = axis(all.iter().map(|it| it.1), low, high);
    let _ = writeln!(
        body,
        "<path d=\"M{left:.0} {high:.0}V{low:.0}H{right:.0}\" fill=\"none\" stroke=\"{GREY}\"/>"
    );
    for (x, name) in xs.iter().zip(&table.columns) {
        text(body, x_of(*x), low + 16.0, name, "text-anchor=\"middle\"");
    }
    for power in -2..7 {
        let (value, y) = (10_f64.powi(power), y_of(10_f64.powi(power)));
        if (high..=low).contains(&y) {
            text(body, left - 6.0, y + 4.0, &value.to_string(), "text-anchor=\"end\"");
        }
    }
    for (index, row) in table.rows.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let points = points(&row.values);
        let line: Vec<String> =
            points.iter().map(|(x, y)| format!("{:.1},{:.1}", x_of(*x), y_of(*y))).collect();
        let line = line.join(" ");
        let _ = writeln!(
            body,
            "<polyline points=\"{line}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>"
        );
        // Names are listed beside the lines, because their ends may be close to each other.
        let fill = format!("fill=\"{colour}\"");
        let exponent = number(row.values.get(xs.len()).copied().flatten());
        let name = format!("{}, exponent {exponent}", row.name);
        text(body, right + 14.0, high + 14.0 + 18.0 * index as f64, &name, &fill);
    }
    GROWTH_HEIGHT
}

/// Returns the place of a value on a logarithmic axis.
fn axis(values: impl Iterator<Item = f64>, from: f64, to: f64) -> impl Fn(f64) -> f64 {
    let logs: Vec<f64> = values.map(f64::ln).collect();
    let least = logs.iter().copied().fold(f64::INFINITY, f64::min);
    let span = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max) - least;
    let span = if span > 0.0 && span.is_finite() { span } else { 1.0 };
    move |value: f64| from + (value.ln() - least) / span * (to - from)
}

#[cfg(test)]
mod tests {
    use super::super::answer::{Machine, Row};
    use super::*;

    fn row(name: &str, values: &[f64]) -> Row {
        Row {
            name: name.into(),
            warm: None,
            samples: 1,
            values: values.iter().copied().map(Some).collect(),
            absent: None,
        }
    }

    fn drawn(columns: &[&str], rows: Vec<Row>, plot: Plot) -> String {
        let table = Table {
            title: "a < b & c".into(),
            columns: columns.iter().map(|it| (*it).to_owned()).collect(),
            rows,
            goals: Vec::new(),
            plot,
        };
        let tables = vec![table];
        draw(&Answer { question: "python".into(), machine: Machine::observe(), tables })
    }

    /// The values of an attribute, in order.
    fn attribute<'a>(svg: &'a str, element: &str, name: &str) -> Vec<&'a str> {
        let lines = svg.lines().filter(|it| it.starts_with(&format!("<{element} x=")));
        lines
            .map(|it| it.split(&format!(" {name}=\"")).nth(1).unwrap().split('"').next().unwrap())
            .collect()
    }

    #[test]
    fn a_bar_is_as_long_as_its_value() {
        let rows = vec![row("bwrap", &[20.0, 40.0]), row("tare", &[5.0, 6.0]), row("none", &[])];
        let svg = drawn(&["p50 ms", "p99 ms"], rows, Plot::Bars);
        let widths: Vec<f64> =
            attribute(&svg, "rect", "width").into_iter().map(|it| it.parse().unwrap()).collect();
        assert_eq!(widths.len(), 2);
        assert!((widths[0] / widths[1] - 4.0).abs() < 0.02, "{widths:?}");
        assert!(svg.contains("not measured") && svg.contains(">5.00<"), "{svg}");
        assert!(svg.contains("a &lt; b &amp; c"), "{svg}");
    }

    #[test]
    fn linear_growth_is_a_straight_line_and_an_unknown_point_is_left_out() {
        let mut broken = row("rm", &[1.0, 1.0, 1.0]);
        broken.values[1] = None;
        let rows = vec![row("create", &[1.0, 10.0, 100.0]), broken];
        let svg = drawn(&["10", "100", "1000", "exponent"], rows, Plot::Growth);
        let lines: Vec<Vec<f64>> = svg
            .lines()
            .filter_map(|it| it.strip_prefix("<polyline points=\"")?.split('"').next())
            .map(|it| it.split([' ', ',']).map(|it| it.parse().unwrap()).collect())
            .collect();
        let create = &lines[0];
        let slope =
            |from: usize| (create[from + 3] - create[from + 1]) / (create[from + 2] - create[from]);
        assert!((slope(0) - slope(2)).abs() < 0.01, "{lines:?}");
        assert!(slope(0) < 0.0, "more is higher: {lines:?}");
        assert_eq!(lines[1].len(), 4, "two points");
    }

    #[test]
    fn a_table_without_numbers_is_still_a_picture() {
        for plot in [Plot::Bars, Plot::Growth] {
            let svg = drawn(&["10"], vec![row("x", &[])], plot);
            assert!(svg.ends_with("</svg>\n") && !svg.contains("NaN"), "{svg}");
        }
    }
}
