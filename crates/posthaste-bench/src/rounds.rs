//! Contestants that take turns.

use crate::measure::{ByContestant, Figures};

/// Every contestant once per round, in an order of its own for each round, after some rounds that do not count. So whatever
/// the machine does beside this, it does to all of them.
pub(crate) struct Rounds {
    pub(crate) warm_up: usize,
    pub(crate) rounds: usize,
    pub(crate) random: fastrand::Rng,
}

impl Rounds {
    /// As many rounds in place of each.
    pub(crate) fn divided(&mut self, turns: usize) -> Self {
        Self { warm_up: self.warm_up, rounds: self.rounds * turns, random: self.random.fork() }
    }

    /// All rounds by their names, and whether they count.
    pub(crate) fn all(&self) -> Vec<(String, bool)> {
        (0..self.warm_up + self.rounds).map(|round| (self.title(round), round >= self.warm_up)).collect()
    }

    /// What a round is called, of those that count after those that do not.
    fn title(&self, round: usize) -> String {
        match round.checked_sub(self.warm_up) {
            Some(counted) => format!("round {}", counted + 1),
            None => "warm-up".to_owned(),
        }
    }

    /// Measures each contestant, and prints what it sees.
    pub(crate) async fn run(
        &mut self,
        title: &str,
        unit: &str,
        contestants: &[String],
        measure: impl AsyncFn(&str) -> anyhow::Result<f64>,
    ) -> anyhow::Result<ByContestant> {
        let mut figures = ByContestant::new();
        for round in 0..self.warm_up + self.rounds {
            let mut order: Vec<&String> = contestants.iter().collect();
            self.random.shuffle(&mut order);
            let counts = round >= self.warm_up;
            let mut seen = ByContestant::new();
            for contestant in order {
                let figure = match measure(contestant).await {
                    // A peer that fails is told of, and is no reason to stop.
                    Err(error) if contestant.starts_with(crate::peer::PREFIX) => {
                        say!("  {contestant} failed: {error:#}");
                        continue;
                    }
                    measured => measured?,
                };
                seen.entry(contestant.clone()).or_default().push(figure);
                if counts {
                    figures.entry(contestant.clone()).or_default().push(figure);
                }
            }
            let line = |name: &String| Some(format!("{name} {}", number(seen.get(name)?.last()?)));
            let line: Vec<String> = contestants.iter().filter_map(line).collect();
            say!("{title}, {}: {} {unit}", self.title(round), line.join(", "));
        }
        Ok(figures)
    }
}

/// The figures of a contestant, which are none if it never got through.
pub(crate) fn of(figures: &ByContestant, contestant: &str) -> Figures {
    figures.get(contestant).cloned().unwrap_or_default()
}

/// A number with as many digits as anybody reads.
pub(crate) fn number(figure: f64) -> String {
    match figure.abs() {
        large if large >= 100.0 => format!("{figure:.0}"),
        middling if middling >= 10.0 => format!("{figure:.1}"),
        small if small >= 0.1 || small == 0.0 => format!("{figure:.2}"),
        _ => format!("{figure:.4}"),
    }
}
