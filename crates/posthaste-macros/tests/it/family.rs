//! Enums.

use posthaste::event::{Error, IntoEvent, Kind, Mistake};
use posthaste::{Event as Built, Failure, TypedEvent};
use posthaste_macros::Event;
use serde::{Deserialize, Serialize};

#[derive(Debug, PartialEq, Serialize, Deserialize, Event)]
#[event(aggregate = "Order", key = "id", tenant = "shop", topic = "orders")]
#[serde(rename_all = "kebab-case", rename_all_fields = "camelCase")]
enum OrderEvent {
    #[event(type = "OrderPlaced", version = 2, from = PlacedV1)]
    Placed { id: u64, shop: String, grand_total: u32 },
    #[event(type = "OrderCancelled", topic = "cancellations")]
    Cancelled(Cancellation),
    #[event(type = "OrdersArchived")]
    Archived,
    #[event(type = "OrderNoted", key = "0", tenant = "0")]
    Noted(u8),
    #[event(type = "OrderTagged")]
    Tagged {
        id: u64,
        shop: String,
        #[serde(flatten)]
        tags: std::collections::BTreeMap<String, String>,
    },
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Cancellation {
    id: u64,
    shop: char,
    reasons: Vec<Reason>,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum Reason {
    Late { days: u8 },
    Broken,
}

#[derive(Serialize, Deserialize, Event)]
#[event(type = "OrderPlaced", aggregate = "Order")]
struct PlacedV1 {
    id: u64,
}

impl From<PlacedV1> for OrderEvent {
    fn from(old: PlacedV1) -> Self {
        Self::Placed { id: old.id, shop: "first".into(), grand_total: 0 }
    }
}

fn all() -> Vec<(OrderEvent, &'static str, &'static str)> {
    let placed = OrderEvent::Placed { id: 1, shop: "books".into(), grand_total: 7 };
    let late = Cancellation { id: 2, shop: 'b', reasons: vec![Reason::Broken, Reason::Late { days: 3 }] };
    let tags = [("gift".to_owned(), "yes".to_owned())].into();
    vec![
        (placed, "OrderPlaced", r#"{"id":1,"shop":"books","grandTotal":7}"#),
        (
            OrderEvent::Cancelled(late),
            "OrderCancelled",
            r#"{"id":2,"shop":"b","reasons":["Broken",{"Late":{"days":3}}]}"#,
        ),
        (OrderEvent::Archived, "OrdersArchived", "{}"),
        (OrderEvent::Noted(9), "OrderNoted", "9"),
        (
            OrderEvent::Tagged { id: 4, shop: "toys".into(), tags },
            "OrderTagged",
            r#"{"id":4,"shop":"toys","gift":"yes"}"#,
        ),
    ]
}

#[test]
fn a_variant_is_an_event_of_its_own() {
    for (value, event_type, json) in all() {
        let event = (&value).into_event().unwrap();
        assert_eq!((event.event_type(), event.payload().as_json()), (event_type, Some(json)));
        assert_eq!(event.aggregate_type(), "Order");
        assert_eq!(event.typed::<OrderEvent>().unwrap(), value);
    }
}

#[test]
fn a_variant_has_what_the_family_says_unless_it_says_otherwise() {
    let events: Vec<Built> = all().into_iter().map(|(value, ..)| value.into_event().unwrap()).collect();
    let said = |event: &Built| {
        let text = |text: Option<&str>| text.unwrap_or("-").to_owned();
        [text(event.aggregate_id()), text(event.tenant_id()), text(event.topic())].join(" ")
    };
    let said: Vec<String> = events.iter().map(said).collect();
    assert_eq!(said, ["1 books orders", "2 b cancellations", "- - orders", "9 9 orders", "4 toys orders"]);
    assert_eq!(OrderEvent::KINDS[0], Kind::new("OrderPlaced", 2));
    assert_eq!(OrderEvent::KINDS[1], Kind::new("OrderCancelled", 1));
}

#[test]
fn one_member_is_read_as_a_struct() {
    let event = OrderEvent::Placed { id: 1, shop: "books".into(), grand_total: 7 }.into_event().unwrap();
    #[derive(Deserialize)]
    struct Placed {
        id: u64,
    }
    assert_eq!(event.decode::<Placed>().unwrap().id, 1);
}

#[test]
fn an_older_version_of_a_member_becomes_the_family() {
    let old = PlacedV1 { id: 5 }.into_event().unwrap();
    assert_eq!(old.typed::<OrderEvent>().unwrap(), PlacedV1 { id: 5 }.into());
}

fn reason(event: Result<Built, Error>) -> String {
    Failure::from(event.unwrap().typed::<OrderEvent>().unwrap_err()).text()
}

#[test]
fn the_reason_names_the_field_without_the_variant() {
    let json = r#"{"id":2,"shop":"b","reasons":["Broken",{"Late":{"days":-3}}]}"#;
    assert_eq!(
        reason(Built::of_json("OrderCancelled", json)),
        "OrderCancelled version 1 does not decode: reasons[1].Late.days: invalid value: integer `-3`, expected u8 at line 1 column 57; \
         mend the reader or the payload, then redrive the event"
    );
    let json = r#"{"id":1,"shop":2,"grandTotal":7}"#;
    assert_eq!(
        reason(Built::builder("OrderPlaced").version(2).json_text(json).build()),
        "OrderPlaced version 2 does not decode: shop: invalid type: integer `2`, expected a string at line 1 column 16; \
         mend the reader or the payload, then redrive the event"
    );
    assert_eq!(
        reason(Built::builder("OrdersArchived").bytes(*b"{} and more").build()),
        "OrdersArchived version 1 does not decode: the payload is bytes, which are not JSON: trailing characters at line 1 column 4; \
         read them with payload().as_bytes(), or write JSON, then redrive the event"
    );
    assert_eq!(
        reason(Built::of_json("OrderLost", "{}")),
        "OrderLost version 1 does not decode: this event type is not accepted, only OrderCancelled, OrderNoted, \
         OrderPlaced, OrderTagged and OrdersArchived; listen for it with a listener of its own"
    );
}

#[test]
fn what_a_unit_variant_carries_is_not_looked_at() {
    let event = Built::of_json("OrdersArchived", r#"{"by":"somebody"}"#).unwrap();
    assert_eq!(event.typed::<OrderEvent>().unwrap(), OrderEvent::Archived);
}

/// Serialised by hand, in a form that says which variant it is.
#[derive(Deserialize, Event)]
enum Tagged {
    #[event(type = "A")]
    A {},
}

impl Serialize for Tagged {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str("a")
    }
}

#[test]
fn a_form_that_is_not_an_enum_is_refused_when_it_is_written() {
    let error = Tagged::A {}.into_event().unwrap_err();
    assert!(matches!(error.mistake, Mistake::NotSerialisable(_)), "{error}");
}
