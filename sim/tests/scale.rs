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
            assert_eq!(others, 7, "what rank 0 does for all does not grow: {what}");
            // A session ends at its own node's shard too, which has nothing of it.
            let at_own_nodes = ranks - 1;
            assert_eq!(counts.calls, publications + questions + goodbyes + others + at_own_nodes, "{what}");
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
fn readers_of_strides_are_told_of_all_patterns_and_others_are_not() {
    let answers = |is_strided| {
        let runs = runs_of(Setting { is_strided, ..SETTING }, &[16, 64]);
        runs.iter().map(|(_, counts)| counts.between[&Kind::Question].longest as u64).collect::<Vec<_>>()
    };
    let (segmented, strided) = (answers(false), answers(true));
    assert!(segmented[1] < segmented[0] + 64, "{segmented:?}");
    assert!(strided[1] > 3 * strided[0], "{strided:?}");
}
