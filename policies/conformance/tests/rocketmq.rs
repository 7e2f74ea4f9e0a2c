//! RocketMQ's allocations exactly, natively; the host's tests ask the components the same.

use conformance::{Native, number, rocketmq, texts, vectors};
use fulcrum_guest::claiming::allocate::{Ring, hash};

#[test]
fn tables_are_the_same() {
    rocketmq::tables(&mut Native);
}

#[test]
fn rings_of_several_brokers_and_sizes_are_the_same() {
    rocketmq::rings(&mut Native);
}

#[test]
fn queues_of_the_ring_files_have_the_same_owners() {
    rocketmq::ring_owners(&mut Native);
}

#[test]
fn transitions_move_the_same_queues() {
    rocketmq::transitions(&mut Native);
}

#[test]
fn rolling_restarts_move_the_same_queues() {
    rocketmq::rolling_restarts(&mut Native);
}

#[test]
fn the_article_s_example_is_the_same() {
    rocketmq::article(&mut Native);
}

#[test]
fn machine_rooms_are_the_same() {
    rocketmq::machine_rooms(&mut Native);
}

#[test]
fn odd_inputs_are_the_same_where_they_can_occur() {
    rocketmq::odd_inputs(&mut Native);
}

#[test]
fn rings_have_the_same_points_and_keys() {
    for file in ["ring-3-ip-members-10-vnodes", "ring-4-members-10-vnodes"] {
        let vectors = vectors(&format!("rocketmq/{file}.json"));
        let ids = texts(&vectors["member_ids"]);
        let ring =
            Ring::new((0..).zip(ids.iter().map(String::as_str)), number(&vectors["virtual_nodes"]) as u32);
        let mut points = Vec::new();
        for point in vectors["virtual_node_points"].as_array().expect("points") {
            let expected = number(&point["hash"]) as u32;
            assert_eq!(hash(point["vnode_key"].as_str().expect("a text").as_bytes()), expected);
            let row = ids.iter().position(|id| point["owner"] == **id).expect("a member") as u32;
            points.push((expected, row));
        }
        points.sort_unstable();
        assert_eq!(ring.points(), points);
        for key in vectors["queue_keys"].as_array().expect("keys") {
            let text = key["queue_key"].as_str().expect("a text");
            assert_eq!(hash(text.as_bytes()) as usize, number(&key["hash"]));
            assert_eq!(key["owner"], *ids[ring.owner(text) as usize]);
        }
    }
}
