use super::*;
use weft_protocol::ShardRecord;

const NODE: NodeId = NodeId(1);
const SHARD: ShardId = ShardId(3);

fn fence(session: u64, objects: &[u64]) -> SessionFence {
    let object = |sequence: &u64| (InodeNumber::ROOT, ObjectId::new(NODE, *sequence));
    SessionFence { session: SessionId(session), shard: SHARD, objects: objects.iter().map(object).collect() }
}

fn certain(session: u64) -> DueFence {
    DueFence::Certain { node: NODE, session: SessionId(session), shard: SHARD }
}

/// A map in which `SHARD` has come to `NODE` with this epoch.
fn map(arrived: u32) -> ClusterMap {
    let other = ShardRecord::new(NodeId(0), MapEpoch(1));
    let mut shards = vec![other; usize::from(SHARD.0)];
    shards.push(ShardRecord { node: NODE, born: MapEpoch(1), arrived: MapEpoch(arrived) });
    ClusterMap { epoch: MapEpoch(arrived), shards, ..ClusterMap::default() }
}

#[test]
fn a_shard_waits_for_a_confirmation_no_longer_than_the_last_term() {
    let mut grants = TermGrants::default();
    assert!(grants.ask(NODE, &[], 1_000).0.granted);
    grants.fence(NODE, &fence(1, &[]), true, 2_000);
    let end_ms = 1_000 + SESSION_TERM_MS;
    assert_eq!((grants.next_due(), grants.take_due(end_ms - 1)), (Some(end_ms), vec![]));
    assert_eq!(grants.take_due(end_ms), [certain(1)]);
    assert_eq!((grants.next_due(), grants.take_due(end_ms)), (None, vec![]));
    // It has missed the fence, and serves nothing until it has settled it.
    assert_eq!(grants.overdue(NODE), [fence(1, &[])]);
    let (answer, confirmed) = grants.ask(NODE, &[], end_ms);
    assert_eq!((answer, confirmed), (ServingAnswer { granted: false, fences: vec![fence(1, &[])] }, vec![]));
    let (answer, confirmed) = grants.ask(NODE, &[fence(1, &[])], end_ms);
    assert_eq!((answer, confirmed), (ServingAnswer { granted: true, fences: vec![] }, vec![]), "nobody waits any more");
}

#[test]
fn a_storage_server_that_was_never_granted_a_term_serves_nothing() {
    let mut grants = TermGrants::default();
    grants.fence(NODE, &fence(1, &[]), true, 0);
    assert_eq!(grants.take_due(0), [certain(1)]);
}

#[test]
fn a_term_that_is_granted_with_a_fence_lets_the_shard_wait_for_the_confirmation() {
    let mut grants = TermGrants::default();
    grants.ask(NODE, &[], 0);
    grants.fence(NODE, &fence(1, &[5, 6]), true, 10);
    let (answer, _) = grants.ask(NODE, &[], 20);
    assert_eq!(answer, ServingAnswer { granted: true, fences: vec![fence(1, &[5, 6])] });
    assert_eq!(grants.take_due(SESSION_TERM_MS), []);
    assert_eq!(grants.confirm(NODE, &fence(1, &[5])), None, "an object is left");
    let key = (SessionId(1), SHARD);
    assert_eq!(grants.ask(NODE, &[fence(1, &[6])], 30), (ServingAnswer { granted: true, fences: vec![] }, vec![key]));
    assert_eq!(grants.next_due(), None);
}

#[test]
fn a_fence_is_sent_again_until_it_is_confirmed() {
    let mut grants = TermGrants::default();
    grants.ask(NODE, &[], 0);
    grants.fence(NODE, &fence(1, &[]), true, 0);
    assert_eq!(grants.take_due(FENCE_RETRY_MS), [], "it is being sent");
    grants.send_failed(NODE, (SessionId(1), SHARD), 100);
    let send = DueFence::Send { node: NODE, fence: fence(1, &[]) };
    assert_eq!((grants.next_due(), grants.take_due(100 + FENCE_RETRY_MS)), (Some(100 + FENCE_RETRY_MS), vec![send]));
    assert_eq!(grants.take_due(200 + FENCE_RETRY_MS), []);
    assert_eq!(grants.confirm(NODE, &fence(1, &[])), Some((SessionId(1), SHARD)));
    assert_eq!(grants.take_due(u64::MAX), []);
}

#[test]
fn a_fence_that_nobody_awaits_is_settled_before_the_next_term_or_forgotten_with_the_capabilities() {
    let mut grants = TermGrants::default();
    grants.fence(NODE, &fence(1, &[]), false, 0);
    assert_eq!((grants.next_due(), grants.overdue(NODE)), (None, vec![]));
    assert!(!grants.ask(NODE, &[], FENCE_MS - 1).0.granted);
    assert!(grants.ask(NODE, &[], FENCE_MS).0.granted);
}

#[test]
fn with_too_many_fences_no_term_is_granted_until_the_capabilities_have_expired() {
    let mut grants = TermGrants::default();
    (0..=FENCES_PER_NODE_MAX as u64).for_each(|session| grants.fence(NODE, &fence(session, &[]), false, 7));
    let (mut settled, mut asked) = (Vec::new(), 0);
    loop {
        let (answer, _) = grants.ask(NODE, &settled, 8);
        assert!(!answer.granted);
        assert!(answer.fences.len() <= FENCES_PER_ANSWER_MAX);
        asked += answer.fences.len();
        settled = answer.fences;
        if settled.is_empty() {
            break;
        }
    }
    assert_eq!(asked, FENCES_PER_NODE_MAX);
    assert!(!grants.ask(NODE, &[], 6 + FENCE_MS).0.granted && grants.ask(NODE, &[], 7 + FENCE_MS).0.granted);
}

#[test]
fn an_answer_lists_no_more_objects_than_a_message_holds() {
    let mut grants = TermGrants::default();
    let all: Vec<u64> = (0..FENCED_OBJECTS_MAX as u64 + 1).collect();
    grants.fence(NODE, &fence(1, &all), true, 0);
    let (answer, _) = grants.ask(NODE, &[], 1);
    assert!(!answer.granted && answer.fences[0].objects.len() == FENCED_OBJECTS_MAX);
    let (answer, confirmed) = grants.ask(NODE, &answer.fences, 2);
    assert!(answer.granted && answer.fences[0].objects.len() == 1 && confirmed.is_empty());
}

#[test]
fn a_storage_server_counts_from_its_question_and_closes_gates_before_it_extends_the_term() {
    let mut terms = ServingTerms::default();
    let ask = |terms: &mut ServingTerms, now_ms| terms.ask(NODE, MapEpoch(1), now_ms);
    let (term, map) = (terms.term(SHARD, false), map(1));
    assert!(!term.holds(|| 0));
    assert_eq!((ask(&mut terms, 100), ask(&mut terms, 101)), (Some(vec![]), None));
    let refused = ServingAnswer { granted: false, fences: vec![fence(1, &[]), fence(2, &[])] };
    assert_eq!(terms.answered(NODE, &refused), [fence(1, &[]), fence(2, &[])]);
    assert!(!terms.settled(NODE, SessionId(1), SHARD), "the question is pending");
    assert!(terms.finish(NODE, Some(&refused), &map) && !term.holds(|| 101));
    // The second has pieces in flight; it is not begun twice.
    assert_eq!(ask(&mut terms, 200), Some(vec![fence(1, &[])]));
    let refused = ServingAnswer { granted: false, fences: vec![fence(2, &[])] };
    assert_eq!(terms.answered(NODE, &refused), []);
    assert!(!terms.finish(NODE, Some(&refused), &map));
    assert!(terms.settled(NODE, SessionId(2), SHARD));
    assert_eq!(ask(&mut terms, 300), Some(vec![fence(2, &[])]));
    assert!(!terms.finish(NODE, None, &map), "no answer: it is reported again");
    assert_eq!(ask(&mut terms, 400), Some(vec![fence(2, &[])]));
    let granted = ServingAnswer { granted: true, fences: vec![] };
    assert_eq!(terms.answered(NODE, &granted), []);
    assert!(!terms.finish(NODE, Some(&granted), &map));
    let end_ms = 400 + SESSION_TERM_MS - SESSION_TERM_MARGIN_MS;
    assert!(term.holds(|| end_ms - 1) && !term.holds(|| end_ms));
    assert!(!term.wants_renewal(|| end_ms - SESSION_TERM_MS / 2) && term.wants_renewal(|| end_ms - 100));
}

#[test]
fn a_term_is_none_for_a_shard_that_has_come_since_the_question() {
    let granted = ServingAnswer { granted: true, fences: vec![] };
    let mut terms = ServingTerms::default();
    let term = terms.term(SHARD, false);
    for (asked, holds) in [(4, false), (5, true)] {
        terms.ask(NODE, MapEpoch(asked), 0);
        terms.answered(NODE, &granted);
        terms.finish(NODE, Some(&granted), &map(5));
        assert_eq!(term.holds(|| 1), holds, "asked with the map of epoch {asked}");
    }
}

#[test]
fn a_shard_that_leaves_is_served_for_a_term_at_its_first_node() {
    let mut terms = ServingTerms::default();
    let term = terms.term(SHARD, true);
    assert!(term.holds(|| u64::MAX - 1) && !term.wants_renewal(|| 0));
    terms.begin_move(SHARD, 1_000);
    let end_ms = 1_000 + SESSION_TERM_MS - SESSION_TERM_MARGIN_MS;
    assert!(term.holds(|| end_ms - 1) && !term.holds(|| end_ms));
    terms.is_own(SHARD);
    assert!(term.holds(|| end_ms), "it has stayed");
}

#[test]
fn fences_move_with_their_shard_and_no_term_is_granted_meanwhile() {
    let (mut source, mut target) = (TermGrants::default(), TermGrants::default());
    source.fence(NODE, &fence(1, &[]), true, 0);
    assert_eq!(source.take_due(0), [certain(1)], "it is cut off, and the shard went on");
    let moved = source.begin_move(SHARD);
    assert_eq!(moved, [(NODE, fence(1, &[]))]);
    assert!(!source.ask(NodeId(2), &[], 1).0.granted);
    target.arrived([NODE, NodeId(2)].into_iter(), moved, 100);
    assert_eq!(target.ask(NODE, &[], 101).0, ServingAnswer { granted: false, fences: vec![fence(1, &[])] });
    assert!(target.ask(NODE, &[fence(1, &[])], 102).0.granted);
    // The other one may have a term that the source has granted.
    target.fence(NodeId(2), &fence(3, &[]), true, 200);
    assert_eq!((target.next_due(), target.take_due(99 + SESSION_TERM_MS)), (Some(100 + SESSION_TERM_MS), vec![]));
    source.left(SHARD);
    assert!(source.overdue(NODE).is_empty() && source.ask(NodeId(2), &[], 3).0.granted);
}
