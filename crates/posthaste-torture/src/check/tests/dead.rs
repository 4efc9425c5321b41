use super::*;

fn dead(id: &str, attempts: u32, error: Option<&str>) -> What {
    let (id, status, error) = (id.to_owned(), "dead".to_owned(), error.map(str::to_owned));
    What::Row { id, status, attempts, error }
}

fn wrong(id: &str, why: &str, attempts: u32, error: Option<&str>) {
    breaks(&[Rule::WronglyDead], id, why, |planted| planted.replace(id, ROW, dead(id, attempts, error)));
}

#[test]
fn too_early_or_too_late() {
    wrong("p1", "its row is DEAD at failure 1, not 2", 1, Some("refused"));
    wrong("p1", "its row is DEAD at failure 3, not 2", 3, Some("refused"));
    wrong("p1", "its row is DEAD at failure 1, not 2; its row is DEAD without a reason", 1, None);
}

#[test]
fn without_a_reason() {
    wrong("p1", "its row is DEAD without a reason", 2, None);
    wrong("p1", "its row is DEAD without a reason", 2, Some(""));
    wrong("m1", "its row is DEAD without a reason", 0, None);
}

#[test]
fn a_malformed_row_is_not_tried() {
    for attempts in [0, 1, 2] {
        is_valid(|planted| planted.replace("m1", ROW, dead("m1", attempts, Some("no headers"))));
    }
}

#[test]
fn the_attempts_may_be_unknown() {
    is_valid(|planted| {
        planted.run().attempts = 0;
        planted.replace("p1", ROW, dead("p1", 7, Some("refused")));
    });
}
