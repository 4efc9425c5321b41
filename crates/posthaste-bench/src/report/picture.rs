//! Pictures in SVG: bars for a workload, lines for what grows.

use super::html::escape;
use crate::measure::Measurement;
use crate::rounds::number;
use crate::workload::growth::Growth;

const WIDTH: f64 = 760.0;
/// Where bars begin, after their names, and where they end, before their numbers.
const LEFT: f64 = 190.0;
const RIGHT: f64 = 640.0;
const ROW: f64 = 26.0;

struct Bar<'a> {
    name: &'a str,
    class: &'static str,
    value: f64,
    rounds: &'a [f64],
}

/// A bar for ours, for what it is measured against, and for each peer; a dot for each round.
pub(super) fn bars(measurement: &Measurement) -> String {
    let bar = |name, class, value, rounds| Bar { name, class, value, rounds };
    let mut bars = vec![
        bar("ours", "ours", measurement.ours, measurement.ours_by_round.rounds()),
        bar(&measurement.against, "theirs", measurement.ceiling, measurement.ceiling_by_round.rounds()),
    ];
    bars.extend(measurement.peers.iter().map(|(name, median)| bar(name, "peer", *median, &[])));
    let goal = goal_at(measurement).filter(|goal| goal.is_finite());
    let values = bars.iter().flat_map(|bar| bar.rounds.iter().copied().chain([bar.value]));
    let most = values.chain(goal).fold(0.0, f64::max);
    let at = |value: f64| LEFT + (RIGHT - LEFT) * if most > 0.0 { value / most } else { 0.0 };
    let height = ROW * bars.len() as f64 + 8.0;
    let rows: String = bars
        .iter()
        .enumerate()
        .map(|(index, bar)| {
            let (top, end) = (4.0 + ROW * index as f64, at(bar.value));
            let dots: String = bar
                .rounds
                .iter()
                .map(|round| {
                    format!("<circle class=\"round\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"2.5\"/>", at(*round), top + 10.0)
                })
                .collect();
            format!(
                "<text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\
                 <rect class=\"{}\" x=\"{LEFT}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"20\" rx=\"3\"/>{dots}\
                 <text x=\"{:.1}\" y=\"{:.1}\">{}</text>\n",
                LEFT - 8.0,
                top + 14.0,
                escape(&shortened(bar.name)),
                bar.class,
                (end - LEFT).max(1.0),
                at(bar.rounds.iter().copied().fold(bar.value, f64::max)) + 8.0,
                top + 14.0,
                number(bar.value)
            )
        })
        .collect();
    let goal = goal.map_or_else(String::new, |goal| {
        let x = at(goal);
        format!("<line class=\"goal\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"0\" y2=\"{height:.0}\"/>\n")
    });
    svg(height, &format!("{rows}{goal}"), &measurement.what)
}

/// The value at which the outbox just reaches its goal.
fn goal_at(measurement: &Measurement) -> Option<f64> {
    let Measurement { ceiling, more_is_better, .. } = measurement;
    measurement.goal.map(|goal| if *more_is_better { goal * ceiling } else { ceiling / goal })
}

/// Two lines over the sizes, which are as far apart as they come.
pub(super) fn lines(growth: &Growth) -> String {
    const HEIGHT: f64 = 200.0;
    const BOTTOM: f64 = 170.0;
    let values = growth.points.iter().flat_map(|point| [point.ours, point.by_hand]);
    let most = values.fold(f64::MIN_POSITIVE, f64::max);
    let last = growth.points.len().saturating_sub(1).max(1) as f64;
    let x = |index: usize| 90.0 + (WIDTH - 180.0) * index as f64 / last;
    let y = |value: f64| BOTTOM - (BOTTOM - 16.0) * value / most;
    let line = |class: &str, value: &dyn Fn(usize) -> f64| {
        let points: Vec<String> =
            (0..growth.points.len()).map(|index| format!("{:.1},{:.1}", x(index), y(value(index)))).collect();
        format!("<polyline class=\"{class}\" points=\"{}\"/>\n", points.join(" "))
    };
    let axis = format!("<line class=\"axis\" x1=\"70\" x2=\"{:.0}\" y1=\"{BOTTOM}\" y2=\"{BOTTOM}\"/>\n", WIDTH - 60.0);
    let sizes: String = growth
        .points
        .iter()
        .enumerate()
        .map(|(index, point)| {
            let at = point.at;
            format!("<text x=\"{:.1}\" y=\"188\" text-anchor=\"middle\" class=\"quiet\">{at}</text>\n", x(index))
        })
        .collect();
    let scale = format!(
        "<text x=\"66\" y=\"20\" text-anchor=\"end\" class=\"quiet\">{}</text>\
         <text x=\"66\" y=\"{BOTTOM}\" text-anchor=\"end\" class=\"quiet\">0</text>\n",
        number(most)
    );
    let names = growth.points.last().map_or_else(String::new, |point| {
        // One above the other where they would touch.
        let (mut ours, theirs) = (y(point.ours), y(point.by_hand));
        if (ours - theirs).abs() < 14.0 {
            ours = theirs + if ours < theirs { -14.0 } else { 14.0 };
        }
        let x = x(growth.points.len() - 1) + 8.0;
        format!(
            "<text x=\"{x:.1}\" y=\"{:.1}\">outbox</text><text x=\"{x:.1}\" y=\"{:.1}\" class=\"quiet\">by hand</text>\n",
            ours + 4.0,
            theirs + 4.0
        )
    });
    let lines =
        [line("theirs", &|index| growth.points[index].by_hand), line("ours", &|index| growth.points[index].ours)];
    svg(HEIGHT, &format!("{axis}{scale}{sizes}{}{names}", lines.concat()), &growth.what)
}

fn svg(height: f64, content: &str, title: &str) -> String {
    format!(
        "<svg viewBox=\"0 0 {WIDTH} {height:.0}\" width=\"{WIDTH}\" height=\"{height:.0}\" role=\"img\">\n\
         <title>{}</title>\n{content}</svg>\n",
        escape(title)
    )
}

/// A name that fits before its bar.
fn shortened(name: &str) -> String {
    const MOST: usize = 30;
    if name.chars().count() <= MOST {
        return name.to_owned();
    }
    let start: String = name.chars().take(MOST - 1).collect();
    format!("{}…", start.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::{About, Figures};

    #[test]
    fn the_goal_is_drawn_whatever_the_rounds_say() {
        let about = About { workload: "W", database: "d", what: "", against: "", unit: "" };
        let figures = |rounds: [f64; 3]| rounds.into_iter().collect::<Figures>();
        // The middle of the ratios is not the ratio of the middles.
        let (ours, theirs) = (figures([90.0, 9.0, 95.0]), figures([100.0, 10.0, 80.0]));
        let more = about.compare(&ours, &theirs, Some(0.95));
        assert_eq!(goal_at(&more), Some(76.0));
        let less = about.compare_costs(&ours, &theirs, Some(0.8));
        assert_eq!(goal_at(&less), Some(100.0));
        for drawn in [bars(&more), bars(&less)] {
            assert_eq!(drawn.matches("class=\"goal\"").count(), 1, "{drawn}");
        }
        assert!(!bars(&about.compare(&ours, &theirs, None)).contains("class=\"goal\""));
    }
}
