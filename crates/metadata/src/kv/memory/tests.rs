//! The memory store against a `BTreeMap`: random operations, and the shapes that the shard makes.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

#[derive(Clone, Debug)]
enum Operation {
    Put(Vec<u8>, Vec<u8>),
    Insert(Vec<u8>, Vec<u8>),
    Delete(Vec<u8>),
    Get(Vec<u8>),
    Scan(Vec<u8>),
    DeleteRange(Vec<u8>, usize),
}

fn key() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => prop::collection::vec(0u8..4, 0..6),
        2 => (0u16..3000).prop_map(|number| number.to_be_bytes().to_vec()),
        4 => (0u8..3, 0u16..400).prop_map(|(directory, number)| format!("d000000{directory}file-{number:05}").into()),
        // Long keys make inner pages of few children, and so a deep tree.
        6 => (0u16..400).prop_map(|number| [&[9; 230][..], &number.to_be_bytes(), &[8; 20][..]].concat()),
        1 => (0u8..4, 0usize..255).prop_map(|(byte, length)| vec![byte; length]),
    ]
}

fn value() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        6 => prop::collection::vec(any::<u8>(), 0..40),
        1 => (any::<u8>(), 0usize..4100).prop_map(|(byte, length)| vec![byte; length]),
    ]
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        8 => (key(), value()).prop_map(|(key, value)| Operation::Put(key, value)),
        2 => (key(), value()).prop_map(|(key, value)| Operation::Insert(key, value)),
        4 => key().prop_map(Operation::Delete),
        1 => key().prop_map(Operation::Get),
        1 => key().prop_map(Operation::Scan),
        1 => (key(), 0usize..200).prop_map(|(key, count)| Operation::DeleteRange(key, count)),
    ]
}

fn range(store: &MemoryStore, from: &[u8], count: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut found = Vec::new();
    store.scan(from, |key, value| {
        if found.len() == count {
            return ControlFlow::Break(());
        }
        found.push((key.to_vec(), value.to_vec()));
        ControlFlow::Continue(())
    });
    found
}

fn check(store: &MemoryStore, model: &BTreeMap<Vec<u8>, Vec<u8>>) {
    let all: Vec<_> = model.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
    assert_eq!(range(store, &[], usize::MAX), all);
    assert_eq!(store.keys(), all.len() as u64);
    let footprint: usize = store.pages.iter().map(Page::footprint).sum();
    let unused = store.free.len() * Page::default().footprint();
    assert_eq!(store.bytes(), (footprint - unused) as u64);
}

fn apply(store: &mut MemoryStore, model: &mut BTreeMap<Vec<u8>, Vec<u8>>, operation: Operation) {
    match operation {
        Operation::Put(key, value) => {
            assert_eq!(store.put(&key, &value), model.insert(key, value).is_some());
        }
        Operation::Insert(key, value) => {
            assert_eq!(store.insert(&key, &value), !model.contains_key(&key));
            model.entry(key).or_insert(value);
        }
        Operation::Delete(key) => assert_eq!(store.delete(&key), model.remove(&key).is_some()),
        Operation::Get(key) => assert_eq!(store.get(&key, <[u8]>::to_vec).as_ref(), model.get(&key)),
        Operation::Scan(from) => {
            let expected: Vec<_> = model.range(from.clone()..).take(5).map(|(k, v)| (k.clone(), v.clone())).collect();
            assert_eq!(range(store, &from, 5), expected);
        }
        Operation::DeleteRange(from, count) => {
            for (key, _) in range(store, &from, count) {
                assert!(store.delete(&key));
                model.remove(&key);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]
    #[test]
    fn behaves_as_a_btree_map(operations in prop::collection::vec(operation(), 1..900)) {
        let (mut store, mut model) = (MemoryStore::new(), BTreeMap::new());
        for operation in operations {
            apply(&mut store, &mut model, operation);
        }
        check(&store, &model);
        for key in model.keys().cloned().collect::<Vec<_>>() {
            prop_assert!(store.delete(&key));
        }
        prop_assert_eq!(store.keys(), 0);
    }
}

#[test]
fn many_keys_in_several_orders_come_and_go() {
    let count = 200_000_u64;
    for order in [|n: u64| n, |n: u64| 1_000_000_000 - n, |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15)] {
        let (mut store, mut model) = (MemoryStore::new(), BTreeMap::new());
        for number in 0..count {
            let key = order(number).to_be_bytes();
            store.put(&key, &number.to_le_bytes());
            model.insert(key.to_vec(), number.to_le_bytes().to_vec());
        }
        check(&store, &model);
        for number in (0..count).filter(|number| number % 7 != 0) {
            assert!(store.delete(&order(number).to_be_bytes()));
            model.remove(order(number).to_be_bytes().as_slice());
        }
        check(&store, &model);
        for number in (0..count).filter(|number| number % 7 == 0) {
            assert!(store.delete(&order(number).to_be_bytes()));
        }
        assert_eq!((store.keys(), store.inner_levels), (0, 0));
        assert!(store.bytes() < 10_000, "an empty store takes {} bytes", store.bytes());
    }
}

#[test]
fn ascending_keys_fill_their_pages() {
    let mut store = MemoryStore::new();
    for number in 0..100_000_u64 {
        store.put(&number.to_be_bytes(), &[7; 20]);
    }
    let per_key = store.bytes() / 100_000;
    assert!(per_key < 42, "{per_key} bytes for a record of 32 bytes and its slot");
}

#[test]
fn a_value_that_grows_keeps_its_key_findable() {
    for removed in [false, true] {
        let (mut store, mut model) = (MemoryStore::new(), BTreeMap::new());
        // The odd one out keeps the page's prefix short until it is removed.
        for key in [&b"a"[..], b"directory-one", b"directory-two"] {
            store.put(key, b"x");
            model.insert(key.to_vec(), b"x".to_vec());
        }
        if removed {
            store.delete(b"a");
            model.remove(&b"a"[..]);
        }
        for bytes in 0..900 {
            for key in [&b"directory-one"[..], b"directory-two"] {
                assert!(store.put(key, &vec![7; bytes]), "{bytes} bytes");
                model.insert(key.to_vec(), vec![7; bytes]);
            }
        }
        check(&store, &model);
    }
}
