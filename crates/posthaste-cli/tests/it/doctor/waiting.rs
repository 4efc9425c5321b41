//! Events that nobody takes, and those that are held back for good reason.

use super::{assert_fine, bad, everywhere, execute, found, kind, moment, of};

/// What a database has of more than are looked at one by one is not said to be all.
#[tokio::test]
async fn of_very_many_it_is_said_that_there_are_at_least_so_many() {
    for (here, url, table) in everywhere(ROUTES).await {
        let where_ = kind(&url);
        here.ok(&["migrate", "up"]);
        here.ok(&["pause", "route", "one"]);
        let digits = (0..10).map(|n| format!("SELECT {n} AS n")).collect::<Vec<_>>().join(" UNION ALL ");
        let id = if where_ == "mysql" { "CAST(n AS CHAR)" } else { "CAST(n AS text)" };
        let late = moment(&url, -1200);
        execute(
            &url,
            &format!(
                "INSERT INTO {table} (event_id, event_type, payload, available_at) SELECT {id}, 'One', '{{}}', {late} \
                 FROM (SELECT a.n + 10 * b.n + 100 * c.n + 1000 * d.n AS n \
                 FROM ({digits}) AS a, ({digits}) AS b, ({digits}) AS c, ({digits}) AS d) AS numbers WHERE n < 9999"
            ),
        )
        .await;
        let look = || found(&here, &["--no-destinations", "--long-transaction", "10h"]).1;
        let findings = look();
        let pause = of(&findings, "pauses")[0].1;
        assert!(pause.contains(": 9999 pending event(s) are held back"), "{where_}: {pause}");
        assert!(of(&findings, "leases")[0].1 == "no lease has run out", "{where_}: {findings:#?}");

        // The last that is looked at, and one behind it.
        execute(
            &url,
            &format!(
                "INSERT INTO {table} (event_id, event_type, payload, available_at) \
                 VALUES ('a', 'Two', '{{}}', {late}), ('b', 'Two', '{{}}', {late})"
            ),
        )
        .await;
        let findings = look();
        let pause = of(&findings, "pauses")[0].1;
        assert!(pause.contains(": at least 9999 pending event(s) are held back"), "{where_}: {pause}");
        let (what, _) = bad(&findings, "relays");
        assert!(what.starts_with("at least 1 event(s) are due"), "{where_}: {what}");
        assert!(what.contains("; at least 9999 event(s) are held back"), "{where_}: {what}");
        assert!(of(&findings, "leases")[0].1.ends_with("among the first 10000 that are pending"), "{findings:#?}");
        // The same goes for statistics.
        let stats = here.json(&["stats", "--output", "json"]);
        assert_eq!((&stats["new"], &stats["counted_all"]), (&10_001.into(), &false.into()), "{where_}: {stats}");
        let told = here.ok(&["stats"]);
        assert!(told.contains("a: at least 9999 new") && told.contains("b: at least 1 new"), "{where_}: {told}");
    }
}

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
