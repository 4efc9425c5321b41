//! Events that nobody takes, and those that are held back for good reason.

use super::{assert_fine, bad, everywhere, execute, found, kind, moment, of};

const ROUTES: &str = "[destination.a]\ntype = \"file\"\npath = \"a.ndjson\"\n\
    [destination.b]\ntype = \"file\"\npath = \"b.ndjson\"\n\
    [[route]]\nname = \"one\"\nmatch = { event_type = \"One\" }\nto = \"a\"\n\
    [[route]]\nname = \"two\"\nmatch = { event_type = \"Two\" }\nto = \"b\"\n";

#[tokio::test]
async fn what_is_paused_is_told_of_and_not_taken_for_left() {
    for (here, url, table) in everywhere(ROUTES).await {
        let where_ = kind(&url);
        here.ok(&["migrate", "up"]);
        let look = || found(&here, &["--no-destinations", "--long-transaction", "10h"]);
        assert_fine(&look().1, "pauses");
        for id in ["1", "2", "3"] {
            here.ok(&["events", "write", "--id", id, "--type", "One", "{}"]);
        }
        let late = moment(&url, -1200);
        execute(&url, &format!("UPDATE {table} SET available_at = {late}")).await;
        let (status, findings) = look();
        assert!(status == 1 && bad(&findings, "relays").0.starts_with("3 event(s)"), "{where_}: {findings:#?}");

        here.ok(&["pause", "route", "one", "--reason", "maintenance"]);
        here.ok(&["pause", "destination", "gone", "--anyway"]);
        // A lease that ran out is not taken over meanwhile, either.
        let out = moment(&url, -600);
        execute(&url, &format!("UPDATE {table} SET locked_by = 'relay-9/17', locked_at = {out} WHERE event_id = '3'"))
            .await;
        let (_, findings) = look();
        assert_fine(&findings, "relays");
        assert_fine(&findings, "leases");
        assert!(of(&findings, "relays")[0].1.contains("3 event(s) are held back"), "{where_}: {findings:#?}");
        let pauses = of(&findings, "pauses");
        let [("note", one, fix), ("note", gone, _)] = pauses[..] else { panic!("{where_}: {findings:#?}") };
        assert!(one.contains("route one is paused since") && one.contains("(maintenance)"), "{one}");
        assert!(one.contains("3 pending event(s) are held back") && fix == "posthaste resume route one", "{one} {fix}");
        assert!(gone.contains("these settings have none of that name"), "{gone}");

        // What is not held is told of as ever.
        here.ok(&["events", "write", "--id", "4", "--type", "Two", "{}"]);
        execute(&url, &format!("UPDATE {table} SET available_at = {late} WHERE event_id = '4'")).await;
        let (status, findings) = look();
        assert!(status == 1 && bad(&findings, "relays").0.starts_with("1 event(s)"), "{where_}: {findings:#?}");
        here.ok(&["pause", "destination", "b"]);
        assert_fine(&look().1, "relays");
        for what in [["route", "one"], ["destination", "b"]] {
            here.ok(&["resume", what[0], what[1]]);
        }
        let (_, findings) = look();
        assert!(bad(&findings, "relays").0.starts_with("3 event(s)"), "{where_}: {findings:#?}");
        assert!(bad(&findings, "leases").0.contains("of relay-9"), "{where_}: {findings:#?}");
    }
}
