//! The picture of a soak as SVG: a small panel for each measure, how far it has
//! moved since before the first box. Pure text, no dependency.

mod axis;

use super::measure::{Measure, Unit};
use super::report::{Subject, change, grouped};
use super::subject::Kind;
use axis::{Axis, Scale};
use std::fmt::Write as _;

const COLUMNS: usize = 4;
const PANEL_WIDTH: f64 = 280.0;
const PANEL_HEIGHT: f64 = 178.0;
const HEAD: f64 = 96.0;
const MARGIN: f64 = 16.0;

/// Where the lines are, in a panel.
const LEFT: f64 = 62.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 30.0;

/// One that sees nothing of the leaks would be nothing to look at.
const PANELS: [Measure; 16] = [
    Measure::Processes,
    Measure::Threads,
    Measure::Descriptors,
    Measure::Cgroups,
    Measure::DyingCgroups,
    Measure::Mounts,
    Measure::Namespaces,
    Measure::StateFiles,
    Measure::StateBytes,
    Measure::ResidentBytes,
    Measure::ChargedBytes,
    Measure::KernelBytes,
    Measure::HostAvailableBytes,
    Measure::HostSlabBytes,
    Measure::HostPerCpuBytes,
    Measure::HostNetworks,
];

/// Okabe and Ito's blue and orange, told apart by those who see fewer colours too;
/// lighter in the dark.
const STYLE: &str = "\
.page{fill:#ffffff}.text{fill:#1f2328}.soft{fill:#59636e}.grid{stroke:#d8dee4}\
.zero{stroke:#8c959f}.tare{stroke:#0072b2}.peer{stroke:#d55e00}\
.tare-text{fill:#0072b2}.peer-text{fill:#c04f00}\
@media(prefers-color-scheme:dark){.page{fill:#0d1117}.text{fill:#e6edf3}\
.soft{fill:#9198a1}.grid{stroke:#30363d}.zero{stroke:#6e7681}\
.tare{stroke:#56b4e9}.peer{stroke:#f0883e}.tare-text{fill:#56b4e9}.peer-text{fill:#f0883e}}";

pub fn svg(subjects: &[Subject]) -> String {
    let rows = PANELS.len().div_ceil(COLUMNS);
    let width = COLUMNS as f64 * PANEL_WIDTH + 2.0 * MARGIN;
    let height = HEAD + rows as f64 * PANEL_HEIGHT + MARGIN;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"system-ui, sans-serif\" font-size=\"11\">\n\
         <style>{STYLE}</style>\n\
         <rect class=\"page\" width=\"100%\" height=\"100%\"/>\n"
    );
    text.push_str(&head(subjects));
    let scale = scale(subjects);
    for (index, measure) in PANELS.into_iter().enumerate() {
        let x = MARGIN + (index % COLUMNS) as f64 * PANEL_WIDTH;
        let y = HEAD + (index / COLUMNS) as f64 * PANEL_HEIGHT;
        let _ = writeln!(text, "<g transform=\"translate({x},{y})\">");
        text.push_str(&panel(measure, subjects, &scale));
        text.push_str("</g>\n");
    }
    text + "</svg>\n"
}

fn head(subjects: &[Subject]) -> String {
    let boxes = subjects.first().map_or(0, last_box);
    let title = format!("What is left after {} boxes", grouped(boxes as f64));
    let mut text = label(MARGIN, 28.0, "start", "text", &title)
        .replace("<text ", "<text font-size=\"18\" font-weight=\"600\" ");
    let explained = "Change since before the first box, at moments when nothing is under way. \
                     All but the host's is the soak's own: the counts must be 0, the memory must not grow.";
    text.push_str(&label(MARGIN, 46.0, "start", "soft", explained));
    for (index, subject) in subjects.iter().enumerate() {
        let y = 64.0 + 17.0 * index as f64;
        let class = class(subject.series.subject);
        let _ = writeln!(
            text,
            "<line class=\"{class}\" x1=\"{MARGIN}\" y1=\"{0}\" x2=\"{1}\" y2=\"{0}\" stroke-width=\"3\"/>",
            y - 4.0,
            MARGIN + 24.0
        );
        let words = format!("{}: {}", subject.series.subject.name(), subject.extent());
        let class = format!("{class}-text");
        text.push_str(&label(MARGIN + 32.0, y, "start", &class, &words));
    }
    text
}

fn class(subject: Kind) -> &'static str {
    match subject {
        Kind::Tare | Kind::LibreChat => "tare",
        Kind::Bwrap => "peer",
    }
}

fn last_box(subject: &Subject) -> u64 {
    subject.series.samples.last().map_or(0, |it| it.boxes)
}

/// Logarithmic where one of the two got not nearly as far as the other.
fn scale(subjects: &[Subject]) -> Scale {
    let first = subjects.iter().flat_map(|it| it.series.samples.first());
    let first = first.map(|it| it.boxes).min().unwrap_or(1).max(1) as f64;
    let ends = subjects.iter().map(|it| last_box(it).max(1) as f64);
    let (least, most) = ends.fold((f64::MAX, 1.0_f64), |(a, b), it| (a.min(it), b.max(it)));
    if most / least > 3.0 { Scale::Logarithmic(first, most) } else { Scale::Linear(0.0, most) }
}

/// How far a subject's measure has moved at each sample.
fn points(measure: Measure, subject: &Subject, scale: &Scale) -> Vec<(f64, f64)> {
    let series = &subject.series;
    let Some(before) = series.before.as_ref().and_then(|it| it.values.get(&measure)) else {
        return Vec::new();
    };
    let start = match scale {
        Scale::Linear(..) => Some((0.0, 0.0)),
        Scale::Logarithmic(..) => None,
    };
    let moved = series.samples.iter().filter_map(|it| {
        let value = it.values.get(&measure)?;
        Some((it.boxes as f64, value - before))
    });
    start.into_iter().chain(moved).collect()
}

fn panel(measure: Measure, subjects: &[Subject], scale: &Scale) -> String {
    let lines: Vec<(Kind, Vec<(f64, f64)>)> =
        subjects.iter().map(|it| (it.series.subject, points(measure, it, scale))).collect();
    let mut text = label(LEFT, 14.0, "start", "text", measure.title())
        .replace("<text ", "<text font-weight=\"600\" ");
    text.push_str(&ends(&lines, measure.unit()));
    let x = Axis::new(*scale, LEFT, PANEL_WIDTH - RIGHT);
    let values = lines.iter().flat_map(|it| &it.1).map(|it| it.1);
    let y = Axis::over(values, measure.unit(), PANEL_HEIGHT - BOTTOM, TOP);
    text.push_str(&frame(&x, &y, measure.unit()));
    for (subject, points) in &lines {
        text.push_str(&line(points, class(*subject), &x, &y));
    }
    text
}

/// Where each line ends, in words: `tare 0   bwrap +2,981`.
fn ends(lines: &[(Kind, Vec<(f64, f64)>)], unit: Unit) -> String {
    let mut text = String::new();
    let mut x = LEFT;
    for (subject, points) in lines {
        let name = match subject {
            Kind::Tare | Kind::LibreChat => "tare",
            Kind::Bwrap => "bwrap",
        };
        let end = points.last().map_or("none".into(), |it| change(it.1, unit));
        let class = format!("{}-text", class(*subject));
        text.push_str(&label(x, 30.0, "start", &class, &format!("{name} {end}")));
        x += 92.0;
    }
    text
}

fn frame(x: &Axis, y: &Axis, unit: Unit) -> String {
    let mut text = String::new();
    let (left, right) = (LEFT, PANEL_WIDTH - RIGHT);
    for value in y.ticks() {
        let at = y.place(value);
        let class = if value == 0.0 { "zero" } else { "grid" };
        let _ = writeln!(
            text,
            "<line class=\"{class}\" x1=\"{left}\" y1=\"{at:.1}\" x2=\"{right}\" y2=\"{at:.1}\"/>"
        );
        text.push_str(&label(left - 6.0, at + 4.0, "end", "soft", &axis::tick_name(value, unit)));
    }
    let bottom = PANEL_HEIGHT - BOTTOM;
    for value in x.ticks() {
        let at = x.place(value);
        let _ = writeln!(
            text,
            "<line class=\"grid\" x1=\"{at:.1}\" y1=\"{bottom}\" x2=\"{at:.1}\" y2=\"{}\"/>",
            bottom + 4.0
        );
        let name = axis::short_count(value);
        text.push_str(&label(at, bottom + 15.0, "middle", "soft", &name));
    }
    let name = match x.scale() {
        Scale::Linear(..) => "boxes so far",
        Scale::Logarithmic(..) => "boxes so far (logarithmic)",
    };
    text.push_str(&label(right, bottom + 26.0, "end", "soft", name));
    text
}

/// With a mark at its end, so that one sees where it stops.
fn line(points: &[(f64, f64)], class: &str, x: &Axis, y: &Axis) -> String {
    let places: Vec<(f64, f64)> = points.iter().map(|it| (x.place(it.0), y.place(it.1))).collect();
    let Some((last_x, last_y)) = places.last() else {
        return String::new();
    };
    let words: Vec<String> = places.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    format!(
        "<polyline class=\"{class}\" points=\"{}\" fill=\"none\" stroke-width=\"2\" \
         stroke-linejoin=\"round\"/>\n\
         <circle class=\"{class}-text\" cx=\"{last_x:.1}\" cy=\"{last_y:.1}\" r=\"3\"/>\n",
        words.join(" ")
    )
}

fn label(x: f64, y: f64, anchor: &str, class: &str, text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    format!(
        "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::super::sample::{Sample, Values};
    use super::super::series::{Done, Series};
    use super::*;

    fn subject(kind: Kind, ends: u64, leaks: f64) -> Subject {
        let sample = |boxes: u64| Sample {
            boxes,
            seconds: 0.0,
            settled_after_seconds: 0.0,
            values: Values::from([
                (Measure::Processes, 8.0 + leaks * boxes as f64),
                (Measure::ChargedBytes, 5e6 + 1e3 * boxes as f64),
                (Measure::HostAvailableBytes, 2e10 - 1e4 * boxes as f64),
            ]),
        };
        let series = Series {
            subject: kind,
            wanted: ends,
            empty: None,
            before: Some(sample(0)),
            samples: (1..=10).map(|it| sample(it * ends / 10)).collect(),
            emptied: None,
            done: Some(Done { boxes: ends, stopped: Some("a < b & c".into()), ..Done::default() }),
        };
        Subject { series, drifts: Vec::new() }
    }

    fn both(peer_ends: u64) -> [Subject; 2] {
        [subject(Kind::Tare, 20_000, 0.0), subject(Kind::Bwrap, peer_ends, 2.0)]
    }

    #[test]
    fn every_measure_has_a_panel_and_each_subject_a_line_where_it_was_measured() {
        let text = svg(&both(1_000));
        for measure in PANELS {
            assert!(text.contains(&format!(">{}<", measure.title())), "{measure:?}");
        }
        assert_eq!(text.matches("<polyline class=\"tare\"").count(), 3);
        assert_eq!(text.matches("<polyline class=\"peer\"").count(), 3);
        assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
    }

    #[test]
    fn every_point_is_inside_its_panel() {
        for peer_ends in [1_000, 20_000] {
            let text = svg(&both(peer_ends));
            let lines = text.lines().filter(|it| it.starts_with("<polyline"));
            for line in lines {
                let points = line.split_once("points=\"").unwrap().1;
                for point in points.split_once('"').unwrap().0.split(' ') {
                    let (x, y) = point.split_once(',').unwrap();
                    let (x, y): (f64, f64) = (x.parse().unwrap(), y.parse().unwrap());
                    assert!((LEFT..=PANEL_WIDTH - RIGHT).contains(&x), "{point}");
                    assert!((TOP..=PANEL_HEIGHT - BOTTOM).contains(&y), "{point}");
                }
            }
        }
    }

    #[test]
    fn it_is_well_formed_and_says_in_words_where_each_line_ends() {
        let text = svg(&both(1_000));
        assert!(text.starts_with("<svg ") && text.ends_with("</svg>\n"));
        assert_eq!(text.matches("<text").count(), text.matches("</text>").count());
        assert_eq!(text.matches("<g ").count(), text.matches("</g>").count());
        assert!(text.contains("a &lt; b &amp; c"));
        assert!(text.contains(">tare 0<") && text.contains(">bwrap +2,000<"));
        assert!(text.contains("What is left after 20,000 boxes"));
    }

    #[test]
    fn the_axis_is_logarithmic_only_where_one_stopped_early() {
        assert!(matches!(scale(&both(1_000)), Scale::Logarithmic(..)));
        assert!(matches!(scale(&both(20_000)), Scale::Linear(..)));
        assert!(matches!(scale(&both(20_000)[..1]), Scale::Linear(..)));
    }

    #[test]
    fn both_are_legible_on_a_light_and_on_a_dark_page() {
        let text = svg(&both(1_000));
        assert!(text.contains("prefers-color-scheme:dark"));
        assert!(!text.contains("stroke=\"#") && !text.contains("fill=\"#"));
    }
}
