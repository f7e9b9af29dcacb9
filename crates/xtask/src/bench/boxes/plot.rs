//! A plot as SVG: lines of points on two logarithmic axes. Pure text, no
//! dependency; it knows nothing of what is plotted.

use std::fmt::Write as _;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 440.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 170.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 56.0;

/// Okabe and Ito's: told apart by those who see fewer colours, too.
const COLOURS: [&str; 6] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];

/// A tenth of a decade, so that no point lies on the frame.
const PAD: f64 = 0.1;

#[derive(Debug)]
pub struct Series {
    pub name: &'static str,
    /// Only what is above zero has a place on a logarithmic axis.
    pub points: Vec<(f64, f64)>,
}

pub fn svg(title: &str, x_label: &str, y_label: &str, series: &[Series]) -> String {
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
    );
    text.push_str(&label(LEFT, 20.0, "start", title));
    let all = || series.iter().flat_map(|it| &it.points).filter(has_place);
    let x = Axis::over(all().map(|it| it.0), LEFT, WIDTH - RIGHT);
    let y = Axis::over(all().map(|it| it.1), HEIGHT - BOTTOM, TOP);
    let (Some(x), Some(y)) = (x, y) else {
        text.push_str(&label(LEFT, HEIGHT / 2.0, "start", "nothing was measured"));
        return text + "</svg>\n";
    };
    text.push_str(&frame(&x, &y, all().map(|it| it.0).collect()));
    text.push_str(&label((LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 14.0, "middle", x_label));
    text.push_str(&label(LEFT, TOP - 4.0, "start", y_label));
    for (index, one) in series.iter().enumerate() {
        text.push_str(&line(one, COLOURS[index % COLOURS.len()], &x, &y));
        text.push_str(&legend(one.name, COLOURS[index % COLOURS.len()], index));
    }
    text + "</svg>\n"
}

fn has_place(point: &&(f64, f64)) -> bool {
    point.0 > 0.0 && point.1 > 0.0
}

/// Where a value lies on the page.
struct Axis {
    /// Logarithms.
    first: f64,
    last: f64,
    page_first: f64,
    page_last: f64,
}

impl Axis {
    /// From the least to the greatest value; `None` where there is none.
    fn over(values: impl Iterator<Item = f64>, page_first: f64, page_last: f64) -> Option<Self> {
        let logs: Vec<f64> = values.map(f64::log10).collect();
        let least = logs.iter().copied().reduce(f64::min)?;
        let greatest = logs.iter().copied().reduce(f64::max)?;
        Some(Self { first: least - PAD, last: greatest + PAD, page_first, page_last })
    }

    fn place(&self, value: f64) -> f64 {
        let share = (value.log10() - self.first) / (self.last - self.first);
        self.page_first + share * (self.page_last - self.page_first)
    }

    /// 1, 2 and 5 of every decade that is in sight.
    fn ticks(&self) -> Vec<f64> {
        let decades = self.first.floor() as i32..=self.last.ceil() as i32;
        let values = decades.flat_map(|decade| [1.0, 2.0, 5.0].map(|it| it * 10f64.powi(decade)));
        values.filter(|it| (self.first..=self.last).contains(&it.log10())).collect()
    }
}

/// The grid: across at round values, down at the values that were measured.
fn frame(x: &Axis, y: &Axis, mut measured: Vec<f64>) -> String {
    measured.sort_by(f64::total_cmp);
    measured.dedup();
    let mut text = String::new();
    let (right, bottom) = (x.page_last, y.page_first);
    let mut rule = |x1: f64, y1: f64, x2: f64, y2: f64| {
        let _ = writeln!(
            text,
            "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"#ddd\"/>"
        );
    };
    for value in y.ticks() {
        rule(LEFT, y.place(value), right, y.place(value));
    }
    for value in &measured {
        rule(x.place(*value), TOP, x.place(*value), bottom);
    }
    for value in y.ticks() {
        text.push_str(&label(LEFT - 8.0, y.place(value) + 4.0, "end", &number(value)));
    }
    for value in &measured {
        text.push_str(&label(x.place(*value), bottom + 18.0, "middle", &number(*value)));
    }
    text
}

fn line(series: &Series, colour: &str, x: &Axis, y: &Axis) -> String {
    let places = series.points.iter().filter(has_place);
    let places: Vec<(f64, f64)> = places.map(|it| (x.place(it.0), y.place(it.1))).collect();
    let words: Vec<String> = places.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let mut text = format!(
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>\n",
        words.join(" ")
    );
    for (x, y) in places {
        let _ = writeln!(text, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\" fill=\"{colour}\"/>");
    }
    text
}

fn legend(name: &str, colour: &str, index: usize) -> String {
    let (x, y) = (WIDTH - RIGHT + 16.0, TOP + 14.0 + 22.0 * index as f64);
    let sample = format!(
        "<line x1=\"{x}\" y1=\"{y}\" x2=\"{}\" y2=\"{y}\" stroke=\"{colour}\" stroke-width=\"2\"/>\n",
        x + 24.0
    );
    sample + &label(x + 32.0, y + 4.0, "start", name)
}

fn label(x: f64, y: f64, anchor: &str, text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    format!("<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>\n")
}

/// `5,000`, `0.2`: as a person would write it.
fn number(value: f64) -> String {
    if value < 1.0 {
        return format!("{value:.3}").trim_end_matches('0').to_owned();
    }
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (index, digit) in digits.char_indices() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two() -> [Series; 2] {
        [
            Series {
                name: "create",
                points: vec![(10.0, 8_000.0), (100.0, 8_000.0), (1_000.0, 9_000.0)],
            },
            Series {
                name: "ls & <more>",
                points: vec![(10.0, 100.0), (100.0, 20.0), (1_000.0, 0.0)],
            },
        ]
    }

    #[test]
    fn every_point_is_on_the_page_and_none_is_at_zero() {
        let text = svg("t", "x", "y", &two());
        let circles: Vec<&str> = text.lines().filter(|it| it.starts_with("<circle")).collect();
        assert_eq!(circles.len(), 5);
        for circle in circles {
            let at = |name: &str| -> f64 {
                let rest = circle.split_once(&format!("{name}=\"")).unwrap().1;
                rest.split_once('"').unwrap().0.parse().unwrap()
            };
            assert!((LEFT..=WIDTH - RIGHT).contains(&at("cx")), "{circle}");
            assert!((TOP..=HEIGHT - BOTTOM).contains(&at("cy")), "{circle}");
        }
        assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
    }

    #[test]
    fn it_is_well_formed_and_names_are_escaped() {
        let text = svg("a < b", "x", "y", &two());
        assert!(text.starts_with("<svg ") && text.ends_with("</svg>\n"));
        assert!(text.contains(">ls &amp; &lt;more><") && text.contains(">a &lt; b<"), "{text}");
        let opened = text.matches("<text").count();
        assert_eq!(opened, text.matches("</text>").count());
    }

    #[test]
    fn equal_values_are_level_and_more_is_higher() {
        let axis = Axis::over([10.0, 1_000.0].into_iter(), 400.0, 40.0).unwrap();
        assert!(axis.place(1_000.0) < axis.place(10.0));
        assert!((axis.place(100.0) - 220.0).abs() < 1e-6);
        let ticks: Vec<String> = axis.ticks().into_iter().map(number).collect();
        assert_eq!(ticks.join(" "), "10 20 50 100 200 500 1,000");
    }

    #[test]
    fn one_point_has_a_place_and_nothing_says_so() {
        let one = [Series { name: "x", points: vec![(10.0, 5.0)] }];
        assert_eq!(svg("t", "x", "y", &one).matches("<circle").count(), 1);
        assert!(svg("t", "x", "y", &[]).contains("nothing was measured"));
    }

    #[test]
    fn numbers_are_written_with_commas() {
        let written = [1.0, 999.0, 5_000.0, 1_234_567.0, 0.2, 0.05].map(number);
        assert_eq!(written, ["1", "999", "5,000", "1,234,567", "0.2", "0.05"]);
    }
}
