//! Order: lanes, their owners and epochs, aggregates that are parked, and relays that do not agree.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::{assert_fine, at, bad, everywhere, execute, found, kind, moment, of};
use crate::place::{Place, until};

/// What no route fits is DEAD, and parks its aggregate.
const SETTINGS: &str = "[relay]\nordered = [\"Order\"]\n[destination.out]\ntype = \"file\"\npath = \"out.ndjson\"\n\
     [[route]]\nmatch = { event_type = \"Order*\" }\nto = \"out\"\n";

fn look(here: &Place) -> (i32, Vec<serde_json::Value>) {
    found(here, &["--no-destinations", "--long-transaction", "10h"])
}

#[tokio::test]
async fn what_is_not_prepared_and_who_does_not_agree_is_found() {
    for (here, url, table) in everywhere(SETTINGS).await {
        here.ok(&["migrate", "up"]);
        let (status, findings) = look(&here);
        let (what, fix) = bad(&findings, "order");
        assert!(status == 1 && what.contains("not prepared") && fix == "posthaste migrate up --lanes", "{what} {fix}");
        here.ok(&["migrate", "up", "--lanes"]);
        let (_, findings) = look(&here);
        for check in ["order", "lanes", "keys", "privileges", "relays"] {
            if check != "privileges" || kind(&url) != "sqlite" {
                assert_fine(&findings, check);
            }
        }
        assert!(of(&findings, "lanes")[0].1.contains("no relay is there"), "{findings:#?}");

        let mut relay = here.start(&["relay"]);
        relay.says("delivering");
        until("it has the lanes", || {
            let (_, findings) = look(&here);
            assert_fine(&findings, "order");
            matches!(of(&findings, "lanes")[..], [("ok", what, _)] if what.contains("has an owner, of 1 relay(s)"))
        });
        for (settings, theirs) in [("[relay]\nordered = true\n", "ordered = true"), ("", "ordered = false")] {
            let there = at(Place::with(settings), &url, &table);
            let (status, findings) = look(&there);
            let (what, fix) = bad(&findings, "order");
            assert!(status == 1 && what.contains(theirs) && what.contains("does not start"), "{}: {what}", kind(&url));
            assert!(fix.contains("relay.ordered = [\"Order\"]"), "{fix}");
        }
        relay.terminate();
        relay.end();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lanes_without_an_owner_and_those_that_change_hands_are_found() {
    for (here, url, table) in everywhere(SETTINGS).await {
        here.ok(&["migrate", "up", "--lanes"]);
        let (later, before) = (moment(&url, 3600), moment(&url, -90));
        // One that is there, and does not do what it should; and one that has died with the lanes.
        execute(
            &url,
            &format!(
                "INSERT INTO {table}_relay (owner, until, settings) VALUES ('relay-7', {later}, '[\"Order\"]'); \
                 UPDATE {table}_lane SET owner = 'relay-9', epoch = 3, until = {before}"
            ),
        )
        .await;
        let (status, findings) = look(&here);
        let (what, _) = bad(&findings, "lanes");
        assert!(status == 1 && what.contains("lanes have no owner"), "{}: {what}", kind(&url));
        assert!(what.contains("the lease of relay-9 ran out 1m"), "{}: {what}", kind(&url));

        execute(&url, &format!("UPDATE {table}_lane SET owner = 'relay-7', epoch = 4, until = {later}")).await;
        assert_fine(&look(&here).1, "lanes");
        // Somebody leases them all the time.
        let (over, raise) = (Arc::new(AtomicBool::new(false)), format!("UPDATE {table}_lane SET epoch = epoch + 1"));
        let (until_then, to) = (Arc::clone(&over), url.clone());
        let leasing = tokio::spawn(async move {
            while !until_then.load(Ordering::Relaxed) {
                execute(&to, &raise).await;
                tokio::time::sleep(Duration::from_millis(300)).await;
            }
        });
        let (status, findings) = tokio::task::block_in_place(|| look(&here));
        over.store(true, Ordering::Relaxed);
        leasing.await.unwrap();
        let lanes = of(&findings, "lanes");
        let [("note", what, fix)] = lanes[..] else { panic!("{}: {findings:#?}", kind(&url)) };
        assert!(what.contains("changed hands") && fix.contains("relay.lane_lease"), "{what} {fix}");
        assert_eq!(status, 0, "{findings:#?}");
    }
}

#[tokio::test]
async fn parked_aggregates_are_told_of_and_those_behind_them_are_not_taken_for_left() {
    for (here, url, table) in everywhere(SETTINGS).await {
        let where_ = kind(&url);
        here.ok(&["migrate", "up", "--lanes"]);
        let write = |id: &str, event_type: &str, of: &str| {
            let event = ["events", "write", "--id", id, "--type", event_type, "--aggregate-type", "Order"];
            here.ok(&[&event[..], &["--aggregate-id", of, "{}"]].concat());
        };
        for (id, event_type, of) in
            [("e1", "OrderPlaced", "42"), ("e2", "Odd", "42"), ("e3", "OrderShipped", "42"), ("e4", "OrderPlaced", "7")]
        {
            write(id, event_type, of);
        }
        here.ok(&["relay", "--once"]);
        let late = moment(&url, -1200);
        let age = |id: &str| format!("UPDATE {table} SET available_at = {late} WHERE event_id = '{id}'");
        execute(&url, &age("e3")).await;
        let (status, findings) = look(&here);
        let (what, fix) = bad(&findings, "keys");
        assert!(status == 1 && what.contains("Order/42") && what.contains("event e2 is DEAD"), "{where_}: {what}");
        assert!(what.starts_with("1 aggregate(s)") && fix.contains("keys skip"), "{where_}: {what} {fix}");
        assert_fine(&findings, "relays");
        assert!(of(&findings, "relays")[0].1.contains("1 event(s) are held back"), "{where_}: {findings:#?}");

        // Of another aggregate the first one is left, and those behind it wait for it.
        for id in ["f1", "f2", "f3"] {
            write(id, "OrderPlaced", "9");
            execute(&url, &age(id)).await;
        }
        let (_, findings) = look(&here);
        assert!(bad(&findings, "relays").0.starts_with("1 event(s) are due"), "{where_}: {findings:#?}");

        // Whoever leases single events beside relays that own lanes is named.
        let (later, now) = (moment(&url, 3600), moment(&url, 0));
        execute(
            &url,
            &format!(
                "INSERT INTO {table}_relay (owner, until, settings) VALUES ('relay-7', {later}, '[\"Order\"]'); \
                 UPDATE {table}_lane SET owner = 'relay-7', epoch = 1, until = {later}; \
                 UPDATE {table} SET locked_by = 'relay-8/17', locked_at = {now} WHERE event_id = 'f1'"
            ),
        )
        .await;
        let (_, findings) = look(&here);
        let (what, _) = bad(&findings, "order");
        assert!(what.contains("relay-8 leases events one by one"), "{where_}: {what}");
    }
}
