use super::*;

const NODE: NodeId = NodeId(1);
const SHARD: ShardId = ShardId(3);

fn fence(session: u64, objects: &[u64]) -> SessionFence {
    let object = |sequence: &u64| (InodeNumber::ROOT, ObjectId::new(NODE, *sequence));
    SessionFence { session: SessionId(session), shard: SHARD, objects: objects.iter().map(object).collect() }
}

fn certain(session: u64) -> DueFence {
    DueFence::Certain { node: NODE, session: SessionId(session), shard: SHARD }
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
    let term = terms.term(NODE);
    assert!(!term.holds(|| 0));
    assert_eq!((terms.ask(NODE, 100), terms.ask(NODE, 101)), (Some(vec![]), None));
    let refused = ServingAnswer { granted: false, fences: vec![fence(1, &[]), fence(2, &[])] };
    assert_eq!(terms.answered(NODE, &refused), [fence(1, &[]), fence(2, &[])]);
    assert!(!terms.settled(NODE, SessionId(1), SHARD), "the question is pending");
    assert!(terms.finish(NODE, Some(&refused)) && !term.holds(|| 101));
    // The second has pieces in flight; it is not begun twice.
    assert_eq!(terms.ask(NODE, 200), Some(vec![fence(1, &[])]));
    let refused = ServingAnswer { granted: false, fences: vec![fence(2, &[])] };
    assert_eq!(terms.answered(NODE, &refused), []);
    assert!(!terms.finish(NODE, Some(&refused)));
    assert!(terms.settled(NODE, SessionId(2), SHARD));
    assert_eq!(terms.ask(NODE, 300), Some(vec![fence(2, &[])]));
    assert!(!terms.finish(NODE, None), "no answer: it is reported again");
    assert_eq!(terms.ask(NODE, 400), Some(vec![fence(2, &[])]));
    let granted = ServingAnswer { granted: true, fences: vec![] };
    assert_eq!(terms.answered(NODE, &granted), []);
    assert!(!terms.finish(NODE, Some(&granted)));
    let end_ms = 400 + SESSION_TERM_MS - SESSION_TERM_MARGIN_MS;
    assert!(term.holds(|| end_ms - 1) && !term.holds(|| end_ms));
    assert!(!term.wants_renewal(|| end_ms - SESSION_TERM_MS / 2) && term.wants_renewal(|| end_ms - 100));
}
