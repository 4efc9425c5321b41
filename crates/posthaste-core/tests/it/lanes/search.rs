//! Looks at every state that can be reached, and from each for a way to the end.

use std::fmt::Debug;
use std::hash::Hash;

use foldhash::HashMap;

/// A step to another state, or what it breaks.
pub(crate) struct Next<W, S> {
    pub(crate) step: S,
    pub(crate) to: Result<W, &'static str>,
    /// Whether it may be relied upon: it happens in the end if nothing goes wrong any more.
    pub(crate) calm: bool,
}

/// A state, of which some are the end.
pub(crate) trait State: Copy + Eq + Hash + Debug {
    fn is_over(&self) -> bool;
}

pub(crate) struct Searched {
    pub(crate) states: usize,
    pub(crate) steps: usize,
    /// What is broken, and the shortest way there.
    pub(crate) wrong: Option<String>,
}

/// Breadth first, so the first mistake that is found has the shortest way.
pub(crate) fn search<W: State, S: Copy + Debug>(
    start: W,
    next: impl Fn(&W, &mut Vec<Next<W, S>>),
    most: usize,
) -> Searched {
    let (mut worlds, mut places) = (vec![start], HashMap::from_iter([(start, 0_u32)]));
    // How each state was first reached; and the steps that can be relied upon, by where they lead.
    let mut reached: Vec<(u32, Option<S>)> = vec![(0, None)];
    let mut calm: Vec<(u32, u32)> = Vec::new();
    let (mut steps, mut at, mut ways) = (0, 0, Vec::new());
    while at < worlds.len() {
        let (world, here) = (worlds[at], u32::try_from(at).expect("states are few"));
        next(&world, &mut ways);
        for way in ways.drain(..) {
            steps += 1;
            let to = match way.to {
                Ok(to) => to,
                Err(broken) => {
                    let wrong = Some(format!("{broken}: {}{:?}", path(&reached, here), way.step));
                    return Searched { states: worlds.len(), steps, wrong };
                }
            };
            let there = *places.entry(to).or_insert_with(|| {
                worlds.push(to);
                reached.push((here, Some(way.step)));
                u32::try_from(worlds.len() - 1).expect("states are few")
            });
            if way.calm && there != here {
                calm.push((there, here));
            }
        }
        assert!(worlds.len() <= most, "more than {most} states");
        at += 1;
    }
    let stuck = first_without_a_way(&worlds, calm);
    let wrong = stuck.map(|place| {
        let state = worlds[place as usize];
        format!("not everything can be delivered any more: {}and then {state:?}", path(&reached, place))
    });
    Searched { states: worlds.len(), steps, wrong }
}

/// The first state from which no steps that can be relied upon lead to the end.
fn first_without_a_way<W: State>(worlds: &[W], mut calm: Vec<(u32, u32)>) -> Option<u32> {
    calm.sort_unstable();
    let mut ends_well: Vec<bool> = worlds.iter().map(State::is_over).collect();
    let mut open: Vec<u32> = (0..).zip(&ends_well).filter(|(_, over)| **over).map(|(place, _)| place).collect();
    while let Some(place) = open.pop() {
        let from = calm.partition_point(|(to, _)| *to < place);
        for (_, before) in calm[from..].iter().take_while(|(to, _)| *to == place) {
            if !std::mem::replace(&mut ends_well[*before as usize], true) {
                open.push(*before);
            }
        }
    }
    ends_well.iter().position(|well| !well).map(|place| u32::try_from(place).expect("states are few"))
}

fn path<S: Copy + Debug>(reached: &[(u32, Option<S>)], mut place: u32) -> String {
    let mut steps = Vec::new();
    while let (before, Some(step)) = reached[place as usize] {
        steps.push(format!("{step:?}, "));
        place = before;
    }
    steps.into_iter().rev().collect()
}
