use super::{html, text};
use crate::check::check;
use crate::check::planted::{Planted, RECEIVED, answer_lost, message};
use crate::history::{Message, What};

const VALID: &str = r#"posthaste-torture 0.1.0, sqlite, seed 42, 10 seconds

  written               5  4 acknowledged, 1 failed, 1 unknown
  received              5  2 refused
  repeated              1  each explained: 1 lost lease, 0 unanswered messages
  dead                  2  1 malformed row put in by hand
  pending               0

  fault         times  effects
  kill-relay        1        1
  disk-full         -        -  left out: needs root

    verdict         found  of what
  ✓ atomicity           0  business row, event and what the producer was told do not agree
  ✓ lost                0  written, but neither received nor DEAD
  ✓ false done          0  DONE, but never received, or only afterwards
  ✓ phantom             0  received, but never written
  ✓ corrupt             0  received otherwise than written
  ✓ wrongly dead        0  DEAD against the plan, at the wrong failure, or without a reason
  ✓ fence               0  changed without the lease, taken over early, or changed after DONE or DEAD
  ✓ order               0  first received after a later one of its key
  ✓ duplicates          1  received again, 1 explained
  ✓ stuck               0  still pending when the patience was over
  ✓ fallen              0  processes that ended by themselves, in disorder, or not at all

VALID: every promise was kept.
"#;

const INVALID: &str = r#"posthaste-torture 0.1.0, sqlite, seed 42, 10 seconds

  written               5  4 acknowledged, 1 failed, 1 unknown
  received              5  2 refused
  repeated              1  each explained: 1 lost lease, 0 unanswered messages
  dead                  2  1 malformed row put in by hand
  pending               0

  fault          times  effects
  kill-relay         1        1
  broker-down        0        0  never happened
  disk-full          -        -  left out: needs root

    verdict         found  of what
  ✓ atomicity           0  business row, event and what the producer was told do not agree
  ✓ lost                0  written, but neither received nor DEAD
  ✓ false done          0  DONE, but never received, or only afterwards
  ✓ phantom             0  received, but never written
  ✗ corrupt             1  received otherwise than written
  ✓ wrongly dead        0  DEAD against the plan, at the wrong failure, or without a reason
  ✓ fence               0  changed without the lease, taken over early, or changed after DONE or DEAD
  ✓ order               0  first received after a later one of its key
  ✓ duplicates          1  received again, 1 explained
  ✓ stuck               0  still pending when the patience was over
  ✓ fallen              0  processes that ended by themselves, in disorder, or not at all

corrupt: a2: key "a" came as "<c>"
      +1.100 s  producer-1    commit acknowledged
      +3.100 s  sink          received order.placed <c>/2 hash 0000000000002638
      +3.101 s  relay-2       settled done under r2/2
      +3.101 s  database      row went from NEW under r2/2 to DONE under no lease
     +12.000 s  runner        business row order.placed a/2 hash 0000000000002638
     +12.000 s  runner        row DONE after 0 failures

? broker-down never happened
INVALID: a promise was broken.
"#;

fn valid() -> Planted {
    Planted::valid()
}

fn invalid() -> Planted {
    let mut planted = valid();
    planted.replace("a2", RECEIVED, What::Received(Message { key: "<c>".to_owned(), ..message("a2") }));
    planted.run().faults.push("broker-down".to_owned());
    planted
}

#[test]
fn a_valid_run_as_text() {
    assert_eq!(text(&check(&valid().entries), false), VALID);
}

#[test]
fn an_invalid_run_as_text() {
    assert_eq!(text(&check(&invalid().entries), false), INVALID);
}

#[test]
fn repeats_are_told_with_what_may_explain_them() {
    let mut planted = valid();
    planted.forget("a1", RECEIVED);
    let none = text(&check(&planted.entries), false);
    assert!(none.contains("  repeated              0  1 lost lease, 0 unanswered messages\n"), "{none}");
    let mut planted = valid();
    planted.add(9000, "sink", What::Received(message("a2")));
    planted.add(9000, "sink", What::Received(message("a2")));
    planted.add(9000, "relay-2", answer_lost(&["a2"]));
    let one = text(&check(&planted.entries), false);
    assert!(one.contains("  repeated              3  1 not explained: 1 lost lease, 1 unanswered message\n"), "{one}");
    assert!(one.contains("  ✗ duplicates          3  received again, 2 explained\n"), "{one}");
    assert!(one.contains("answer lost for 1 message\n"), "{one}");
}

#[test]
fn a_lease_is_told_with_its_age() {
    let mut planted = valid();
    planted.run().lease_ms = 1000;
    let text = text(&check(&planted.entries), false);
    assert!(text.contains("fence: a1: its lease was taken over after 900 ms of 1000\n"), "{text}");
    assert!(text.contains("row went from NEW under r1/1 for 900 ms to NEW under r2/1\n"), "{text}");
}

#[test]
fn long_stories_are_cut_in_the_middle() {
    let mut planted = invalid();
    for _ in 0..20 {
        planted.add(9000, "sink", What::Refused { id: "a2".to_owned() });
    }
    let text = text(&check(&planted.entries), false);
    assert!(text.contains("             …  10 lines left out\n"), "{text}");
    assert_eq!(text.matches("  refused\n").count(), 10, "{text}");
}

#[test]
fn colours_are_for_terminals_only() {
    let report = check(&valid().entries);
    assert!(!text(&report, false).contains('\u{1b}'));
    let coloured = text(&report, true);
    assert!(coloured.contains('\u{1b}'));
    assert_eq!(console::strip_ansi_codes(&coloured), text(&report, false));
}

#[test]
fn the_html_needs_nothing_else() {
    let html = html(&check(&invalid().entries));
    for foreign in ["<script", "http", "<link", "src=", "@import", "url("] {
        assert!(!html.contains(foreign), "{foreign}");
    }
}

#[test]
fn the_html_tells_the_story_of_an_example_and_escapes_it() {
    let html = html(&check(&invalid().entries));
    assert!(html.contains("<code>a2</code> key &quot;a&quot; came as &quot;&lt;c&gt;&quot;</summary>"));
    assert!(html.contains("received order.placed &lt;c&gt;/2"));
    assert!(!html.contains("<c>"));
}

#[test]
fn an_empty_history_has_a_report_too() {
    let report = check(&[]);
    assert!(text(&report, false).ends_with("UNKNOWN: nothing was proved wrong, but not everything was proved.\n"));
    assert!(!html(&report).contains("NaN"));
}
