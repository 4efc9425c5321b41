//! Figures of several rounds, and what they say together.

use std::collections::BTreeMap;

use serde::Serialize;

/// One figure per round.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(transparent)]
pub(crate) struct Figures(Vec<f64>);

impl Figures {
    pub(crate) fn push(&mut self, figure: f64) {
        self.0.push(figure);
    }

    pub(crate) fn last(&self) -> Option<f64> {
        self.0.last().copied()
    }

    /// The middle one; of an even number, the middle of the middle two.
    pub(crate) fn median(&self) -> Option<f64> {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        match sorted.len() {
            0 => None,
            odd if odd % 2 == 1 => Some(sorted[middle]),
            _ => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
        }
    }

    /// The middle one, or what is no number.
    pub(crate) fn middle(&self) -> f64 {
        self.median().unwrap_or(f64::NAN)
    }

    pub(crate) fn least(&self) -> Option<f64> {
        self.0.iter().copied().min_by(f64::total_cmp)
    }

    pub(crate) fn most(&self) -> Option<f64> {
        self.0.iter().copied().max_by(f64::total_cmp)
    }

    /// How far the rounds lie apart, as a share of their middle.
    pub(crate) fn spread(&self) -> Option<f64> {
        Some((self.most()? - self.least()?) / self.median()?)
    }

    /// In each round, these to those. Nothing where they have not taken part in the same rounds.
    fn to(&self, others: &Self) -> Option<Self> {
        let paired = self.0.len() == others.0.len();
        paired.then(|| self.0.iter().zip(&others.0).map(|(figure, other)| figure / other).collect())
    }

    pub(crate) fn rounds(&self) -> &[f64] {
        &self.0
    }
}

impl FromIterator<f64> for Figures {
    fn from_iter<I: IntoIterator<Item = f64>>(figures: I) -> Self {
        Self(figures.into_iter().collect())
    }
}

/// Figures of the contestants of one workload, by their names.
pub(crate) type ByContestant = BTreeMap<String, Figures>;

/// What a workload came to.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Measurement {
    /// Its name in docs/performance.md, such as `W`.
    pub(crate) workload: String,
    pub(crate) database: String,
    /// What was measured, in words.
    pub(crate) what: String,
    /// What it was measured against, in words.
    pub(crate) against: String,
    pub(crate) unit: String,
    /// The median of the outbox.
    pub(crate) ours: f64,
    /// The median of what it was measured against, or the bound.
    pub(crate) ceiling: f64,
    /// Where more is better, ours to the ceiling, the median over the rounds; where less is, the ceiling to ours. More is
    /// always better.
    pub(crate) ratio: f64,
    /// Whether the figures are better the higher they are, as rates are, or the lower, as costs are.
    pub(crate) more_is_better: bool,
    /// The least ratio that we want to see. Nothing where a figure is only told.
    pub(crate) goal: Option<f64>,
    pub(crate) reached: bool,
    /// How far the rounds of the outbox lie apart, as a share of their median.
    pub(crate) spread: Option<f64>,
    pub(crate) ours_by_round: Figures,
    pub(crate) ceiling_by_round: Figures,
    /// Medians of other programs that did the same work in the same rounds.
    pub(crate) peers: BTreeMap<String, f64>,
}

/// What is measured.
pub(crate) struct About<'a> {
    pub(crate) workload: &'a str,
    pub(crate) database: &'a str,
    pub(crate) what: &'a str,
    pub(crate) against: &'a str,
    pub(crate) unit: &'a str,
}

impl About<'_> {
    /// Ours against others, where more is better. The ratio is the median of those of the rounds: what the machine does to a
    /// round it does to both.
    pub(crate) fn compare(&self, ours: &Figures, ceiling: &Figures, goal: Option<f64>) -> Measurement {
        let (our, their) = (ours.middle(), ceiling.middle());
        let ratio = ours.to(ceiling).and_then(|ratios| ratios.median()).unwrap_or(our / their);
        self.measurement(ours, ceiling.clone(), their, ratio, goal, true)
    }

    /// Ours against others, where less is better: theirs to ours.
    pub(crate) fn compare_costs(&self, ours: &Figures, theirs: &Figures, goal: Option<f64>) -> Measurement {
        let (our, their) = (ours.middle(), theirs.middle());
        let ratio = theirs.to(ours).and_then(|ratios| ratios.median()).unwrap_or(their / our);
        self.measurement(ours, theirs.clone(), their, ratio, goal, false)
    }

    /// Ours against a bound below which it must stay.
    pub(crate) fn at_most(&self, ours: &Figures, bound: f64) -> Measurement {
        let our = ours.middle();
        self.measurement(ours, Figures::default(), bound, bound / our, Some(1.0), false)
    }

    /// Ours against a bound that it must reach.
    pub(crate) fn at_least(&self, ours: &Figures, bound: f64) -> Measurement {
        let our = ours.middle();
        self.measurement(ours, Figures::default(), bound, our / bound, Some(1.0), true)
    }

    fn measurement(
        &self,
        ours: &Figures,
        by_round: Figures,
        ceiling: f64,
        ratio: f64,
        goal: Option<f64>,
        more_is_better: bool,
    ) -> Measurement {
        Measurement {
            workload: self.workload.to_owned(),
            database: self.database.to_owned(),
            what: self.what.to_owned(),
            against: self.against.to_owned(),
            unit: self.unit.to_owned(),
            ours: ours.middle(),
            ceiling,
            ratio,
            more_is_better,
            goal,
            // What could not be measured has reached nothing.
            reached: goal.is_none_or(|goal| ratio >= goal),
            spread: ours.spread(),
            ours_by_round: ours.clone(),
            ceiling_by_round: by_round,
            peers: BTreeMap::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_and_the_spread_of_rounds() {
        let figures: Figures = [4.0, 1.0, 2.0].into_iter().collect();
        assert_eq!((figures.median(), figures.spread()), (Some(2.0), Some(1.5)));
        let even: Figures = [4.0, 1.0].into_iter().collect();
        assert_eq!(even.median(), Some(2.5));
        assert_eq!(Figures::default().median(), None);
    }

    #[test]
    fn a_ratio_is_better_the_higher_it_is() {
        let about = About { workload: "W", database: "d", what: "", against: "", unit: "" };
        let figures = |figure: f64| [figure].into_iter().collect::<Figures>();
        let more = about.compare(&figures(90.0), &figures(100.0), Some(0.95));
        assert_eq!((more.ratio, more.reached, more.more_is_better), (0.9, false, true));
        // A slow round is slow for both.
        let [ours, theirs] = [[90.0, 9.0, 95.0], [100.0, 10.0, 100.0]].map(|rounds| rounds.into_iter().collect());
        assert_eq!(about.compare(&ours, &theirs, None).ratio, 0.9);
        let less = about.compare_costs(&figures(125.0), &figures(100.0), Some(0.9));
        assert_eq!((less.ratio, less.reached, less.ours, less.ceiling), (0.8, false, 125.0, 100.0));
        assert!(!less.more_is_better);
        assert!(about.compare_costs(&figures(80.0), &figures(100.0), Some(0.9)).reached);
        assert!(about.at_most(&figures(40.0), 50.0).reached);
        assert!(!about.at_most(&figures(60.0), 50.0).reached);
        assert!(!about.at_least(&figures(40.0), 50.0).reached);
        // Nothing was measured.
        assert!(!about.compare(&Figures::default(), &figures(1.0), Some(0.1)).reached);
    }
}
