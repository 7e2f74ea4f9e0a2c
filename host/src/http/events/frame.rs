//! A delivery as JSON: the event stands in it byte by byte as it was published.

use fulcrum_coordinator::pulls::Delivery;

/// What a frame has beside its event and its names, at most.
const OVERHEAD_BYTES: usize = 256;

/// Appends `{"deliveryId","attempt","topic","partition","offset","event"}`, on one line.
pub(super) fn write(out: &mut Vec<u8>, delivery: &Delivery) {
    let text = |text: &str| serde_json::to_string(text).expect("a text is JSON");
    let Delivery { id, event, attempt, topic, partition, position } = delivery;
    let (id, topic) = (text(id), text(topic));
    let head = format!(
        "{{\"deliveryId\":{id},\"attempt\":{attempt},\"topic\":{topic},\"partition\":{partition},\"offset\":{position},\"event\":"
    );
    out.extend_from_slice(head.as_bytes());
    out.extend_from_slice(event);
    out.push(b'}');
}

/// Returns how many bytes so many frames may take.
pub(super) fn bytes(deliveries: &[Delivery]) -> usize {
    let frame = |delivery: &Delivery| {
        delivery.event.len() + delivery.id.len() + delivery.topic.len() + OVERHEAD_BYTES
    };
    deliveries.iter().map(frame).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_not_written_anew() {
        let delivery = Delivery {
            id: "1-0-7-ab".to_owned(),
            event: r#"{"id":"1","data":1.50,  "x":"ü"}"#.into(),
            attempt: 2,
            topic: "a\"b".into(),
            partition: 3,
            position: 7,
        };
        let mut out = Vec::new();
        write(&mut out, &delivery);
        assert_eq!(
            String::from_utf8(out.clone()).expect("text"),
            r#"{"deliveryId":"1-0-7-ab","attempt":2,"topic":"a\"b","partition":3,"offset":7,"event":{"id":"1","data":1.50,  "x":"ü"}}"#
        );
        assert!(out.len() <= bytes(&[delivery]));
    }
}
