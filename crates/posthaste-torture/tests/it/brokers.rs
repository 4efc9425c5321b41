//! Short runs whose destination is a real broker, started by `scripts/brokers` and read by a client that is not ours.

use crate::run::{is_caught, is_refused, is_valid};

/// Everything that befalls brokers, and some of what befalls everybody else at the same time.
const FAULTS: &str = "--faults broker-kill,broker-pause,broker-slow,broker-half-open,broker-cut,acknowledgements-lost,\
                      producer-kill,relay-kill,relay-stop,relay-end,malformed-rows,database-crash,connections-cut,\
                      commit-reply-lost";

/// A machine that does other things as well keeps up with this.
const PACE: &str = "--seconds 20 --rate 40";

/// Processes end between two steps, also between the acknowledgement and the settlement, and at times the broker does.
#[cfg(feature = "failpoints")]
const AT_POINTS: &str = "--faults producer-kill-point,relay-kill-point,broker-kill --seconds 10 --rate 40";

/// The order is read right and lost on the way to the broker. Few keys, and a broker that is slow, so that a batch has several events of
/// one.
const OUT_OF_ORDER: &str =
    "--ordered --sabotage publish-at-once --workload contended --faults broker-slow --seconds 5 --rate 40";

mod kafka {
    use super::*;

    #[tokio::test]
    async fn an_honest_build_is_valid() {
        is_valid(&format!("--database postgres --destination kafka --seed 1 {PACE} {FAULTS}")).await;
    }

    #[tokio::test]
    async fn an_honest_build_keeps_the_order() {
        is_valid(&format!("--ordered --database postgres --destination kafka --seed 15 {PACE} {FAULTS}")).await;
    }

    #[cfg(feature = "failpoints")]
    #[tokio::test]
    async fn an_honest_build_survives_kills_at_named_points() {
        is_valid(&format!("--database postgres --destination kafka --seed 20 {AT_POINTS}")).await;
    }

    #[cfg(feature = "failpoints")]
    #[tokio::test]
    async fn an_honest_build_killed_at_named_points_keeps_the_order() {
        is_valid(&format!("--ordered --database postgres --destination kafka --seed 21 {AT_POINTS}")).await;
    }

    #[tokio::test]
    async fn to_publish_a_batch_without_its_order_is_caught() {
        is_caught(&["order"], &format!("{OUT_OF_ORDER} --destination kafka --seed 17")).await;
    }

    #[tokio::test]
    async fn to_ignore_the_acknowledgement_is_caught() {
        let faults = "--faults broker-kill,broker-half-open --seconds 10 --seed 19 --rate 40";
        is_caught(&["false done"], &format!("--sabotage ignore-acknowledgement --destination kafka {faults}")).await;
    }
}

mod nats {
    use super::*;

    #[tokio::test]
    async fn an_honest_build_is_valid() {
        is_valid(&format!("--database postgres --destination nats --seed 2 {PACE} {FAULTS}")).await;
    }

    #[tokio::test]
    async fn without_faults_nothing_comes_twice() {
        is_valid("--database sqlite --destination nats --seconds 3 --seed 3 --rate 40 --no-faults").await;
    }

    #[tokio::test]
    async fn an_honest_build_keeps_the_order() {
        is_valid(&format!("--ordered --database postgres --destination nats --seed 13 {PACE} {FAULTS}")).await;
    }

    #[cfg(feature = "failpoints")]
    #[tokio::test]
    async fn an_honest_build_survives_kills_at_named_points() {
        is_valid(&format!("--database postgres --destination nats --seed 22 {AT_POINTS}")).await;
    }

    #[cfg(feature = "failpoints")]
    #[tokio::test]
    async fn an_honest_build_killed_at_named_points_keeps_the_order() {
        is_valid(&format!("--ordered --database postgres --destination nats --seed 23 {AT_POINTS}")).await;
    }

    #[tokio::test]
    async fn to_deliver_in_the_wrong_order_is_caught() {
        let pace = "--workload contended --faults broker-slow --seconds 5 --seed 14 --rate 40";
        is_caught(&["order"], &format!("--ordered --sabotage read-backwards --destination nats {pace}")).await;
    }

    #[tokio::test]
    async fn to_publish_a_batch_without_its_order_is_caught() {
        is_caught(&["order"], &format!("{OUT_OF_ORDER} --destination nats --seed 16")).await;
    }

    #[tokio::test]
    async fn to_mark_before_publishing_is_caught() {
        let faults = "--faults relay-kill,producer-kill,broker-kill --seconds 5 --seed 4 --rate 40";
        is_caught(&["false done"], &format!("--sabotage mark-before-publish --destination nats {faults}")).await;
    }

    #[tokio::test]
    async fn to_ignore_the_acknowledgement_is_caught() {
        let faults = "--faults broker-kill,broker-half-open --seconds 5 --seed 5 --rate 40";
        is_caught(&["false done"], &format!("--sabotage ignore-acknowledgement --destination nats {faults}")).await;
    }
}

mod rabbitmq {
    use super::*;

    #[tokio::test]
    async fn an_honest_build_is_valid() {
        is_valid(&format!("--database postgres --destination rabbitmq --seed 6 {PACE} {FAULTS}")).await;
    }

    #[cfg(feature = "failpoints")]
    #[tokio::test]
    async fn an_honest_build_survives_kills_at_named_points() {
        is_valid(&format!("--database postgres --destination rabbitmq --seed 24 {AT_POINTS}")).await;
    }

    #[tokio::test]
    async fn to_ignore_the_acknowledgement_is_caught() {
        let faults = "--faults broker-kill,broker-half-open --seconds 5 --seed 18 --rate 40";
        is_caught(&["false done"], &format!("--sabotage ignore-acknowledgement --destination rabbitmq {faults}")).await;
    }

    #[tokio::test]
    async fn a_mistake_that_cannot_be_made_there_is_refused() {
        is_refused(
            "this mistake is not made on the way to rabbitmq",
            &format!("{OUT_OF_ORDER} --destination rabbitmq"),
        )
        .await;
    }
}
