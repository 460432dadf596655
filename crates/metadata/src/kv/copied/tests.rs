//! Stores that change while they are copied, against a plain copy at the end.

use super::*;
use crate::kv::MemoryStore;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Action {
    Put(u16, usize),
    Insert(u16, usize),
    Delete(u16),
    /// A piece of so many bytes at most, which is added so many times.
    Piece(usize, usize),
    /// The copy begins anew.
    Begin,
}

fn action() -> impl Strategy<Value = Action> {
    let bytes = || prop_oneof![9 => 0usize..40, 1 => 0usize..4096];
    prop_oneof![
        6 => (0u16..300, bytes()).prop_map(|(key, bytes)| Action::Put(key, bytes)),
        2 => (0u16..300, bytes()).prop_map(|(key, bytes)| Action::Insert(key, bytes)),
        4 => (0u16..300).prop_map(Action::Delete),
        3 => (0usize..3000, 1usize..3).prop_map(|(bytes, times)| Action::Piece(bytes, times)),
        1 => Just(Action::Begin),
    ]
}

fn key(number: u16) -> Vec<u8> {
    // Of two lengths, the shorter one the beginning of the longer one.
    [b"key".to_vec(), (number / 2).to_be_bytes().to_vec(), vec![0; usize::from(number % 2)]].concat()
}

fn all(store: &impl KeyValue) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut found = Vec::new();
    store.scan(&[], |key, value| {
        found.push((key.to_vec(), value.to_vec()));
        ControlFlow::Continue(())
    });
    found
}

fn add_all(store: &mut CopiedStore<MemoryStore>, copy: &mut MemoryStore) {
    while let Some(piece) = store.next_piece(1000) {
        add_piece(copy, &piece).expect("a piece");
    }
}

proptest! {
    #[test]
    fn a_copy_of_a_store_that_changes_becomes_the_store(actions in prop::collection::vec(action(), 0..400)) {
        let mut store = CopiedStore::new(MemoryStore::new());
        let mut copy = MemoryStore::new();
        for (number, action) in actions.iter().enumerate() {
            let value = |bytes: &usize| vec![number as u8; *bytes];
            match action {
                Action::Put(of, bytes) => {
                    store.put(&key(*of), &value(bytes));
                }
                Action::Insert(of, bytes) => {
                    store.insert(&key(*of), &value(bytes));
                }
                Action::Delete(of) => {
                    store.delete(&key(*of));
                }
                Action::Piece(bytes_max, times) => {
                    if let Some(piece) = store.next_piece(*bytes_max) {
                        (0..*times).try_for_each(|_| add_piece(&mut copy, &piece)).expect("a piece");
                    }
                }
                Action::Begin => {
                    store.begin_copy();
                    copy = MemoryStore::new();
                }
            }
        }
        if !store.is_being_copied() {
            store.begin_copy();
        }
        add_all(&mut store, &mut copy);
        assert!(store.is_nearly_copied());
        assert_eq!(all(&copy), all(&store));
    }
}

#[test]
fn a_copy_that_changes_outrun_is_given_up() {
    let mut store = CopiedStore::new(MemoryStore::new());
    store.begin_copy();
    store.next_piece(1000);
    let mut recorded = 0;
    while store.is_being_copied() {
        store.put(&[0xff; 200], b"the same key again and again");
        store.put(format!("{recorded:0200}").as_bytes(), b"");
        recorded += 1;
    }
    let bytes = (recorded + 1) * (200 + RECORDED_KEY_BYTES);
    assert!((RECORDED_BYTES_MAX..RECORDED_BYTES_MAX + 1000).contains(&bytes), "{bytes} bytes");
    let mut copy = MemoryStore::new();
    store.begin_copy();
    add_all(&mut store, &mut copy);
    assert_eq!(all(&copy), all(&store));
}

#[test]
fn a_copy_that_changes_keep_up_with_is_nearly_complete_after_some_pieces() {
    let mut store = CopiedStore::new(MemoryStore::new());
    store.begin_copy();
    let change = |store: &mut CopiedStore<MemoryStore>| {
        for number in 0..NEARLY_BYTES {
            store.put(&number.to_be_bytes(), b"");
        }
    };
    let mut pieces = 0;
    change(&mut store);
    while !store.is_nearly_copied() {
        store.next_piece(usize::MAX);
        change(&mut store);
        pieces += 1;
    }
    assert_eq!(pieces, 1 + PIECES_OF_RECORDED_MAX);
}

#[test]
fn bytes_that_are_no_piece_are_refused() {
    let mut store = CopiedStore::new(MemoryStore::new());
    store.put(b"key", b"value");
    store.begin_copy();
    let piece = store.next_piece(1000).expect("the first");
    let added = |piece: &[u8]| add_piece(&mut MemoryStore::new(), piece);
    assert_eq!(added(&piece), Ok(()));
    assert_eq!(added(&piece[..piece.len() - 1]), Err(Error::Malformed));
    assert_eq!(added(&GONE.to_le_bytes()), Err(Error::Malformed), "no key");
    let mut long = Vec::new();
    push(&mut long, &[0; KEY_BYTES_MAX + 1], None);
    assert_eq!(added(&long), Err(Error::Malformed), "a key that is too long");
}
