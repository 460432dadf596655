//! What one split file costs: counts of the simulated program are what they must be, whatever the number of ranks.

use weft_sim::scale::{Counts, Kind, Setting, run};

const SETTING: Setting =
    Setting { nodes: 8, ranks_per_node: 1, records: 32, bytes: 4096, is_strided: false, reads_next: false };

fn runs_of(setting: Setting, nodes: &[u16]) -> Vec<(u64, Counts)> {
    nodes.iter().map(|nodes| (u64::from(*nodes), run(&Setting { nodes: *nodes, ..setting }))).collect()
}

#[test]
fn a_rank_costs_its_shard_a_fixed_number_of_calls() {
    for is_strided in [false, true] {
        for (ranks, counts) in runs_of(Setting { is_strided, ..SETTING }, &[4, 16, 64]) {
            let (publications, questions, goodbyes) =
                (counts.times(Kind::Publication), counts.times(Kind::Question), counts.times(Kind::Goodbye));
            let what = format!("{ranks} ranks, strided: {is_strided}: {counts:?}");
            assert_eq!((publications, goodbyes), (ranks, ranks), "one publication and one goodbye each: {what}");
            assert_eq!(questions, ranks, "one question each: {what}");
            let others = counts.times(Kind::OtherCall);
            assert_eq!(others, 3, "rank 0 looks at the directory, and opens for all twice: {what}");
            // A session ends at its own node's shard too, which has nothing of it.
            let at_own_nodes = ranks - 1;
            assert_eq!(counts.calls, publications + questions + goodbyes + others + at_own_nodes, "{what}");
        }
    }
}

#[test]
fn ranks_of_a_node_publish_by_one_call() {
    for is_strided in [false, true] {
        for ranks_per_node in [2, 4, 8] {
            let counts = run(&Setting { ranks_per_node, is_strided, ..SETTING });
            let what = format!("{ranks_per_node} ranks per node, strided: {is_strided}: {counts:?}");
            assert_eq!(counts.times(Kind::Publication), u64::from(SETTING.nodes), "{what}");
            assert_eq!(counts.times(Kind::OtherCall), 3, "{what}");
        }
    }
}

#[test]
fn sixteen_times_the_records_cost_no_more() {
    for is_strided in [false, true] {
        let few = run(&Setting { is_strided, ..SETTING });
        let many = run(&Setting { is_strided, records: 512, ..SETTING });
        assert_eq!((few.calls, few.requests), (many.calls, many.requests));
        assert!(many.index_bytes <= few.index_bytes + 64, "{few:?} {many:?}");
        assert_eq!((few.data_bytes, many.data_bytes), (0, 0), "each rank's bytes are at its own node");
    }
}

#[test]
fn bytes_of_others_are_counted() {
    let counts = run(&Setting { reads_next: true, ..SETTING });
    assert_eq!(counts.data_bytes, 8 * 32 * 4096);
    // Two ranks of a node: one in two reads what is at its own.
    let counts = run(&Setting { reads_next: true, nodes: 4, ranks_per_node: 2, ..SETTING });
    assert_eq!(counts.data_bytes, 4 * 32 * 4096);
}

#[test]
fn readers_of_their_own_bytes_are_told_of_their_own_parts() {
    let answers = |setting: Setting| {
        let runs = runs_of(setting, &[16, 64]);
        runs.iter().map(|(_, counts)| counts.between[&Kind::Question].longest as u64).collect::<Vec<_>>()
    };
    for is_strided in [false, true] {
        let told = answers(Setting { is_strided, ..SETTING });
        assert!(told[1] < told[0] + 64, "strided: {is_strided}: {told:?}");
    }
    // Who reads what others have written in strides is told of all.
    let told = answers(Setting { is_strided: true, reads_next: true, ..SETTING });
    assert!(told[1] > 3 * told[0], "{told:?}");
}

/// What a reader of its own records is told, and what that costs in messages, does not grow with the ranks.
#[test]
fn a_reader_of_strides_costs_the_same_however_many_ranks_there_are() {
    for (ranks, counts) in runs_of(Setting { is_strided: true, ..SETTING }, &[16, 64, 256]) {
        let questions = counts.between[&Kind::Question];
        assert_eq!(questions.messages, 2 * (ranks - 1));
        assert!(questions.bytes < 200 * ranks, "{ranks} ranks: {questions:?}");
    }
}
